//! What the controller asks for.

use std::collections::BTreeMap;

use gloo_types::{ObjectKey, RouteTableDoc};

use crate::error::{PlanError, Refusal};

/// One request for one Rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The Rollout under the name that it [`mark`](crate::mark)s tables with; Services are looked for in its namespace.
    pub rollout: ObjectKey,
    /// The Services traffic is split between.
    pub services: ServicePair,
    /// Hashes of the Pods, as far as known. Needed only where subsets distinguish stable from canary.
    pub hashes: Option<PodHashes>,
    /// The weights that the controller recorded as set last (`status.canary.weights`); `None` before the first.
    pub applied: Option<AppliedWeights>,
    /// The request.
    pub kind: IntentKind,
    /// The routes the Rollout manages.
    pub managed: ManagedRoutes,
}

impl Intent {
    /// The error for a table on which this intent is refused.
    pub(crate) fn refused(&self, table: &RouteTableDoc, refusal: Refusal) -> PlanError {
        PlanError::Refused {
            table: table.key().clone(),
            rollout: self.rollout.clone(),
            refusal: Box::new(refusal),
        }
    }
}

/// Pod template hashes of both versions; empty when not known. Equal hashes mean that there is only one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHashes {
    /// Hash of the version that is in use.
    pub stable: String,
    /// Hash of the version that is being tried.
    pub canary: String,
    /// Whether Pods of another version than `stable` may still be behind the Service although both hashes are equal: right
    /// after a promotion or rollback. Then the stable subset stays.
    pub others: bool,
}

/// The weights that the controller recorded as set, in units of `trafficRouting.maxTrafficWeight`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedWeights {
    /// Weight of the stable Service.
    pub stable: i32,
    /// Weight of the canary Service.
    pub canary: i32,
    /// Weights of the Services of an experiment, by name.
    pub additional: BTreeMap<String, i32>,
}

impl AppliedWeights {
    /// The total that the weights are a share of.
    pub(crate) fn total(&self) -> i64 {
        let additional = self.additional.values().copied();
        additional
            .chain([self.stable, self.canary])
            .map(i64::from)
            .sum()
    }
}

/// Names of the Services in their current roles. With ping-pong the roles change places at each promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePair {
    /// Service of the version that is in use.
    pub stable: String,
    /// Service of the version that is being tried.
    pub canary: String,
    /// Whether the two exchange their roles at each promotion (`pingPong`), so that tables may name either as stable.
    pub ping_pong: bool,
}

/// The kinds of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntentKind {
    /// Split the traffic that goes to the stable Service, and bring the managed routes into force.
    SetWeight(WeightSplit),
    /// Treat certain requests in another way: send them to the canary, or copy them to it.
    SetManagedRoute(ManagedRoute),
    /// Remove every route that was inserted for the Rollout.
    RemoveManagedRoutes,
}

/// What a Rollout says about its managed routes as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedRoutes {
    /// The names, the first takes precedence: `managedRoutes`, then names that only steps have.
    pub order: Vec<String>,
    /// Those that the steps so far ask for. SetWeight inserts those that are missing, and removes others.
    pub in_force: Vec<ManagedRoute>,
    /// Whether the controller removes the routes in this pass: then SetWeight removes those that are left.
    pub is_ending: bool,
}

/// A managed route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagedRoute {
    /// Sends requests to the canary.
    Header(HeaderRoute),
    /// Copies requests to the canary.
    Mirror(MirrorRoute),
}

impl ManagedRoute {
    /// The name in `managedRoutes`.
    pub fn name(&self) -> &str {
        match self {
            Self::Header(route) => &route.name,
            Self::Mirror(route) => &route.name,
        }
    }

    /// Whether the route is to be removed: it matches nothing.
    pub fn is_removal(&self) -> bool {
        match self {
            Self::Header(route) => route.matches.is_empty(),
            Self::Mirror(route) => route.matches.is_empty(),
        }
    }
}

/// A managed route for requests with certain headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderRoute {
    /// Name of the managed route.
    pub name: String,
    /// Headers a request may have; which of them it must have is `headerMatch`. Empty asks for the removal of the route.
    pub matches: Vec<HeaderMatch>,
}

/// A header and what its value must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Name of the header.
    pub name: String,
    /// Its value.
    pub value: TextMatch,
}

/// A managed route whose requests are served as usual and copied to the canary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorRoute {
    /// Name of the managed route.
    pub name: String,
    /// What a request may be, one of them. Empty asks for the removal of the route.
    pub matches: Vec<RequestMatch>,
    /// Percent of the requests that are copied; `None` counts as 100, and so does more than 100.
    pub percentage: Option<i32>,
}

/// What a request must be; all that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestMatch {
    /// Its method.
    pub method: Option<TextMatch>,
    /// Its path.
    pub path: Option<TextMatch>,
    /// Its headers.
    pub headers: BTreeMap<String, TextMatch>,
}

/// How a text is matched, as sent: exactly one of the three should be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextMatch {
    /// The whole text.
    pub exact: String,
    /// Its beginning.
    pub prefix: String,
    /// A regular expression (RE2) for the whole text.
    pub regex: String,
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdditionalDestination {
    /// Name of the Service; empty when the experiment's pods declare no port, and then left out.
    pub service: String,
    /// Share out of the same total as the canary's.
    pub weight: i32,
    /// Port of that Service; `None` takes the port of the stable destination.
    pub port: Option<u32>,
}
