//! How an abort ends.

use std::time::Duration;

use anyhow::Result;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Canary;

/// After this time the controller may have missed a change.
const UNNOTICED: Duration = Duration::from_secs(15);
/// Reconciles without a change after which an abort counts as stalled. All Pods are available by then, and the gateway has
/// reported the table, so nothing is left that could end it.
const UNCHANGED: u32 = 8;
/// Pause between two reconciles, so that the Pods and the gateway can follow.
const FOLLOWED: Duration = Duration::from_millis(600);

/// The end of an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortEnd {
    /// All traffic goes to the stable version.
    Ended,
    /// The aborted version keeps this weight: reconciles change nothing any more.
    Stalled(i64),
}

impl Canary {
    /// Waits until an abort has ended, or until the controller does nothing for it any more.
    ///
    /// # Errors
    /// Returns `Err` if the API server rejects a request, or the controller does not reconcile.
    pub async fn abort_end(&self) -> Result<AbortEnd> {
        let mut before = Value::Null;
        let mut unchanged = 0;
        loop {
            self.reconciled(self.idle()).await?;
            let progress = progress(&self.rollout().await?);
            let weight = progress["weight"].as_i64();
            if weight == Some(0) && progress["phase"] == "Degraded" {
                return Ok(AbortEnd::Ended);
            }
            unchanged = if progress == before { unchanged + 1 } else { 0 };
            if let Some(weight) = weight.filter(|_| unchanged == UNCHANGED) {
                return Ok(AbortEnd::Stalled(weight));
            }
            before = progress;
            sleep(FOLLOWED).await;
            self.touch().await?;
        }
    }

    /// Waits until the controller has reconciled a change of the Rollout.
    ///
    /// Controller 1.5.1 can miss a change that arrives during a reconcile: it writes the older Rollout to its cache, and waits
    /// for the next event. A user would repeat the command; this changes a label.
    ///
    /// # Errors
    /// Returns the error of `done`, or of the API server.
    pub async fn reconciled(&self, done: impl Future<Output = Result<()>>) -> Result<()> {
        let touched = async {
            loop {
                sleep(UNNOTICED).await;
                self.touch().await?;
            }
        };
        tokio::select! {
            done = done => done,
            failed = touched => failed,
        }
    }
}

/// Returns what an abort changes in the Rollout's status.
fn progress(rollout: &DynamicObject) -> Value {
    let status = &rollout.data["status"];
    json!({
        "weight": status["canary"]["weights"]["canary"]["weight"],
        "phase": status["phase"],
        "replicas": status["replicas"],
        "ready": status["readyReplicas"],
        "available": status["availableReplicas"],
        "updated": status["updatedReplicas"],
    })
}
