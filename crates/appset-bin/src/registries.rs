//! Looks up digests in registries, with a cache: concurrent and repeated calls for one image cause one lookup.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use appset_generator::{
    Credentials, Digest, Failure, Found, ImageDigests, ImageQuery, Keychain, Reference,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::{Instant, sleep};

use crate::live::Fresh;
use crate::metrics::RegistryMetrics;
use crate::registries::access::{Caches, ImageClient, Stop};
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

/// The time for which a digest is cached. Argo CD sends a request again right after a change that it made itself, and requests of
/// many ApplicationSets at the same time after a webhook.
const TTL: Duration = Duration::from_secs(15);
/// The time for which a failure is cached, so that a failing registry does not get a request for each call.
const FAILED: Duration = Duration::from_secs(5);
/// The number of images of one call that are looked up concurrently.
const PARALLEL: usize = 4;
/// A tag that existed within this time counts as missing only after a second lookup.
const SEEN: Duration = Duration::from_secs(600);
/// The time between the two lookups, because a registry may be wrong for a moment.
const SECOND_LOOKUP: Duration = Duration::from_secs(5);

/// The client for registries with its caches.
pub(crate) struct Registries {
    transport: Transport,
    caches: Caches,
    /// The digests. `None` caches that an image does not exist.
    cache: TtlCache<Key, Option<Digest>>,
    failed: TtlCache<Key, Failure>,
    seen: TtlCache<Reference, (Digest, Instant)>,
    metrics: RegistryMetrics,
    keychain: Fresh<Keychain>,
}

/// An image, and the credentials with which it is looked up.
type Key = (Reference, Vec<Credentials>);

impl Registries {
    pub(crate) fn new(metrics: RegistryMetrics) -> anyhow::Result<Self> {
        Ok(Self::over(wire::new()?, metrics))
    }

    fn over(wire: Wire, metrics: RegistryMetrics) -> Self {
        Self {
            transport: Transport::new(wire, metrics.clone()),
            caches: Caches::default(),
            cache: TtlCache::default(),
            failed: TtlCache::default(),
            seen: TtlCache::default(),
            metrics,
            keychain: Fresh::unread(),
        }
    }

    /// Reads the files with credentials. The credentials of some registries are short-lived.
    pub(crate) fn reload(&self, files: &[PathBuf]) {
        self.keychain.publish(keychain(files));
    }

    /// Returns the digests of the images that exist, by the names in the query.
    pub(crate) async fn look_up(
        &self,
        query: &ImageQuery,
        source: &ImageDigests,
        deadline: Deadline,
    ) -> Result<BTreeMap<String, Found>, Failure> {
        let keychain = self.keychain.current().ok_or_else(|| {
            let what = "dockerConfig cannot be used: see the generator's log";
            Failure::Upstream(what.to_owned())
        })?;
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

    /// Looks up one image. If its registry fails, returns the last digest for as long as `stale_for` allows.
    async fn found(
        &self,
        image: Reference,
        keychain: &Keychain,
        stale_for: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Option<Found>, Failure> {
        let failure = match self.cached(&image, keychain, deadline).await {
            Ok(digest) => {
                self.metrics.served_fresh(&image.registry);
                return Ok(digest.map(Found::from));
            }
            Err(failure) => failure,
        };
        let is_of_registry = matches!(
            failure,
            Failure::Registry { .. } | Failure::Upstream(_) | Failure::Deadline(..)
        );
        let last = self.seen.get(&image).filter(|_| is_of_registry);
        match (last, stale_for) {
            (Some((digest, since)), Some(longest)) if since.elapsed() < longest => {
                let (registry, age) = (image.registry.as_str(), since.elapsed());
                let problem = failure.to_log();
                tracing::warn!(
                    registry,
                    age = age.as_secs(),
                    problem,
                    "a stale digest is used"
                );
                self.metrics.served_stale(registry, age);
                Ok(Some(Found {
                    digest,
                    is_stale: true,
                }))
            }
            _ => Err(failure),
        }
    }

    /// Looks up one image in the cache. Concurrent calls for the same image share one lookup; if the client of the call that does
    /// it disconnects, the next call takes over.
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
        let ask = async {
            // Also after a wait for another call, which may have failed.
            if let Some(failure) = self.failed.get(&key) {
                return Err(failure);
            }
            self.metrics.lookups.inc();
            let asked = self.digest(image, &key.1, deadline).await;
            // If this caller had no time left, the next one may have enough.
            if let Err(failure) = &asked
                && !matches!(failure, Failure::Deadline(..))
            {
                self.failed.put(key.clone(), failure.clone(), FAILED);
            }
            Ok((asked?, TTL))
        };
        let digest = self.cache.get_or_ask(&key, ask);
        let step = "waiting for another call that looks up the same image";
        deadline.limit(image, step, digest).await?
    }

    /// Looks up the digest. A tag that existed recently counts as missing only after a second lookup.
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
            let step = "waiting for the second lookup of a missing tag";
            deadline.limit(image, step, sleep(SECOND_LOOKUP)).await?;
            digest = self.once(image, credentials, deadline).await?;
        }
        match &digest {
            Some(digest) => {
                let day = Duration::from_secs(24 * 60 * 60);
                let seen = (digest.clone(), Instant::now());
                self.seen.put(image.clone(), seen, day);
            }
            None => self.seen.remove(image),
        }
        Ok(digest)
    }

    /// Looks up the digest once. Tries the credentials in turn until some are not refused.
    async fn once(
        &self,
        image: &Reference,
        credentials: &[Credentials],
        deadline: Deadline,
    ) -> Result<Option<Digest>, Failure> {
        let with = |credentials| ImageClient {
            transport: &self.transport,
            caches: &self.caches,
            image,
            deadline,
            credentials,
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

fn keychain(files: &[PathBuf]) -> Result<Keychain, String> {
    let mut keychain = Keychain::default();
    for file in files {
        let added = match crate::live::read_file(file) {
            Ok(text) => keychain.add(&text).map_err(anyhow::Error::from),
            Err(error) => Err(error.into()),
        };
        added.map_err(|error| format!("dockerConfig {}: {error:#}", file.display()))?;
    }
    Ok(keychain)
}
