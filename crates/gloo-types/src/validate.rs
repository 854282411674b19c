//! Validates a RouteTable against the constraints of the Gloo API reference, which Gloo or its CRD enforces.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::destination::{DestinationKind, DestinationReference};
use crate::route_table::{
    HeaderMatcher, HttpRequestMatcher, HttpRoute, RouteTableSpec, StringMatch,
};

/// Entries of `http`, `tcp`, `tls` and `workloadSelectors`.
const MOST_ROUTES: usize = 10_000;
/// Destinations of a route.
const MOST_DESTINATIONS: usize = 100;
/// Characters of the body of a direct response.
const LONGEST_BODY: usize = 1_048_576;

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
    #[error("a RouteTable needs at least one http, tcp or tls route: add one")]
    NoRoutes,
    /// Two http routes have the same name. Gloo renames them.
    #[error("route name {0} is used more than once: rename one of them")]
    DuplicateName(String),
    /// A route has no action, or several.
    #[error(
        "a route needs exactly one action, found {0}: set one of forwardTo, redirect, directResponse, graphql and delegate"
    )]
    Actions(usize),
    /// The weights of a route do not sum to 100.
    #[error("weights of a route must sum to 100, found {0}: correct them")]
    WeightSum(u64),
    /// The sum of the weights that are set leaves less than 1 for each destination whose weight is absent or 0.
    #[error(
        "destinations with weight 0 or none share the rest of 100 and need at least 1 each, but only {remainder} is left for {unset}: remove it, or give each destination a weight"
    )]
    NoRemainder {
        /// The destinations without a weight.
        unset: String,
        /// 100 minus the sum of the weights that are set.
        remainder: u64,
    },
    /// A `forwardTo` has no destination.
    #[error(
        "a forwardTo without destinations needs a defaultDestination of the table: add one of the two"
    )]
    NoDestination,
    /// More entries, or a longer text, than the API allows.
    #[error("at most {most} are allowed, found {found}: divide or shorten it")]
    TooLong {
        /// How many entries or characters are allowed.
        most: usize,
        /// How many there are.
        found: usize,
    },
    /// A destination has neither or both of `ref` and `awsLambda`.
    #[error("a destination needs exactly one of ref and awsLambda: set one of them")]
    Target,
    /// TCP routes cannot send traffic to an ExternalService.
    #[error("a tcp route cannot send traffic to an ExternalService: use an http or tls route")]
    KindForTcp,
    /// A TLS matcher has no server name.
    #[error("a tls matcher needs at least one entry of sniHosts: add the host")]
    NoSniHost,
    /// A direct response has a status outside 100 to 599.
    #[error("status is {0}: use 100 to 599")]
    ResponseStatus(u32),
    /// A port that does not exist.
    #[error("a port must be between {least} and 65535, found {found}")]
    Port {
        /// The smallest port that is allowed here.
        least: u32,
        /// The port.
        found: u32,
    },
    /// A header name with a character that HTTP does not allow.
    #[error("\"{}\" is not the name of a header: it may have letters, digits, - and _", .0.escape_debug())]
    HeaderName(String),
    /// A match of a text has several of its alternatives.
    #[error("set only one of exact, prefix, regex and suffix")]
    SeveralMatches,
    /// A matcher asks for two values of one header.
    #[error(
        "no request matches, because header {0} cannot have both values: use a matcher for each value"
    )]
    Contradiction(String),
    /// A field of tables to which no other delegates, in a table without hosts.
    #[error("only a table with hosts may have this: add hosts, or remove it")]
    NeedsHosts,
    /// A selector of workloads or destinations with another kind.
    #[error("only KUBE is allowed here: remove the kind")]
    OnlyKube,
    /// A default destination that no route uses.
    #[error("no http route has a forwardTo that could use it: add one, or remove it")]
    DefaultWithoutRoute,
    /// A text with spaces.
    #[error("spaces are not allowed: remove them")]
    Space,
    /// An earlier route takes all requests of a route.
    #[error(
        "no request reaches {route}, because {by} before it matches all of them: move {route} up, or restrict {by}"
    )]
    Hidden {
        /// The route.
        route: String,
        /// The earlier route.
        by: String,
    },
}

