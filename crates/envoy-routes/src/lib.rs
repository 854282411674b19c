//! Translates Gloo's RouteTables and policies to Envoy's route configuration.
//!
//! This is a **model** of Gloo's translation, for tests that send requests through a real Envoy. It is not Gloo: it has no
//! workspaces and no gateways, and treats all objects as parts of one workspace. It returns the parts that it cannot
//! translate as [`Untranslated`]. A route that it cannot translate responds with status 500, as an invalid route does in
//! Gloo.
//!
//! The last column names the comment in the vendor's protos, by message and field, that a rule follows
//! (`github.com/solo-io/solo-apis` v1.6.32-0.20240925114939-9e6df5259d8e, `api/gloo.solo.io`).
//!
//! | object | Envoy | comment |
//! |---|---|---|
//! | `hosts` | one virtual host per host; tables with the same host share it | `RouteTableSpec.hosts`; none about several tables with one host: in order of their names |
//! | `matchers` | one route per matcher, since matchers are alternatives; none matches any request | `HTTPRoute.matchers` |
//! | `uri` | `path`, `prefix` (of the text, not of path segments) or `safe_regex` (of the whole path) | `StringMatch`; `ignore_case`: "no effect for the regex match"; `suffix`: "not currently supported" |
//! | `headers` | `headers` | `HTTPRequestMatcher.headers`: "all headers must match"; `HeaderMatcher.value`: absent means any; `invert_match`: also matches if the header is absent |
//! | `queryParameters`, `method` | `query_parameters`, the header `:method` | `HTTPRequestMatcher.query_parameters`, `.method` |
//! | `forwardTo.destinations` | `cluster`, or `weighted_clusters` by [`gloo_types::effective_weights`] | `ForwardToAction.destinations` |
//! | no destinations | `defaultDestination` of the table of the route | `RouteTableSpec.default_destination` |
//! | `subset` | a separate cluster, see [`Backend`] | `DestinationReference.subset` |
//! | `pathRewrite` | `prefix_rewrite`: the matched prefix, or the whole path of an exact match | `ForwardToAction.path_rewrite`; "when a regex matcher is used is currently unsupported" |
//! | `regexRewrite`, `hostRewrite`, `autoHostRewrite` | `regex_rewrite`, `host_rewrite_literal`, `auto_host_rewrite` | `ForwardToAction`, fields of these names |
//! | `redirect`, `directResponse` | `redirect`, `direct_response` | `RedirectAction`, `DirectResponseAction` |
//! | `delegate` | the routes of the child tables, with the matchers of both | `HTTPRoute.matchers`: "only traffic that includes both" |
//! | matchers of a child that conflict | a `direct_response` in place of the delegating route | `HTTPRoute.matchers`: "the delegating route on the parent table is replaced" |
//! | order of children | by name: as listed; by label: by creation time; then by `weight` | `DelegateAction.route_tables`, `RouteTableSpec.weight`, `SortMethod.TABLE_WEIGHT` |
//! | `sortMethod: ROUTE_SPECIFICITY` | all routes below the delegation, by path only | `SortMethod.ROUTE_SPECIFICITY` |
//! | an invalid route | `direct_response` 500 | `FailureMode.ROUTE_REPLACEMENT` |
//! | MirrorPolicy | `request_mirror_policies`, with the denominator `MILLION` | `MirrorPolicySpec`: applied to routes, no `applyToRoutes` means all; `Config.percentage`: absent means all |
//! | RetryTimeoutPolicy | `timeout` and `retry_policy` | `RetryTimeoutPolicySpec.Config`: `request_timeout`, `RetryPolicy` |
//! | `applyToRoutes[].route` | routes with all labels | `RouteLabelSelector.labels`: "on the route or route table" |
//! | `applyToRoutes[].withDestinations` | routes with one such destination | `DestinationSelector`: a Service unless `kind` is set, any port if `port` is not set; `ObjectSelector.namespace`: absent means all |
//!
//! Where a comment is ambiguous, the model reads it like this:
//!
//! - `ROUTE_SPECIFICITY` compares the paths after parent and child are joined ("the resulting routes"). "Only the most specific
//!   matcher on each route is used" is about the order: the other matchers of the route stay.
//! - A route has a conflict if no pair of a parent's and a child's matcher can be met together. Single pairs that exclude each
//!   other are dropped. The delegating route next to the conflict is replaced, with all tables to which it delegates.
//! - With several selectors in `routeTables`, the tables of the first one come first. Creation time orders the tables of one.
//! - A label of a route overrides the same label of its table. Labels of the tables and routes that delegate to it count too, which
//!   no comment says.
//! - Weights that are invalid by the comment (a sum above 100, or no remainder for unset ones) are served as they are, with 1 for
//!   an unset one.
//! - An empty text in a field that is no member of a oneof is the same as an absent field, as in proto3. In Envoy, this is so for
//!   `pathRewrite` too.
//! - A `requestTimeout` below 1 ms is refused, since "the value must be at least 1ms".
//! - With `invertMatch`, an absent header is compared as an empty value. So the model is wrong for an inverted pattern that
//!   matches the empty text.
//!
//! Envoy uses one random number per request, and chooses the weighted cluster by its remainder. A mirror with the denominator
//! `HUNDRED` would use the same remainder, so it would copy only requests to the first cluster. So the model uses another one.

