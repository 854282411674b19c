//! What the controller wants, in the planner's words.

use gloo_types::ObjectKey;

/// One wish of one Rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The Rollout; Services are looked for in its namespace.
    pub rollout: ObjectKey,
    /// The Services traffic is split between.
    pub services: ServicePair,
    /// Hashes of the pods, as far as known. Needed only where subsets tell stable and canary apart.
    pub hashes: Option<PodHashes>,
    /// The wish.
    pub kind: IntentKind,
    /// The header routes the Rollout manages.
    pub managed: ManagedRoutes,
}

/// Pod template hashes of both versions; empty when not known. Equal hashes say that there is one version only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHashes {
    /// Hash of the version that is in use.
    pub stable: String,
    /// Hash of the version that is being tried.
    pub canary: String,
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
    /// Split the traffic that goes to the stable Service, and see to it that the managed routes are in force.
    SetWeight(WeightSplit),
    /// Send requests with certain headers to the canary.
    SetHeaderRoute(HeaderRoute),
    /// Take out every route that was put in for the Rollout.
    RemoveManagedRoutes,
}

/// What a Rollout says about its managed routes as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedRoutes {
    /// The names, the first takes precedence: `managedRoutes`, then names that only steps have.
    pub order: Vec<String>,
    /// Those that the steps so far ask for. SetWeight brings lost ones back, and takes out others.
    pub in_force: Vec<HeaderRoute>,
    /// Whether the routes are about to go, or gone: then SetWeight changes those that are there and brings none back.
    pub is_ending: bool,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdditionalDestination {
    /// Name of the Service; empty when the experiment's pods declare no port, and then left out.
    pub service: String,
    /// Share out of the same total as the canary's.
    pub weight: i32,
}
