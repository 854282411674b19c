//! The sources that there are: a new one is a file of its own, and a line in each list here.

use std::collections::BTreeMap;

use serde_json::Value;
use strict_json::Block;

use crate::config::Watched;
use crate::error::ConfigError;
use crate::gloo_routes::{self, GlooRoutes};
use crate::gloo_workspaces::{self, GlooWorkspaces};
use crate::image_digests::{self, ImageDigests};
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

/// What a profile restricts a request to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowed<'a> {
    /// Patterns of images.
    pub(crate) images: Option<&'a [String]>,
    pub(crate) namespaces: Option<&'a [String]>,
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
    pub(crate) const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::ImageDigests => ImageDigests::KEYS,
            Self::GlooRoutes => GlooRoutes::KEYS,
            Self::Rollouts => Rollouts::KEYS,
            Self::GlooWorkspaces => GlooWorkspaces::KEYS,
        }
    }

    /// The source with its settings. `cluster` is Argo CD's name of the cluster whose objects are read.
    pub(crate) fn read(self, block: &Block<'_>, cluster: &str) -> Result<Source, ConfigError> {
        Ok(match self {
            Self::ImageDigests => Source::ImageDigests(ImageDigests::from_config(block)?),
            Self::GlooRoutes => Source::GlooRoutes(GlooRoutes::from_config(block, cluster)?),
            Self::Rollouts => Source::Rollouts(Rollouts::from_config(block, cluster)?),
            Self::GlooWorkspaces => Source::GlooWorkspaces(GlooWorkspaces::from_config(block)?),
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
            Self::GlooRoutes(source) => source.query(given, allowed.namespaces),
            Self::Rollouts(source) => source.query(given, allowed.namespaces),
            Self::GlooWorkspaces(source) => source.query(given, allowed.namespaces),
        }
    }

    /// Adds the objects that it looks at.
    pub(crate) fn watch(&self, watched: &mut Watched) {
        match self {
            Self::Static(_) | Self::ImageDigests(_) => {}
            Self::GlooRoutes(source) => {
                let namespaces = source.namespaces().iter().cloned();
                watched.route_tables.extend(namespaces);
            }
            Self::Rollouts(source) => {
                let namespaces = source.namespaces().iter();
                watched.rollouts.extend(namespaces.clone().cloned());
                watched.route_tables.extend(namespaces.cloned());
            }
            Self::GlooWorkspaces(source) => {
                let namespaces = source.namespaces().iter();
                watched.workspaces.extend(namespaces.clone().cloned());
                watched.clusters.extend(namespaces.cloned());
            }
        }
    }
}
