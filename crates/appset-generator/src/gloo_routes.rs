//! The source that makes a set of every HTTP route that forwards somewhere, or of every table with such routes.
//!
//! Which sets there are depends on what the owners of tables wrote, not on where a canary is.
//! The routes that the plugin puts in come and go, and an Application made of them would come and go with them, so there is no
//! set of one. Weights and destinations change while a canary walks, so they are in a set only where a request asks for them.

mod destinations;

use std::collections::BTreeMap;
use std::sync::Arc;

use gloo_types::{HttpRoute, RouteTableDoc, RouteTableSelector, RouteTableSpec};
use route_planner::RouteSelector;
use serde_json::Value;
use strict_json::{Block, Problem};

use self::destinations::Destinations;
use crate::config::ConfigError;
use crate::field::hosts;
use crate::identity::Identity;
use crate::parameters;
use crate::query::{Output, Query, SourceQuery};
use crate::reach::Reach;
use crate::{Failure, Field, ParameterSet};

/// The name by which requests choose this source.
pub(crate) const NAME: &str = "gloo-routes";
/// The source's key at the top.
const OWN: &str = "gloo";

/// Where RouteTables may be looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlooRoutes {
    cluster: String,
    reach: Reach,
}

/// The tables and routes of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// The cluster that the tables are in.
    cluster: String,
    /// The tables; none when another cluster is asked for.
    tables: Option<RouteTableSelector>,
    routes: RouteSelector,
    destinations: Destinations,
    by_table: bool,
}

impl GlooRoutes {
    pub(crate) const KEYS: &[&str] = &[Reach::KEY];

    pub(crate) fn from_config(source: &Block<'_>, cluster: &str) -> Result<Self, ConfigError> {
        Ok(Self {
            cluster: cluster.to_owned(),
            reach: Reach::from_config(source)?,
        })
    }

    /// Where RouteTables may be looked for.
    pub(crate) fn namespaces(&self) -> &[String] {
        self.reach.namespaces()
    }

    /// What a request to this source asks for. `allowed` are the profile's namespaces.
    pub(crate) fn query(
        &self,
        given: &Value,
        allowed: Option<&[String]>,
    ) -> Result<Query, Failure> {
        let keys = [
            "cluster",
            "destinationKinds",
            "granularity",
            "include",
            "routeSelector",
            "routeTableSelector",
            "stableService",
        ];
        let parameters = parameters::of_source(given, &keys)?;

        let cluster = parameters.string("cluster")?;
        let here = cluster.is_none_or(|cluster| cluster == self.cluster);
        let tables = self.tables(&parameters, allowed)?;
        let by_table = parameters.one_of("granularity", &["route", "table"])? == Some("table");
        let query = RouteQuery {
            cluster: self.cluster.clone(),
            tables: here.then_some(tables),
            routes: routes(&parameters)?,
            destinations: Destinations::read(&parameters, by_table)?,
            by_table,
        };
        Ok(Query {
            source: SourceQuery::GlooRoutes(query),
            output: Output::read(NAME, &parameters, Some(OWN), false)?,
        })
    }

    fn tables(
        &self,
        parameters: &Block<'_>,
        allowed: Option<&[String]>,
    ) -> Result<RouteTableSelector, Failure> {
        let known = ["labels", "name", "names", "namespace", "namespaces"];
        let selector = parameters.block("routeTableSelector", &known)?;
        let mut names = selector.object_names("names")?;
        names.extend(selector.object_name("name")?);
        let mut asked = selector.object_names("namespaces")?;
        asked.extend(selector.object_name("namespace")?);
        let namespaces = self.reach.admit(&asked, allowed)?;
        let labels = selector.labels("labels")?;
        if names.is_empty() && labels.is_empty() {
            return Err(Problem::Empty {
                path: "routeTableSelector".to_owned(),
                needed: "name, names or labels",
            }
            .into());
        }
        names.sort();
        names.dedup();
        Ok(RouteTableSelector {
            names,
            labels,
            match_expressions: Vec::new(),
            namespaces,
        })
    }
}

impl RouteQuery {
    /// The namespaces whose tables have to be known; none when the request is about another cluster.
    #[must_use]
    pub fn namespaces(&self) -> &[String] {
        let tables = self.tables.as_ref();
        tables.map_or(&[], |tables| &tables.namespaces)
    }