mod action;
mod backend;
mod delegation;
mod fields;
mod matcher;
mod policies;

use std::collections::{BTreeMap, BTreeSet};

use gloo_types::{MirrorPolicyDoc, RetryTimeoutPolicyDoc, RouteTableDoc};
use serde_json::{Value, json};

pub use backend::{Backend, Port};

use crate::delegation::{Leaf, Table};
use crate::policies::Policies;

/// The objects of one gateway.
#[derive(Clone, Copy, Debug, Default)]
pub struct Objects<'a> {
    /// All tables, including those to which others delegate.
    pub tables: &'a [RouteTableDoc],
    /// All MirrorPolicies.
    pub mirror_policies: &'a [MirrorPolicyDoc],
    /// All RetryTimeoutPolicies.
    pub retry_timeout_policies: &'a [RetryTimeoutPolicyDoc],
    /// Retries of a route without a RetryTimeoutPolicy.
    pub retries: DefaultRetries,
}

/// Retries of a route for which no RetryTimeoutPolicy sets retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultRetries {
    /// The default of Istio: two retries of requests that no Pod has processed.
    #[default]
    Istio,
    /// No retries, so that a client sees each failure.
    Off,
}

/// The result of [`translate`].
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// Envoy's `RouteConfiguration`, without a name.
    pub route_configuration: Value,
    /// The clusters of routes and mirrors, by name.
    pub clusters: BTreeMap<String, Backend>,
    /// The parts that are not translated, in the order of the objects.
    pub untranslated: Vec<Untranslated>,
}

/// A part of an object that is missing in the route configuration, or translated in another way than Gloo does it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{object}: {path}: {reason}")]
pub struct Untranslated {
    /// Kind and name of the object: `RouteTable shop/web`.
    pub object: String,
    /// Dotted path of the part, for example `spec.http[2].graphql`.
    pub path: String,
    /// The reason.
    pub reason: Reason,
}

/// Why a part of an object cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Reason {
    /// The object cannot be decoded.
    #[error("{0}")]
    Unreadable(String),
    /// A field of a newer Gloo, or a misspelt one.
    #[error("is an unknown field")]
    Unknown,
    /// A field of Gloo that this model does not support.
    #[error("is not modelled")]
    NotModelled,
    /// A field that the comments of the API call unsupported.
    #[error("is not supported by Gloo")]
    Unsupported,
    /// A value that the API or Envoy does not allow.
    #[error("{0} is not a valid value")]
    Invalid(String),
    /// None, or several, of fields of which exactly one must be set.
    #[error("needs exactly one of {0}")]
    NotOne(&'static str),
    /// A `forwardTo` has no destination, and the table has no default.
    #[error("has no destination")]
    NoDestination,
    /// A delegation selects no table.
    #[error("selects no table")]
    NoTable,
    /// A table delegates to itself, directly or through others.
    #[error("delegates in a circle through {0}")]
    Circle(String),
    /// No request can match both a matcher of a child table and one of its parent. The delegating route reports it as the next variant.
    #[error("no request matches the matchers of both tables")]
    Conflict,
    /// No request can match both the delegating route and a route of a child table, which is given as table and path.
    #[error("no request matches these matchers and those of {0}")]
    ConflictWith(String),
    /// No single matcher is equivalent to the paths of both tables.
    #[error("the paths of both tables cannot be joined")]
    CannotJoin,
    /// A table has no host, and no other table delegates to it.
    #[error("has no host, and no table delegates to it")]
    Unreachable,
    /// More than one policy of a kind applies to a route. Only the first one is translated.
    #[error("also applies to route {0}, which has another policy of this kind")]
    SecondPolicy(String),
}

