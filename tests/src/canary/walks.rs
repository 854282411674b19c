//! Tests that every release of the controller must pass with the manifests of [`Canary`], and the expected splits.

use anyhow::{Result, ensure};

use crate::{Canary, Cluster, eventually};

/// The table at rest, in the format of [`split`](crate::split).
pub const IDLE: &str = "alien: demo-stable; shared: demo-stable=80 legacy=20; ratings: ratings";
/// The table at weight 25.
pub const AT_25: &str = "alien: demo-canary=25 demo-stable=75; shared: demo-canary=20 demo-stable=60 legacy=20; ratings: ratings";
/// The table at weight 50.
pub const AT_50: &str = "alien: demo-canary=50 demo-stable=50; shared: demo-canary=40 demo-stable=40 legacy=20; ratings: ratings";
/// The table at weight 100.
pub const AT_100: &str =
    "alien: demo-canary=100; shared: demo-canary=80 legacy=20; ratings: ratings";

/// A new version passes all steps, and the owner's table is restored.
///
/// # Errors
/// Returns `Err` if the table or the Rollout differs from the expected state.
pub async fn a_promoted_canary_returns_the_table(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "promoted").await?;
    let original = canary.table().await?;
    let history = canary.watch_table().await?;

    canary.change_image("registry.example.com/demo:2").await?;
    for (step, expected) in [(1, AT_25), (3, AT_50), (5, AT_100)] {
        canary.paused_at(step).await?;
        canary.splits(expected).await?;
        canary.promote().await?;
    }
    canary.healthy().await?;

    canary.restores(&original).await?;
    eventually("the watch has seen the last revision", async || {
        // One revision per step: there is no intermediate state, and no reconcile writes without a change.
        let (seen, expected) = (history.splits(), [IDLE, AT_25, AT_50, AT_100, IDLE]);
        ensure!(seen == expected, "{seen:#?}");
        Ok(())
    })
    .await
}

/// A new version is aborted at weight 50, and the owner's table is restored.
///
/// # Errors
/// Returns `Err` if the table or the Rollout differs from the expected state.
pub async fn an_aborted_canary_returns_the_table(cluster: &Cluster) -> Result<()> {
    let canary = Canary::deploy(cluster, "aborted").await?;
    let original = canary.table().await?;

    canary.change_image("registry.example.com/demo:2").await?;
    canary.paused_at(1).await?;
    canary.promote().await?;
    canary.paused_at(3).await?;
    canary.splits(AT_50).await?;
    canary.abort().await?;

    canary.restores(&original).await
}
