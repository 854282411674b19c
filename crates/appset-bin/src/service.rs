//! The state that all requests share: configuration, tokens, limits and metrics.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use appset_generator::{Answer, Config, Failure, Query, Request, SourceQuery};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::Flags;
use crate::ledger::{Call, Ledger};
use crate::live::{Live, Tokens};
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::registries::{Deadline, Registries};

/// The state that all requests share.
pub(crate) struct Service {
    config: Live<Config>,
    /// The directory with the tokens, or the file with the only token.
    tokens: PathBuf,
    permits: Semaphore,
    max_concurrent: usize,
    pub(crate) deadline: Duration,
    draining: AtomicBool,
    pub(crate) metrics: Metrics,
    registries: Registries,
    objects: Objects,
    ledger: Mutex<Ledger>,
    /// Whether all watches have had their first list.
    synced: AtomicBool,
}

impl Service {
    pub(crate) fn new(flags: &Flags) -> anyhow::Result<Self> {
        let config = Live::new(vec![flags.config.clone()], |bytes| {
            let text = bytes.first().map(Vec::as_slice).unwrap_or_default();
            Ok(Config::from_yaml(std::str::from_utf8(text)?)?)
        })?;
        let metrics = Metrics::new();
        let service = Self {
            objects: Objects::new(flags),
            ledger: Mutex::default(),
            synced: AtomicBool::new(false),
            registries: Registries::new(metrics.registries("image-digests"))?,
            config,
            tokens: flags.tokens().to_owned(),
            permits: Semaphore::new(flags.max_concurrent),
            max_concurrent: flags.max_concurrent,
            deadline: flags.deadline,
            draining: AtomicBool::new(false),
            metrics,
        };
        service.config();
        Ok(service)
    }

    /// Logs a warning if there is no token, because every call is then refused.
    pub(crate) fn check_tokens(&self) -> anyhow::Result<()> {
        if self.tokens()?.is_empty() {
            let path = self.tokens.display().to_string();
            tracing::warn!(
                path,
                "there is no token: every call is refused until one is added"
            );
        }
        Ok(())
    }

    /// Returns the current configuration, and watches the objects that it needs.
    pub(crate) fn config(&self) -> Arc<Config> {
        let config = self.config.current();
        self.objects.watch(&config);
        config
    }

    /// Reads the tokens.
    pub(crate) fn tokens(&self) -> Result<Tokens, Failure> {
        Tokens::read(&self.tokens).map_err(|error| {
            let path = self.tokens.display().to_string();
            tracing::error!(path, %error, "the tokens cannot be read");
            Failure::NotReady("the tokens cannot be read: see the generator's log".to_owned())
        })
    }

    /// Returns the permit for one more call.
    pub(crate) fn permit(&self) -> Result<SemaphorePermit<'_>, Failure> {
        let permit = self.permits.try_acquire();
        permit.map_err(|_| Failure::Busy(self.max_concurrent))
    }

    /// Resolves `request` to a query, as [`Config::query`].
    pub(crate) async fn query(
        &self,
        profile: Option<&str>,
        token: Option<&str>,
        request: &Request,
    ) -> Result<Query, Failure> {
        let config = self.config();
        let namespaces = self.objects.namespaces(&config).await;
        config.query(profile, token, request, &namespaces)
    }

    /// Looks up the objects or images of `query` and returns the answer.
    pub(crate) async fn answer(&self, query: Query) -> Result<Answer, Failure> {
        let config = self.config.current();
        let tables = async |places| {
            self.objects
                .all(&config, places, |it| &it.route_tables)
                .await
        };
        let sets = match query.source {
            SourceQuery::Static(fixed) => fixed.into_sets(),
            SourceQuery::GlooRoutes(routes) => routes.sets(&tables(routes.places()).await?)?,
            SourceQuery::Rollouts(query) => {
                let places = query.places();
                let rollouts = self.objects.all(&config, places, |it| &it.rollouts).await?;
                query.sets(&rollouts, &tables(query.table_places()).await?)?
            }
            SourceQuery::GlooWorkspaces(query) => {
                let place = std::slice::from_ref(query.place());
                let workspaces = self.objects.all(&config, place, |it| &it.workspaces);
                let clusters = self.objects.all(&config, place, |it| &it.clusters);
                let (workspaces, clusters) = (workspaces.await?, clusters.await?);
                query.sets(&workspaces, &clusters)?
            }
            SourceQuery::ImageDigests(images) => {
                // The configuration may have changed since the query was resolved.
                let source = config.image_digests().ok_or(Failure::Internal)?;
                let deadline = Deadline::of_call(self.deadline);
                let found = self.registries.look_up(&images, source, deadline).await?;
                images.sets(&found)?
            }
        };
        query.output.answer(sets)
    }

    /// Records the answer that an ApplicationSet got, if push refresh is configured.
    pub(crate) fn answered(
        &self,
        profile: Option<&str>,
        token: &str,
        request: &Request,
        answer: &Answer,
    ) {
        let is_enabled = self.config.current().refresh().is_some();
        if !is_enabled || request.object_name().is_none() {
            return;
        }
        if let Ok(body) = answer.to_body() {
            let call = Call::new(profile, token, request);
            self.ledger().answered(call, &body, Instant::now());
        }
    }

    /// Returns the recorded answers.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the body with which a recorded call would be answered now.
    ///
    /// # Errors
    /// Returns `Err` if the call would fail, and for the source of image digests: registries do not announce changes, so
    /// they are not polled.
    pub(crate) async fn answer_again(&self, call: &Call) -> Result<Vec<u8>, Failure> {
        let request = call.request().ok_or(Failure::Internal)?;
        let query = self.query(call.profile(), Some(call.token()), &request);
        let query = query.await?;
        if matches!(query.source, SourceQuery::ImageDigests(_)) {
            return Err(Failure::Internal);
        }
        self.answer(query).await?.to_body()
    }

    /// Whether an object has changed since the last call of this function.
    pub(crate) fn have_objects_changed(&self) -> bool {
        self.objects.have_changed()
    }

    /// Starts draining: the replica is not ready, and connections close after their answer.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.metrics.drain();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Returns why the replica is not ready, or `None` if it is ready.
    ///
    /// A watch that fails later, or that a changed configuration adds, does not make it unready, since other sources still answer.
    pub(crate) fn unready(&self) -> Option<String> {
        if self.is_draining() {
            return Some("draining".to_owned());
        }
        match self.tokens() {
            Ok(tokens) if tokens.is_empty() => return Some("no token".to_owned()),
            Ok(_) => {}
            Err(_) => return Some("tokens cannot be read".to_owned()),
        }
        let config = self.config();
        if self.synced.load(Ordering::Relaxed) {
            return None;
        }
        let unsynced = self.objects.unsynced(&config);
        self.synced.store(unsynced.is_none(), Ordering::Relaxed);
        unsynced
    }

    /// Returns the metrics in the text format of OpenMetrics.
    pub(crate) fn metrics_text(&self) -> String {
        self.config();
        self.metrics.remembered(self.ledger().len());
        self.metrics
            .to_text(self.config.is_good(), self.objects.report())
    }
}
