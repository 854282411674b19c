//! How many Pods the versions of an update need, and whether they have enough.

use rollouts_rpc::rollout::TrafficWeights;

use super::{Node, Update, since};

/// The Pods of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pods {
    pub(super) wanted: i32,
    pub(super) available: i32,
}

impl Pods {
    pub(super) const fn of(pods: i32) -> Self {
        Self {
            wanted: pods,
            available: pods,
        }
    }
}

/// The Pods (`utils/replicaset/canary.go`).
impl Update<'_> {
    /// Whether both versions have the Pods that the step needs (`AtDesiredReplicaCountsForCanary`).
    pub(super) fn is_scaled(&self, weights: Option<&TrafficWeights>) -> bool {
        let (canary, stable) = self.wanted(weights);
        self.suffice(self.canary, canary)
            && (self.is_dynamic() || self.stable == Pods::of(stable))
            && (self.release >= since::OLD_PODS_IGNORED || self.replaced.available == 0)
    }

    /// Whether a version that needs `needed` Pods has enough of them (`ReplicaProgressThresholdMet`).
    pub(super) fn suffice(&self, pods: Pods, needed: i32) -> bool {
        let Some((is_percentage, value)) = self.threshold() else {
            return pods == Pods::of(needed);
        };
        match is_percentage {
            true => i64::from(pods.available) * 100 >= i64::from(needed) * i64::from(value),
            false => pods.available >= value,
        }
    }

    /// Returns `replicaProgressThreshold`, and whether it is a percentage.
    fn threshold(&self) -> Option<(bool, i32)> {
        let threshold = self.canary_node().get("replicaProgressThreshold");
        let value = threshold.get("value").int().unwrap_or(0);
        let is_known = threshold.is_set() && self.release >= since::THRESHOLD;
        let is_percentage = threshold.get("type").text() == "Percent";
        (value >= 0 && is_known).then_some((is_percentage, value))
    }

    /// Whether the current step ends when Pods are available.
    pub(super) fn needs_pods(&self) -> bool {
        let step = self.rollout.current_step();
        step.is_none_or(|it| it.set_weight.is_some() || it.set_canary_scale.is_some())
    }

    /// Says how many Pods of the canary are enough for the current step, if not all are needed.
    pub(super) fn sufficient_pods(&self) -> String {
        let (canary, _) = self.wanted(None);
        let pods = |available| Pods {
            wanted: canary,
            available,
        };
        match (0..canary).find(|fewest| self.suffice(pods(*fewest), canary)) {
            Some(fewest) => format!(", with {fewest} of {canary} Pods or more"),
            None => String::new(),
        }
    }

    /// Returns the weight that the canary gets as soon as one of several Pods is available, if a rollback skips the steps.
    pub(super) fn weight_of_first_pods(&self) -> Option<i32> {
        let is_at_end = self.index() == Some(self.steps().len());
        let is_early = self.canary.available == 0 && self.wanted(None).0 > 1;
        let weight = self.weight_of(self.steps().len());
        (self.skips_steps && is_at_end && is_early && weight > 0).then_some(weight)
    }

    /// Returns how many Pods canary and stable need (`CalculateReplicaCountsForTrafficRoutedCanary`).
    pub(super) fn wanted(&self, weights: Option<&TrafficWeights>) -> (i32, i32) {
        let (max, replicas) = (self.rollout.max_traffic_weight(), self.rollout.replicas());
        let pods = |weight: i32| {
            let parts = i64::from(weight) * i64::from(replicas);
            let pods = -(-parts).div_euclid(i64::from(max.max(1)));
            self.at_least_minimum(pods.try_into().unwrap_or(replicas))
        };
        let status = &self.rollout.status;
        let scale = self.canary_scale();
        let fixed = scale.as_ref().and_then(|it| it.get("replicas").int());
        let weight = match scale.and_then(|it| it.get("weight").int()) {
            _ if fixed.is_some() => 0,
            _ if status.promote_full || status.is_promoted() => max,
            Some(weight) => weight,
            None => self.desired_canary_weight(),
        };
        let mut canary = fixed.unwrap_or_else(|| pods(weight));
        if !self.is_dynamic() {
            return (canary, replicas);
        }
        let mut stable = pods(max.saturating_sub(weight));
        if let Some(weights) = weights {
            stable = stable.max(pods(weights.stable.weight));
            if status.abort {
                canary = canary.max(pods(weights.canary.weight));
            }
        }
        (self.at_least_minimum(canary), stable)
    }

    fn at_least_minimum(&self, pods: i32) -> i32 {
        let minimum = self.canary_node().get("minPodsPerReplicaSet").int();
        match pods {
            0 => 0,
            _ => pods.max(minimum.unwrap_or(0).min(self.rollout.replicas())),
        }
    }

    /// Returns the `setCanaryScale` in force (`UseSetCanaryScale`).
    fn canary_scale(&self) -> Option<Node<'_>> {
        let status = &self.rollout.status;
        if status.promote_full
            || status.is_promoted()
            || status.abort && self.abort_delay() != Some(0)
        {
            return None;
        }
        let index = self.index().filter(|index| *index < self.steps().len())?;
        let scales = (0..=index).map(|index| self.step_node(index).get("setCanaryScale"));
        let scale = scales.rev().find(Node::is_set)?;
        (!scale.get("matchTrafficWeight").is_true()).then_some(scale)
    }

    /// Returns the weight by which the canary is scaled (`GetDesiredCanaryWeight`).
    pub(super) fn desired_canary_weight(&self) -> i32 {
        let (max, replicas) = (self.rollout.max_traffic_weight(), self.rollout.replicas());
        let is_aborted = self.rollout.status.abort;
        if is_aborted && self.is_dynamic() && self.release >= since::STEPWISE_ABORT {
            let pods = replicas.saturating_sub(self.stable.available);
            let pods = i64::from(pods.max(self.canary.available));
            let mut weights = self.steps().iter().rev().filter_map(|step| step.set_weight);
            let is_lower = |weight: &i32| {
                i64::from(*weight) * i64::from(replicas) <= (pods - 1) * i64::from(max)
            };
            return weights.find(is_lower).unwrap_or(0);
        }
        match self.index() {
            _ if is_aborted => 0,
            Some(index) if index < self.steps().len() => self.weight_of(index + 1),
            _ => max,
        }
    }

    fn abort_delay(&self) -> Option<i64> {
        let delay = self.canary_node().get("abortScaleDownDelaySeconds");
        delay.number()
    }

    /// Whether the canary's Pods stay for a while after an abort (`shouldDelayScaleDownOnAbort`).
    pub(super) fn delays_scale_down(&self) -> bool {
        let delay = self.abort_delay();
        self.rollout.status.abort && delay != Some(0) && (!self.is_dynamic() || delay.is_some())
    }
}
