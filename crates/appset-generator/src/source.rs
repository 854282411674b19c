//! The kinds of sources. A new kind has its own file, a [`Schema`], and a line in each list of this file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use strict_json::{Block, Problem};

use crate::clusters::{Allowed, Clusters, Namespaces, Watched};
use crate::error::ConfigError;
use crate::gloo_routes::{GlooRoutes, RouteQuery};
use crate::gloo_workspaces::{GlooWorkspaces, WorkspaceQuery};
use crate::image_digests::{ImageDigests, ImageQuery};
use crate::keys::{Schema, blank, has_blanks};
use crate::request::first_text;
use crate::rollouts::{RolloutQuery, Rollouts};
use crate::static_sets::{StaticQuery, StaticSource};
use crate::{Failure, Output};

/// One request: what to look up, and how to answer with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// What to look up.
    pub source: SourceQuery,
    /// How to turn the sets into an answer.
    pub output: Output,
}

/// What a request looks up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceQuery {
    /// Sets of the configuration. Nothing is looked up.
    Static(StaticQuery),
    /// Digests of tags, from registries.
    ImageDigests(ImageQuery),
    /// Routes of Gloo's RouteTables.
    GlooRoutes(RouteQuery),
    /// Rollouts, and the RouteTables that they select.
    Rollouts(RolloutQuery),
    /// Workspaces of Gloo, and their clusters.
    GlooWorkspaces(WorkspaceQuery),
}

/// The configured sources, by the name that requests use.
pub(crate) type Sources = BTreeMap<String, Source>;

/// One source and its settings.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Static(StaticSource),
    ImageDigests(ImageDigests),
    GlooRoutes(GlooRoutes),
    Rollouts(Rollouts),
    GlooWorkspaces(GlooWorkspaces),
}

/// A kind of source that a configuration has at most once, under its own key, and how its settings are read.
type Kind = (
    &'static Schema,
    fn(&Block<'_>, &Clusters) -> Result<Source, ConfigError>,
);

/// All such kinds.
pub(crate) const KINDS: [Kind; 4] = [
    (&GlooRoutes::SCHEMA, |source, clusters| {
        GlooRoutes::from_config(source, clusters).map(Source::GlooRoutes)
    }),
    (&GlooWorkspaces::SCHEMA, |source, clusters| {
        GlooWorkspaces::from_config(source, clusters).map(Source::GlooWorkspaces)
    }),
    (&ImageDigests::SCHEMA, |source, _| {
        ImageDigests::from_config(source).map(Source::ImageDigests)
    }),
    (&Rollouts::SCHEMA, |source, clusters| {
        Rollouts::from_config(source, clusters).map(Source::Rollouts)
    }),
];

/// The largest number of items in the lists of one parameter. Each may be compared with each object.
const MAX_ITEMS: usize = 1_000;

/// Whether `value` is a list or an object of nothing. A list in a list of objects may be, as in `matchExpressions`.
fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// Returns the number of items in all lists of `value`.
fn items(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.len() + list.iter().map(items).sum::<usize>(),
        Value::Object(fields) => fields.values().map(items).sum(),
        _ => 0,
    }
}

impl Schema {
    /// Reads a request with the parameters `given`: `read` reads those of this source, [`Output`] those of every source.
    ///
    /// A template without a value leaves a blank text, or an empty list. That would select nothing, or everything, so it is
    /// refused in every parameter of the source.
    fn query(
        &self,
        given: Map<String, Value>,
        read: impl FnOnce(&Block<'_>) -> Result<SourceQuery, Failure>,
    ) -> Result<Query, Failure> {
        let known = [&Output::KEYS, self.parameters].concat();
        let given = Value::Object(given);
        let parameters = Block::root(&given, "the parameters", &known)?;
        for key in self.parameters {
            let Some(value) = parameters.value(key) else {
                continue;
            };
            if let Some((path, text)) = first_text(value, has_blanks) {
                return Err(blank(format!("{key}{path}"), text).into());
            }
            if is_empty(value)
                || value
                    .as_object()
                    .is_some_and(|it| it.values().any(is_empty))
            {
                let (path, needed) = ((*key).to_owned(), "a value");
                return Err(Problem::Empty { path, needed }.into());
            }
            let items = items(value);
            if items > MAX_ITEMS {
                let expected = format!("at most {MAX_ITEMS} items");
                return Err(parameters
                    .wrong(key, format!("{items} items"), expected)
                    .into());
            }
        }
        let source = read(&parameters)?;
        let output = Output::read(self.name, &parameters, Some(self.output_key))?;
        Ok(Query { source, output })
    }
}

impl Source {
    /// Reads a request with the parameters `given` to this source, which is called `name`.
    pub(crate) fn query(
        &self,
        name: &str,
        given: Map<String, Value>,
        allowed: &Allowed<'_>,
    ) -> Result<Query, Failure> {
        match self {
            Self::Static(it) => {
                let (query, output) = it.query(name, given)?;
                let source = SourceQuery::Static(query);
                Ok(Query { source, output })
            }
            Self::ImageDigests(it) => ImageDigests::SCHEMA.query(given, |parameters| {
                it.query(parameters, allowed).map(SourceQuery::ImageDigests)
            }),
            Self::GlooRoutes(it) => GlooRoutes::SCHEMA.query(given, |parameters| {
                it.query(parameters, allowed).map(SourceQuery::GlooRoutes)
            }),
            Self::Rollouts(it) => Rollouts::SCHEMA.query(given, |parameters| {
                it.query(parameters, allowed).map(SourceQuery::Rollouts)
            }),
            Self::GlooWorkspaces(it) => GlooWorkspaces::SCHEMA.query(given, |parameters| {
                it.query(parameters, allowed)
                    .map(SourceQuery::GlooWorkspaces)
            }),
        }
    }

    /// Whether requests to this source may have the parameter `key`.
    pub(crate) fn knows(&self, key: &str) -> bool {
        let schema = match self {
            Self::Static(it) => return it.is_input(key) || Output::KEYS.contains(&key),
            Self::ImageDigests(_) => &ImageDigests::SCHEMA,
            Self::GlooRoutes(_) => &GlooRoutes::SCHEMA,
            Self::Rollouts(_) => &Rollouts::SCHEMA,
            Self::GlooWorkspaces(_) => &GlooWorkspaces::SCHEMA,
        };
        Output::KEYS.contains(&key) || schema.parameters.contains(&key)
    }

    /// Adds the objects that this source reads to `watched`, by cluster.
    pub(crate) fn watch(&self, known: &Namespaces, watched: &mut BTreeMap<String, Watched>) {
        type Kinds = fn(&mut Watched) -> Vec<&mut BTreeSet<String>>;
        let (reach, kinds): (_, Kinds) = match self {
            Self::Static(_) | Self::ImageDigests(_) => return,
            Self::GlooRoutes(it) => (&it.reach, |all| vec![&mut all.route_tables]),
            Self::Rollouts(it) => (&it.reach, |all| {
                vec![&mut all.rollouts, &mut all.route_tables]
            }),
            Self::GlooWorkspaces(it) => (&it.reach, |all| {
                vec![&mut all.workspaces, &mut all.clusters]
            }),
        };
        for place in reach.places(known) {
            let of_cluster = watched.entry(place.cluster).or_default();
            of_cluster.namespaces |= reach.is_by_label();
            for kind in kinds(of_cluster) {
                kind.extend(place.namespaces.iter().cloned());
            }
        }
    }
}
