//! Two controllers with leader election, each with a process of the plugin: only the leader's plugin writes between the calls, and
//! the next leader continues the update.
//!
//! All processes have the same host name here, as with `hostNetwork`. A plugin recognises its controller by the holder of the Lease
//! at its first call.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::walks::{AT_25, AT_50, AT_100, IDLE};
use e2e_tests::{
    Canary, Cluster, PLUGIN_NAME, Passes, Proxy, Release, SHORT_ELECTION, Setup, eventually, split,
};
use futures::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

const IMAGE: &str = "registry.example.com/demo:2";
const LEASE: &str = "argo-rollouts-controller-lock";
/// With a Lease of 8 s and this timeout of 1 s, the plugin may write for 5 s.
const TIMEOUT: &str = "GLOO_PLUGIN_REQUEST_TIMEOUT";
/// How many Rollouts a new leader finds at rest.
const AT_REST: u64 = 60;
/// Long enough for a repair.
const A_WHILE: Duration = Duration::from_secs(4);
/// The second name of the plugin.
const ANOTHER_NAME: &str = "example/gloo";

/// Runs a test in a separate cluster without a controller.
async fn in_cluster(
    release: Release,
    test: impl AsyncFnOnce(&mut Cluster) -> Result<()>,
) -> Result<()> {
    let mut cluster = Cluster::start_without_controller(release).await?;
    if let Err(error) = test(&mut cluster).await {
        return Err(cluster.with_logs(error));
    }
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_frozen_writes_nothing() -> Result<()> {
    frozen(Release::V1_9, None).await
}

/// With an instance id the Lease has another name.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_an_instance_id_that_was_frozen_writes_nothing() -> Result<()> {
    frozen(Release::V1_10, Some("blue")).await
}

async fn frozen(release: Release, instance: Option<&str>) -> Result<()> {
    let flag = instance.map(|instance| format!("--instance-id={instance}"));
    let flags: Vec<&str> = SHORT_ELECTION.into_iter().chain(flag.as_deref()).collect();
    in_cluster(release, async |cluster| {
        let proxy = Proxy::start(cluster).await?;
        let first = Setup {
            flags: &flags,
            variables: &[
                (TIMEOUT, Path::new("1")),
                ("KUBECONFIG", proxy.kubeconfig()),
            ],
            ..Setup::default()
        };
        cluster.register_and_start(release, first).await?;
        let canary = match instance {
            Some(instance) => Canary::deploy_of_instance(cluster, "frozen", instance).await?,
            None => Canary::deploy(cluster, "frozen").await?,
        };
        let owners = canary.table().await?;
        canary.change_image(IMAGE).await?;
        canary.paused_at(1).await?;
        canary.splits(AT_25).await?;

        // It has not written between the calls yet. It learned the holder of the Lease with its first call.
        let mut frozen = cluster.take_controller()?;
        frozen.freeze()?;
        proxy.take_seen();
        let second = Setup {
            variables: &[(TIMEOUT, Path::new("1"))],
            ..first
        };
        cluster.add_controller(release, second)?;
        let canary = canary.of_controller(cluster.controller()?);
        canary.idle().await?;

        // Its plugin observes drift, and its controller does not know yet that it lost the Lease.
        frozen.thaw_plugins()?;
        let mut seen = Vec::new();
        eventually("the plugin asks who the leader is", async || {
            canary.revert_table(&owners).await?;
            seen.extend(proxy.take_seen());
            let asked = seen
                .iter()
                .any(|it| (it.verb, &*it.resource) == ("get", "leases"));
            ensure!(asked, "{seen:?}");
            Ok(())
        })
        .await?;
        canary.splits(AT_25).await?;
        canary.abort().await?;
        canary.aborted().await?;
        canary.restores(&owners).await?;

        // The controller may make one more pass with its outdated cache before it notices and exits.
        frozen.thaw()?;
        frozen.gives_up().await?;
        seen.extend(proxy.take_seen());
        let writes = ["create", "update", "patch", "delete"];
        seen.retain(|it| writes.contains(&it.verb) && it.resource == "routetables");
        ensure!(seen.is_empty(), "it wrote: {seen:?}");
        canary.restores(&owners).await
    })
    .await
}

