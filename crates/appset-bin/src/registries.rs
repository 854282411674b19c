//! Asks registries for digests: each image once in a while, however many calls want it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use appset_generator::{Digest, Failure, ImageQuery, Reference};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use moka::future::Cache;
use prometheus_client::metrics::counter::Counter;

use crate::registries::client::{Client, Lookup};

mod authorities;
mod client;
mod connector;

/// How long an answer counts. Argo CD asks again at once after a change it made itself, and for many ApplicationSets at the
/// same time after a webhook.
const TTL: Duration = Duration::from_secs(15);
/// Most images that are remembered.
const CAPACITY: u64 = 10_000;
/// Images of one call that are looked up at the same time.
const PARALLEL: usize = 4;

/// The registries, and what they said a moment ago.
pub(crate) struct Registries {
    client: Client,
    /// What is not there is remembered, too; a failure is not.
    cache: Cache<Reference, Option<Digest>>,
    queries: Counter,
}

impl Registries {
    /// `queries` counts what is looked up.
    pub(crate) fn new(queries: Counter) -> anyhow::Result<Self> {
        Ok(Self {
            client: client::new()?,
            cache: Cache::builder()
                .time_to_live(TTL)
                .max_capacity(CAPACITY)
                .build(),
            queries,
        })
    }

    /// The digests of the images that are there, by the names in the query.
    pub(crate) async fn look_up(
        &self,
        query: &ImageQuery,
        docker_config: Option<&Path>,
    ) -> Result<BTreeMap<String, Digest>, Failure> {
        let images = query.references();
        let images: Vec<_> = images
            .map(|(name, image)| (name.to_owned(), image.clone()))
            .collect();
        let lookups = images.into_iter().map(|(name, image)| async move {
            let digest = self.digest(&image, docker_config).await?;
            Ok::<_, Failure>(digest.map(|digest| (name, digest)))
        });
        let found: Vec<_> = stream::iter(lookups)
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Of several calls that want the same image, one asks; when its client leaves, the next one does.
    async fn digest(
        &self,
        image: &Reference,
        docker_config: Option<&Path>,
    ) -> Result<Option<Digest>, Failure> {
        let ask = async {
            self.queries.inc();
            Lookup::new(&self.client, image, docker_config)?
                .digest()
                .await
        };
        let digest = self.cache.try_get_with_by_ref(image, ask).await;
        digest.map_err(|failure| failure.as_ref().clone())
    }
}
