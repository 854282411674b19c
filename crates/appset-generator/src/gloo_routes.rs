//! The source `gloo-routes`: one set for each HTTP route that forwards requests, or for each RouteTable with such routes.
//!
//! The sets depend on what the owners of the tables wrote, not on the progress of a canary. Managed routes have no sets, since the
//! plugin inserts and removes them during a canary, and their Applications would come and go with them. Weights and
//! destinations also change during a canary, so a set has them only if the request includes them.

mod delegation;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gloo_types::{
    DestinationKind, DestinationReference, HttpRoute, ObjectReference, RouteTable, RouteTableDoc,
    RouteTableSelector, RouteTableSpec, effective_weights,
};
use route_planner::RouteSelector;
use serde_json::{Value, json};
use strict_json::{Block, Problem};

use self::delegation::{Delegation, Path, Served, readable};
use crate::clusters::{
    ALL, Allowed, ByCluster, Clusters, GoOn, Place, Reach, Sets, example, in_each, objects_of,
};
use crate::error::ConfigError;
use crate::keys::{Schema, is_second};
use crate::matching::LabelSelector;
use crate::set::hosts;
use crate::{Failure, Field, FieldError, ParameterSet};

/// The settings of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlooRoutes {
    pub(crate) reach: Reach,
}

/// One request to the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// The selected tables by cluster. Empty if the request names a cluster that the source does not read.
    tables: BTreeMap<String, RouteTableSelector>,
    /// The namespaces that may be read. A table in any of them may delegate to the selected tables.
    readable: Vec<Place>,
    /// The names of the selector of routes, as a set since there may be many. `routes` is the rest of the selector.
    route_names: BTreeSet<String>,
    routes: RouteSelector,
    destinations: Destinations,
    by_table: bool,
}

impl GlooRoutes {
    pub(crate) const SCHEMA: Schema = Schema {
        name: "gloo-routes",
        key: "glooRoutes",
        keys: &Reach::KEYS,
        parameters: &[
            "routeTableSelector",
            "routeSelector",
            "stableService",
            "destinationKinds",
            "granularity",
            "include",
            "cluster",
            "outputKey",
        ],
        output_key: "gloo",
    };

    pub(crate) fn from_config(source: &Block<'_>, known: &Clusters) -> Result<Self, ConfigError> {
        let reach = Reach::from_config(source, known)?;
        Ok(Self { reach })
    }

    /// Reads the parameters of a request.
    pub(crate) fn query(
        &self,
        parameters: &Block<'_>,
        allowed: &Allowed<'_>,
    ) -> Result<RouteQuery, Failure> {
        let cluster = parameters.string("cluster")?;
        let by_table = is_second(parameters, "granularity", ["route", "table"])?;
        let (selector, asked) = selector(parameters)?;
        let places = self.reach.admit(cluster, &asked, allowed)?;
        let readable = self.reach.around(&places, allowed)?;
        let tables = places.into_iter().map(|place| {
            let mut selector = selector.clone();
            selector.namespaces = place.namespaces;
            (place.cluster, selector)
        });
        let tables = tables.collect();
        let mut routes = routes(parameters)?;
        Ok(RouteQuery {
            tables,
            readable,
            route_names: std::mem::take(&mut routes.names).into_iter().collect(),
            routes,
            destinations: Destinations::read(parameters, by_table)?,
            by_table,
        })
    }
}

