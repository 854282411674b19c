//! The requests of the controller, as values.

use std::collections::BTreeMap;

use gloo_types::{ObjectKey, RouteTableDoc, ServicePort};

use crate::error::{PlanError, Refusal};

/// One request for one Rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Intent {
    /// The [`mark`](crate::mark) of the Rollout. The Services are in its namespace.
    pub rollout: ObjectKey,
    /// The Services between which traffic is split.
    pub services: ServicePair,
    /// Hashes of the Pods, if known. They are needed only if subsets distinguish stable from canary.
    pub hashes: Option<PodHashes>,
    /// The weights that the controller recorded as set last (`status.canary.weights`); `None` before the first ones.
    pub applied: Option<AppliedWeights>,
    /// The request.
    pub kind: IntentKind,
    /// The managed routes of the Rollout.
    pub managed: ManagedRoutes,
}

impl Intent {
    /// Whether it adds a managed route, which sends or copies certain requests to the canary.
    pub(crate) fn adds_route(&self) -> bool {
        matches!(&self.kind, IntentKind::SetManagedRoute(route) if !route.is_removal())
    }

    /// A request for a Rollout without managed routes, whose Pod hashes and applied weights are not known.
    pub fn new(rollout: ObjectKey, services: ServicePair, kind: IntentKind) -> Self {
        Self {
            rollout,
            services,
            hashes: None,
            applied: None,
            kind,
            managed: ManagedRoutes::default(),
        }
    }

    /// SetWeight between two Services without ping-pong, as [`new`](Self::new).
    pub fn set_weight(
        rollout: ObjectKey,
        stable: impl Into<String>,
        canary: impl Into<String>,
        split: WeightSplit,
    ) -> Self {
        let services = ServicePair::new(stable, canary);
        Self::new(rollout, services, IntentKind::SetWeight(split))
    }

    /// Whether the request is SetWeight with no traffic for the canary or an experiment.
    pub(crate) fn sends_all_to_stable(&self) -> bool {
        matches!(&self.kind, IntentKind::SetWeight(split) if split.is_rest())
    }

    /// The error that this intent is refused for `table`.
    pub(crate) fn refused(&self, table: &RouteTableDoc, refusal: Refusal) -> PlanError {
        PlanError::refused(table.key(), &self.rollout, refusal)
    }
}

/// Pod template hashes of both versions; empty if not known. Equal hashes mean that there is only one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHashes {
    /// Hash of the stable version.
    pub stable: String,
    /// Hash of the version that is rolled out.
    pub canary: String,
    /// Whether the Service may still select Pods of another version than `stable` although both hashes are equal. This is so
    /// right after a promotion or rollback; then the stable subset stays.
    pub others: bool,
}

/// The weights that the controller recorded as set, out of `trafficRouting.maxTrafficWeight`.
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
    /// The sum of all weights, which is the total of which they are a share.
    pub(crate) fn total(&self) -> i64 {
        let additional = self.additional.values().copied();
        additional
            .chain([self.stable, self.canary])
            .map(i64::from)
            .sum()
    }
}

/// Names of the Services in their current roles.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServicePair {
    /// Service of the stable version.
    pub stable: String,
    /// Service of the version that is rolled out.
    pub canary: String,
    /// Whether the two Services exchange their roles at each promotion (`pingPong`). The owner's table names one of the two,
    /// which may be in either role. So with ping-pong a route forwards to the Rollout if it forwards to either of them.
    pub ping_pong: bool,
}

impl ServicePair {
    /// Two Services, of which each keeps its role.
    pub fn new(stable: impl Into<String>, canary: impl Into<String>) -> Self {
        Self {
            stable: stable.into(),
            canary: canary.into(),
            ping_pong: false,
        }
    }
}

/// The kinds of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntentKind {
    /// Split the traffic that goes to the stable Service, and bring the managed routes into force.
    SetWeight(WeightSplit),
    /// Send the requests that match to the canary, or copy them to it.
    SetManagedRoute(ManagedRoute),
    /// Remove every route that was inserted for the Rollout.
    RemoveManagedRoutes,
}

