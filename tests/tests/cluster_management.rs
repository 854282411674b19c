//! Real rollouts in workload clusters, whose RouteTables are in a management cluster. Each cluster has an API server. The plugin
//! has the account of `deploy/management-cluster` in the management cluster.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e_tests::updates::{AT_25, IDLE};
use e2e_tests::{
    ApiServerFault, Canary, Cluster, Proxy, Release, SHORT_ELECTION, Setup, management_account,
    run, split,
};
use gloo_types::{Resource as _, RouteTable};
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::json;
use tokio::time::sleep;

const RELEASE: Release = Release::V1_9;
const NAMESPACE: &str = "across";
const RECORD: &str = "rollouts-plugin-trafficrouter-glooplatform/changes";

/// Longer than the time after which the plugin would restore the table of an unknown Rollout: 20 s, which is 20 times
/// `GLOO_PLUGIN_GC_AFTER`.
const UNKNOWN_AFTER: Duration = Duration::from_secs(22);

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_split_the_tables_of_a_management_cluster() -> Result<()> {
    let (mut management, kubeconfig) = with_gloo().await?;
    let local = workload("east", &kubeconfig).await?;
    let flags = format!("--kubeconfig {} --cluster-name east", kubeconfig.display());
    local
        .run(async |local| update(local, &mut management, &flags).await)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_of_the_same_name_in_two_clusters_keep_each_others_tables() -> Result<()> {
    let (management, kubeconfig) = with_gloo().await?;
    let east = workload("east", &kubeconfig).await?;
    let west = workload("west", &kubeconfig).await?;
    let test = async |west: &mut Cluster| {
        same_name(&east, west, &management).await?;
        east.stop().await
    };
    west.run(test).await
}

/// The plugin still reaches the management cluster, but not the cluster of the Lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_loses_its_api_server_writes_nothing() -> Result<()> {
    let (management, kubeconfig) = with_gloo().await?;
    let local = Cluster::start_without_controller(RELEASE).await?;
    local
        .run(async |local| disconnect(local, &management, &kubeconfig).await)
        .await
}

async fn disconnect(local: &mut Cluster, management: &Cluster, kubeconfig: &Path) -> Result<()> {
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
    let canary = Canary::deploy_across(local, management, "disconnected", "demo").await?;
    let owners = canary.table().await?;
    canary.update_to_25().await?;
    canary.revert_table(&owners).await?;
    canary.splits(AT_25).await?;

    proxy.set_fault(Some(ApiServerFault::Frozen));
    canary.revert_table(&owners).await?;
    let version = canary.table().await?.metadata.resource_version;
    let mut controller = local.take_controller()?;
    controller.exits().await?;
    let table = canary.table().await?;
    ensure!(
        table.metadata.resource_version == version,
        "it wrote {}",
        split(&table)
    );

    let next = Setup {
        kubeconfig: None,
        program: None,
        ..setup
    };
    local.add_controller(RELEASE, next)?;
    let canary = canary.of_controller(local.controller()?);
    canary.splits(AT_25).await?;
    canary.abort().await?;
    canary.aborted().await?;
    canary.restores(&owners).await
}

/// Starts a management cluster, and returns it with the kubeconfig of the plugin's account there.
async fn with_gloo() -> Result<(Cluster, PathBuf)> {
    let management = Cluster::start_empty().await?;
    management.create_namespace("gloo-mesh").await?;
    management
        .install_with_gloo(management_account("east")?)
        .await?;
    let kubeconfig = management
        .service_account_kubeconfig("gloo-mesh", "argo-rollouts-workload-east")
        .await?;
    Ok((management, kubeconfig))
}

/// Starts a workload cluster whose plugin has this cluster name.
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

async fn same_name(east: &Cluster, west: &Cluster, management: &Cluster) -> Result<()> {
    let in_east = Canary::deploy_across(east, management, NAMESPACE, "east").await?;
    let in_west = Canary::deploy_across(west, management, NAMESPACE, "west").await?;
    // In a cluster without Rollouts the plugin restores no tables.
    Canary::deploy_across(west, management, "another", "another").await?;
    let original = in_west.table().await?;
    for canary in [&in_east, &in_west] {
        canary.update_to_25().await?;
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

async fn update(local: &Cluster, management: &mut Cluster, flags: &str) -> Result<()> {
    let canary = Canary::deploy_across(local, management, NAMESPACE, "demo").await?;
    let original = canary.table().await?;

    canary.update_to_25().await?;
    ensure!(record(&canary).await?.contains(r#""across/demo@east":"#));
    let local_table = split(&local_table(local).await?);
    ensure!(
        local_table == IDLE,
        "the table in the Rollout's cluster: {local_table}"
    );

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

    // While the management cluster is down, an aborted Rollout waits, and a Rollout without an update gets no error Events. The
    // abort ends when the management cluster is up again.
    let resting = Canary::deploy_across(local, management, "resting", "demo").await?;
    resting.idle().await?;
    let earlier = resting.events().await?;
    management.stop_api_server();
    let outage = async {
        canary.abort().await?;
        let message = canary.event("TrafficRoutingError").await?;
        ensure!(message.contains("RouteTable across/demo"), "{message}");
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

/// Returns how long the management cluster is down. `cargo xtask soak --chaos` sets ten minutes.
fn outage_seconds() -> Result<u32> {
    let seconds = env::var("CHAOS_OUTAGE_SECONDS").ok();
    Ok(seconds.map_or(Ok(5), |seconds| seconds.parse())?)
}

/// Returns the plugin's annotation of the RouteTable.
async fn record(canary: &Canary) -> Result<String> {
    let table = canary.table().await?;
    let annotations = table.metadata.annotations.unwrap_or_default();
    Ok(annotations.get(RECORD).cloned().unwrap_or_default())
}

/// Returns the RouteTable of the same name in the Rollout's cluster.
async fn local_table(local: &Cluster) -> Result<DynamicObject> {
    let kind = GroupVersionKind::gvk(RouteTable::GROUP, RouteTable::VERSION, RouteTable::KIND);
    let tables: Api<DynamicObject> = Api::namespaced_with(
        local.client().clone(),
        NAMESPACE,
        &ApiResource::from_gvk_with_plural(&kind, RouteTable::PLURAL),
    );
    Ok(tables.get("demo").await?)
}
