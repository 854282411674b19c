//! The destinations of each route of a RouteTable: the weights that are written and what the gateway makes of them, each destination
//! under one name.

use std::collections::BTreeSet;

use gloo_types::{
    DestinationReference, HttpRoute, MirrorPolicyDoc, RouteTableDoc, effective_weights,
};
use route_planner::{Portion, managed_by};
use serde::Serialize;

/// How many percent points the canary's weight may differ from the one that the controller asks for.
const TOLERATED: u32 = 5;

/// The destinations of one route.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct RouteState {
    /// `namespace/name` of the table.
    pub(super) table: String,
    /// Its name, or its position in the owner's source.
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
    #[serde(rename = "destination")]
    to: Place,
    /// Percent of the route's requests that are copied.
    percentage: f64,
}

/// A destination and its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Share {
    #[serde(rename = "destination")]
    pub(super) to: Place,
    /// The weight in the table; absent if the table has none.
    pub(super) weight: Option<u32>,
    /// The percentage of the route's traffic that Gloo's API reference documents.
    pub(super) percent: u32,
}

/// What a destination refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    name: String,
    subset: String,
    kind: String,
    cluster: String,
    namespace: String,
    port: String,
    /// The name in this output, see [`name_all`].
    shown: String,
}

impl Serialize for Place {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.shown)
    }
}

impl Place {
    fn of(destination: &DestinationReference, table: &RouteTableDoc) -> Self {
        let values: Vec<&str> = destination.subset.values().map(String::as_str).collect();
        let port = destination.port.as_ref();
        let (name, cluster, namespace) = match &destination.reference {
            Some(object) => {
                let namespace = object.namespace_from(&table.key().namespace);
                (object.name.clone(), object.cluster.clone(), namespace)
            }
            None => (destination.to_string(), String::new(), ""),
        };
        Self {
            name,
            subset: values.join(","),
            kind: destination.kind.word().to_owned(),
            cluster,
            namespace: namespace.to_owned(),
            port: port.map(ToString::to_string).unwrap_or_default(),
            shown: String::new(),
        }
    }

    /// Returns the shortest name that no other place has.
    fn name_among(&self, all: &BTreeSet<Self>) -> String {
        let is_twin = |it: &&Self| (&it.name, &it.subset) == (&self.name, &self.subset);
        let if_differs = |of: fn(&Self) -> &String, text: String| {
            let mut twins = all.iter().filter(is_twin);
            let differs = !of(self).is_empty() && twins.any(|it| of(it) != of(self));
            if differs { text } else { String::new() }
        };
        let subset = match self.subset.as_str() {
            "" => String::new(),
            subset => format!("[{subset}]"),
        };
        [
            if_differs(|it| &it.kind, format!("{} ", self.kind)),
            if_differs(|it| &it.cluster, format!("{}/", self.cluster)),
            if_differs(|it| &it.namespace, format!("{}/", self.namespace)),
            self.name.clone(),
            if_differs(|it| &it.port, format!(":{}", self.port)),
            subset,
        ]
        .concat()
    }
}

/// Names each destination of an output: as short as possible, and everywhere the same.
pub(super) fn name_all<'a>(routes: impl Iterator<Item = &'a mut RouteState>) {
    let mut places: Vec<&mut Place> = Vec::new();
    for route in routes {
        places.extend(route.destinations.iter_mut().map(|it| &mut it.to));
        places.extend(route.copies.iter_mut().map(|it| &mut it.to));
    }
    let all: BTreeSet<Place> = places.iter().map(|it| Place::clone(it)).collect();
    for place in places {
        place.shown = place.name_among(&all);
    }
}

