//! Real rollouts in workload clusters whose RouteTables are in a management cluster. Each cluster has an API server, and the plugin
//! uses the account of `deploy` in the management cluster.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e_tests::walks::{AT_25, IDLE};
use e2e_tests::{
    Canary, Cluster, Proxy, Release, SHORT_ELECTION, Setup, Sickness, parse, run, split,
};
use gloo_types::{Resource as _, RouteTable};
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::json;
use tokio::time::sleep;

const RELEASE: Release = Release::V1_9;
const ACCOUNT: &str = include_str!("../../deploy/management-cluster/account.yaml");
const NAMESPACE: &str = "across";
const RECORD: &str = "rollouts-plugin-trafficrouter-glooplatform/changes";

/// A table of a deleted Rollout is restored after 1 s, and one of a Rollout that was never seen after 20 times as long.
const UNKNOWN_AFTER: Duration = Duration::from_secs(22);

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_split_the_tables_of_a_management_cluster() -> Result<()> {
    let (mut management, kubeconfig) = with_gloo().await?;
    let local = workload("east", &kubeconfig).await?;
    let flags = format!("--kubeconfig {} --cluster-name east", kubeconfig.display());
    if let Err(error) = walk(&local, &mut management, &flags).await {
        return Err(local.with_logs(error));
    }
    local.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn workload_clusters_with_equal_names_leave_each_others_marks() -> Result<()> {
    let (management, kubeconfig) = with_gloo().await?;
    let east = workload("east", &kubeconfig).await?;
    let west = workload("west", &kubeconfig).await?;
    if let Err(error) = equal_names(&east, &west, &management).await {
        return Err(west.with_logs(error));
    }
    east.stop().await?;
    west.stop().await
}

/// The plugin can still reach the management cluster, but not the Lease in its own cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_loses_its_api_server_writes_nothing() -> Result<()> {
    let (management, kubeconfig) = with_gloo().await?;
    let mut local = Cluster::start_without_controller(RELEASE).await?;
    if let Err(error) = cut_off(&mut local, &management, &kubeconfig).await {
        return Err(local.with_logs(error));
    }
    local.stop().await
}

async fn cut_off(local: &mut Cluster, management: &Cluster, kubeconfig: &Path) -> Result<()> {
    let proxy = Proxy::start(local).await?;
    let variables = [
        ("GLOO_PLUGIN_KUBECONFIG", kubeconfig),
        ("GLOO_PLUGIN_CLUSTER_NAME", Path::new("east")),
        ("GLOO_PLUGIN_REQUEST_TIMEOUT", Path::new("1")),
    ];
    let setup = Setup {
        flags: &SHORT_ELECTION,
        variables: &variables,
        kubeconfig: Some(proxy.kubeconfig()),
        ..Setup::default()
    };
    local.register_and_start(RELEASE, setup).await?;
    let canary = Canary::deploy_across(local, management, "cut", "demo").await?;
    let owners = canary.table().await?;
    canary.change_image("registry.example.com/demo:2").await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    canary.revert_table(&owners).await?;
    canary.splits(AT_25).await?;

    proxy.suffer(Some(Sickness::Frozen));
    canary.revert_table(&owners).await?;
    let version = canary.table().await?.metadata.resource_version;
    let mut controller = local.take_controller()?;
    controller.gives_up().await?;
    let table = canary.table().await?;
    ensure!(
        table.metadata.resource_version == version,
        "it wrote {}",
        split(&table)
    );

    let next = Setup {
        kubeconfig: None,
        ..setup
    };
    local.add_controller(RELEASE, next)?;
    let canary = canary.of_controller(local.controller()?);
    canary.splits(AT_25).await?;
    canary.abort().await?;
    canary.aborted().await?;
    canary.restores(&owners).await
}

/// A cluster with Gloo, and the kubeconfig of the plugin's account there.
async fn with_gloo() -> Result<(Cluster, PathBuf)> {
    let management = Cluster::start_empty().await?;
    management.create_namespace("gloo-mesh").await?;
    management.install_with_gloo(parse(ACCOUNT)?).await?;
    let kubeconfig = management
        .service_account_kubeconfig("gloo-mesh", "argo-rollouts-gloo-platform")
        .await?;
    Ok((management, kubeconfig))
}

/// A cluster with Rollouts, whose plugin has this `--cluster-name`.
async fn workload(name: &str, kubeconfig: &Path) -> Result<Cluster> {
    let variables = [
        ("GLOO_PLUGIN_KUBECONFIG", kubeconfig),
        ("GLOO_PLUGIN_CLUSTER_NAME", Path::new(name)),
        ("GLOO_PLUGIN_GC_AFTER", Path::new("1")),
    ];
    let setup = Setup {
        variables: &variables,
        ..Setup::default()
    };
    Cluster::start_with(RELEASE, setup).await
}

