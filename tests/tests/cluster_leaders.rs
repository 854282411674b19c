//! Leader election with two controllers, each with its process of the plugin: only the leader's plugin writes between the calls,
//! and the next leader continues the update.
//!
//! All processes share a host name here, like Pods with `hostNetwork`. A plugin distinguishes its own controller from another one
//! by the Lease holder that it saw at its first call.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::{AT_25, AT_50, AT_100, IDLE, IMAGE, PAUSES};
use e2e_tests::{
    Canary, Cluster, PLUGIN_NAME, Passes, Proxy, RecordedRequest, Release, SHORT_ELECTION, Setup,
    eventually, split,
};
use futures::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::sleep;

const LEASE: &str = "argo-rollouts-controller-lock";
/// With a request timeout of 1 s, the plugin writes in the first 5 s of an 8 s Lease.
const TIMEOUT: &str = "GLOO_PLUGIN_REQUEST_TIMEOUT";
/// Number of Rollouts without an update that a new leader finds.
const WITHOUT_UPDATE: u64 = 60;
/// How long a test waits for an unwanted repair.
const OBSERVED: Duration = Duration::from_secs(4);
/// The second name of a plugin that is registered with two names.
const ANOTHER_NAME: &str = "example/gloo";

/// Runs a test in a separate cluster without a controller.
async fn in_cluster(
    release: Release,
    test: impl AsyncFnOnce(&mut Cluster) -> Result<()>,
) -> Result<()> {
    let cluster = Cluster::start_without_controller(release).await?;
    cluster.run(test).await
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

/// Returns the setup of a controller with a short Lease.
fn short_election<'a>(variables: &'a [(&'a str, &'a Path)]) -> Setup<'a> {
    Setup {
        flags: &SHORT_ELECTION,
        variables,
        ..Setup::default()
    }
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
        canary.update_to_25().await?;

        // The plugin has made no write between the calls yet. It knows the Lease holder from its first call.
        let mut frozen = cluster.take_controller()?;
        frozen.freeze()?;
        proxy.take_requests();
        let second = Setup {
            variables: &[(TIMEOUT, Path::new("1"))],
            ..first
        };
        cluster.add_controller(release, second)?;
        let canary = canary.of_controller(cluster.controller()?);
        canary.idle().await?;

        // The plugin sees drift. Its controller is frozen and does not know yet that it lost the Lease.
        frozen.thaw_plugins()?;
        let mut requests = Vec::new();
        eventually("the plugin reads the Lease", async || {
            canary.revert_table(&owners).await?;
            requests.extend(proxy.take_requests());
            let has_read = requests
                .iter()
                .any(|it| (it.verb, &*it.resource) == ("get", "leases"));
            ensure!(has_read, "{requests:?}");
            Ok(())
        })
        .await?;
        canary.splits(AT_25).await?;
        canary.abort().await?;
        canary.aborted().await?;
        canary.restores(&owners).await?;

        // The controller may reconcile with its old state before it notices the lost Lease and exits.
        frozen.thaw()?;
        frozen.exits().await?;
        requests.extend(proxy.take_requests());
        let is_write = |it: &RecordedRequest| it.is_write() && it.resource == "routetables";
        requests.retain(is_write);
        ensure!(requests.is_empty(), "it wrote: {requests:?}");
        canary.restores(&owners).await
    })
    .await
}

