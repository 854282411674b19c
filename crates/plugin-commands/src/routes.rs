//! Summarises where each route of a RouteTable leads.

use gloo_types::{
    DestinationReference, HttpRoute, MirrorPolicyDoc, PortSelector, RouteTableDoc,
    effective_weights,
};
use rollouts_rpc::{Rollout, WeightDestination};
use route_planner::managed_by;
use serde::Serialize;

/// How many percent points the canary's weight may differ from the one that the controller asks for.
const TOLERATED: u32 = 5;

/// The destinations of one route.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct RouteState {
    /// `namespace/name` of the table.
    pub(super) table: String,
    /// Its name, or its position.
    pub(super) route: String,
    /// The Rollout that it was added for; absent for a route of the table's owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) managed_by: Option<String>,
    pub(super) destinations: Vec<Share>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) copies: Vec<Copies>,
    /// The weight that the controller asks for and the one that the route has, in percent of the Rollout's share, if they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rounded: Option<Rounded>,
}

/// A weight that a route cannot have exactly, because weights are whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Rounded {
    asked: u32,
    gets: u32,
}

/// The destination of copies of a route's requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Copies {
    pub(super) destination: String,
    /// Percent of the route's requests that are copied.
    pub(super) percentage: f64,
}

/// A destination and its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Share {
    pub(super) destination: String,
    /// Percent of the route's traffic; absent where the table has 0. The owner means no traffic by it, while Gloo's reference
    /// documents at least 1.
    pub(super) weight: Option<u32>,
    /// Name of its object.
    #[serde(skip)]
    pub(super) service: Option<String>,
}

impl RouteState {
    /// Whether both are states of one route.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.table == other.table && self.route == other.route
    }

    /// Compares the canary's weight with the one that the controller asks for. Returns a warning if they differ by more than
    /// [`TOLERATED`].
    pub(super) fn compare(
        &mut self,
        rollout: &Rollout,
        weight: i32,
        additional: &[WeightDestination],
    ) -> Option<String> {
        let services = rollout.services().filter(|_| self.managed_by.is_none())?;
        // `None` for subsets of one Service.
        let share = |service: &str| {
            let is_it = |share: &&Share| share.service.as_deref() == Some(service);
            let mut found = self.destinations.iter().filter(is_it);
            let share = found.next().map_or(0, |share| share.weight.unwrap_or(0));
            found.next().is_none().then_some(share)
        };
        let canary = share(services.canary)?;
        let mut all = canary + share(services.stable)?;
        for other in additional {
            all += share(&other.service_name)?;
        }
        // More than the maximum is scaled down.
        let whole = additional.iter().map(|it| i64::from(it.weight));
        let whole = whole.sum::<i64>() + i64::from(weight);
        let max = whole.max(i64::from(rollout.max_traffic_weight())).max(1);
        let asked = u32::try_from(i64::from(weight) * 100 / max).ok()?;
        let gets = (canary * 100 + all / 2).checked_div(all)?;
        self.rounded = (asked != gets).then_some(Rounded { asked, gets });
        (asked.abs_diff(gets) > TOLERATED).then(|| {
            format!(
                "RouteTable {}: route {}: the controller asks for {asked} % of the traffic, and the canary gets {gets} %: the Rollout has {all} % of the route, and weights are whole numbers: give it a larger share, or choose other weights",
                self.table, self.route
            )
        })
    }

    pub(super) fn shares(&self) -> String {
        let shares = self.destinations.iter();
        let shares = shares.map(|it| match it.weight {
            Some(weight) => format!("{} {weight}", it.destination),
            None => format!("{} unset", it.destination),
        });
        let copies = self.copies.iter();
        let copies = copies.map(|it| format!("copies to {} {}", it.destination, it.percentage));
        let text = shares.chain(copies).collect::<Vec<_>>().join(", ");
        match self.rounded {
            Some(Rounded { asked, gets }) => {
                format!("{text} (canary gets {gets} % of the Rollout's share, asked {asked} %)")
            }
            None => text,
        }
    }
}

/// Returns the routes of a table that forward requests, in their order. Empty for a table that cannot be read.
pub(super) fn routes(table: &RouteTableDoc, policies: &[MirrorPolicyDoc]) -> Vec<RouteState> {
    let Ok(spec) = table.spec() else {
        return Vec::new();
    };
    let state = |route: String, destinations: &[DestinationReference]| {
        let weights = effective_weights(destinations);
        let is_zero = |destination: &DestinationReference| destination.weight == Some(0);
        let weights = destinations.iter().zip(weights);
        let weights = weights.map(|(it, weight)| Some(weight).filter(|_| !is_zero(it)));
        let shares = names(destinations).into_iter().zip(weights);
        RouteState {
            table: table.key().to_string(),
            route,
            destinations: shares
                .zip(destinations)
                .map(|((destination, weight), it)| Share {
                    destination,
                    weight,
                    service: it.reference.as_ref().map(|it| it.name.clone()),
                })
                .collect(),
            ..RouteState::default()
        }
    };
    let mut states = Vec::new();
    for (index, route) in spec.http.iter().enumerate() {
        if route.forward_to.is_none() {
            continue;
        }
        let label = match route.name.as_str() {
            "" => format!("http[{index}]"),
            name => name.to_owned(),
        };
        let raw = table.raw().pointer(&format!("/spec/http/{index}"));
        let managed_by = raw.and_then(managed_by).map(|rollout| rollout.to_string());
        states.push(RouteState {
            managed_by,
            copies: copies(table, route, policies),
            ..state(label, spec.destinations_of(route))
        });
    }
    let tcp = spec.tcp.iter().map(|route| {
        let forward = route.forward_to.as_ref();
        ("tcp", forward.and_then(|it| it.destinations.as_deref()))
    });
    let tls = spec.tls.iter().map(|route| {
        let forward = route.forward_to.as_ref();
        ("tls", forward.and_then(|it| it.destinations.as_deref()))
    });
    for (index, (list, destinations)) in tcp.enumerate().chain(tls.enumerate()) {
        states.push(state(
            format!("{list}[{index}]"),
            destinations.unwrap_or_default(),
        ));
    }
    states
}

