//! The steps of the Rollout that [`Canary::deploy`] creates, the expected splits, and two tests that every release of the
//! controller must pass.

use anyhow::Result;

use crate::{Canary, Cluster};

/// The image of the first update.
pub const IMAGE: &str = "registry.example.com/demo:2";

/// The table without an update, in the format of [`split`](crate::split).
pub const IDLE: &str = "alien: demo-stable; shared: demo-stable=80 legacy=20; ratings: ratings";
/// The table at weight 25.
pub const AT_25: &str = "alien: demo-canary=25 demo-stable=75; shared: demo-canary=20 demo-stable=60 legacy=20; ratings: ratings";
/// The table at weight 50.
pub const AT_50: &str = "alien: demo-canary=50 demo-stable=50; shared: demo-canary=40 demo-stable=40 legacy=20; ratings: ratings";
/// The table at weight 100.
pub const AT_100: &str =
    "alien: demo-canary=100; shared: demo-canary=80 legacy=20; ratings: ratings";

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
