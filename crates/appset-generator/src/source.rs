//! The sources that there are: a new one is a file of its own, and a line in each list here.

use std::collections::BTreeMap;

use serde_json::Value;
use strict_json::Block;

use crate::clusters::{Allowed, Clusters, Namespaces, Place, Watched};
use crate::config::ConfigError;
use crate::gloo_routes::{self, GlooRoutes, RouteQuery};
use crate::gloo_workspaces::{self, GlooWorkspaces, WorkspaceQuery};
use crate::image_digests::{self, ImageDigests, ImageQuery};
use crate::keys::Key;
use crate::rollouts::{self, RolloutQuery, Rollouts};
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

impl Kind {
    pub(crate) const ALL: [Self; 4] = [
        Self::GlooRoutes,
        Self::GlooWorkspaces,
        Self::ImageDigests,
        Self::Rollouts,
    ];

    /// The name that requests choose it by.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ImageDigests => image_digests::NAME,
            Self::GlooRoutes => gloo_routes::NAME,
            Self::Rollouts => rollouts::NAME,
            Self::GlooWorkspaces => gloo_workspaces::NAME,
        }
    }

    /// Its key in the configuration.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::ImageDigests => "imageDigests",
            Self::GlooRoutes => "glooRoutes",
            Self::Rollouts => "rollouts",
            Self::GlooWorkspaces => "glooWorkspaces",
        }
    }

    /// The keys below that.
    pub(crate) const fn keys(self) -> &'static [Key] {
        match self {
            Self::ImageDigests => ImageDigests::KEYS,
            Self::GlooRoutes => GlooRoutes::KEYS,
            Self::Rollouts => Rollouts::KEYS,
            Self::GlooWorkspaces => GlooWorkspaces::KEYS,
        }
    }

    /// The parameters of a request to it, besides those of every source.
    pub(crate) const fn parameters(self) -> &'static [Key] {
        match self {
            Self::ImageDigests => ImageDigests::PARAMETERS,
            Self::GlooRoutes => GlooRoutes::PARAMETERS,
            Self::Rollouts => Rollouts::PARAMETERS,
            Self::GlooWorkspaces => GlooWorkspaces::PARAMETERS,
        }
    }

    /// The source with its settings.
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
        let (source, output) = match self {
            Self::Static(source) => {
                let (query, output) = source.query(name, given)?;
                (SourceQuery::Static(query), output)
            }
            Self::ImageDigests(source) => {
                let (query, output) = source.query(given, allowed.images)?;
                (SourceQuery::ImageDigests(query), output)
            }
            Self::GlooRoutes(source) => {
                let (query, output) = source.query(given, &allowed)?;
                (SourceQuery::GlooRoutes(query), output)
            }
            Self::Rollouts(source) => {
                let (query, output) = source.query(given, &allowed)?;
                (SourceQuery::Rollouts(query), output)
            }
            Self::GlooWorkspaces(source) => {
                let (query, output) = source.query(given, &allowed)?;
                (SourceQuery::GlooWorkspaces(query), output)
            }
        };
        Ok(Query { source, output })
    }

    /// Adds the objects that it looks at, by cluster.
    pub(crate) fn watch(&self, known: &Namespaces, watched: &mut BTreeMap<String, Watched>) {
        let reach = match self {
            Self::Static(_) | Self::ImageDigests(_) => return,
            Self::GlooRoutes(source) => source.reach(),
            Self::Rollouts(source) => source.reach(),
            Self::GlooWorkspaces(source) => source.reach(),
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