/// A part of a route or a policy that cannot be translated, by its path in the route or policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    path: String,
    reason: Reason,
}

impl Refusal {
    pub(crate) fn new(path: impl Into<String>, reason: Reason) -> Self {
        Self {
            path: path.into(),
            reason,
        }
    }

    /// Prefixes the path with `outer`, the path of the enclosing part.
    #[must_use]
    pub(crate) fn within(self, outer: &str) -> Self {
        Self {
            path: if self.path.is_empty() {
                outer.to_owned()
            } else {
                format!("{outer}.{}", self.path)
            },
            ..self
        }
    }

    /// The same for an object, given as kind and name.
    pub(crate) fn of(self, object: impl Into<String>) -> Untranslated {
        Untranslated {
            object: object.into(),
            path: self.path,
            reason: self.reason,
        }
    }
}

/// Translates all objects of one gateway.
#[must_use]
pub fn translate(objects: &Objects<'_>) -> Translation {
    let mut translation = Translation {
        route_configuration: Value::Null,
        clusters: BTreeMap::new(),
        untranslated: Vec::new(),
    };
    let mut tables = Vec::new();
    for document in objects.tables {
        let untranslated = &mut translation.untranslated;
        tables.extend(Table::read(document, untranslated));
    }
    tables.sort_by(|a, b| a.key.cmp(&b.key));
    let policies = Policies::read(objects, &mut translation.untranslated);

    let mut hosts: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    let mut reached = BTreeSet::new();
    for table in tables.iter().filter(|table| table.is_root()) {
        let mut routes = Vec::new();
        for leaf in delegation::leaves(table, &tables, &mut reached) {
            routes.extend(translation.routes(&leaf, &policies));
        }
        for host in &table.spec.hosts {
            hosts
                .entry(host)
                .or_default()
                .extend(routes.iter().cloned());
        }
    }
    for table in tables.iter().filter(|table| !reached.contains(&table.key)) {
        let refusal = Refusal::new("spec.hosts", Reason::Unreachable);
        translation.untranslated.push(refusal.of(table.name()));
    }

    let virtual_hosts: Vec<Value> = hosts
        .into_iter()
        .map(|(host, routes)| json!({"name": host, "domains": [host], "routes": routes}))
        .collect();
    translation.route_configuration = json!({
        "virtual_hosts": virtual_hosts,
        // Clients that use another port than 80 and 443 send it in the host.
        "ignore_port_in_host_matching": true,
    });
    translation
}

impl Translation {
    /// Translates one route to Envoy routes, one for each of its matchers.
    fn routes(&mut self, leaf: &Leaf<'_>, policies: &Policies) -> Vec<Value> {
        let name = leaf.name();
        let mut translated = Vec::new();
        let outcome = self.try_routes(leaf, policies, &mut translated);
        if let Err(refusal) = outcome {
            let refusal = refusal.within(&leaf.path());
            let text = format!("the model of Gloo has no such route: {}", refusal.path);
            self.untranslated.push(refusal.of(leaf.table.name()));
            translated = leaf
                .matchers
                .iter()
                // A matcher that cannot be translated is dropped: it must not match the requests of later routes.
                .filter_map(|it| matcher::route_match(it).ok())
                .map(|route_match| {
                    json!({
                        "name": name,
                        "match": route_match,
                        "direct_response": {"status": 500, "body": {"inline_string": text}},
                    })
                })
                .collect();
        }
        translated
    }

    fn try_routes(
        &mut self,
        leaf: &Leaf<'_>,
        policies: &Policies,
        translated: &mut Vec<Value>,
    ) -> Result<(), Refusal> {
        if let Some(refusal) = &leaf.refused {
            return Err(refusal.clone());
        }
        for (index, one) in leaf.matchers.iter().enumerate() {
            let matchers = format!("matchers[{index}]");
            let route_match =
                matcher::route_match(one).map_err(|refusal| refusal.within(&matchers))?;
            let (key, mut action) = action::action(leaf, one, &mut self.clusters)?;
            if key == "route" {
                let Self {
                    clusters,
                    untranslated,
                    ..
                } = self;
                policies.apply(leaf, &mut action, clusters, untranslated);
            }
            translated.push(json!({"name": leaf.name(), "match": route_match, key: action}));
        }
        Ok(())
    }
}
