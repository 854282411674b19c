//! Errors: why a plugin block is refused, and why a table cannot be planned.

use gloo_types::{DocumentError, ObjectKey};

/// The plugin block of a Rollout cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("Rollout {rollout}: plugin configuration: {problem}")]
pub struct ConfigError {
    /// The Rollout.
    pub rollout: ObjectKey,
    /// What is wrong.
    pub problem: ConfigProblem,
}

/// What is wrong with a plugin block. Paths are dotted, from the top of the block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    /// The Rollout configures other plugins only.
    #[error("trafficRouting.plugins has no {}; it has {}", .accepted.join(" or "), none_or(.found))]
    MissingPlugin {
        /// Plugin names that would be read.
        accepted: Vec<String>,
        /// Plugin names that are there.
        found: Vec<String>,
    },
    /// The Rollout configures this plugin under several names, and only one block can be carried out.
    #[error(
        "trafficRouting.plugins has {0} and {1}, which are both names of this plugin: keep one of them"
    )]
    SeveralPlugins(String, String),
    /// The block is not JSON.
    #[error("the plugin block is not JSON: {0}")]
    Json(String),
    /// A key is unknown, or its value is not allowed.
    #[error(transparent)]
    Key(#[from] strict_json::Problem),
    /// A destination is in another namespace than the Rollout's, which the administrator does not allow.
    #[error(
        "{path} is {namespace}, which is not the Rollout's namespace: use the Rollout's namespace, or ask your administrator to allow destinations in {namespace}"
    )]
    NamespaceNotAllowed {
        /// Path of the key.
        path: String,
        /// The namespace.
        namespace: String,
    },
    /// No RouteTable is selected.
    #[error(
        "routeTableSelector is missing or empty: set name, names, labels or matchExpressions in it"
    )]
    NoSelector,
}

impl ConfigProblem {
    /// Returns the path of the key that is wrong, if it is one.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Key(problem) => Some(problem.path()),
            Self::NamespaceNotAllowed { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// A table cannot be planned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The document contradicts the API.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The request is refused for this table.
    #[error("RouteTable {table}: {refusal} (Rollout {rollout})")]
    Refused {
        /// The table.
        table: ObjectKey,
        /// The Rollout.
        rollout: ObjectKey,
        /// The reason and the remedy.
        refusal: Box<Refusal>,
    },
}

impl PlanError {
    pub(crate) fn refused(table: &ObjectKey, rollout: &ObjectKey, refusal: Refusal) -> Self {
        Self::Refused {
            table: table.clone(),
            rollout: rollout.clone(),
            refusal: Box::new(refusal),
        }
    }

