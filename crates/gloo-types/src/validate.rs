//! Validates a RouteTable against the constraints of the Gloo API reference, which Gloo or its CRD enforces.

use std::collections::BTreeSet;
use std::fmt;

use crate::destination::{DestinationKind, DestinationReference};
use crate::route_table::{HttpRoute, RouteTableSpec};

/// A constraint that a table violates.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// Dotted path of the invalid value, for example `spec.http[0].forwardTo.destinations`.
    pub path: String,
    /// The constraint.
    pub rule: Rule,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.rule)
    }
}

/// A constraint of the RouteTable API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// None of `http`, `tcp` and `tls` has a route.
    #[error("a RouteTable needs at least one http, tcp or tls route")]
    NoRoutes,
    /// Two http routes have the same name. Gloo renames them.
    #[error("route name {0} is used more than once")]
    DuplicateName(String),
    /// A route has no action, or several.
    #[error("a route needs exactly one action, found {0}")]
    Actions(usize),
    /// The weights of a route do not sum to 100.
    #[error("weights of a route must sum to 100, found {0}")]
    WeightSum(u64),
    /// The sum of the weights that are set leaves less than 1 for each destination whose weight is absent or 0.
    #[error("{unset} destinations without weight share {remainder}, at least 1 each is needed")]
    NoRemainder {
        /// Number of destinations without a weight.
        unset: usize,
        /// 100 minus the sum of the weights that are set.
        remainder: u64,
    },
    /// A `forwardTo` has no destination.
    #[error("a forwardTo without destinations needs a defaultDestination")]
    NoDestination,
    /// More destinations than the API allows.
    #[error("a route has at most 100 destinations, found {0}")]
    TooManyDestinations(usize),
    /// A destination has neither or both of `ref` and `awsLambda`.
    #[error("a destination needs exactly one of ref and awsLambda")]
    Target,
    /// TCP routes cannot lead to an ExternalService.
    #[error("a tcp route cannot lead to an EXTERNAL_SERVICE")]
    KindForTcp,
    /// A TLS matcher has no server name.
    #[error("a tls matcher needs at least one sniHost")]
    NoSniHost,
    /// A direct response has a status outside 100 to 599.
    #[error("status must be within 100 and 599, found {0}")]
    ResponseStatus(u32),
}

/// Returns the constraints that the table violates, in the order of the document. Empty for a valid table.
pub fn violations(spec: &RouteTableSpec) -> Vec<Violation> {
    let mut found = Found(Vec::new());
    if spec.http.is_empty() && spec.tcp.is_empty() && spec.tls.is_empty() {
        found.add("spec", Rule::NoRoutes);
    }
    let mut names = BTreeSet::new();
    for (index, route) in spec.http.iter().enumerate() {
        let path = format!("spec.http[{index}]");
        if !route.name.is_empty() && !names.insert(route.name.as_str()) {
            found.add(
                format!("{path}.name"),
                Rule::DuplicateName(route.name.clone()),
            );
        }
        found.http_route(&path, route, spec.default_destination.is_some());
    }
    for (index, route) in spec.tcp.iter().enumerate() {
        let path = format!("spec.tcp[{index}].forwardTo.destinations");
        let destinations = route
            .forward_to
            .as_ref()
            .and_then(|to| to.destinations.as_deref());
        for (position, destination) in destinations.unwrap_or_default().iter().enumerate() {
            if destination.kind == DestinationKind::ExternalService {
                found.add(format!("{path}[{position}].kind"), Rule::KindForTcp);
            }
        }
        found.destinations(path, destinations.unwrap_or_default(), false);
    }
    for (index, route) in spec.tls.iter().enumerate() {
        let path = format!("spec.tls[{index}]");
        for (position, matcher) in route.matchers.iter().enumerate() {
            if matcher.sni_hosts.is_empty() {
                found.add(format!("{path}.matchers[{position}]"), Rule::NoSniHost);
            }
        }
        let destinations = route
            .forward_to
            .as_ref()
            .and_then(|to| to.destinations.as_deref());
        let path = format!("{path}.forwardTo.destinations");
        found.destinations(path, destinations.unwrap_or_default(), false);
    }
    found.0
}

struct Found(Vec<Violation>);

impl Found {
    fn add(&mut self, path: impl Into<String>, rule: Rule) {
        self.0.push(Violation {
            path: path.into(),
            rule,
        });
    }

    fn http_route(&mut self, path: &str, route: &HttpRoute, has_default: bool) {
        let actions = [
            route.forward_to.is_some(),
            route.delegate.is_some(),
            route.redirect.is_some(),
            route.direct_response.is_some(),
            route.graphql.is_some(),
        ];
        let count = actions.into_iter().filter(|set| *set).count();
        if count != 1 {
            self.add(path, Rule::Actions(count));
        }
        if let Some(forward) = &route.forward_to {
            let destinations = forward.destinations.as_deref().unwrap_or_default();
            self.destinations(
                format!("{path}.forwardTo.destinations"),
                destinations,
                has_default,
            );
        }
        if let Some(response) = &route.direct_response
            && !(100..=599).contains(&response.status)
        {
            self.add(
                format!("{path}.directResponse.status"),
                Rule::ResponseStatus(response.status),
            );
        }
    }

    fn destinations(
        &mut self,
        path: String,
        destinations: &[DestinationReference],
        has_default: bool,
    ) {
        for (position, destination) in destinations.iter().enumerate() {
            if destination.reference.is_some() == destination.aws_lambda.is_some() {
                self.add(format!("{path}[{position}]"), Rule::Target);
            }
        }
        if destinations.len() > 100 {
            self.add(&path, Rule::TooManyDestinations(destinations.len()));
        }
        match weight_rule(destinations) {
            _ if destinations.is_empty() && !has_default => self.add(path, Rule::NoDestination),
            Some(rule) => self.add(path, rule),
            None => {}
        }
    }
}

/// Returns the rule that the weights of one route violate; `None` if they are valid. An empty list is valid.
pub fn weight_rule(destinations: &[DestinationReference]) -> Option<Rule> {
    let weights: Vec<Option<u32>> = destinations.iter().map(|to| to.weight).collect();
    broken_weight_rule(&weights)
}

/// As [`weight_rule`], for weights without their destinations.
pub fn broken_weight_rule(weights: &[Option<u32>]) -> Option<Rule> {
    let set = weights.iter().flatten().filter(|weight| **weight > 0);
    let sum: u64 = set.clone().map(|weight| u64::from(*weight)).sum();
    let unset = weights.len() - set.count();
    let remainder = 100_u64.saturating_sub(sum);
    match unset {
        0 if weights.is_empty() || sum == 100 => None,
        0 => Some(Rule::WeightSum(sum)),
        _ if sum > 100 => Some(Rule::WeightSum(sum)),
        // The remainder is too small: each destination without a weight needs at least 1.
        _ if remainder < u64::try_from(unset).unwrap_or(u64::MAX) => {
            Some(Rule::NoRemainder { unset, remainder })
        }
        _ => None,
    }
}