impl RouteQuery {
    /// Returns the namespaces whose RouteTables [`sets`](Self::sets) needs.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.readable
    }

    /// Computes the sets from all `tables` in [`places`](Self::places).
    ///
    /// # Errors
    /// Returns `Err` if a table that is selected by name does not exist, since an answer without it would delete its Applications,
    /// or if a selected table has a value of the wrong type.
    pub fn sets(
        &self,
        tables: &ByCluster<RouteTable>,
        go_on: GoOn<'_>,
    ) -> Result<Vec<ParameterSet>, Failure> {
        in_each(self.tables.keys(), |cluster| {
            self.sets_of(cluster, objects_of(tables, cluster), go_on)
        })
    }

    /// Computes the set of a table with these labels, which the request selects.
    pub(crate) fn example(&self, labels: &Value) -> Result<Vec<ParameterSet>, Failure> {
        let route = json!({"name": "a", "labels": labels, "forwardTo": {"destinations": [{"ref": {"name": "a"}}]}});
        let table = example("a", labels, json!({"hosts": ["a.io"], "http": [route]}))?;
        let all = RouteTableSelector {
            names: vec!["a".to_owned()],
            namespaces: vec!["a".to_owned()],
            ..RouteTableSelector::default()
        };
        let query = Self {
            tables: BTreeMap::from([("a".to_owned(), all)]),
            route_names: BTreeSet::new(),
            routes: RouteSelector::default(),
            destinations: Destinations {
                stable: None,
                kinds: Vec::new(),
                ..self.destinations.clone()
            },
            ..self.clone()
        };
        query.sets(&table, &|| Ok(()))
    }

    /// Computes the sets of one cluster, by key.
    fn sets_of(
        &self,
        cluster: &str,
        tables: &[Arc<RouteTableDoc>],
        go_on: GoOn<'_>,
    ) -> Result<Sets, Failure> {
        let mut selector = self.tables.get(cluster).cloned().unwrap_or_default();
        if selector.namespaces == [ALL] && !tables.is_empty() {
            let namespaces = tables.iter().map(|table| table.key().namespace.clone());
            selector.namespaces = namespaces.collect::<BTreeSet<_>>().into_iter().collect();
        }
        let readable = readable(tables.iter().map(AsRef::as_ref));
        let mut delegation = Delegation::new(&readable);
        let mut sets = Sets::new();
        for table in selector.pick(tables.iter().map(AsRef::as_ref))? {
            go_on()?;
            let spec = table.spec().map_err(Failure::unreadable)?;
            let place = delegation.place(table, &spec);
            let routes = self.selected(table, &spec)?;
            let rows: Vec<Option<Row<'_>>> = match self.by_table {
                true => routes.first().map(|_| None).into_iter().collect(),
                false => rows(owners(table, &spec), routes).map(Some).collect(),
            };
            for row in &rows {
                sets.extend([self.set(cluster, table, &spec, &place, row.as_ref())?]);
            }
        }
        Ok(sets)
    }

    /// Returns the selected routes of a table, each with its position among the owner's routes.
    fn selected<'s>(
        &self,
        table: &RouteTableDoc,
        spec: &'s RouteTableSpec,
    ) -> Result<Vec<(usize, &'s HttpRoute)>, Failure> {
        let by_name_only = !self.route_names.is_empty() && self.routes.labels.is_empty();
        let is_selected = |route: &HttpRoute| {
            let is_named = self.route_names.contains(&route.name);
            let is_other = || !by_name_only && self.routes.matches(&route.name, &route.labels);
            route.forward_to.is_some() && (is_named || is_other())
        };
        let routes = owners(table, spec).enumerate();
        if !self.destinations.select() {
            return Ok(routes.filter(|(_, route)| is_selected(route)).collect());
        }
        // The destinations at rest count: a canary with weight 100 replaces the stable Service in the table.
        let rest = route_planner::at_rest(table).map_err(Failure::unreadable)?;
        let rest_spec = rest.spec().map_err(Failure::unreadable)?;
        let (all, namespace) = (&self.destinations, &table.key().namespace);
        let routes = routes.zip(owners(&rest, &rest_spec));
        let routes = routes.filter(|((_, route), resting)| {
            is_selected(route) && all.match_route(resting, &rest_spec, namespace)
        });
        Ok(routes.map(|(route, _)| route).collect())
    }

    /// Makes the set of a table, or of a route of it, with its key.
    fn set(
        &self,
        cluster: &str,
        table: &RouteTableDoc,
        spec: &RouteTableSpec,
        place: &Served,
        row: Option<&Row<'_>>,
    ) -> Result<(String, ParameterSet), FieldError> {
        let name = table.key();
        let mut parts = vec![cluster, name.namespace.as_str(), name.name.as_str()];
        parts.extend(row.map(|row| row.id.as_str()));
        let mut problems: Vec<&str> = place.problems.iter().copied().collect();
        let route = row.map(|row| {
            problems.extend(row.problem);
            let (paths, has_more) = place.paths(row.route);
            if has_more {
                problems.push("it has more than 256 paths");
            }
            let own = [
                ("name", (&row.route.name).into()),
                ("labels", Field::texts(&row.route.labels)),
            ];
            let destinations = self.destinations.fields(row.route, spec, &name.namespace);
            let fields = own.into_iter().chain(path_fields(&paths));
            ("route", fields.chain(destinations).collect())
        });
        let route_table = Field::from([
            ("name", (&name.name).into()),
            ("namespace", (&name.namespace).into()),
            ("labels", Field::texts(table.labels())),
        ]);
        let own = [
            ("cluster", cluster.into()),
            ("configError", problems.join("; ").into()),
            ("delegated", spec.hosts.is_empty().into()),
            ("hostsKnown", place.hosts_known.into()),
            ("routeTable", route_table),
        ];
        let fields = hosts(&place.hosts).into_iter().chain(own).chain(route);
        ParameterSet::of(GlooRoutes::SCHEMA.output_key, &parts, fields)
    }
}

