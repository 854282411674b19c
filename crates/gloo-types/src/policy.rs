//! `MirrorPolicy` and `RetryTimeoutPolicy`: objects that select routes and add mirrors, timeouts and retries to them. A
//! RouteTable has no fields for these.
//!
//! Field names follow the Gloo Platform API reference for `trafficcontrol.policy.gloo.solo.io/v2` and
//! `resilience.policy.gloo.solo.io/v2`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::declare::views;
use crate::destination::{DestinationReference, DestinationSelector};
use crate::status::CommonStatus;

/// `spec` of a MirrorPolicy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct MirrorPolicySpec {
    /// The routes whose requests are copied. Empty means every route of the workspace.
    pub apply_to_routes: Vec<PolicyRouteSelector>,
    /// The destination and the percentage of the copies.
    pub config: Option<MirrorConfig>,
}

views! {
    /// Selects routes by their labels or by their destinations.
    pub struct PolicyRouteSelector {
        /// Selects by labels. Excludes `withDestinations`.
        pub route: Option<RouteLabelSelector>,
        /// Selects by destination, with any labels. Excludes `route`.
        pub with_destinations: Option<DestinationSelector>,
    }

    /// Selects routes by labels and by the place of their table. An empty field selects any.
    pub struct RouteLabelSelector {
        /// Labels of the route. All must be equal. A route inherits the labels of its table.
        pub labels: BTreeMap<String, String>,
        /// Namespace of the table.
        pub namespace: String,
        /// Cluster of the table.
        pub cluster: String,
        /// Workspace of the table.
        pub workspace: String,
    }
}

impl RouteLabelSelector {
    /// Whether a route with `route_labels`, in a table with `table_labels` in `table_namespace`, may be selected. The
    /// cluster and the workspace are not compared.
    pub fn may_select(
        &self,
        route_labels: &BTreeMap<String, String>,
        table_labels: &BTreeMap<String, String>,
        table_namespace: &str,
    ) -> bool {
        let has = |(key, value): (&String, &String)| {
            // A label of the route overrides the label of its table.
            route_labels.get(key).or_else(|| table_labels.get(key)) == Some(value)
        };
        (self.namespace.is_empty() || self.namespace == table_namespace)
            && self.labels.iter().all(has)
    }
}

/// `spec.config` of a MirrorPolicy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct MirrorConfig {
    /// The destination of the copies.
    pub destination: Option<DestinationReference>,
    /// Percent of the requests that are copied, 0 to 100; 100 if absent.
    pub percentage: Option<f64>,
}

views! {
    /// `status` of a MirrorPolicy.
    pub struct MirrorPolicyStatus {
        /// The status that all Gloo objects have.
        pub common: Option<CommonStatus>,
        /// Number of routes to which the policy applies. With 0 it has no effect.
        pub num_selected_routes: Option<u32>,
    }

    /// `spec` of a RetryTimeoutPolicy.
    pub struct RetryTimeoutPolicySpec {
        /// The routes to which the policy applies. Empty means every route of the workspace.
        pub apply_to_routes: Vec<PolicyRouteSelector>,
        /// Timeout and retries.
        pub config: Option<RetryTimeoutConfig>,
    }

    /// `spec.config` of a RetryTimeoutPolicy.
    pub struct RetryTimeoutConfig {
        /// Timeout of a request including all retries: a duration such as `0.5s`.
        pub request_timeout: Option<String>,
        /// Retries of a request.
        pub retries: Option<Retries>,
    }

    /// `spec.config.retries` of a RetryTimeoutPolicy.
    pub struct Retries {
        /// Maximum number of retries.
        pub attempts: Option<u32>,
        /// Timeout of each attempt, a duration.
        pub per_try_timeout: Option<String>,
        /// Envoy's retry conditions, separated by commas.
        pub retry_on: Option<String>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        let pairs = text
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[track_caller]
    fn check(selector: &str, namespace: &str, route: &str, table: &str, expect: bool) {
        let selector = RouteLabelSelector {
            labels: labels(selector),
            namespace: namespace.to_owned(),
            ..RouteLabelSelector::default()
        };
        assert_eq!(
            selector.may_select(&labels(route), &labels(table), "mesh"),
            expect
        );
    }

    #[test]
    fn labels_are_looked_up_on_the_route_and_then_on_its_table() {
        check("", "", "", "", true);
        check("a=1", "", "a=1 b=2", "", true);
        check("a=1", "", "", "a=1", true);
        check("a=1", "", "a=2", "a=1", false);
        check("a=1 b=2", "", "a=1", "b=2", true);
        check("a=1 b=2", "", "a=1", "", false);
    }

    #[test]
    fn the_namespace_is_that_of_the_table() {
        check("a=1", "mesh", "a=1", "", true);
        check("a=1", "edge", "a=1", "", false);
    }
}
