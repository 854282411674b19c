//! What answers are computed from: the configuration, and the objects and registries that it names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use appset_generator::{
    Config, Failure, Found, GoOn, ImageDigests, ImageQuery, ParameterSet, Request, SourceQuery,
    Warning,
};

use crate::live::Live;
use crate::metrics::Metrics;
use crate::objects::{ObjectFlags, Objects};
use crate::registries::{Deadline, Registries};

/// The configuration with its sources.
pub(crate) struct Sources {
    pub(crate) config: Live<Config, 1>,
    pub(crate) objects: Objects,
    registries: Registries,
    /// The deadline of a call.
    pub(crate) deadline: Duration,
}

impl Sources {
    /// Reads the configuration, without connecting to a cluster or a registry.
    pub(crate) fn new(
        config: &Path,
        objects: &ObjectFlags,
        deadline: Duration,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let sources = Self {
            config: Live::new([config.to_owned()], |[text]| {
                Ok(Config::from_yaml(std::str::from_utf8(text)?)?)
            })?,
            objects: Objects::new(objects.clone()),
            registries: Registries::new(metrics.registries.clone())?,
            deadline,
        };
        sources.follow_config();
        Ok(sources)
    }

    /// Reads the configuration again. Returns the warnings about it if it has changed.
    pub(crate) fn reload(&self) -> Option<Vec<Warning>> {
        let before = self.config.current();
        self.config.reload();
        let now = self.config.current();
        self.follow_config();
        let is_new = !Arc::ptr_eq(&before, &now);
        is_new.then(|| [before.shrunk_to(&now), now.warnings()].concat())
    }

    /// Watches the objects and reads the credentials that the configuration names.
    pub(crate) fn follow_config(&self) {
        let config = self.config.current();
        self.objects.watch(&config);
        let files = config.image_digests().map(ImageDigests::docker_config);
        self.registries.reload(files.unwrap_or_default());
    }

    /// Computes the sets of a source.
    pub(crate) async fn sets(
        &self,
        config: &Config,
        source: SourceQuery,
        go_on: GoOn<'_>,
    ) -> Result<Vec<ParameterSet>, Failure> {
        let objects = &self.objects;
        let tables = async |places| objects.all(config, places, |it| &it.route_tables).await;
        match source {
            SourceQuery::Static(fixed) => Ok(fixed.into_sets()),
            SourceQuery::GlooRoutes(routes) => routes.sets(&tables(routes.places()).await?, go_on),
            SourceQuery::Rollouts(query) => {
                let rollouts = objects.all(config, query.places(), |it| &it.rollouts);
                query.sets(
                    &rollouts.await?,
                    &tables(query.table_places()).await?,
                    go_on,
                )
            }
            SourceQuery::GlooWorkspaces(query) => {
                let place = std::slice::from_ref(query.place());
                let workspaces = objects.all(config, place, |it| &it.workspaces).await?;
                let clusters = objects.all(config, place, |it| &it.clusters).await?;
                query.sets(&workspaces, &clusters, go_on)
            }
            SourceQuery::ImageDigests(images) => images.sets(&self.found(config, &images).await?),
        }
    }

    /// Looks up images in their registries.
    pub(crate) async fn found(
        &self,
        config: &Config,
        images: &ImageQuery,
    ) -> Result<BTreeMap<String, Found>, Failure> {
        // The configuration that the request was resolved with has the source.
        let registries = config.image_digests().ok_or(Failure::Internal)?;
        let deadline = Deadline::of_call(self.deadline);
        self.registries.look_up(images, registries, deadline).await
    }

    /// Answers one call of the command `ask`, which needs no token.
    pub(crate) async fn ask(&self, profile: Option<&str>, body: &[u8]) -> Result<Vec<u8>, Failure> {
        let request = Request::from_body(body)?;
        let config = self.config.current();
        let namespaces = self.objects.namespaces(&config).await;
        let query = config.query(profile, None, request, &namespaces)?;
        let sets = self.sets(&config, query.source, &|| Ok(())).await?;
        query.output.answer(sets)?.to_body(0)
    }
}
