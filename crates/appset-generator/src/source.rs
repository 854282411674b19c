//! The sources that there are: a new one is a file of its own, and a line in each list here.

use std::collections::BTreeMap;

use serde_json::Value;
use strict_json::Block;

use crate::clusters::{Clusters, Namespaces, Place, Watched};
use crate::error::ConfigError;
use crate::gloo_routes::{self, GlooRoutes};
use crate::gloo_workspaces::{self, GlooWorkspaces};
use crate::image_digests::{self, ImageDigests};
use crate::keys::Key;
use crate::rollouts::{self, Rollouts};
use crate::{Failure, Query, StaticSource};

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

/// The sources of which there is one each, with a key of its own in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ImageDigests,
    GlooRoutes,
    Rollouts,
    GlooWorkspaces,
}

/// What a profile restricts a request to, and what is known of the namespaces of clusters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed<'a> {
    /// Patterns of images.
    pub(crate) images: Option<&'a [String]>,
    pub(crate) clusters: Option<&'a [String]>,
    pub(crate) namespaces: Option<&'a [String]>,
    pub(crate) known: &'a Namespaces,
}

/// Everything is allowed, and no namespace is known.
impl Default for Allowed<'_> {
    fn default() -> Self {
        static NONE: Namespaces = Namespaces::NONE;
        Self {
            images: None,
            clusters: None,
            namespaces: None,
            known: &NONE,
        }
    }
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
        match self {
            Self::Static(source) => source.query(name, given),
            Self::ImageDigests(source) => source.query(given, allowed.images),
            Self::GlooRoutes(source) => source.query(given, &allowed),
            Self::Rollouts(source) => source.query(given, &allowed),
            Self::GlooWorkspaces(source) => source.query(given, &allowed),
        }
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
