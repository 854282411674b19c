//! Real rollouts under repeated faults: programs are killed, owners edit, tools revert, permissions are revoked and granted
//! again. The update must continue through its steps, and the table must have its owner's content in the end.
//!
//! Each test causes its fault for a few seconds. `cargo xtask soak --chaos` sets `CHAOS_MINUTES`, which runs all of them
//! repeatedly for that time. With `CHAOS_SCRAPES` it writes the plugin's metrics to that directory each second, for
//! `tests/go/prometheus/picture`.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing key of a JSON value fails the test"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};
use e2e_tests::updates::{AT_25, AT_50, IDLE, IMAGE, PAUSES, promote_an_update};
use e2e_tests::{Canary, Cluster, Passes, Release, Suite, apply, delete, parse, split};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, try_join};
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::sleep;

/// The binding of `deploy`, which grants the controller access to RouteTables.
const BINDING: &str = include_str!("../../deploy/kustomize/rights/cluster-role-binding.yaml");
/// The field manager of Argo CD.
const ARGO_CD: &str = "argocd-controller";

/// Deploys a canary and updates it to weight 25. Returns it, and its table before the update.
async fn deploy_at_25(cluster: &Cluster, namespace: &str) -> Result<(Canary, DynamicObject)> {
    let canary = Canary::deploy(cluster, namespace).await?;
    let original = canary.table().await?;
    canary.update_to_25().await?;
    Ok((canary, original))
}

/// Promotes from weight 25 to the end.
async fn promote_from_25(canary: &Canary) -> Result<()> {
    canary.promote().await?;
    canary.promote_at(&PAUSES[1..]).await?;
    canary.healthy().await
}

/// Calls `disturb` repeatedly, with `pause` between the calls, until `work` is done.
async fn disturb_during(
    work: impl Future<Output = Result<()>>,
    pause: Duration,
    mut disturb: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let is_done = AtomicBool::new(false);
    let work = async {
        let done = work.await;
        is_done.store(true, Ordering::Relaxed);
        done
    };
    let disturbance = async {
        while !is_done.load(Ordering::Relaxed) {
            disturb().await?;
            sleep(pause).await;
        }
        Ok(())
    };
    try_join(work, disturbance).await.map(|_| ())
}

async fn a_plugin_that_is_killed_repeatedly(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let canary = Canary::deploy(cluster, namespace).await?;
    let original = canary.table().await?;
    disturb_during(
        promote_an_update(&canary),
        Duration::from_secs(2),
        async || {
            // The controller may not have started the next process yet.
            if cluster.plugin()?.is_some() {
                cluster.kill_plugin().await?;
            }
            Ok(())
        },
    )
    .await?;
    canary.restores(&original).await
}

async fn an_api_server_that_restarts(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let canary = Canary::deploy(cluster, namespace).await?;
    let original = canary.table().await?;
    canary.change_image(IMAGE).await?;
    for pause in PAUSES {
        canary.promote_at(&[pause]).await?;
        cluster.stop_api_server();
        cluster.start_api_server().await?;
    }
    canary.promoted().await?;
    canary.restores(&original).await
}

async fn an_owner_who_edits_ten_times_a_second(cluster: &Cluster, namespace: &str) -> Result<()> {
    let canary = Canary::deploy(cluster, namespace).await?;
    let mut expected = canary.table().await?;
    let mut edits = 0;
    disturb_during(
        promote_an_update(&canary),
        Duration::from_millis(100),
        async || {
            edits += 1;
            let edit = json!({
                "metadata": { "annotations": { format!("edit-{edits}"): "kept" } },
                "spec": { "weight": edits },
            });
            canary.merge_into_table("owner", edit).await
        },
    )
    .await?;
    let annotations = expected.metadata.annotations.get_or_insert_default();
    annotations.extend((1..=edits).map(|edit| (format!("edit-{edit}"), "kept".to_owned())));
    expected.data["spec"]["weight"] = json!(edits);
    canary.restores(&expected).await
}

async fn a_tool_that_reverts_the_table(cluster: &Cluster, namespace: &str) -> Result<()> {
    let (canary, original) = deploy_at_25(cluster, namespace).await?;
    let git = json!({ "spec": { "http": original.data["spec"]["http"] } });
    let earlier = canary.events().await?;
    let mut reverts = 0;
    for _ in 0..20 {
        if split(&canary.table().await?) != IDLE {
            canary.merge_into_table(ARGO_CD, git.clone()).await?;
            reverts += 1;
        }
        sleep(Duration::from_secs(1)).await;
    }
    let message = canary.event_after(&earlier, "TrafficDriftFight").await?;
    ensure!(message.contains(ARGO_CD), "{message}");
    // After three repairs the plugin repairs once in 10 s.
    ensure!((3..=6).contains(&reverts), "{reverts} reverts");
    // Calls of the controller are not delayed.
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(AT_50).await?;
    canary.abort().await?;
    canary.restores(&original).await
}