impl RouteState {
    /// Whether both are states of one route.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.table == other.table && self.route == other.route
    }

    /// Compares what the canary gets with what the controller asks for, in percent of the Rollout's traffic. Returns a warning if they
    /// differ by more than [`TOLERATED`].
    pub(super) fn compare(&mut self, asked: u32, portion: &Portion) -> Option<String> {
        let (gets, all) = (portion.percent()?, portion.all);
        self.rounded = (asked != gets).then_some(Rounded { asked, gets });
        (asked.abs_diff(gets) > TOLERATED).then(|| {
            format!(
                "RouteTable {}: route {}: the controller asks for {asked} % of the traffic, and the canary gets {gets} %: the Rollout has {all} % of the route, and weights are whole numbers: give it a larger share, or choose other weights",
                self.table, self.route
            )
        })
    }

    /// Whether the portion is that of this route.
    pub(super) fn has(&self, portion: &Portion) -> bool {
        self.managed_by.is_none() && portion.route == self.route
    }

    /// Describes the weights in the table.
    pub(super) fn written(&self) -> String {
        let shares = self.destinations.iter();
        let shares = shares.map(|it| match it.weight {
            Some(weight) => format!("{} {weight}", it.to.shown),
            None => it.to.shown.clone(),
        });
        shares.collect::<Vec<_>>().join(", ")
    }

    /// Describes what the gateway makes of them, in the same order.
    pub(super) fn traffic(&self) -> String {
        let shares = self.destinations.iter();
        let shares = shares.map(|it| match it.weight {
            Some(0) => format!("0 or {} %", it.percent),
            _ => format!("{} %", it.percent),
        });
        let copies = self.copies.iter();
        let copies = copies.map(|it| format!("{} % copied to {}", it.percentage, it.to.shown));
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
        let shares = destinations.iter().zip(effective_weights(destinations));
        let shares = shares.map(|(it, percent)| Share {
            to: Place::of(it, table),
            weight: it.weight,
            percent,
        });
        RouteState {
            table: table.key().to_string(),
            route,
            destinations: shares.collect(),
            ..RouteState::default()
        }
    };
    let mut states = Vec::new();
    // Managed routes do not change the position of the owner's.
    let mut position = 0;
    for (index, route) in spec.http.iter().enumerate() {
        let raw = table.raw().pointer(&format!("/spec/http/{index}"));
        let managed_by = raw.and_then(managed_by).map(|rollout| rollout.to_string());
        let label = match route.name.as_str() {
            "" => format!("http[{position}]"),
            name => name.to_owned(),
        };
        position += usize::from(managed_by.is_none());
        if route.forward_to.is_none() {
            continue;
        }
        states.push(RouteState {
            managed_by,
            copies: copies(table, route, policies),
            ..state(label, spec.destinations_of(route))
        });
    }
    for (index, route) in spec.tcp.iter().enumerate() {
        let forward = route.forward_to.as_ref();
        let destinations = forward.and_then(|it| it.destinations.as_deref());
        states.push(state(format!("tcp[{index}]"), destinations.unwrap_or(&[])));
    }
    for (index, route) in spec.tls.iter().enumerate() {
        let forward = route.forward_to.as_ref();
        let destinations = forward.and_then(|it| it.destinations.as_deref());
        states.push(state(format!("tls[{index}]"), destinations.unwrap_or(&[])));
    }
    states
}

