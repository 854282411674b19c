//! The sources that there are: a new one is a file of its own, and a line in each list here.

use std::collections::BTreeMap;

use serde_json::Value;
use strict_json::Block;

use crate::clusters::{Allowed, Clusters, Namespaces, Place, Watched};
use crate::config::ConfigError;
use crate::gloo_routes::{GlooRoutes, RouteQuery};
use crate::gloo_workspaces::{GlooWorkspaces, WorkspaceQuery};
use crate::image_digests::{ImageDigests, ImageQuery};
use crate::keys::{Key, names};
use crate::rollouts::{RolloutQuery, Rollouts};
use crate::static_sets::{StaticQuery, StaticSource};
use crate::{Failure, Output};

/// What to look up, and what to make of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// What to look up.
    pub source: SourceQuery,
    /// What to make of it.
    pub output: Output,
}

/// What to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceQuery {
    /// Sets of the configuration; nothing is looked up.
    Static(StaticQuery),
    /// Digests of tags, from registries.
    ImageDigests(ImageQuery),
    /// Routes of Gloo's RouteTables.
    GlooRoutes(RouteQuery),
    /// Rollouts, and the RouteTables that they select.
    Rollouts(RolloutQuery),
    /// Workspaces of Gloo, and the clusters that they are in.
    GlooWorkspaces(WorkspaceQuery),
}

/// Every source that is configured, by the name that requests choose it by.
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

/// The sources that exist once each, with a key of their own in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ImageDigests,
    GlooRoutes,
    Rollouts,
    GlooWorkspaces,
}

/// The names of a kind of source, and the keys that it reads.
pub(crate) struct Schema {
    /// The name by which requests choose it.
    pub(crate) name: &'static str,
    /// Its key at the top of the configuration.
    pub(crate) key: &'static str,
    /// The keys of the object under `key`.
    pub(crate) keys: &'static [Key],
    /// The parameters of its requests, besides those of every source.
    pub(crate) parameters: &'static [Key],
    /// Its key at the top of a parameter set. The parameter `outputKey` renames it.
    pub(crate) output_key: &'static str,
}

impl Schema {
    /// Reads a request with the parameters `given`: `read` reads those of this source, [`Output`] those of every source.
    fn query(
        &self,
        given: &Value,
        read: impl FnOnce(&Block<'_>) -> Result<SourceQuery, Failure>,
    ) -> Result<Query, Failure> {
        let known = names(&[&Output::KEYS, self.parameters].concat());
        let parameters = Block::root(given, "the parameters", &known)?;
        let source = read(&parameters)?;
        let accepts_empty =
            matches!(&source, SourceQuery::ImageDigests(images) if images.skips_missing());
        let output = Output::read(self.name, &parameters, Some(self.output_key), accepts_empty)?;
        Ok(Query { source, output })
    }
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [
        Self::GlooRoutes,
        Self::GlooWorkspaces,
        Self::ImageDigests,
        Self::Rollouts,
    ];

    /// Returns the names and keys of this kind.
    pub(crate) const fn schema(self) -> &'static Schema {
        match self {
            Self::ImageDigests => &ImageDigests::SCHEMA,
            Self::GlooRoutes => &GlooRoutes::SCHEMA,
            Self::Rollouts => &Rollouts::SCHEMA,
            Self::GlooWorkspaces => &GlooWorkspaces::SCHEMA,
        }
    }

    /// Reads the settings of this source.
    pub(crate) fn read(
        self,
        block: &Block<'_>,
        clusters: &Clusters,
    ) -> Result<Source, ConfigError> {
        Ok(match self {
            Self::ImageDigests => Source::ImageDigests(ImageDigests::from_config(block)?),
            Self::GlooRoutes => Source::GlooRoutes(GlooRoutes::from_config(block, clusters)?),
            Self::Rollouts => Source::Rollouts(Rollouts::from_config(block, clusters)?),
            Self::GlooWorkspaces => {
                Source::GlooWorkspaces(GlooWorkspaces::from_config(block, clusters)?)
            }
        })
    }
}

impl Source {
    /// What a request with the parameters `given` asks the source called `name` for.
    pub(crate) fn query(
        &self,
        name: &str,
        given: &Value,
        allowed: Allowed<'_>,
    ) -> Result<Query, Failure> {
        match self {
            Self::Static(source) => {
                let (query, output) = source.query(name, given)?;
                let source = SourceQuery::Static(query);
                Ok(Query { source, output })
            }
            Self::ImageDigests(source) => ImageDigests::SCHEMA.query(given, |parameters| {
                let query = source.query(parameters, &allowed)?;
                Ok(SourceQuery::ImageDigests(query))
            }),
            Self::GlooRoutes(source) => GlooRoutes::SCHEMA.query(given, |parameters| {
                let query = source.query(parameters, &allowed)?;
                Ok(SourceQuery::GlooRoutes(query))
            }),
            Self::Rollouts(source) => Rollouts::SCHEMA.query(given, |parameters| {
                let query = source.query(parameters, &allowed)?;
                Ok(SourceQuery::Rollouts(query))
            }),
            Self::GlooWorkspaces(source) => GlooWorkspaces::SCHEMA.query(given, |parameters| {
                let query = source.query(parameters, &allowed)?;
                Ok(SourceQuery::GlooWorkspaces(query))
            }),
        }
    }

    /// Adds the objects that it looks at, by cluster.
    pub(crate) fn watch(&self, known: &Namespaces, watched: &mut BTreeMap<String, Watched>) {
        let reach = match self {
            Self::Static(_) | Self::ImageDigests(_) => return,
            Self::GlooRoutes(source) => &source.reach,
            Self::Rollouts(source) => &source.reach,
            Self::GlooWorkspaces(source) => &source.reach,
        };
        for Place {
            cluster,
            namespaces,
        } in reach.places(known)
        {
            let of_cluster = watched.entry(cluster).or_default();
            of_cluster.namespaces |= reach.is_by_label();
            let kinds = match self {
                Self::Static(_) | Self::ImageDigests(_) => Vec::new(),
                Self::GlooRoutes(_) => vec![&mut of_cluster.route_tables],
                Self::Rollouts(_) => vec![&mut of_cluster.rollouts, &mut of_cluster.route_tables],
                Self::GlooWorkspaces(_) => {
                    vec![&mut of_cluster.workspaces, &mut of_cluster.clusters]
                }
            };
            for kind in kinds {
                kind.extend(namespaces.iter().cloned());
            }
        }
    }
}
