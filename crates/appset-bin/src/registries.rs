//! Asks registries for digests: each image once in a while, however many calls want it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use appset_generator::{
    Credentials, Digest, Failure, Found, ImageDigests, ImageQuery, Keychain, Reference,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use moka::future::Cache;
use tokio::time::{Instant, sleep};

use crate::metrics::RegistryMetrics;
use crate::registries::access::{Accesses, Asker, Stop};
use crate::registries::lookup::{Children, Lookup};
pub(crate) use crate::registries::transport::Deadline;
use crate::registries::transport::{Transport, Wire};
use crate::registries::ttl_cache::TtlCache;

mod access;
mod lookup;
#[cfg(test)]
mod tests;
mod transport;
mod ttl_cache;
mod wire;

/// How long an answer counts. Argo CD asks again at once after a change it made itself, and for many ApplicationSets at the
/// same time after a webhook.
const TTL: Duration = Duration::from_secs(15);
/// How long a failure is remembered: a registry that is down must not get a request for each call of each set.
const FAILED: Duration = Duration::from_secs(5);
/// Most images that are remembered.
const CAPACITY: u64 = 10_000;
/// Images of one call that are looked up at the same time.
const PARALLEL: usize = 4;
/// How long a tag that was there is missed only after a second look.
const SEEN: Duration = Duration::from_secs(600);
/// How long after the first look the second one is: registries are wrong for a moment.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// The registries, and what they said a moment ago.
pub(crate) struct Registries {
    transport: Transport,
    accesses: Accesses,
    children: Children,
    /// What is not there is remembered, too.
    cache: Cache<Key, Option<Digest>>,
    failed: TtlCache<Key, Failure>,
    seen: TtlCache<Reference, (Digest, Instant)>,
    metrics: RegistryMetrics,
}

/// An image, and whose answer it is.
type Key = (Reference, Vec<Credentials>);

impl Registries {
    pub(crate) fn new(metrics: RegistryMetrics) -> anyhow::Result<Self> {
        Ok(Self::over(wire::new()?, metrics))
    }

    fn over(wire: Wire, metrics: RegistryMetrics) -> Self {
        Self {
            transport: Transport::new(wire, metrics.clone()),
            accesses: Accesses::new(),
            children: TtlCache::new(),
            cache: Cache::builder()
                .time_to_live(TTL)
                .max_capacity(CAPACITY)
                .build(),
            failed: TtlCache::new(),
            seen: TtlCache::new(),
            metrics,
        }
    }