/// Returns the copies of the policies that select a route by its labels.
fn copies(table: &RouteTableDoc, route: &HttpRoute, policies: &[MirrorPolicyDoc]) -> Vec<Copies> {
    let mut copies = Vec::new();
    for spec in policies.iter().filter_map(|policy| policy.spec().ok()) {
        let selectors = spec.apply_to_routes.iter();
        let is_selected = selectors
            .filter_map(|it| it.route.as_ref())
            .any(|it| it.may_select(&route.labels, table.labels(), &table.key().namespace));
        if let Some(config) = spec.config.filter(|_| is_selected)
            && let Some(destination) = &config.destination
        {
            copies.push(Copies {
                destination: short_name(destination),
                percentage: config.percentage.unwrap_or(100.0),
            });
        }
    }
    copies
}

/// Returns a name for each destination of a route: the shortest that distinguishes it.
fn names(destinations: &[DestinationReference]) -> Vec<String> {
    let short: Vec<String> = destinations.iter().map(short_name).collect();
    let named = destinations.iter().zip(&short).map(|(destination, name)| {
        if short.iter().filter(|it| *it == name).count() == 1 {
            return name.clone();
        }
        match &destination.port {
            Some(PortSelector {
                number: Some(port), ..
            }) => format!("{destination}:{port}"),
            Some(PortSelector {
                name: Some(port), ..
            }) => format!("{destination}:{port}"),
            _ => destination.to_string(),
        }
    });
    named.collect()
}

/// Returns the name of the object and the values of its subset.
fn short_name(destination: &DestinationReference) -> String {
    let mut name = match &destination.reference {
        Some(reference) => reference.name.clone(),
        None => destination.to_string(),
    };
    if !destination.subset.is_empty() {
        let values: Vec<&str> = destination.subset.values().map(String::as_str).collect();
        name = format!("{name}[{}]", values.join(","));
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, expect: &[&str]) {
        let table = json!({"kind": "RouteTable", "metadata": {"name": "t", "namespace": "n"}, "spec": spec});
        let table = RouteTableDoc::from_value(table).unwrap();
        let shown = routes(&table, &[policy()]);
        let shown: Vec<String> = shown
            .iter()
            .map(|it| format!("{}: {}", it.route, it.shares()))
            .collect();
        assert_eq!(shown, expect);
    }

    /// A policy that copies the requests of routes with the label `copied`.
    fn policy() -> MirrorPolicyDoc {
        let policy = json!({"kind": "MirrorPolicy", "metadata": {"name": "p", "namespace": "n"}, "spec": {
            "applyToRoutes": [{"route": {"labels": {"copied": "yes"}}}],
            "config": {"destination": {"ref": {"name": "b"}}, "percentage": 12.5},
        }});
        MirrorPolicyDoc::from_value(policy).unwrap()
    }

    #[test]
    fn routes_show_where_copies_go() {
        let a = json!({"ref": {"name": "a", "namespace": "x"}});
        let route = |copied| json!({"name": copied, "labels": {"copied": copied}, "forwardTo": {"destinations": [a]}});
        check(
            json!({"http": [route("yes"), route("no")]}),
            &["yes: a 100, copies to b 12.5", "no: a 100"],
        );
    }

    #[test]
    fn routes_show_where_they_lead_and_what_each_gets() {
        let a = json!({"ref": {"name": "a", "namespace": "x"}});
        check(
            json!({"http": [{"name": "r", "forwardTo": {"destinations": [a]}}, {"redirect": {}}, {"forwardTo": {}}],
                "tcp": [{"forwardTo": {"destinations": [a]}}], "tls": [{"matchers": []}], "defaultDestination": a}),
            &["r: a 100", "http[2]: a 100", "tcp[0]: a 100", "tls[0]: "],
        );
    }

    #[test]
    fn destinations_are_named_as_short_as_possible() {
        let to = |namespace, port| json!({"ref": {"name": "a", "namespace": namespace}, "port": port, "weight": 30});
        let of = |hash| json!({"ref": {"name": "b"}, "subset": {"hash": hash}, "weight": 20});
        check(
            json!({"http": [{"name": "r", "forwardTo": {"destinations": [to("x", json!({"number": 80})), to("y", json!({"name": "web"})), of("1"), of("2")]}}]}),
            &["r: SERVICE x/a:80 30, SERVICE y/a:web 30, b[1] 20, b[2] 20"],
        );
    }
}