async fn equal_names(east: &Cluster, west: &Cluster, management: &Cluster) -> Result<()> {
    let in_east = Canary::deploy_across(east, management, NAMESPACE, "east").await?;
    let in_west = Canary::deploy_across(west, management, NAMESPACE, "west").await?;
    // In a cluster without any Rollout the plugin restores no table.
    Canary::deploy_across(west, management, "another", "another").await?;
    let original = in_west.table().await?;
    for canary in [&in_east, &in_west] {
        canary.change_image("registry.example.com/demo:2").await?;
        canary.paused_at(1).await?;
        canary.splits(AT_25).await?;
    }
    let version = in_east.table().await?.metadata.resource_version;
    in_west.delete_rollout().await?;
    in_west.restores(&original).await?;
    sleep(UNKNOWN_AFTER).await;
    ensure!(in_east.table().await?.metadata.resource_version == version);

    in_east.promote_fully().await?;
    in_east.healthy().await?;
    in_east.splits(IDLE).await
}

async fn walk(local: &Cluster, management: &mut Cluster, flags: &str) -> Result<()> {
    let canary = Canary::deploy_across(local, management, NAMESPACE, "demo").await?;
    let original = canary.table().await?;

    canary.change_image("registry.example.com/demo:2").await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    ensure!(record(&canary).await?.contains(r#""across/demo@east":"#));
    let beside = split(&table_beside(local).await?);
    ensure!(beside == IDLE, "the table beside the Rollout: {beside}");

    let user = local.controller_kubeconfig();
    let status = run(user, &format!("status {flags}")).await?;
    status.check(0, &["across/demo", "demo-canary 25"])?;
    let restore = run(user, &format!("restore across/demo --dry-run {flags}")).await?;
    restore.check(1, &["Rollout across/demo exists and selects RouteTable"])?;
    let doctor = run(user, &format!("doctor {flags}")).await?;
    doctor.check(
        0,
        &[
            "ok       management",
            "may do all that the plugin does in the management cluster",
        ],
    )?;

    // While the management cluster is down, the Rollout waits; the abort is carried out when the cluster is back. A Rollout at rest
    // is not affected.
    let resting = Canary::deploy_across(local, management, "resting", "demo").await?;
    resting.idle().await?;
    let earlier = resting.events().await?;
    management.stop_api_server();
    let outage = async {
        canary.abort().await?;
        let said = canary.event("TrafficRoutingError").await?;
        ensure!(said.contains("RouteTable across/demo"), "{said}");
        for limit in 1..=outage_seconds()? {
            resting
                .change_spec(json!({ "revisionHistoryLimit": limit }))
                .await?;
            sleep(Duration::from_secs(1)).await;
        }
        resting.healthy().await
    };
    let outage = outage.await;
    management.start_api_server().await?;
    outage?;
    canary.restores(&original).await?;
    canary.aborted().await?;
    let later = resting.events().await?;
    ensure!(later.len() == earlier.len(), "{later:#?}");

    canary.change_image("registry.example.com/demo:3").await?;
    canary.paused_at(1).await?;
    canary.splits(AT_25).await?;
    canary.promote_fully().await?;
    canary.healthy().await?;
    canary.restores(&original).await
}

/// How long the management cluster is down. `cargo xtask soak --chaos` sets ten minutes.
fn outage_seconds() -> Result<u32> {
    let seconds = env::var("CHAOS_OUTAGE_SECONDS").ok();
    Ok(seconds.map_or(Ok(5), |seconds| seconds.parse())?)
}

async fn record(canary: &Canary) -> Result<String> {
    let table = canary.table().await?;
    let annotations = table.metadata.annotations.unwrap_or_default();
    Ok(annotations.get(RECORD).cloned().unwrap_or_default())
}

/// The RouteTable of the same name in the Rollout's own cluster.
async fn table_beside(local: &Cluster) -> Result<DynamicObject> {
    let kind = GroupVersionKind::gvk(RouteTable::GROUP, RouteTable::VERSION, RouteTable::KIND);
    let tables: Api<DynamicObject> = Api::namespaced_with(
        local.client().clone(),
        NAMESPACE,
        &ApiResource::from_gvk_with_plural(&kind, RouteTable::PLURAL),
    );
    Ok(tables.get("demo").await?)
}
