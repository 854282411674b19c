//! One series for each Rollout: the weight that the controller asked for last.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gloo_types::ObjectKey;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;
use tracing::warn;

/// Rollouts that have a series.
const MOST: usize = 2000;
/// The controller reconciles each Rollout every 15 minutes. One that was not heard of twice as long is gone.
const ABSENT: Duration = Duration::from_secs(1860);

#[derive(Default)]
pub(super) struct PerRollout {
    weights: Family<RolloutLabels, Gauge<i64>>,
    heard_of: Mutex<HashMap<RolloutLabels, Instant>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RolloutLabels {
    namespace: String,
    rollout: String,
}

impl PerRollout {
    pub(super) fn family(&self) -> Family<RolloutLabels, Gauge<i64>> {
        self.weights.clone()
    }

    /// Sets the weight of a Rollout, unless too many others have a series.
    pub(super) fn set(&self, rollout: &ObjectKey, weight: i32) {
        let labels = RolloutLabels {
            namespace: rollout.namespace.clone(),
            rollout: rollout.name.clone(),
        };
        let mut heard_of = self.heard_of();
        if heard_of.len() >= MOST && !heard_of.contains_key(&labels) {
            return;
        }
        self.weights.get_or_create(&labels).set(weight.into());
        let is_new = heard_of.insert(labels, Instant::now()).is_none();
        if is_new && heard_of.len() == MOST {
            warn!("{MOST} Rollouts have a series of canary_weight; no further one gets one");
        }
    }

    /// Removes the series of Rollouts that the controller no longer calls for.
    pub(super) fn forget_absent(&self) {
        self.heard_of().retain(|labels, at| {
            let is_there = at.elapsed() < ABSENT;
            if !is_there {
                self.weights.remove(labels);
            }
            is_there
        });
    }

    fn heard_of(&self) -> MutexGuard<'_, HashMap<RolloutLabels, Instant>> {
        self.heard_of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn at_most_2000_rollouts_have_a_series_and_only_while_they_are_called_for() {
        let per_rollout = PerRollout::default();
        let key = |number| ObjectKey::new("shop", format!("r{number}"));
        for number in 0..10_000 {
            per_rollout.set(&key(number), 25);
        }
        assert_eq!(per_rollout.heard_of().len(), 2000);
        tokio::time::advance(Duration::from_secs(1800)).await;
        for number in 0..10 {
            per_rollout.set(&key(number), 50);
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        per_rollout.forget_absent();
        assert_eq!(per_rollout.heard_of().len(), 10);
        per_rollout.set(&key(9999), 25);
        assert_eq!(per_rollout.heard_of().len(), 11);
    }
}
