//! The part of a Rollout that sets are made of.
//!
//! Field names and their meaning follow argo-rollouts, `pkg/apis/rollouts/v1alpha1/types.go`.

use std::collections::BTreeMap;

use gloo_types::Resource;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// `argoproj.io/v1alpha1` Rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollout {}

impl Resource for Rollout {
    const GROUP: &'static str = "argoproj.io";
    const VERSION: &'static str = "v1alpha1";
    const KIND: &'static str = "Rollout";
    const PLURAL: &'static str = "rollouts";

    type Spec = RolloutSpec;
    type Status = RolloutStatus;
}

/// `spec` of a Rollout.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RolloutSpec {
    strategy: Option<Strategy>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Strategy {
    canary: Option<Canary>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Canary {
    stable_service: Option<String>,
    canary_service: Option<String>,
    ping_pong: Option<PingPong>,
    steps: Option<Vec<IgnoredAny>>,
    traffic_routing: Option<TrafficRouting>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PingPong {
    ping_service: String,
    pong_service: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct TrafficRouting {
    plugins: Option<BTreeMap<String, Value>>,
}

/// `status` of a Rollout. What the controller has not written is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    /// `Healthy`, `Degraded`, `Progressing` or `Paused`.
    pub(crate) phase: String,
    /// Whether the update was given up: all traffic goes to the stable version.
    pub(crate) abort: bool,
    /// The generation that the rest is about; a text.
    observed_generation: String,
    /// Hash of the version that has been rolled out; empty until the first one has.
    #[serde(rename = "stableRS")]
    pub(crate) stable_rs: String,
    /// Hash of the version that the spec asks for.
    pub(crate) current_pod_hash: String,
    /// Position among the steps; their count after the last one.
    pub(crate) current_step_index: Option<i64>,
    canary: CanaryStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CanaryStatus {
    weights: Option<TrafficWeights>,
    stable_ping_pong: String,
}

/// The weights that the traffic router was last asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct TrafficWeights {
    pub(crate) stable: WeightDestination,
    pub(crate) canary: WeightDestination,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct WeightDestination {
    pub(crate) weight: i64,
}

impl RolloutSpec {
    pub(crate) fn canary(&self) -> Option<&Canary> {
        self.strategy.as_ref()?.canary.as_ref()
    }
}

impl Canary {
    /// The block of the first plugin of these `names` that there is.
    pub(crate) fn plugin(&self, names: &[String]) -> Option<&Value> {
        let plugins = self.traffic_routing.as_ref()?.plugins.as_ref()?;
        names.iter().find_map(|name| plugins.get(name))
    }

    pub(crate) fn steps(&self) -> usize {
        self.steps.as_ref().map_or(0, Vec::len)
    }

    /// The Services of the stable version and of the canary. With ping-pong the status tells which is which
    /// (`rollout/trafficrouting/service_helper.go`).
    pub(crate) fn services(&self, status: &RolloutStatus) -> (&str, &str) {
        let named = (
            self.stable_service.as_deref(),
            self.canary_service.as_deref(),
        );
        let (stable, canary) = (named.0.unwrap_or_default(), named.1.unwrap_or_default());
        match &self.ping_pong {
            Some(PingPong {
                ping_service: ping,
                pong_service: pong,
            }) if stable.is_empty() && canary.is_empty() => {
                if status.canary.stable_ping_pong == "ping" {
                    (ping, pong)
                } else {
                    (pong, ping)
                }
            }
            _ => (stable, canary),
        }
    }
}

impl RolloutStatus {
    /// Whether a canary is under way: the spec asks for another version than the stable one and the update was not given
    /// up, or the canary still gets traffic. Not so while there is no stable version, for which there is nothing to guard.
    ///
    /// The phase does not tell: it is `Progressing` whenever a pod is not ready, too.
    pub(crate) fn in_progress(&self) -> bool {
        let is_update = self.stable_rs != self.current_pod_hash && !self.abort;
        let has_traffic = self
            .weights()
            .is_some_and(|weights| weights.canary.weight > 0);
        !self.stable_rs.is_empty() && (is_update || has_traffic)
    }

    /// Whether the controller has seen the spec as it is.
    pub(crate) fn is_fresh(&self, generation: Option<i64>) -> bool {
        generation.is_some() && self.observed_generation.parse().ok() == generation
    }

    pub(crate) fn weights(&self) -> Option<&TrafficWeights> {
        self.canary.weights.as_ref()
    }
}
