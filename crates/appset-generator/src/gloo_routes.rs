//! The source that makes a set of every HTTP route that forwards somewhere, or of every table with such routes.
//!
//! What changes while a canary walks is not in a set: weights, destinations and the routes that the plugin puts in come and
//! go, and an Application made of them would come and go with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use gloo_types::{HttpRoute, RouteTableDoc, RouteTableSelector, RouteTableSpec};
use route_planner::RouteSelector;
use serde_json::Value;
use strict_json::{Block, Problem};

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
            "granularity",
            "routeSelector",
            "routeTableSelector",
        ];
        let parameters = parameters::of_source(given, &keys)?;

        let cluster = parameters.string("cluster")?;
        let here = cluster.is_none_or(|cluster| cluster == self.cluster);
        let tables = self.tables(&parameters, allowed)?;
        let query = RouteQuery {
            cluster: self.cluster.clone(),
            tables: here.then_some(tables),
            routes: routes(&parameters)?,
            by_table: parameters.one_of("granularity", &["route", "table"])? == Some("table"),
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
            let spec = table
                .spec()
                .map_err(|error| Failure::Upstream(error.to_string()))?;
            let written = table.raw().pointer("/spec/http").and_then(Value::as_array);
            let routes = written.into_iter().flatten().zip(&spec.http);
            let routes = routes.filter(|(written, route)| {
                let put_in = route_planner::managed_by(written).is_some();
                let selected = self.routes.matches(&route.name, &route.labels);
                !put_in && route.forward_to.is_some() && selected
            });
            let mut routes = routes.map(|(_, route)| route).peekable();
            let found: Vec<Option<&HttpRoute>> = if self.by_table {
                routes.peek().map(|_| None).into_iter().collect()
            } else {
                // One without a name cannot be told from others once the table changes.
                routes
                    .filter(|route| !route.name.is_empty())
                    .map(Some)
                    .collect()
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
            let route = Field::from([
                ("name", route.name.as_str().into()),
                ("labels", Field::texts(&route.labels)),
                ("path", path(route).into()),
            ]);
            ("route", route)
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