/// All managed routes of a Rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedRoutes {
    /// Their names; the first takes precedence. These are the names of `managedRoutes`, then those that only steps have.
    pub order: Vec<String>,
    /// The managed routes that the steps so far ask for.
    pub in_force: Vec<ManagedRoute>,
    /// What SetWeight does with the managed routes of a table.
    pub update: ManagedRouteUpdate,
}

impl ManagedRoutes {
    /// Whether SetWeight with this `update` inserts managed routes that are missing.
    pub(crate) fn inserts_any(&self, update: ManagedRouteUpdate) -> bool {
        update == ManagedRouteUpdate::AsPlanned && !self.in_force.is_empty()
    }
}

/// What SetWeight does with the managed routes of a table. Mirror routes always get the weights of their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ManagedRouteUpdate {
    /// Those that are in force are inserted or brought up to date, all others are removed.
    #[default]
    AsPlanned,
    /// As far as they exist, those that are in force stay as they are, all others are removed. None is inserted.
    KeepExisting,
    /// All are removed.
    RemoveAll,
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

    /// Whether the request removes the route: it has no match.
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
    /// Headers of a request. `headerMatch` in the plugin block says whether one or all of them must match. If empty, the
    /// route is removed.
    pub matches: Vec<HeaderMatch>,
}

/// A header and the match of its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Name of the header.
    pub name: String,
    /// Its value.
    pub value: TextMatch,
}

/// A managed route whose requests are served as before and copied to the canary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorRoute {
    /// Name of the managed route.
    pub name: String,
    /// Matches, one of which a request must meet. If empty, the route is removed.
    pub matches: Vec<RequestMatch>,
    /// Percent of the requests that are copied. `None` and values above 100 mean 100.
    pub percentage: Option<i32>,
}

/// A match of requests. All fields that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestMatch {
    /// Its method.
    pub method: Option<TextMatch>,
    /// Its path.
    pub path: Option<TextMatch>,
    /// Its headers.
    pub headers: BTreeMap<String, TextMatch>,
}

/// A match of a text, as the controller sent it. Exactly one of the three should be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextMatch {
    /// The whole text.
    pub exact: String,
    /// The start of the text.
    pub prefix: String,
    /// A regular expression (RE2) for the whole text.
    pub regex: String,
}

/// The requested weights. The numbers are as the controller sent them, so any `i32` is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightSplit {
    /// Weight of the canary, out of `max`. A larger value means `max`; a negative one is refused.
    pub desired: i32,
    /// `trafficRouting.maxTrafficWeight`, 100 unless set.
    pub max: i32,
    /// Services of a running experiment.
    pub additional: Vec<AdditionalDestination>,
}

impl WeightSplit {
    /// A weight of the canary out of 100, without an experiment.
    pub fn percent(desired: i32) -> Self {
        Self::out_of(desired, 100)
    }

    /// A weight of the canary out of `max`, without an experiment.
    pub fn out_of(desired: i32, max: i32) -> Self {
        Self {
            desired,
            max,
            additional: Vec::new(),
        }
    }

    /// Whether neither the canary nor an experiment gets traffic.
    pub fn is_rest(&self) -> bool {
        self.desired == 0
            && self
                .additional
                .iter()
                .all(|additional| additional.weight == 0)
    }
}

/// A Service of a running experiment and its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdditionalDestination {
    /// Name of the Service. It is empty if the experiment's Pods declare no port; then the destination is skipped.
    pub service: String,
    /// Weight, out of the same total as the canary's.
    pub weight: i32,
    /// Ports, if that Service could be read. Otherwise the destination gets the port of the stable destination.
    pub ports: Option<ExperimentPorts>,
}

/// The ports that decide to which port of an experiment's Service a destination forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExperimentPorts {
    /// Ports of the Service: the controller makes one of each port of the containers, with its number and name.
    pub own: Vec<ServicePort>,
    /// Ports of the stable Service; empty if they are not known.
    pub stable: Vec<ServicePort>,
}
