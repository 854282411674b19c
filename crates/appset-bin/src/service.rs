//! What every request needs: configuration, tokens, limits and metrics.

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

/// What every request needs.
pub(crate) struct Service {
    config: Live<Config>,
    /// A directory with tokens, or a file with one.
    tokens: PathBuf,
    permits: Semaphore,
    max_concurrent: usize,
    pub(crate) deadline: Duration,
    draining: AtomicBool,
    pub(crate) metrics: Metrics,
    registries: Registries,
    objects: Objects,
    ledger: Mutex<Ledger>,
    /// Whether all objects that were to be followed have been seen once.
    caught_up: AtomicBool,
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
            caught_up: AtomicBool::new(false),
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

    /// Warns if there is no token, so that every call will be refused.
    pub(crate) fn check_tokens(&self) -> anyhow::Result<()> {
        if self.tokens()?.is_empty() {
            let path = self.tokens.display().to_string();
            tracing::warn!(path, "no file holds a token, so every call will be refused");
        }
        Ok(())
    }

    /// The configuration as it is now. What it needs is followed from now on.
    pub(crate) fn config(&self) -> Arc<Config> {
        let config = self.config.current();
        self.objects.follow(&config);
        config
    }

    /// The tokens, read anew.
    pub(crate) fn tokens(&self) -> Result<Tokens, Failure> {
        Tokens::read(&self.tokens).map_err(|error| {
            let path = self.tokens.display().to_string();
            tracing::error!(path, %error, "the tokens cannot be read");
            Failure::NotReady("the tokens cannot be read: see the generator's log".to_owned())
        })
    }

    /// The permit for one more call.
    pub(crate) fn permit(&self) -> Result<SemaphorePermit<'_>, Failure> {
        let permit = self.permits.try_acquire();
        permit.map_err(|_| Failure::Busy(self.max_concurrent))
    }

    /// What the bearer of `token` asks for through `profile`; without one, who runs the generator asks.
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

    /// The answer to `query`.
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
                // The file may be another one since the query was made of it.
                let source = config.image_digests().ok_or(Failure::Internal)?;
                let deadline = Deadline::of_call(self.deadline);
                let found = self.registries.look_up(&images, source, deadline).await?;
                images.sets(&found)?
            }
        };
        query.output.answer(sets)
    }

    /// Remembers an answer that an ApplicationSet got, if the configuration wants its set to be refreshed.
    pub(crate) fn answered(
        &self,
        profile: Option<&str>,
        token: &str,
        request: &Request,
        answer: &Answer,
    ) {
        let is_wanted = self.config.current().refresh().is_some();
        if !is_wanted || request.object_name().is_none() {
            return;
        }
        if let Ok(body) = answer.to_body() {
            let call = Call::new(profile, token, request);
            self.ledger().answered(call, &body, Instant::now());
        }
    }

    /// What was answered to whom.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body that a remembered call would be answered with. Registries are not asked again, since they do not announce
    /// changes.
    pub(crate) async fn answer_again(&self, call: &Call) -> Result<Vec<u8>, Failure> {
        let request = call.request().ok_or(Failure::Internal)?;
        let query = self.query(call.profile(), Some(call.token()), &request);
        let query = query.await?;
        if matches!(query.source, SourceQuery::ImageDigests(_)) {
            return Err(Failure::Internal);
        }
        self.answer(query).await?.to_body()
    }

    /// Whether an object has changed since this was last asked.
    pub(crate) fn have_objects_changed(&self) -> bool {
        self.objects.have_changed()
    }

    /// From now on readiness is off, and connections close after their answer.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.metrics.drain();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Why the replica is not ready, if it is not.
    ///
    /// A watch that fails later, or that a changed configuration adds, does not make it unready: other sources still answer.
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
        if self.caught_up.load(Ordering::Relaxed) {
            return None;
        }
        let unseen = self.objects.unseen(&config);
        self.caught_up.store(unseen.is_none(), Ordering::Relaxed);
        unseen
    }

    /// The metrics, in the text format of OpenMetrics.
    pub(crate) fn metrics_text(&self) -> String {
        self.config();
        self.metrics.remembered(self.ledger().len());
        self.metrics
            .to_text(self.config.is_good(), self.objects.report())
    }
}
