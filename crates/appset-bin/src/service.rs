//! The state that all requests share: configuration, tokens, limits and metrics, and how a call is answered with them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use appset_generator::{
    Answer, Config, Failure, ImageDigests, ImageQuery, Output, ParameterSet, Query, Request,
    SourceQuery, Warning,
};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::Span;

use crate::Flags;
use crate::compute::Compute;
use crate::ledger::{self, Call, Hash, Ledger};
use crate::live::{Certificate, Live, LiveTokens, Tokens};
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::registries::{Deadline, Registries};
use crate::shares::{Share, Shares};

/// How long a call waits for a place.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a MiB.
const MIB: usize = 1 << 20;
/// The maximum size of a field of a log record that has a value of the request, in bytes.
const MAX_FIELD: usize = 256;

/// The state that all requests share.
pub(crate) struct Service {
    config: Live<Config>,
    tokens: LiveTokens,
    /// The certificate for https, if there is one.
    pub(crate) certificate: Option<Arc<Certificate>>,
    places: Arc<Shares>,
    memory: Arc<Shares>,
    compute: Compute,
    /// The maximum size of an answer, in bytes.
    max_answer: usize,
    pub(crate) deadline: Duration,
    draining: AtomicBool,
    pub(crate) metrics: Metrics,
    registries: Registries,
    objects: Objects,
    ledger: Mutex<Ledger>,
    /// Whether all watches have had their first list.
    synced: AtomicBool,
}

/// A call whose body was read.
pub(crate) struct Received {
    /// The profile in the path, if it names one.
    pub(crate) profile: Option<String>,
    pub(crate) token: String,
    pub(crate) body: Vec<u8>,
    /// The memory that the body uses.
    pub(crate) memory: Share,
}

/// The answer to a call.
pub(crate) struct Answered {
    pub(crate) source: String,
    /// The number of sets.
    pub(crate) count: usize,
    pub(crate) body: Vec<u8>,
    /// The memory that the body uses.
    pub(crate) memory: Share,
}

/// A failure, with the name of the source if the request could be resolved.
#[derive(Clone)]
pub(crate) struct Refused {
    pub(crate) source: Option<String>,
    pub(crate) failure: Failure,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self {
            source: None,
            failure,
        }
    }
}