async fn a_table_that_is_deleted_and_created_from_git(
    cluster: &Cluster,
    namespace: &str,
) -> Result<()> {
    let (canary, original) = deploy_at_25(cluster, namespace).await?;
    canary.idle().await?;
    canary.delete_table().await?;
    canary.create_table(&original).await?;
    canary.splits(AT_25).await?;
    promote_from_25(&canary).await?;
    canary.restores(&original).await
}

/// Removes the plugin's annotation, the labels of its routes, and then both.
async fn annotations_and_labels_that_are_removed(cluster: &Cluster, namespace: &str) -> Result<()> {
    let (canary, original) = deploy_at_25(cluster, namespace).await?;
    let without_annotation = |table: &mut DynamicObject| {
        table
            .metadata
            .annotations
            .clone_from(&original.metadata.annotations);
    };
    let without_labels = |table: &mut DynamicObject| {
        let routes = table.data["spec"]["http"].as_array_mut();
        for (route, owners) in routes.into_iter().flatten().zip(original_routes(&original)) {
            match owners.get("labels") {
                Some(labels) => route["labels"] = labels.clone(),
                None => drop(route.as_object_mut().map(|route| route.remove("labels"))),
            }
        }
    };
    canary.edit_table(without_annotation).await?;
    canary.edit_table(without_labels).await?;
    canary.splits(AT_25).await?;
    canary
        .edit_table(|table| {
            without_annotation(table);
            without_labels(table);
        })
        .await?;
    promote_from_25(&canary).await?;
    canary.restores(&original).await
}

fn original_routes(table: &DynamicObject) -> &[Value] {
    let routes = table.data["spec"]["http"].as_array();
    routes.map(Vec::as_slice).unwrap_or_default()
}

async fn permissions_that_are_revoked_and_granted_again(
    cluster: &mut Cluster,
    namespace: &str,
) -> Result<()> {
    let (canary, original) = deploy_at_25(cluster, namespace).await?;
    let binding = parse(BINDING)?;
    let earlier = canary.events().await?;
    delete(cluster.client(), &binding).await?;
    canary.promote().await?;
    let message = canary.event_after(&earlier, "TrafficRoutingError").await?;
    ensure!(message.contains("not allowed to"), "{message}");
    apply(cluster.client(), &binding).await?;
    canary.splits(AT_50).await?;
    canary.abort().await?;
    canary.restores(&original).await
}

async fn a_deleted_rollout_of_a_shared_table(cluster: &Cluster, namespace: &str) -> Result<()> {
    let (canary, _) = deploy_at_25(cluster, namespace).await?;
    let second = canary.deploy_second(cluster).await?;
    second
        .change_image("registry.example.com/ratings:2")
        .await?;
    second.paused_at(1).await?;
    canary
        .splits(&AT_25.replace("ratings: ratings", "ratings: ratings-canary=40 ratings=60"))
        .await?;
    second.delete_rollout().await?;
    canary.splits(AT_25).await
}

type Shared = for<'c> fn(&'c Cluster, &'c str) -> LocalBoxFuture<'c, Result<()>>;
type Exclusive = for<'c> fn(&'c mut Cluster, &'c str) -> LocalBoxFuture<'c, Result<()>>;

/// Tests that disturb one canary. They can share a cluster.
fn shared() -> Vec<(&'static str, Shared)> {
    macro_rules! list {
        ($($test:ident),+ $(,)?) => { vec![$((stringify!($test), |cluster, namespace| $test(cluster, namespace).boxed_local())),+] };
    }
    list![
        an_owner_who_edits_ten_times_a_second,
        a_tool_that_reverts_the_table,
        a_table_that_is_deleted_and_created_from_git,
        annotations_and_labels_that_are_removed,
        a_deleted_rollout_of_a_shared_table,
    ]
}

/// Tests that disturb a program, which affects all canaries of the cluster. A plugin that has just started repairs no drift
/// until the controller calls it, and a failing API server fails the steps of other canaries.
fn exclusive() -> Vec<(&'static str, Exclusive)> {
    macro_rules! list {
        ($($test:ident),+ $(,)?) => { vec![$((stringify!($test), |cluster, namespace| $test(cluster, namespace).boxed_local())),+] };
    }
    list![
        a_plugin_that_is_killed_repeatedly,
        an_api_server_that_restarts,
        permissions_that_are_revoked_and_granted_again,
    ]
}