/// A route, and its identifier within its table.
struct Row<'s> {
    id: String,
    route: &'s HttpRoute,
    /// The problem with its name, if any.
    problem: Option<&'static str>,
}

/// Identifies each of the selected `routes` of a table, which are given with their positions among `all` routes of the owner.
///
/// A route without a unique name is identified by its position: `#3`, or `demo#2`. Its row has a problem, since the position may
/// belong to another route after a change of the table.
fn rows<'s>(
    all: impl Iterator<Item = &'s HttpRoute>,
    routes: Vec<(usize, &'s HttpRoute)>,
) -> impl Iterator<Item = Row<'s>> {
    let mut named = BTreeMap::<&str, usize>::new();
    for route in all {
        *named.entry(&route.name).or_default() += 1;
    }
    let row = move |(position, route): (usize, &'s HttpRoute)| {
        let number = position + 1;
        let name = &route.name;
        let problem = match named.get(name.as_str()) {
            _ if name.is_empty() => Some("the route has no name: give it one"),
            Some(2..) => Some("two routes of the table have this name: give them different ones"),
            _ => None,
        };
        let id = match problem {
            Some(_) => format!("{name}#{number}"),
            None => name.clone(),
        };
        Row { id, route, problem }
    };
    routes.into_iter().map(row)
}

/// Returns the paths of a route as fields of a set.
fn path_fields(paths: &[Path]) -> [(&'static str, Field); 4] {
    let first = paths.iter().find(|path| !path.kind.is_empty());
    let first = first.or(paths.first());
    let list = paths.iter();
    let list = list.map(|it| [("path", (&it.text).into()), ("type", it.kind.into())].into());
    [
        ("path", first.map_or("", |path| path.text.as_str()).into()),
        ("pathType", first.map_or("", |path| path.kind).into()),
        ("pathKnown", paths.iter().all(|path| path.is_known).into()),
        ("paths", Field::List(list.collect())),
    ]
}

/// Reads `routeTableSelector` of a request. Returns the selector without namespaces, and the namespaces.
fn selector(parameters: &Block<'_>) -> Result<(RouteTableSelector, Vec<String>), Problem> {
    let known = ["name", "names", "namespace", "namespaces"];
    let known = [&known[..], &LabelSelector::KEYS].concat();
    let block = parameters.block("routeTableSelector", &known)?;
    let mut names = block.object_names("names")?;
    names.extend(block.object_name("name")?);
    names.sort();
    names.dedup();
    let mut namespaces = block.object_names("namespaces")?;
    namespaces.extend(block.object_name("namespace")?);
    let by_label = LabelSelector::read(&block)?;
    let selector = RouteTableSelector {
        names,
        labels: by_label.labels,
        match_expressions: by_label.match_expressions,
        namespaces: Vec::new(),
    };
    if selector.names.is_empty() && !selector.by_label() {
        return Err(block.empty("name, names, labels or matchExpressions"));
    }
    Ok((selector, namespaces))
}

/// Reads `routeSelector` of a request, which has the semantics of the traffic router.
fn routes(parameters: &Block<'_>) -> Result<RouteSelector, Problem> {
    let selector = parameters.block("routeSelector", &["labels", "name", "names"])?;
    let mut names = selector.strings("names")?;
    names.extend(selector.string("name")?.map(str::to_owned));
    Ok(RouteSelector {
        names,
        labels: selector.labels("labels")?,
        ..RouteSelector::default()
    })
}

/// Returns the HTTP routes of a table without managed routes.
fn owners<'s>(
    table: &RouteTableDoc,
    spec: &'s RouteTableSpec,
) -> impl Iterator<Item = &'s HttpRoute> {
    let written = table.raw().pointer("/spec/http").and_then(Value::as_array);
    let routes = written.into_iter().flatten().zip(&spec.http);
    let routes = routes.filter(|(written, _)| route_planner::managed_by(written).is_none());
    routes.map(|(_, route)| route)
}