/// Returns the copies of the policies that select a route by its labels.
fn copies(table: &RouteTableDoc, route: &HttpRoute, policies: &[MirrorPolicyDoc]) -> Vec<Copies> {
    let specs = policies.iter().filter_map(|policy| policy.spec().ok());
    let copies = specs.filter_map(|spec| {
        let selectors = spec.apply_to_routes.iter();
        let mut selectors = selectors.filter_map(|it| it.route.as_ref());
        let namespace = &table.key().namespace;
        let is_selected =
            selectors.any(|it| it.may_select(&route.labels, table.labels(), namespace));
        let config = spec.config.filter(|_| is_selected)?;
        Some(Copies {
            to: Place::of(&config.destination?, table),
            percentage: config.percentage.unwrap_or(100.0),
        })
    });
    copies.collect()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the routes of a table `n/t`, named.
    pub(crate) fn of(spec: &Value, policies: &[MirrorPolicyDoc]) -> Vec<RouteState> {
        let table = json!({"kind": "RouteTable", "metadata": {"name": "t", "namespace": "n"}, "spec": spec});
        let table = RouteTableDoc::from_value(table).unwrap();
        let mut routes = routes(&table, policies);
        name_all(routes.iter_mut());
        routes
    }

    #[track_caller]
    fn check(spec: Value, expect: &[&str]) {
        let shown: Vec<String> = of(&spec, &[policy()])
            .iter()
            .map(|it| format!("{}: {}: {}", it.route, it.written(), it.traffic()))
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
            &["yes: a: 100 %, 12.5 % copied to b", "no: a: 100 %"],
        );
    }

    #[test]
    fn routes_show_where_they_lead_and_what_each_gets() {
        let a = json!({"ref": {"name": "a", "namespace": "x"}});
        check(
            json!({"http": [{"name": "r", "forwardTo": {"destinations": [a]}}, {"redirect": {}}, {"forwardTo": {}}],
                "tcp": [{"forwardTo": {"destinations": [a]}}], "tls": [{"matchers": []}], "defaultDestination": a}),
            &[
                "r: a: 100 %",
                "http[2]: a: 100 %",
                "tcp[0]: a: 100 %",
                "tls[0]: : ",
            ],
        );
    }

    #[test]
    fn a_managed_route_does_not_change_the_positions_of_others() {
        let a = json!({"ref": {"name": "a", "namespace": "x"}});
        let own = json!({"forwardTo": {"destinations": [a]}});
        let mut managed = own.clone();
        managed["name"] = json!("m");
        managed["labels"] = json!({
            "rollouts-plugin-trafficrouter-glooplatform/namespace": "n",
            "rollouts-plugin-trafficrouter-glooplatform/rollout": "r",
            "rollouts-plugin-trafficrouter-glooplatform/managed-route": "m",
        });
        check(
            json!({"http": [own, managed, own]}),
            &["http[0]: a: 100 %", "m: a: 100 %", "http[1]: a: 100 %"],
        );
    }

    #[test]
    fn what_is_written_and_what_the_gateway_makes_of_it_are_shown() {
        let to = |name, weight: Value| json!({"ref": {"name": name}, "weight": weight});
        let route = |destinations: [Value; 2]| json!({"http": [{"name": "r", "forwardTo": {"destinations": destinations}}]});
        let none = Value::Null;
        check(
            route([to("a", 100.into()), to("b", 0.into())]),
            &["r: a 100, b 0: 100 %, 0 or 1 %"],
        );
        check(
            route([to("a", none.clone()), to("b", none.clone())]),
            &["r: a, b: 50 %, 50 %"],
        );
        check(
            route([to("a", 80.into()), to("b", none)]),
            &["r: a 80, b: 80 %, 20 %"],
        );
    }

    #[test]
    fn one_destination_has_one_name_in_all_routes() {
        let to = |namespace, port| json!({"ref": {"name": "a", "namespace": namespace}, "port": port, "weight": 30});
        let of = |hash| json!({"ref": {"name": "b"}, "subset": {"hash": hash}, "weight": 20});
        let far = json!({"ref": {"name": "a", "namespace": "x", "cluster": "east"}, "kind": "VIRTUAL_DESTINATION"});
        let route = |name, destinations: Vec<Value>| json!({"name": name, "forwardTo": {"destinations": destinations}});
        let numbered = to("x", json!({"number": 80}));
        check(
            json!({"http": [
                route("r", vec![numbered.clone(), to("y", json!({"name": "web"})), of("1"), of("2")]),
                route("s", vec![numbered.clone()]),
            ]}),
            &[
                "r: x/a:80 30, y/a:web 30, b[1] 20, b[2] 20: 30 %, 30 %, 20 %, 20 %",
                "s: x/a:80 30: 30 %",
            ],
        );
        check(
            json!({"http": [route("r", vec![numbered]), route("s", vec![far])]}),
            &[
                "r: Service a:80 30: 30 %",
                "s: VirtualDestination east/a: 100 %",
            ],
        );
    }
}