    /// The sets, from all `tables` of [`namespaces`](Self::namespaces).
    ///
    /// # Errors
    /// When a table that is selected by name is not there, as an answer without it would delete its Applications; when a
    /// table contradicts the API, or two sets would have the same key.
    pub fn sets(&self, tables: &[Arc<RouteTableDoc>]) -> Result<Vec<ParameterSet>, Failure> {
        let Some(selector) = &self.tables else {
            return Ok(Vec::new());
        };
        let mut sets = BTreeMap::new();
        for table in selector.pick(tables.iter().map(AsRef::as_ref))? {
            let spec = table.spec().map_err(Failure::unreadable)?;
            let routes = self.found(table, &spec)?;
            let found: Vec<Option<&HttpRoute>> = if self.by_table {
                routes.first().map(|_| None).into_iter().collect()
            } else {
                // One without a name cannot be told from others once the table changes.
                let named = routes.into_iter().filter(|route| !route.name.is_empty());
                named.map(Some).collect()
            };
            for route in found {
                let (identity, fields) = self.fields(table, &spec, route);
                let mut set = ParameterSet::default();
                set.insert(OWN, fields)?;
                let key = identity.key;
                if sets.insert(key.clone(), set).is_some() {
                    return Err(Failure::Upstream(format!(
                        "two routes are {key}: give them different names"
                    )));
                }
            }
        }
        Ok(sets.into_values().collect())
    }

    /// The routes of a table that are meant, all of them their owner's.
    fn found<'s>(
        &self,
        table: &RouteTableDoc,
        spec: &'s RouteTableSpec,
    ) -> Result<Vec<&'s HttpRoute>, Failure> {
        let is_selected = |route: &HttpRoute| {
            route.forward_to.is_some() && self.routes.matches(&route.name, &route.labels)
        };
        if !self.destinations.select() {
            let routes = owners(table, spec).filter(|route| is_selected(route));
            return Ok(routes.collect());
        }
        // A canary with all the traffic has taken the place of the stable Service.
        let rest = route_planner::at_rest(table).map_err(Failure::unreadable)?;
        let rest_spec = rest.spec().map_err(Failure::unreadable)?;
        let namespace = &table.key().namespace;
        let routes = owners(table, spec).zip(owners(&rest, &rest_spec));
        let routes = routes.filter(|(route, resting)| {
            is_selected(route) && self.destinations.are_of(resting, &rest_spec, namespace)
        });
        Ok(routes.map(|(route, _)| route).collect())
    }

    fn fields(
        &self,
        table: &RouteTableDoc,
        spec: &RouteTableSpec,
        route: Option<&HttpRoute>,
    ) -> (Identity, Field) {
        let name = table.key();
        let mut parts = vec![
            self.cluster.as_str(),
            name.namespace.as_str(),
            name.name.as_str(),
        ];
        parts.extend(route.map(|route| route.name.as_str()));
        let identity = Identity::of(&parts);
        let own = [
            ("cluster", self.cluster.as_str().into()),
            ("delegated", spec.hosts.is_empty().into()),
            (
                "routeTable",
                Field::from([
                    ("name", name.name.as_str().into()),
                    ("namespace", name.namespace.as_str().into()),
                    ("labels", Field::texts(table.labels())),
                ]),
            ),
        ];
        let route = route.map(|route| {
            let own = [
                ("name", route.name.as_str().into()),
                ("labels", Field::texts(&route.labels)),
                ("path", path(route).into()),
            ];
            let destinations = self.destinations.fields(route, spec, &name.namespace);
            ("route", own.into_iter().chain(destinations).collect())
        });
        let fields = identity.fields().into_iter().chain(hosts(&spec.hosts));
        let fields = fields.chain(own).chain(route).collect();
        (identity, fields)
    }
}

/// The routes of a request, chosen as the traffic router chooses them.
fn routes(parameters: &Block<'_>) -> Result<RouteSelector, Problem> {
    let selector = parameters.block("routeSelector", &["labels", "name", "names"])?;
    let mut names = selector.strings("names")?;
    let name = selector.string("name")?.filter(|name| !name.is_empty());
    names.extend(name.map(str::to_owned));
    Ok(RouteSelector {
        names,
        labels: selector.labels("labels")?,
        ..RouteSelector::default()
    })
}

/// The HTTP routes of a table but those that the plugin has put in, which do not move them.
fn owners<'s>(
    table: &RouteTableDoc,
    spec: &'s RouteTableSpec,
) -> impl Iterator<Item = &'s HttpRoute> {
    let written = table.raw().pointer("/spec/http").and_then(Value::as_array);
    let routes = written.into_iter().flatten().zip(&spec.http);
    let routes = routes.filter(|(written, _)| route_planner::managed_by(written).is_none());
    routes.map(|(_, route)| route)
}

/// The path of the first matcher that has one, exact, a prefix or a pattern.
fn path(route: &HttpRoute) -> String {
    let uri = route
        .matchers
        .iter()
        .find_map(|matcher| matcher.uri.as_ref());
    let text = uri.and_then(|uri| {
        let texts = [&uri.exact, &uri.prefix, &uri.regex];
        texts.into_iter().find_map(Clone::clone)
    });
    text.unwrap_or_default()
}

#[cfg(test)]
mod tests;