/// The parameters of a request about destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Destinations {
    stable: Option<Service>,
    /// A route with a destination of one of these kinds is selected. Without a list any kind is.
    kinds: Vec<DestinationKind>,
    shown: bool,
    with_weights: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Service {
    name: String,
    /// Inherits the namespace of the table if absent.
    namespace: Option<String>,
}

impl Destinations {
    fn read(parameters: &Block<'_>, by_table: bool) -> Result<Self, Problem> {
        let include = parameters.words("include", &["destinations", "weights"])?;
        if by_table && !include.is_empty() {
            return Err(parameters.conflict("include", "granularity"));
        }
        let service = parameters.block("stableService", &["name", "namespace"])?;
        let name = service.object_name("name")?;
        let namespace = service.object_name("namespace")?;
        if name.is_none() && namespace.is_some() {
            return Err(service.empty("name"));
        }
        let kinds = ["SERVICE", "VIRTUAL_DESTINATION", "EXTERNAL_SERVICE"];
        let kinds = parameters.words("destinationKinds", &kinds)?.into_iter();
        Ok(Self {
            stable: name.map(|name| Service { name, namespace }),
            kinds: kinds.map(|kind| kind.to_owned().into()).collect(),
            shown: !include.is_empty(),
            with_weights: include.contains(&"weights"),
        })
    }

    /// Whether the request selects routes by destination.
    fn select(&self) -> bool {
        self.stable.is_some() || !self.kinds.is_empty()
    }

    /// Whether a route of a table in `namespace` has the requested destinations.
    fn match_route(&self, route: &HttpRoute, spec: &RouteTableSpec, namespace: &str) -> bool {
        let all = spec.destinations_of(route);
        let is_stable = |service: &Service| {
            let wanted = service.namespace.as_deref().unwrap_or(namespace);
            objects(all).any(|(destination, object)| {
                destination.kind == DestinationKind::Service
                    && object.name == service.name
                    && object.namespace_from(namespace) == wanted
            })
        };
        let is_kind = |destination: &DestinationReference| self.kinds.contains(&destination.kind);
        self.stable.as_ref().is_none_or(is_stable)
            && (self.kinds.is_empty() || objects(all).any(|(destination, _)| is_kind(destination)))
    }

    /// Returns the destinations of a route as a field of a set, if the request includes them.
    fn fields(
        &self,
        route: &HttpRoute,
        spec: &RouteTableSpec,
        namespace: &str,
    ) -> Option<(&'static str, Field)> {
        let all = spec.destinations_of(route);
        let weighted = all.iter().zip(effective_weights(all));
        let fields = weighted.filter_map(|(destination, weight)| {
            let object = destination.reference.as_ref()?;
            let own = [
                ("name", (&object.name).into()),
                ("namespace", object.namespace_from(namespace).into()),
                ("cluster", (&object.cluster).into()),
                ("port", port(destination).into()),
                ("kind", destination.kind.as_str().into()),
            ];
            let weight = || ("weight", weight.to_string().into());
            let weight = self.with_weights.then(weight);
            Some(own.into_iter().chain(weight).collect())
        });
        let fields = || ("destinations", Field::List(fields.collect()));
        self.shown.then(fields)
    }
}

/// Returns the destinations that refer to an object, each with its reference.
fn objects(
    all: &[DestinationReference],
) -> impl Iterator<Item = (&DestinationReference, &ObjectReference)> {
    all.iter()
        .filter_map(|destination| Some((destination, destination.reference.as_ref()?)))
}

fn port(destination: &DestinationReference) -> String {
    let Some(port) = &destination.port else {
        return String::new();
    };
    let number = port.number.map(|number| number.to_string());
    number.or_else(|| port.name.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