/// What is left to do after a request was read.
enum Step {
    Done(Answered),
    /// Registries must be asked.
    LookUp(Arc<Config>, ImageQuery, Output, Share),
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
            tokens: LiveTokens::new(flags.tokens())?,
            certificate: Certificate::from_flags(flags)?,
            places: Shares::new(flags.max_concurrent),
            memory: Shares::new(flags.memory.saturating_mul(MIB)),
            compute: Compute::new(),
            max_answer: flags.max_answer.saturating_mul(MIB),
            deadline: flags.deadline,
            draining: AtomicBool::new(false),
            metrics,
        };
        service.follow_config();
        service.warn(service.config().warnings());
        Ok(service)
    }

    /// Reads the files that may have changed, and watches the objects that the configuration needs.
    pub(crate) fn reload(&self) {
        let before = self.config();
        self.config.reload();
        let now = self.config();
        if !Arc::ptr_eq(&before, &now) {
            self.warn([before.shrunk_to(&now), now.warnings()].concat());
        }
        self.tokens.reload();
        if let Some(certificate) = &self.certificate {
            certificate.reload();
        }
        self.follow_config();
        self.metrics.reloaded();
    }

    /// Reports what is suspicious about a configuration that has just come into use.
    fn warn(&self, warnings: Vec<Warning>) {
        self.metrics.warned(warnings.len());
        for warning in warnings {
            tracing::warn!(%warning, "the configuration is valid, but may not be what is meant");
        }
    }

    /// Watches the objects and reads the credentials that the configuration names.
    fn follow_config(&self) {
        let config = self.config();
        self.objects.watch(&config);
        let files = config.image_digests().map(ImageDigests::docker_config);
        self.registries.reload(files.unwrap_or_default());
    }

    /// Returns the current configuration.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.config.current()
    }

    /// Returns the current tokens.
    pub(crate) fn tokens(&self) -> Result<Arc<Tokens>, Failure> {
        self.tokens.current().ok_or_else(|| {
            Failure::NotReady("the tokens cannot be read: see the generator's log".to_owned())
        })
    }

    /// Returns the place of one more call with this token. Most calls take milliseconds, so that it is worth to wait for one.
    pub(crate) async fn place(&self, token: &str) -> Result<Share, Failure> {
        let mut place = self.places.share(token, self.is_only(token));
        match place.grow_within(1, PATIENCE).await {
            true => Ok(place),
            false => Err(Failure::Busy(self.places.most())),
        }
    }

    /// Whether there is no other token.
    fn is_only(&self, token: &str) -> bool {
        let tokens = self.tokens.current();
        tokens.is_some_and(|tokens| tokens.is_only(token))
    }

    /// Returns the memory of a call with this token, which is empty at first.
    pub(crate) fn memory(&self, token: &str) -> Share {
        self.memory.share(token, self.is_only(token))
    }

    /// Takes `bytes` more for a call.
    pub(crate) fn reserve(&self, memory: &mut Share, bytes: usize) -> Result<(), Failure> {
        match memory.grow(bytes) {
            true => Ok(()),
            false => Err(Failure::Memory(self.memory.most() / MIB)),
        }
    }

    /// Answers a call.
    ///
    /// All work is done where [`Compute`] allows it, and what it makes of a request is gone before the next work begins. So not more
    /// requests are in memory in this form, which is much larger than the body, than there are processors.
    pub(crate) async fn call(self: &Arc<Self>, received: Received) -> Result<Answered, Refused> {
        let service = Arc::clone(self);
        let runtime = Handle::current();
        let token = received.token.clone();
        let read = move || service.read(received, &runtime);
        let (config, images, output, memory) = match self.compute.run(&token, read).await? {
            Step::Done(answered) => return Ok(answered),
            Step::LookUp(config, images, output, memory) => (config, images, output, memory),
        };
        let source = output.source().to_owned();
        let of_source = |failure| Refused {
            source: Some(source.clone()),
            failure,
        };
        // The configuration that the request was resolved with has the source.
        let registries = config.image_digests().ok_or(Failure::Internal)?;
        let deadline = Deadline::of_call(self.deadline);
        let found = self.registries.look_up(&images, registries, deadline);
        let found = found.await.map_err(of_source)?;
        let service = Arc::clone(self);
        let write = move || {
            let answer = output.answer(images.sets(&found)?)?;
            service.write(output.source(), &answer, memory)
        };
        let answered = self.compute.run(&token, write).await;
        answered.map_err(of_source)
    }

    /// Reads a call, and answers it unless registries must be asked.
    fn read(&self, received: Received, runtime: &Handle) -> Result<Step, Refused> {
        let Received {
            profile,
            token,
            body,
            memory,
        } = received;
        let request = Request::from_body(&body)?;
        drop(body);
        Span::current().record("application_set", cut(&request.application_set));
        let config = self.config();
        let recorded = Self::recorded(&config, profile.as_deref(), &token, &request);
        let query = self.query(&config, profile.as_deref(), Some(&token), request);
        let query = runtime.block_on(query)?;
        let source = query.output.source().to_owned();
        Span::current().record("source", &source);
        if let SourceQuery::ImageDigests(images) = query.source {
            return Ok(Step::LookUp(config, images, query.output, memory));
        }
        let answered = || {
            let sets = runtime.block_on(self.sets(&config, query.source))?;
            self.write(&source, &query.output.answer(sets)?, memory)
        };
        let answered = answered().map_err(|failure| Refused {
            source: Some(source.clone()),
            failure,
        })?;
        if let Some(call) = recorded {
            let hash = ledger::hash(&answered.body);
            self.ledger().answered(call, hash, Instant::now());
        }
        Ok(Step::Done(answered))
    }

    /// Resolves `request` to a query, as [`Config::query`].
    async fn query(
        &self,
        config: &Config,
        profile: Option<&str>,
        token: Option<&str>,
        request: Request,
    ) -> Result<Query, Failure> {
        let namespaces = self.objects.namespaces(config).await;
        config.query(profile, token, request, &namespaces)
    }

    /// Computes the sets of a source other than registries from the known objects.
    async fn sets(
        &self,
        config: &Config,
        source: SourceQuery,
    ) -> Result<Vec<ParameterSet>, Failure> {
        let tables = async |places| {
            self.objects
                .all(config, places, |it| &it.route_tables)
                .await
        };
        match source {
            SourceQuery::Static(fixed) => Ok(fixed.into_sets()),
            SourceQuery::GlooRoutes(routes) => routes.sets(&tables(routes.places()).await?),
            SourceQuery::Rollouts(query) => {
                let places = query.places();
                let rollouts = self.objects.all(config, places, |it| &it.rollouts).await?;
                query.sets(&rollouts, &tables(query.table_places()).await?)
            }
            SourceQuery::GlooWorkspaces(query) => {
                let place = std::slice::from_ref(query.place());
                let workspaces = self.objects.all(config, place, |it| &it.workspaces);
                let clusters = self.objects.all(config, place, |it| &it.clusters);
                let (workspaces, clusters) = (workspaces.await?, clusters.await?);
                query.sets(&workspaces, &clusters)
            }
            SourceQuery::ImageDigests(_) => Err(Failure::Internal),
        }
    }

    /// Writes the body of `answer`, whose size is added to `memory`.
    fn write(&self, source: &str, answer: &Answer, mut memory: Share) -> Result<Answered, Failure> {
        let size = answer.size(self.max_answer)?;
        self.reserve(&mut memory, size)?;
        Ok(Answered {
            source: source.to_owned(),
            count: answer.count(),
            body: answer.to_body(size)?,
            memory,
        })
    }

    /// Returns the call whose answer is recorded, if push refresh is configured.
    fn recorded(
        config: &Config,
        profile: Option<&str>,
        token: &str,
        request: &Request,
    ) -> Option<Call> {
        let is_recorded = config.refresh().is_some() && request.object_name().is_some();
        is_recorded.then(|| Call::new(profile, token, request))?
    }

    /// Returns the recorded answers.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the hash of the body with which a recorded call would be answered now.
    ///
    /// # Errors
    /// Returns `Err` if the call would fail, and for the source of image digests: registries do not announce changes, so
    /// they are not polled.
    pub(crate) async fn answer_again(self: &Arc<Self>, call: &Call) -> Result<Hash, Failure> {
        let (service, call, runtime) = (Arc::clone(self), call.clone(), Handle::current());
        // No token has an empty name, so calls do not wait for this.
        let again = self.compute.run("", move || {
            let request = call.request().ok_or(Failure::Internal)?;
            let config = service.config();
            let query = service.query(&config, call.profile(), Some(call.token()), request);
            let query = runtime.block_on(query)?;
            let sets = runtime.block_on(service.sets(&config, query.source))?;
            let answer = query.output.answer(sets)?;
            let size = answer.size(service.max_answer)?;
            Ok(ledger::hash(&answer.to_body(size)?))
        });
        again.await
    }

    /// Answers one call of the command `ask`, which needs no token.
    pub(crate) async fn ask(&self, profile: Option<&str>, body: &[u8]) -> Result<Vec<u8>, Failure> {
        let request = Request::from_body(body)?;
        let config = self.config();
        let query = self.query(&config, profile, None, request).await?;
        let sets = match query.source {
            SourceQuery::ImageDigests(images) => {
                let registries = config.image_digests().ok_or(Failure::Internal)?;
                let deadline = Deadline::of_call(self.deadline);
                let found = self.registries.look_up(&images, registries, deadline);
                images.sets(&found.await?)?
            }
            source => self.sets(&config, source).await?,
        };
        query.output.answer(sets)?.to_body(0)
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
        match self.tokens.current() {
            Some(tokens) if tokens.is_empty() => return Some("no token".to_owned()),
            Some(_) => {}
            None => return Some("tokens cannot be read".to_owned()),
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
        self.metrics.remembered(self.ledger().len());
        self.metrics
            .to_text(self.config.is_good(), self.objects.report())
    }
}

/// Shortens `text` for the log.
pub(crate) fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_FIELD))
        .unwrap_or_default()
}