/// The namespace of a test.
fn namespace(test: &str, round: u32) -> String {
    format!("{}-{round}", test.replace('_', "-"))
}

/// Runs all tests, one after the other, until the time is over.
#[expect(clippy::print_stdout, reason = "a person reads it")]
async fn soak(cluster: &mut Cluster, time: Duration) -> Result<()> {
    let start = Instant::now();
    let mut passes = Passes::of(cluster)?;
    if let Some(directory) = env::var_os("CHAOS_SCRAPES") {
        passes.save_scrapes_to(directory.into())?;
    }
    let passes = Arc::new(Mutex::new(passes));
    let scraping = tokio::spawn(scrape(Arc::clone(&passes)));
    let (mut first, mut peak) = (0, 0);
    for round in 0.. {
        let mut times = Vec::new();
        for (name, test) in shared() {
            let (started, namespace) = (Instant::now(), namespace(name, round));
            let outcome = test(cluster, &namespace).await;
            outcome.with_context(|| format!("{name}, round {round}"))?;
            times.push(format!("{name} {:.0?}", started.elapsed()));
            clear(cluster, &namespace).await?;
        }
        for (name, test) in exclusive() {
            let (started, namespace) = (Instant::now(), namespace(name, round));
            let outcome = test(cluster, &namespace).await;
            outcome.with_context(|| format!("{name}, round {round}"))?;
            times.push(format!("{name} {:.0?}", started.elapsed()));
            clear(cluster, &namespace).await?;
        }
        let resident = resident_kib(cluster)?;
        peak = peak.max(resident);
        if round == 0 {
            first = resident;
        }
        let minutes = start.elapsed().as_secs() / 60;
        println!(
            "{minutes} min, {} rounds: {resident} KiB resident, {first} after the first, {peak} at most; passes: {:?}",
            round + 1,
            passes.lock().await.by_result()
        );
        println!("  {}", times.join(", "));
        if start.elapsed() > time {
            break;
        }
    }
    scraping.abort();
    Ok(())
}

/// Deletes the objects of a test. No kube-controller-manager runs that would delete them with the namespace, and the controller
/// would reconcile them for the rest of the time.
async fn clear(cluster: &Cluster, namespace: &str) -> Result<()> {
    for (group, version, kind) in [
        ("argoproj.io", "v1alpha1", "Rollout"),
        ("apps", "v1", "ReplicaSet"),
        ("networking.gloo.solo.io", "v2", "RouteTable"),
    ] {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let objects: Api<DynamicObject> =
            Api::namespaced_with(cluster.client().clone(), namespace, &kind);
        let (params, all) = (DeleteParams::default(), ListParams::default());
        objects.delete_collection(&params, &all).await?;
    }
    Ok(())
}

/// Scrapes the plugin's metrics each second. Runs until it is aborted.
async fn scrape(passes: Arc<Mutex<Passes>>) -> Result<()> {
    loop {
        passes.lock().await.scrape().await?;
        sleep(Duration::from_secs(1)).await;
    }
}

/// Returns the resident memory of the plugin's process; 0 if no process runs.
fn resident_kib(cluster: &Cluster) -> Result<u64> {
    let Some(plugin) = cluster.plugin()? else {
        return Ok(0);
    };
    let status = fs::read_to_string(format!("/proc/{plugin}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.context("no VmRSS")?.parse().context("VmRSS")
}

fn main() -> Result<ExitCode> {
    let minutes = env::var("CHAOS_MINUTES").ok();
    let minutes: Option<u64> = minutes.map(|minutes| minutes.parse()).transpose()?;
    Suite::run(Some(Release::V1_9), |suite| {
        if let Some(minutes) = minutes {
            let time = Duration::from_secs(minutes * 60);
            let trial = suite.trial_alone("soak", async move |cluster| soak(cluster, time).await);
            return Ok(vec![trial]);
        }
        let shared = shared().into_iter().map(|(name, test)| {
            suite.trial(name, async move |cluster| {
                test(cluster, &namespace(name, 0)).await
            })
        });
        let exclusive = exclusive().into_iter().map(|(name, test)| {
            suite.trial_alone(name, async move |cluster| {
                test(cluster, &namespace(name, 0)).await
            })
        });
        Ok(shared.chain(exclusive).collect())
    })
}
