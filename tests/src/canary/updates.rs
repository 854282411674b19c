//! The steps of the Rollout that [`Canary::deploy`] creates, the expected splits, and tests of every release of the controller.

use anyhow::{Error, Result, bail, ensure};
use plugin_commands::{AbortDelay, ControllerRelease};
use serde_json::json;

use crate::{AbortEnd, Canary, Cluster, Release, apply, run};

/// The image of the first update.
pub const IMAGE: &str = "registry.example.com/demo:2";

/// The table without an update, in the format of [`split`](crate::split).
pub const IDLE: &str = "rare: demo-stable; shared: demo-stable=80 legacy=20; ratings: ratings";
/// The table at weight 25.
pub const AT_25: &str = "rare: demo-canary=25 demo-stable=75; shared: demo-canary=20 demo-stable=60 legacy=20; ratings: ratings";
/// The table at weight 50.
pub const AT_50: &str = "rare: demo-canary=50 demo-stable=50; shared: demo-canary=40 demo-stable=40 legacy=20; ratings: ratings";
/// The table at weight 100.
pub const AT_100: &str =
    "rare: demo-canary=100; shared: demo-canary=80 legacy=20; ratings: ratings";

/// The steps at which the Rollout pauses, with the split at each.
pub const PAUSES: [(usize, &str); 3] = [(1, AT_25), (3, AT_50), (5, AT_100)];

/// Promotes an update through all steps to the end.
///
/// # Errors
/// Returns `Err` if the table or the Rollout differs from the expected state.
pub async fn promote_an_update(canary: &Canary) -> Result<()> {
    canary.change_image(IMAGE).await?;
    canary.promote_at(&PAUSES).await?;
    canary.healthy().await
}

/// A new version passes all steps, and the owner's table is restored.
///
/// # Errors
/// Returns `Err` if the table or the Rollout differs from the expected state.
pub async fn a_promoted_canary_restores_the_table(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "promoted").await?;
    let original = canary.table().await?;
    let history = canary.watch_table().await?;

    promote_an_update(&canary).await?;
    canary.restores(&original).await?;
    // One revision per step: there is no intermediate state, and no reconcile writes without a change.
    history.equals(&[IDLE, AT_25, AT_50, AT_100, IDLE]).await
}

/// A new version is aborted at weight 50, and the owner's table is restored.
///
/// # Errors
/// Returns `Err` if the table or the Rollout differs from the expected state.
pub async fn an_aborted_canary_restores_the_table(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "aborted").await?;
    let original = canary.table().await?;

    canary.change_image(IMAGE).await?;
    canary.paused_at(1).await?;
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(AT_50).await?;
    canary.abort().await?;

    canary.restores(&original).await
}

/// Aborts two updates with `dynamicStableScale` at weight 100, with and without `abortScaleDownDelaySeconds`. Both end, or the first
/// one does not, as the plugin's advice for this release says.
///
/// # Errors
/// Returns `Err` if the advice is wrong.
pub async fn the_advice_about_aborts_is_right(cluster: &Cluster, release: Release) -> Result<()> {
    let abort = async |namespace: &str, delay: Option<u32>| {
        let canary = Canary::deploy(cluster, namespace).await?;
        let settings = json!({"dynamicStableScale": true, "abortScaleDownDelaySeconds": delay});
        canary
            .change_spec(json!({"strategy": {"canary": settings}}))
            .await?;
        canary.reconciled(canary.healthy()).await?;
        canary.change_image(IMAGE).await?;
        for step in [1, 3] {
            canary.reconciled(canary.paused_at(step)).await?;
            canary.promote().await?;
        }
        canary.reconciled(canary.paused_at(5)).await?;
        canary.abort().await?;
        anyhow::Ok((canary.abort_end().await?, canary))
    };
    let (with, without) = futures::try_join!(
        abort("abort-delay", Some(30)),
        abort("no-abort-delay", None)
    )?;
    let (end, canary) = with;
    let version: ControllerRelease = release.version().parse().map_err(Error::msg)?;
    match version.abort_delay() {
        AbortDelay::Needed => ensure!(end == AbortEnd::Ended, "{version}: {end:?}"),
        AbortDelay::Stalls => {
            let mended = format!(
                "{version} ends aborts: change ABORTS_STALL of the plugin, and the documents"
            );
            ensure!(end == AbortEnd::Stalled(50), "{end:?}: {mended}");
            the_commands_advise(cluster, version).await?;
            // The remedy.
            let removed = json!({"canary": {"abortScaleDownDelaySeconds": null}});
            canary.change_spec(json!({"strategy": removed})).await?;
            let end = canary.abort_end().await?;
            ensure!(end == AbortEnd::Ended, "{end:?}");
        }
        AbortDelay::Untested => bail!("{version} is tested"),
    }
    let (end, _) = without;
    ensure!(end == AbortEnd::Ended, "without the setting: {end:?}");
    Ok(())
}

/// Checks that the commands find the controller's release in its Deployment, and warn of the Rollout whose abort has stalled.
async fn the_commands_advise(cluster: &Cluster, version: ControllerRelease) -> Result<()> {
    cluster.create_controller_namespace().await?;
    let labels = json!({"app": "argo-rollouts"});
    let image = format!("quay.io/argoproj/argo-rollouts:v{version}");
    let containers = json!([{"name": "argo-rollouts", "image": image}]);
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "argo-rollouts", "namespace": "argo-rollouts"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    });
    apply(cluster.client(), &[serde_json::from_value(deployment)?]).await?;
    for command in ["doctor", "validate"] {
        let said = run(cluster.kubeconfig(), command).await?.stdout;
        let mut lines = said.lines();
        let advises = lines.any(|line| {
            line.contains("Rollout abort-delay/demo: ")
                && line.ends_with(": remove abortScaleDownDelaySeconds")
        });
        ensure!(advises, "{command}: {said}");
    }
    Ok(())
}