/// For the plugin, a clock that is an hour ahead makes the Lease look an hour old.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_clock_jumps_writes_nothing() -> Result<()> {
    let release = Release::V1_9;
    in_cluster(release, async |cluster| {
        let setup = Setup {
            flags: &SHORT_ELECTION,
            variables: &[(TIMEOUT, Path::new("1"))],
            ..Setup::default()
        };
        cluster.register_and_start(release, setup).await?;
        let canary = Canary::deploy(cluster, "clock").await?;
        let owners = canary.table().await?;
        canary.change_image(IMAGE).await?;
        canary.paused_at(1).await?;
        canary.splits(AT_25).await?;

        // A frozen controller does not renew the Lease, so the Lease has the values that the test writes.
        let controller = cluster.controller()?;
        controller.freeze()?;
        controller.thaw_plugins()?;
        let leases: Api<Lease> = Api::namespaced(cluster.client().clone(), "argo-rollouts");
        let lease = leases.get(LEASE).await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        let holder = holder.context("the Lease has no holder")?;
        let hour = SignedDuration::from_hours(1);
        for (holder, ahead, is_repaired) in [
            (&*holder, hour, false),
            (&*holder, -hour, false),
            ("next-leader_1", hour, false),
            ("next-leader_1", -hour, false),
            (&*holder, SignedDuration::ZERO, true),
        ] {
            let case = format!("{holder}, {ahead} ahead");
            let renewed = Timestamp::now() - ahead;
            let spec = json!({ "holderIdentity": holder, "renewTime": format!("{renewed:.6}") });
            let patch = Patch::Merge(json!({ "spec": spec }));
            leases.patch(LEASE, &PatchParams::default(), &patch).await?;
            canary.revert_table(&owners).await?;
            if is_repaired {
                canary.splits(AT_25).await.context(case)?;
                continue;
            }
            let version = canary.table().await?.metadata.resource_version;
            sleep(A_WHILE).await;
            let now = canary.table().await?;
            ensure!(
                now.metadata.resource_version == version,
                "{case}: {}",
                split(&now)
            );
            // An edit, so that the next revert is a change of the table.
            canary
                .edit_table(|table| table.data["spec"]["weight"] = json!(1))
                .await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_goes_on_with_what_the_last_began() -> Result<()> {
    let release = Release::V1_9;
    in_cluster(release, async |cluster| {
        let setup = Setup {
            flags: &SHORT_ELECTION,
            variables: &[(TIMEOUT, Path::new("1"))],
            ..Setup::default()
        };
        cluster.register_and_start(release, setup).await?;
        let canary = Canary::deploy(cluster, "taken-over").await?;
        let owners = canary.table().await?;
        let history = canary.watch_table().await?;
        canary.change_image(IMAGE).await?;
        canary.paused_at(1).await?;
        canary.splits(AT_25).await?;

        cluster.add_controller(release, setup)?;
        cluster.take_controller()?.stop().await?;
        canary.promote().await?;
        let canary = canary.of_controller(cluster.controller()?);
        canary.paused_at(3).await?;
        canary.splits(AT_50).await?;
        canary.revert_table(&owners).await?;
        canary.splits(AT_50).await?;
        canary.promote().await?;
        canary.paused_at(5).await?;
        canary.splits(AT_100).await?;
        canary.promote().await?;
        canary.healthy().await?;
        canary.restores(&owners).await?;
        let expected = [IDLE, AT_25, AT_50, IDLE, AT_50, AT_100, IDLE];
        eventually("the watch has seen the last revision", async || {
            let seen = history.splits();
            ensure!(seen == expected, "{seen:#?}");
            Ok(())
        })
        .await
    })
    .await
}

/// Every request takes half a second: without a cache, a new leader with thousands of Rollouts would be busy for hours.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_reads_no_object_by_itself_for_rollouts_at_rest() -> Result<()> {
    let release = Release::V1_9;
    in_cluster(release, async |cluster| {
        cluster
            .register_and_start(release, Setup::default())
            .await?;
        let names: Vec<String> = (0..AT_REST)
            .map(|number| format!("rest-{number}"))
            .collect();
        let shared = &*cluster;
        try_join_all(names.iter().map(|name| Canary::deploy(shared, name))).await?;
        cluster.take_controller()?.stop().await?;

        let proxy = Proxy::start(cluster).await?;
        proxy.delay(Duration::from_millis(500));
        let next = Setup {
            variables: &[("KUBECONFIG", proxy.kubeconfig())],
            ..Setup::default()
        };
        cluster.add_controller(release, next)?;
        let mut passes = Passes::of(cluster)?;
        eventually("each Rollout has had a pass", async || {
            passes.look().await?;
            let passes = passes.by_result();
            ensure!(passes.values().sum::<u64>() >= AT_REST, "{passes:?}");
            Ok(())
        })
        .await?;
        let mut seen = proxy.take_seen();
        seen.retain(|it| it.verb == "get" && it.resource != "leases");
        ensure!(seen.is_empty(), "{seen:?}");
        Ok(())
    })
    .await
}

/// One controller then runs two processes of the plugin, which do not know each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_with_two_names_writes_no_change_by_turns() -> Result<()> {
    let release = Release::V1_9;
    in_cluster(release, async |cluster| {
        let setup = Setup {
            plugins: &[(PLUGIN_NAME, &[]), (ANOTHER_NAME, &[])],
            variables: &[("GLOO_PLUGIN_NAME", Path::new(ANOTHER_NAME))],
            ..Setup::default()
        };
        cluster.register_and_start(release, setup).await?;
        let canary = Canary::deploy(cluster, "twice").await?;
        let block = json!({ "routeTableSelector": { "name": "demo" } });
        let plugins = json!({ PLUGIN_NAME: block, ANOTHER_NAME: block });
        let routing = json!({ "trafficRouting": { "plugins": plugins } });
        canary
            .change_spec(json!({ "strategy": { "canary": routing } }))
            .await?;
        canary.healthy().await?;
        let owners = canary.table().await?;
        let history = canary.watch_table().await?;

        canary.change_image(IMAGE).await?;
        canary.paused_at(1).await?;
        canary.splits(AT_25).await?;
        let processes = cluster.controller()?.plugins()?;
        ensure!(processes.len() == 2, "{processes:?}");
        canary.revert_table(&owners).await?;
        for (step, expected) in [(1, AT_25), (3, AT_50), (5, AT_100)] {
            canary.paused_at(step).await?;
            canary.splits(expected).await?;
            canary.promote().await?;
        }
        canary.healthy().await?;
        canary.restores(&owners).await?;
        let expected = [IDLE, AT_25, IDLE, AT_25, AT_50, AT_100, IDLE];
        eventually("the watch has seen the last revision", async || {
            let mut seen = history.splits();
            // Each process may write each change.
            ensure!(
                seen.windows(3).all(|it| it[0] != it[1] || it[1] != it[2]),
                "{seen:#?}"
            );
            seen.dedup();
            ensure!(seen == expected, "{seen:#?}");
            Ok(())
        })
        .await
    })
    .await
}