    /// The images that are there, by the names in the query.
    pub(crate) async fn look_up(
        &self,
        query: &ImageQuery,
        source: &ImageDigests,
        deadline: Deadline,
    ) -> Result<BTreeMap<String, Found>, Failure> {
        let keychain = keychain(source.docker_config())?;
        let images = query.references();
        let images: Vec<_> = images
            .map(|(name, image)| (name.to_owned(), image.clone()))
            .collect();
        let keychain = &keychain;
        let lookups = images.into_iter().map(|(name, image)| async move {
            let found = self
                .found(image, keychain, source.stale_for(), deadline)
                .await?;
            Ok::<_, Failure>(found.map(|found| (name, found)))
        });
        let found: Vec<_> = stream::iter(lookups)
            .buffered(PARALLEL)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// One image; what it was, if its registry fails and the configuration allows that.
    async fn found(
        &self,
        image: Reference,
        keychain: &Keychain,
        stale_for: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Option<Found>, Failure> {
        let failure = match self.cached(&image, keychain, deadline).await {
            Ok(digest) => {
                self.metrics.is_fresh(&image.registry);
                return Ok(digest.map(Found::from));
            }
            Err(failure) => failure,
        };
        let is_of_registry = matches!(
            failure,
            Failure::Registry { .. } | Failure::Upstream(_) | Failure::Deadline { .. }
        );
        let last = self.seen.get(&image).filter(|_| is_of_registry);
        match (last, stale_for) {
            (Some((digest, since)), Some(longest)) if since.elapsed() < longest => {
                let (registry, age) = (image.registry.as_str(), since.elapsed());
                let problem = failure.to_log();
                tracing::warn!(registry, age = age.as_secs(), problem, "a digest is stale");
                self.metrics.is_stale(registry, age);
                Ok(Some(Found {
                    digest,
                    is_stale: true,
                }))
            }
            _ => Err(failure),
        }
    }

    /// Of several calls that want the same image, one asks; when its client leaves, the next one does.
    async fn cached(
        &self,
        image: &Reference,
        keychain: &Keychain,
        deadline: Deadline,
    ) -> Result<Option<Digest>, Failure> {
        let credentials = keychain.find(&image.registry, &image.repository);
        let credentials =
            credentials.map_err(|error| transport::failure(image, error.to_string()))?;
        let key = (image.clone(), credentials);
        if let Some(failure) = self.failed.get(&key) {
            return Err(failure);
        }
        let ask = async {
            self.metrics.lookup();
            let asked = self.digest(image, &key.1, deadline).await;
            if let Err(failure) = &asked {
                self.failed.put(key.clone(), failure.clone(), FAILED);
            }
            asked
        };
        let digest = self.cache.try_get_with_by_ref(&key, ask);
        let step = "waiting for another call that asks the same";
        let digest = deadline.limit(image, step, digest).await?;
        digest.map_err(|failure| failure.as_ref().clone())
    }

    /// The digest; a tag that was there not long ago is missing only if it still is after some seconds.
    async fn digest(
        &self,
        image: &Reference,
        credentials: &[Credentials],
        deadline: Deadline,
    ) -> Result<Option<Digest>, Failure> {
        let mut digest = self.once(image, credentials, deadline).await?;
        let seen = self
            .seen
            .get(image)
            .filter(|(_, since)| since.elapsed() < SEEN);
        if digest.is_none() && seen.is_some() {
            let step = "waiting to look again for a tag that was there";
            deadline.limit(image, step, sleep(SECOND_LOOK)).await?;
            digest = self.once(image, credentials, deadline).await?;
        }
        match &digest {
            Some(digest) => {
                let day = Duration::from_secs(24 * 60 * 60);
                let seen = (digest.clone(), Instant::now());
                self.seen.put(image.clone(), seen, day);
            }
            None => self.seen.forget(image),
        }
        Ok(digest)
    }

    /// Asks with each credentials in turn, as long as they are refused.
    async fn once(
        &self,
        image: &Reference,
        credentials: &[Credentials],
        deadline: Deadline,
    ) -> Result<Option<Digest>, Failure> {
        let with = |credentials| Lookup {
            asker: Asker {
                transport: &self.transport,
                accesses: &self.accesses,
                image,
                deadline,
                credentials,
            },
            children: &self.children,
        };
        let mut refused = None;
        for credentials in credentials {
            match with(Some(credentials)).digest().await {
                Ok(digest) => return Ok(digest),
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Refused(failure)) => refused = Some(failure),
            }
        }
        match refused {
            Some(failure) => Err(failure),
            None => with(None).digest().await.map_err(|stop| match stop {
                Stop::Refused(failure) | Stop::Failed(failure) => failure,
            }),
        }
    }
}

/// Reads the credentials anew, since they are short-lived with some registries.
fn keychain(files: &[PathBuf]) -> Result<Keychain, Failure> {
    let mut keychain = Keychain::default();
    for file in files {
        let added = match std::fs::read(file) {
            Ok(text) => keychain.add(&text).map_err(anyhow::Error::from),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = added {
            tracing::error!("dockerConfig {}: {error:#}", file.display());
            return Err(Failure::Upstream(
                "dockerConfig cannot be used: see the generator's log".to_owned(),
            ));
        }
    }
    Ok(keychain)
}