/// Returns the constraints that the table violates, in the order of the document. Empty for a valid table.
pub fn violations(spec: &RouteTableSpec) -> Vec<Violation> {
    let mut found = Found(Vec::new());
    if spec.http.is_empty() && spec.tcp.is_empty() && spec.tls.is_empty() {
        found.add("spec", Rule::NoRoutes);
    }
    for (path, count) in [
        ("spec.http", spec.http.len()),
        ("spec.tcp", spec.tcp.len()),
        ("spec.tls", spec.tls.len()),
        ("spec.workloadSelectors", spec.workload_selectors.len()),
    ] {
        found.length(path, count, MOST_ROUTES);
    }
    let workloads = spec.workload_selectors.iter().enumerate();
    let workloads =
        workloads.map(|(at, it)| (format!("workloadSelectors[{at}]"), it.port.as_ref()));
    let destinations = spec.apply_to_destinations.iter().enumerate();
    let destinations =
        destinations.map(|(at, it)| (format!("applyToDestinations[{at}]"), it.port.as_ref()));
    for (path, port) in workloads.chain(destinations) {
        let number = port.and_then(|port| port.number);
        found.port(format!("spec.{path}.port.number"), number, 1);
    }
    if let Some(destination) = &spec.default_destination {
        found.destination("spec.defaultDestination", destination);
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
        for (position, matcher) in route.matchers.iter().enumerate() {
            let path = format!("spec.tcp[{index}].matchers[{position}].port");
            found.port(path, matcher.port, 0);
        }
        found.destinations(path, destinations.unwrap_or_default(), false);
    }
    for (index, route) in spec.tls.iter().enumerate() {
        let path = format!("spec.tls[{index}]");
        for (position, matcher) in route.matchers.iter().enumerate() {
            if matcher.sni_hosts.is_empty() {
                found.add(format!("{path}.matchers[{position}]"), Rule::NoSniHost);
            }
            found.port(format!("{path}.matchers[{position}].port"), matcher.port, 0);
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

/// Returns the constraints on combinations of fields that the JSON of a spec violates. They depend on whether a field is set at
/// all, which the typed view does not show.
pub fn combination_violations(spec: &Value) -> Vec<Violation> {
    let is_set = |object: &Value, key: &str| object.get(key).is_some_and(|it| !it.is_null());
    let list = |key: &str| {
        let items = spec.get(key).and_then(Value::as_array);
        items.into_iter().flatten().enumerate()
    };
    let mut found = Found(Vec::new());
    for key in ["virtualGateways", "applyToDestinations", "failureMode"] {
        if is_set(spec, key) && !is_set(spec, "hosts") {
            found.add(format!("spec.{key}"), Rule::NeedsHosts);
        }
    }
    for key in ["workloadSelectors", "applyToDestinations"] {
        for (index, item) in list(key) {
            if item
                .get("kind")
                .is_some_and(|kind| !kind.is_null() && kind != "KUBE")
            {
                found.add(format!("spec.{key}[{index}].kind"), Rule::OnlyKube);
            }
        }
    }
    let mut routes = list("http");
    if is_set(spec, "defaultDestination") && !routes.any(|(_, it)| is_set(it, "forwardTo")) {
        found.add("spec.defaultDestination", Rule::DefaultWithoutRoute);
    }
    let path = "spec.portalMetadata.apiProductId";
    let id = spec.pointer("/portalMetadata/apiProductId");
    if id
        .and_then(Value::as_str)
        .is_some_and(|it| it.contains(' '))
    {
        found.add(path, Rule::Space);
    }
    found.0
}

/// Returns the matchers and HTTP routes that no request can reach, which is not an error to Gloo.
///
/// Routes that delegate hide nothing, because requests that no other table matches go on. Neither do routes of a table to which
/// others may delegate, because Gloo may sort them.
pub fn unreachable(spec: &RouteTableSpec) -> Vec<Violation> {
    let mut found = Found(Vec::new());
    for (index, route) in spec.http.iter().enumerate() {
        for (position, matcher) in route.matchers.iter().enumerate() {
            if let Some(name) = contradiction(&matcher.headers) {
                found.add(
                    format!("spec.http[{index}].matchers[{position}].headers"),
                    Rule::Contradiction(name.to_owned()),
                );
            }
        }
        let earlier = spec.http.iter().take(index).enumerate();
        let mut earlier = earlier.filter(|(_, other)| other.delegate.is_none());
        if is_root(spec)
            && let Some((other, by)) = earlier.find(|(_, other)| hides(other, route))
        {
            let rule = Rule::Hidden {
                route: name_of(index, route),
                by: name_of(other, by),
            };
            found.add(format!("spec.http[{index}]"), rule);
        }
    }
    found.0
}

/// Returns the name of a header that cannot meet all of these conditions.
pub fn contradiction(headers: &[HeaderMatcher]) -> Option<&str> {
    let exact = |header: &HeaderMatcher| {
        let is_pattern = header.regex == Some(true);
        header.value.clone().filter(|_| !is_pattern)
    };
    let is_inverted = |header: &HeaderMatcher| header.invert_match == Some(true);
    let excludes = |a: &HeaderMatcher, b: &HeaderMatcher| match (exact(a), exact(b)) {
        _ if !a.name.eq_ignore_ascii_case(&b.name) => false,
        (Some(value), Some(other)) if is_inverted(a) != is_inverted(b) => value == other,
        (Some(value), Some(other)) => !is_inverted(a) && value != other,
        _ => false,
    };
    let mut pairs = headers.iter().enumerate();
    let pair = pairs.find(|(index, header)| {
        let mut later = headers.iter().skip(index + 1);
        later.any(|other| excludes(header, other))
    });
    pair.map(|(_, header)| header.name.as_str())
}

fn is_root(spec: &RouteTableSpec) -> bool {
    !spec.hosts.is_empty()
        || !spec.virtual_gateways.is_empty()
        || !spec.workload_selectors.is_empty()
        || !spec.apply_to_destinations.is_empty()
}

fn name_of(index: usize, route: &HttpRoute) -> String {
    match route.name.as_str() {
        "" => format!("route {index}"),
        name => format!("route {name}"),
    }
}

/// Whether `wide` matches every request that `narrow` matches.
fn hides(wide: &HttpRoute, narrow: &HttpRoute) -> bool {
    let is_covered = |narrow: &HttpRequestMatcher| {
        wide.matchers.is_empty() || wide.matchers.iter().any(|wide| includes(wide, narrow))
    };
    match narrow.matchers.as_slice() {
        [] => is_covered(&HttpRequestMatcher::default()),
        matchers => matchers.iter().all(is_covered),
    }
}

fn includes(wide: &HttpRequestMatcher, narrow: &HttpRequestMatcher) -> bool {
    let is_header_met = |wide: &HeaderMatcher| {
        let is_presence = wide.value.is_none() && wide.invert_match != Some(true);
        narrow.headers.iter().any(|it| {
            it == wide
                || is_presence
                    && it.name.eq_ignore_ascii_case(&wide.name)
                    && it.invert_match != Some(true)
        })
    };
    let method = wide.method.as_deref().filter(|it| !it.is_empty());
    let mut parameters = wide.query_parameters.iter();
    wide.uri
        .as_ref()
        .is_none_or(|wide| includes_path(wide, narrow.uri.as_ref()))
        && (method.is_none() || wide.method == narrow.method)
        && (wide.port.is_none() || wide.port == narrow.port)
        && wide.headers.iter().all(is_header_met)
        && parameters.all(|it| narrow.query_parameters.contains(it))
}

fn includes_path(wide: &StringMatch, narrow: Option<&StringMatch>) -> bool {
    if wide.prefix.as_deref() == Some("/") {
        return true;
    }
    let Some(narrow) = narrow else {
        return false;
    };
    let ignores_case = |it: &StringMatch| it.ignore_case == Some(true);
    let starts = |text: &str, prefix: &str| match ignores_case(wide) {
        true => {
            let start = text.get(..prefix.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        }
        false => text.starts_with(prefix),
    };
    if ignores_case(narrow) && !ignores_case(wide) {
        return false;
    }
    match (&wide.prefix, &narrow.exact, &narrow.prefix) {
        (Some(prefix), Some(path), None) | (Some(prefix), None, Some(path)) => starts(path, prefix),
        _ => wide == narrow,
    }
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
        for (position, matcher) in route.matchers.iter().enumerate() {
            self.matcher(&format!("{path}.matchers[{position}]"), matcher);
        }
        if let Some(forward) = &route.forward_to {
            let destinations = forward.destinations.as_deref().unwrap_or_default();
            self.destinations(
                format!("{path}.forwardTo.destinations"),
                destinations,
                has_default,
            );
        }
        if let Some(response) = &route.direct_response {
            let path = format!("{path}.directResponse");
            let body = response.body.as_deref().unwrap_or_default();
            self.length(format!("{path}.body"), body.chars().count(), LONGEST_BODY);
            if !(100..=599).contains(&response.status) {
                let rule = Rule::ResponseStatus(response.status);
                self.add(format!("{path}.status"), rule);
            }
        }
    }

    fn matcher(&mut self, path: &str, matcher: &HttpRequestMatcher) {
        self.port(format!("{path}.port"), matcher.port, 0);
        for (position, header) in matcher.headers.iter().enumerate() {
            if !is_header_name(&header.name) {
                let rule = Rule::HeaderName(header.name.clone());
                self.add(format!("{path}.headers[{position}].name"), rule);
            }
        }
        if let Some(uri) = &matcher.uri {
            let set = [&uri.exact, &uri.prefix, &uri.regex, &uri.suffix];
            if set.into_iter().flatten().count() > 1 {
                self.add(format!("{path}.uri"), Rule::SeveralMatches);
            }
        }
    }

    fn length(&mut self, path: impl Into<String>, found: usize, most: usize) {
        if found > most {
            self.add(path, Rule::TooLong { most, found });
        }
    }

    fn port(&mut self, path: String, port: Option<u32>, least: u32) {
        if let Some(found) = port.filter(|port| !(least..=65535).contains(port)) {
            self.add(path, Rule::Port { least, found });
        }
    }

    fn destination(&mut self, path: &str, destination: &DestinationReference) {
        if destination.reference.is_some() == destination.aws_lambda.is_some() {
            self.add(path, Rule::Target);
        }
        let port = destination.port.as_ref().and_then(|port| port.number);
        self.port(format!("{path}.port.number"), port, 1);
    }

    fn destinations(
        &mut self,
        path: String,
        destinations: &[DestinationReference],
        has_default: bool,
    ) {
        for (position, destination) in destinations.iter().enumerate() {
            self.destination(&format!("{path}[{position}]"), destination);
        }
        self.length(path.clone(), destinations.len(), MOST_DESTINATIONS);
        match weight_rule(destinations) {
            _ if destinations.is_empty() && !has_default => self.add(path, Rule::NoDestination),
            Some(rule) => self.add(path, rule),
            None => {}
        }
    }
}

/// Whether HTTP allows the name of a header. The pseudo-headers of HTTP/2, such as `:authority`, are allowed too.
#[must_use]
pub fn is_header_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let name = name.strip_prefix(':').unwrap_or(name);
    !name.is_empty() && name.chars().all(legal)
}

/// Returns the rule that the weights of one route violate; `None` if they are valid. An empty list is valid.
pub fn weight_rule(destinations: &[DestinationReference]) -> Option<Rule> {
    let weights: Vec<Option<u32>> = destinations.iter().map(|to| to.weight).collect();
    broken_weight_rule(&weights, |index| {
        destinations.get(index).map(ToString::to_string)
    })
}

/// As [`weight_rule`], for weights without their destinations. `name` returns the destination at an index.
pub fn broken_weight_rule(
    weights: &[Option<u32>],
    name: impl Fn(usize) -> Option<String>,
) -> Option<Rule> {
    let is_set = |weight: &Option<u32>| weight.is_some_and(|weight| weight > 0);
    let set = weights.iter().filter(|it| is_set(it)).flatten();
    let sum: u64 = set.map(|weight| u64::from(*weight)).sum();
    let unset = weights.iter().enumerate().filter(|(_, it)| !is_set(it));
    let unset: Vec<usize> = unset.map(|(index, _)| index).collect();
    let remainder = 100_u64.saturating_sub(sum);
    match unset.len() {
        0 if weights.is_empty() || sum == 100 => None,
        0 => Some(Rule::WeightSum(sum)),
        _ if sum > 100 => Some(Rule::WeightSum(sum)),
        // The remainder is too small: each destination without a weight needs at least 1.
        count if remainder < u64::try_from(count).unwrap_or(u64::MAX) => {
            const SHOWN: usize = 5;
            let names = unset.iter().copied().filter_map(name).take(SHOWN);
            let mut unset = names.collect::<Vec<_>>().join(", ");
            if count > SHOWN {
                unset += &format!(" and {} more", count - SHOWN);
            }
            Some(Rule::NoRemainder { unset, remainder })
        }
        _ => None,
    }
}