    /// Whether the reason is that no route of the table forwards to the Rollout. If the Rollout has several tables, that may be
    /// intended.
    pub fn is_without_route(&self) -> bool {
        matches!(self, Self::Refused { refusal, .. } if matches!(**refusal, Refusal::NoStableRoute { .. } | Refusal::NoHttpRoutes | Refusal::NoRequest(_)))
    }
}

/// Why a request is refused. The text contains the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The Rollout does not name a Service.
    #[error("the Rollout names no {role} Service: set spec.strategy.canary.{role}Service")]
    NoService {
        /// `stable` or `canary`.
        role: &'static str,
    },
    /// Stable and canary are the same destination.
    #[error(
        "stable and canary are both {0}: name two different Services, or distinguish them with canaryDestination or subset"
    )]
    SameDestination(String),
    /// The Service of `subset` is also the stable or the canary Service, so the controller changes its selector to one
    /// version.
    #[error(
        "Service {service} is set in subset.service, but the controller makes the Rollout's {role} Service select one version only: remove it from spec.strategy.canary, or set another Service in subset.service"
    )]
    SwitchedService {
        /// `stable` or `canary`.
        role: &'static str,
        /// The Service.
        service: String,
    },
    /// The hash of the Pods in a role is not known, so no subset can select them.
    #[error(
        "the hash of the {role} pods is not known yet: wait, the controller sends it before each setWeight"
    )]
    NoHash {
        /// `stable` or `canary`.
        role: &'static str,
    },
    /// A negative weight.
    #[error("weight {weight} of {service} is negative: weights start at 0")]
    NegativeWeight {
        /// The Service.
        service: String,
        /// Its weight.
        weight: i32,
    },
    /// The total of the weights is not positive.
    #[error("maxTrafficWeight is {0}: it must be at least 1")]
    MaxWeight(i32),
    /// No selected route forwards to the stable Service.
    #[error(
        "no selected route forwards to {stable}: check stableService, stableDestination, {selectors}; found {found}"
    )]
    NoStableRoute {
        /// Kind, namespace and name of the stable destination.
        stable: String,
        /// The keys of the plugin block that select routes.
        selectors: &'static str,
        /// The destinations of the routes of the table.
        found: String,
    },
    /// A route lists the destination of a role more than once.
    #[error(
        "{route} lists {destination} more than once ({found}): keep one, choose one with stableDestination.cluster, port or subset, or exclude the route with routeSelector"
    )]
    Ambiguous {
        /// The route.
        route: String,
        /// The destination of the role.
        destination: String,
        /// The destinations that match.
        found: String,
    },
    /// Foreign destinations get all the traffic.
    #[error(
        "{route}: destinations other than {stable} take {taken} of 100, nothing is left to split: lower their weights"
    )]
    NoShare {
        /// The route.
        route: String,
        /// The stable Service.
        stable: String,
        /// Sum of the weights of the foreign destinations.
        taken: u32,
    },
    /// The owner's destination has a subset, which selects no Pod of the other version.
    #[error(
        "{route}: the destination {from} has a subset, which a copy of it would inherit: list the destination of the other version in the route too, or set canaryDestination.subset"
    )]
    Subset {
        /// The route.
        route: String,
        /// The owner's destination.
        from: String,
    },
    /// The table has no HTTP routes at all.
    #[error(
        "header and mirror routes need http routes, and the table has none: remove the table from routeTableSelector, or the step from the Rollout"
    )]
    NoHttpRoutes,
    /// A managed route has no name.
    #[error("a managed route has no name: name it in the step and in managedRoutes")]
    UnnamedManagedRoute,
    /// The match of a step cannot be written as a matcher.
    #[error("managed route {managed}: {part}: {problem}; correct the match of the step")]
    Match {
        /// The managed route.
        managed: String,
        /// The part of the match.
        part: String,
        /// What is wrong with it, or the remedy.
        problem: String,
    },
    /// TCP routes cannot forward to an ExternalService.
    #[error(
        "{route} is a TCP route, which cannot forward to {destination}: use another kind, or leave it out of tcpRoutes"
    )]
    ExternalForTcp {
        /// The route.
        route: String,
        /// The destination that would be inserted.
        destination: String,
    },
    /// The Service of an experiment has several ports, and none belongs to the owner's destination.
    #[error(
        "{route}: none of the ports of {service} ({ports}) belongs to {destination}: let the port of that destination, or the targetPort of its Service, be a containerPort of the Pods"
    )]
    ExperimentPort {
        /// The route.
        route: String,
        /// The Service of the experiment.
        service: String,
        /// Its ports.
        ports: String,
        /// The owner's destination.
        destination: String,
    },
    /// The match of a step cannot be combined with the matchers of a route.
    #[error(
        "managed route {managed} on {route}: {problem}, or exclude the route with routeSelector"
    )]
    Combination {
        /// The managed route.
        managed: String,
        /// The route.
        route: String,
        /// The reason and the remedy.
        problem: &'static str,
    },
    /// No request of a source route meets the match of the step.
    #[error(
        "managed route {0} matches no request of the routes that forward to the stable Service: correct the match of the step"
    )]
    NoRequest(String),
    /// An invalid percentage, or one at which no request is copied.
    #[error("managed route {managed}: percentage is {percentage}: use 1 to 100")]
    Percentage {
        /// The managed route.
        managed: String,
        /// The percentage.
        percentage: i32,
    },
    /// A MirrorPolicy that the plugin did not create may also apply to a mirror route.
    #[error(
        "route {route} would be mirrored by MirrorPolicy {policy} too, which selects {selects}: change the selector of that policy, or remove the step"
    )]
    OtherMirrorPolicy {
        /// The mirror route.
        route: String,
        /// The policy.
        policy: ObjectKey,
        /// What it selects of the route.
        selects: String,
    },
    /// The source of a mirror route was removed or changed, so that it is not known which weights the mirror route gets.
    #[error(
        "managed route {route} of another Rollout sends requests to {canary}, and no route includes its matchers: restore the route that it copies, or remove the managed route"
    )]
    StrayMirror {
        /// The mirror route.
        route: String,
        /// The canary destination.
        canary: String,
    },
    /// A route has a value whose type contradicts the API.
    #[error("{route} cannot be read: {path} is not {expected}; correct the route")]
    Malformed {
        /// The route.
        route: String,
        /// Path of the value, from the route.
        path: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The stable destination was replaced while the route was split.
    #[error(
        "{route}: {by} replaced {stable} during the rollout: restore {stable} in the table or abort the rollout"
    )]
    Replaced {
        /// The route.
        route: String,
        /// The stable destination.
        stable: String,
        /// The destination that replaced it.
        by: String,
    },
    /// Another Rollout with the same stable destination splits the route.
    #[error(
        "{route} is split by Rollout {rollout}, whose stable destination is {stable} too: leave the route to one of them, or restore the table if Rollout {rollout} was deleted"
    )]
    SplitByOther {
        /// The route.
        route: String,
        /// The stable destination of both.
        stable: String,
        /// The other Rollout.
        rollout: String,
    },
    /// The administrator does not allow header routes before all routes.
    #[error(
        "headerRoutePlacement: top can take requests from other routes of the table: remove it, or ask your administrator to allow it"
    )]
    TopPlacement,
    /// The table would exceed a limit of the API server.
    #[error(
        "{routes} routes to split need {needed} {what}, the API server takes {limit}: select fewer routes with routeSelector, or divide the table"
    )]
    TooLarge {
        /// How many routes are split.
        routes: usize,
        /// What is limited.
        what: &'static str,
        /// How many the rollout needs.
        needed: usize,
        /// The limit.
        limit: usize,
    },
    /// The annotation with the record cannot be decoded.
    #[error(
        "annotation {annotation} is unreadable ({reason}): restore the table from its source, then remove the annotation"
    )]
    Record {
        /// Key of the annotation.
        annotation: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

fn none_or(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