/// For the plugin, a clock that is an hour ahead makes the Lease look an hour old.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_clock_jumps_writes_nothing() -> Result<()> {
    let release = Release::V1_9;
    in_cluster(release, async |cluster| {
        let timeout = [(TIMEOUT, Path::new("1"))];
        cluster
            .register_and_start(release, short_election(&timeout))
            .await?;
        let canary = Canary::deploy(cluster, "clock").await?;
        let owners = canary.table().await?;
        canary.update_to_25().await?;

        // The frozen controller does not renew the Lease, so that only the test writes it.
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
            sleep(OBSERVED).await;
            let now = canary.table().await?;
            ensure!(
                now.metadata.resource_version == version,
                "{case}: {}",
                split(&now)
            );
            // A changed table, so that the next revert is a change too.
            canary
                .edit_table(|table| table.data["spec"]["weight"] = json!(1))
                .await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_continues_the_update() -> Result<()> {
    let release = Release::V1_9;
    in_cluster(release, async |cluster| {
        let timeout = [(TIMEOUT, Path::new("1"))];
        let setup = short_election(&timeout);
        cluster.register_and_start(release, setup).await?;
        let canary = Canary::deploy(cluster, "taken-over").await?;
        let owners = canary.table().await?;
        let history = canary.watch_table().await?;
        canary.update_to_25().await?;

        cluster.add_controller(release, setup)?;
        cluster.take_controller()?.stop().await?;
        canary.promote().await?;
        let canary = canary.of_controller(cluster.controller()?);
        canary.paused_at(3).await?;
        canary.splits(AT_50).await?;
        canary.revert_table(&owners).await?;
        canary.splits(AT_50).await?;
        canary.promote().await?;
        canary.promote_at(&[(5, AT_100)]).await?;
        canary.healthy().await?;
        canary.restores(&owners).await?;
        let expected = [IDLE, AT_25, AT_50, IDLE, AT_50, AT_100, IDLE];
        history.equals(&expected).await
    })
    .await
}

/// Every request is delayed by 500 ms. The new leader must list and not get each object, which would take hours for thousands of
/// Rollouts.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_gets_no_single_object_for_rollouts_without_an_update() -> Result<()> {
    let release = Release::V1_9;
    in_cluster(release, async |cluster| {
        cluster
            .register_and_start(release, Setup::default())
            .await?;
        let names: Vec<String> = (0..WITHOUT_UPDATE)
            .map(|number| format!("rest-{number}"))
            .collect();
        let shared = &*cluster;
        try_join_all(names.iter().map(|name| Canary::deploy(shared, name))).await?;
        cluster.take_controller()?.stop().await?;

        let proxy = Proxy::start(cluster).await?;
        proxy.set_delay(Duration::from_millis(500));
        let next = Setup {
            variables: &[("KUBECONFIG", proxy.kubeconfig())],
            ..Setup::default()
        };
        cluster.add_controller(release, next)?;
        let mut passes = Passes::of(cluster)?;
        eventually("each Rollout was reconciled", async || {
            passes.scrape().await?;
            let passes = passes.by_result();
            ensure!(passes.values().sum::<u64>() >= WITHOUT_UPDATE, "{passes:?}");
            Ok(())
        })
        .await?;
        let mut reads = proxy.take_requests();
        reads.retain(|it| it.verb == "get" && it.resource != "leases");
        ensure!(reads.is_empty(), "{reads:?}");
        Ok(())
    })
    .await
}

/// The controller runs a process for each name. The processes do not know of each other. Both have set weights of the Rollout
/// after its block gets the other name in the middle of the update.
#[tokio::test(flavor = "multi_thread")]
async fn processes_of_a_plugin_with_two_names_do_not_revert_each_other() -> Result<()> {
    let release = Release::V1_9;
    in_cluster(release, async |cluster| {
        let setup = Setup {
            plugins: &[(PLUGIN_NAME, &[]), (ANOTHER_NAME, &[])],
            variables: &[("GLOO_PLUGIN_NAME", Path::new(ANOTHER_NAME))],
            ..Setup::default()
        };
        cluster.register_and_start(release, setup).await?;
        let canary = Canary::deploy(cluster, "twice").await?;
        canary.healthy().await?;
        let owners = canary.table().await?;
        let history = canary.watch_table().await?;

        // Which of two blocks counts is not for the plugin to guess.
        let block = json!({ "routeTableSelector": { "name": "demo" } });
        change_blocks(&canary, json!({ ANOTHER_NAME: block })).await?;
        canary.change_image(IMAGE).await?;
        let message = canary.event("TrafficRoutingError").await?;
        for name in [PLUGIN_NAME, ANOTHER_NAME] {
            ensure!(message.contains(name), "{message}");
        }
        change_blocks(&canary, json!({ PLUGIN_NAME: null })).await?;
        canary.paused_at(1).await?;
        canary.splits(AT_25).await?;
        change_blocks(&canary, json!({ PLUGIN_NAME: block, ANOTHER_NAME: null })).await?;
        canary.idle().await?;

        let processes = cluster.controller()?.plugins()?;
        ensure!(processes.len() == 2, "{processes:?}");
        canary.revert_table(&owners).await?;
        canary.promote_at(&PAUSES).await?;
        canary.healthy().await?;
        canary.restores(&owners).await?;
        let expected = [IDLE, AT_25, IDLE, AT_25, AT_50, AT_100, IDLE];
        eventually("the watch has delivered the last revision", async || {
            let mut seen = history.splits();
            // Each change is written once, or by both processes.
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

/// Merges blocks into the Rollout's blocks of the plugins.
async fn change_blocks(canary: &Canary, blocks: Value) -> Result<()> {
    let routing = json!({ "trafficRouting": { "plugins": blocks } });
    canary
        .change_spec(json!({ "strategy": { "canary": routing } }))
        .await
}
