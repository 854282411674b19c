//! What the controller wants, in the planner's words.

use gloo_types::ObjectKey;

/// One wish of one Rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The Rollout; its namespace is the only one whose Services may be routed to.
    pub rollout: ObjectKey,
    /// The Services traffic is split between.
    pub services: ServicePair,
    /// The wish.
    pub kind: IntentKind,
}

/// Names of the Services in their current roles. With ping-pong the roles change places at each promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePair {
    /// Service of the version that is in use.
    pub stable: String,
    /// Service of the version that is being tried.
    pub canary: String,
}

/// The kinds of wishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntentKind {
    /// Split the traffic that goes to the stable Service.
    SetWeight(WeightSplit),
}

/// How traffic is to be split. Numbers are as the controller sent them: any `i32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSplit {
    /// Share of the canary, out of `max`. Above `max` counts as `max`; negative is refused.
    pub desired: i32,
    /// `trafficRouting.maxTrafficWeight`, 100 unless set.
    pub max: i32,
    /// Services of a running experiment.
    pub additional: Vec<AdditionalDestination>,
}

impl WeightSplit {
    /// Whether nothing is rolled out: neither canary nor experiment is to get traffic.
    pub fn is_rest(&self) -> bool {
        self.desired == 0
            && self
                .additional
                .iter()
                .all(|additional| additional.weight == 0)
    }
}

/// A Service of a running experiment and its share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdditionalDestination {
    /// Name of the Service; empty when the experiment's pods declare no port, and then left out.
    pub service: String,
    /// Share out of the same total as the canary's.
    pub weight: i32,
}
