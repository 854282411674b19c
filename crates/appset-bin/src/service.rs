//! The state that all requests share: configuration, tokens, limits and metrics, and how a call is answered with them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use appset_generator::{
    Config, Failure, ImageQuery, Output, ParameterSet, Request, SourceQuery, Warning,
};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tracing::Span;

use crate::Flags;
use crate::compute::{Compute, Turn};
use crate::ledger::{self, Call, Hash, Ledger};
use crate::live::{Certificate, Live, LiveTokens, server_config};
use crate::metrics::Metrics;
use crate::shares::{Held, Share, Shares};
use crate::sources::Sources;

/// A caller with a known token.
pub(crate) struct Caller {
    /// The name of the token.
    pub(crate) token: String,
    /// Whether there is no other token.
    pub(crate) is_only: bool,
}

/// How long a call waits for a place.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a MiB.
const MIB: usize = 1 << 20;
/// The maximum size of a field of a log record that has a value of the request, in bytes.
const MAX_FIELD: usize = 256;

/// The state that all requests share.
pub(crate) struct Service {
    pub(crate) sources: Sources,
    pub(crate) tokens: LiveTokens,
    /// The certificate for https, if there is one.
    pub(crate) certificate: Option<Arc<Certificate>>,
    places: Arc<Shares>,
    memory: Arc<Shares>,
    compute: Compute,
    /// The maximum size of an answer, in bytes.
    max_answer: usize,
    pub(crate) metrics: Metrics,
    ledger: Mutex<Ledger>,
    /// Whether all watches have had their first list.
    synced: AtomicBool,
    /// Whether the files that may change have not been read in time.
    pub(crate) stuck: AtomicBool,
    /// What was suspicious about the tokens when they were read last.
    suspects: Mutex<BTreeSet<String>>,
}

/// The answer to a call: the name of its source, the number of sets, and the body.
pub(crate) struct Answered {
    pub(crate) source: String,
    pub(crate) count: usize,
    pub(crate) body: Held,
}

/// A failure, with the name of the source if the request could be resolved.
pub(crate) struct Refused {
    pub(crate) source: Option<String>,
    pub(crate) failure: Failure,
}

impl Refused {
    /// Makes the failure of a request for a source.
    fn of(source: &str) -> impl FnOnce(Failure) -> Self + use<> {
        let source = Some(source.to_owned());
        |failure| Self { source, failure }
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        let source = None;
        Self { source, failure }
    }
}

/// What is left to do after a request was read.
enum AfterRead {
    Done(Answered),
    /// Registries must be asked.
    LookUp(Arc<Config>, ImageQuery, Output, Share),
}

impl Service {
    pub(crate) fn new(flags: &Flags) -> anyhow::Result<Self> {
        let metrics = Metrics::new();
        let sources = Sources::new(&flags.config, &flags.objects, flags.deadline, &metrics)?;
        let files = flags.tls_cert.clone().zip(flags.tls_key.clone());
        let certificate = files.map(|(cert, key)| Live::new([cert, key], server_config));
        let memory = flags.memory.saturating_mul(MIB);
        let service = Self {
            sources,
            tokens: LiveTokens::new(flags.tokens_dir.clone(), flags.token_file.clone())?,
            certificate: certificate.transpose()?.map(Arc::new),
            places: Shares::new(flags.max_concurrent, Failure::Busy(flags.max_concurrent)),
            memory: Shares::new(memory, Failure::Memory(flags.memory)),
            compute: Compute::new(),
            max_answer: flags.max_answer.saturating_mul(MIB),
            metrics,
            ledger: Mutex::default(),
            synced: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            suspects: Mutex::default(),
        };
        service.warn(service.sources.config.current().warnings());
        service.warn_of_tokens();
        Ok(service)
    }

    /// Reads the files that may have changed, and watches the objects that the configuration needs.
    pub(crate) fn reload(&self) {
        if let Some(warnings) = self.sources.reload() {
            self.warn(warnings);
        }
        self.tokens.reload();
        self.warn_of_tokens();
        if let Some(certificate) = &self.certificate {
            certificate.reload();
        }
        self.metrics.reloads.inc();
    }

    /// Reports what is suspicious about a configuration that has just come into use.
    fn warn(&self, warnings: Vec<Warning>) {
        self.metrics.config_warnings.set(warnings.len() as u64);
        for warning in warnings {
            tracing::warn!(%warning, "the configuration is valid, but may not be what is meant");
        }
    }

    /// Reports what has become suspicious about the tokens.
    fn warn_of_tokens(&self) {
        let Some(tokens) = self.tokens.current() else {
            return;
        };
        let now = tokens.suspects(self.sources.config.current().tokens());
        let mut seen = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in now.difference(&seen) {
            tracing::warn!(problem, "a token may not be what is meant");
        }
        *seen = now;
    }

    /// Returns the place of one more call, and its memory, which is empty at first. Most calls take milliseconds, so that it is
    /// worth to wait for a place.
    pub(crate) async fn admit(&self, caller: &Caller) -> Result<(Share, Share), Failure> {
        let mut place = self.places.share(&caller.token, caller.is_only);
        place.grow_within(1, PATIENCE).await?;
        Ok((place, self.memory.share(&caller.token, caller.is_only)))
    }

    /// Answers a call with this token. `profile` is the profile in the path, if it names one.
    ///
    /// All work is done where [`Compute`] allows it, and what it makes of a request is gone before the next work begins. So not more
    /// requests are in memory in this form, which is much larger than the body, than there are places, and few long ones.
    pub(crate) async fn call(
        self: &Arc<Self>,
        profile: Option<String>,
        token: String,
        body: Held,
    ) -> Result<Answered, Refused> {
        let (service, of_read, runtime) = (Arc::clone(self), token.clone(), Handle::current());
        let read =
            move |turn: &Turn| service.read(profile.as_deref(), &of_read, body, &runtime, turn);
        let (config, images, output, memory) = match self.compute.run(&token, read).await? {
            AfterRead::Done(answered) => return Ok(answered),
            AfterRead::LookUp(config, images, output, memory) => (config, images, output, memory),
        };
        let refused = Refused::of(output.source());
        let answered = async {
            let found = self.sources.found(&config, &images).await?;
            let service = Arc::clone(self);
            let write = move |_: &Turn| service.write(&output, images.sets(&found)?, memory);
            self.compute.run(&token, write).await
        };
        answered.await.map_err(refused)
    }

    /// Reads a call, and answers it unless registries must be asked.
    fn read(
        &self,
        profile: Option<&str>,
        token: &str,
        body: Held,
        runtime: &Handle,
        turn: &Turn,
    ) -> Result<AfterRead, Refused> {
        let Held { bytes, memory } = body;
        let request = Request::from_body(&bytes)?;
        drop(bytes);
        let span = Span::current();
        span.record("application_set", cut(&request.application_set));
        let config = self.sources.config.current();
        // The answer is recorded if push refresh is configured.
        let is_recorded = config.refresh().is_some() && request.object_name().is_some();
        let recorded = is_recorded.then(|| Call::new(profile, token, &request));
        let namespaces = runtime.block_on(self.sources.objects.namespaces(&config));
        let query = config.query(profile, Some(token), request, &namespaces)?;
        let output = query.output;
        span.record("source", output.source());
        let source = match query.source {
            SourceQuery::ImageDigests(images) => {
                return Ok(AfterRead::LookUp(config, images, output, memory));
            }
            source => source,
        };
        if self.sources.objects.are_in_files() {
            // Reading all files takes long.
            turn.leave();
        }
        let sets = runtime.block_on(self.sources.sets(&config, source, &|| turn.go_on()));
        let answered = sets.and_then(|sets| self.write(&output, sets, memory));
        let answered = answered.map_err(Refused::of(output.source()))?;
        if let Some(call) = recorded.flatten() {
            let hash = ledger::hash(&answered.body.bytes);
            self.ledger().answered(call, hash, Instant::now());
        }
        Ok(AfterRead::Done(answered))
    }

    /// Writes the body of an answer, whose size is added to `memory`.
    fn write(
        &self,
        output: &Output,
        sets: Vec<ParameterSet>,
        mut memory: Share,
    ) -> Result<Answered, Failure> {
        let answer = output.answer(sets)?;
        let size = answer.size(self.max_answer)?;
        memory.grow(size)?;
        let (source, count) = (output.source().to_owned(), answer.count());
        let bytes = answer.to_body(size)?;
        let body = Held { bytes, memory };
        Ok(Answered {
            source,
            count,
            body,
        })
    }

    /// Returns the recorded answers.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the hash of the body with which a recorded call would be answered now.
    ///
    /// # Errors
    /// Returns `Err` if the call would fail or not end in time, and for the source of image digests: registries do not announce
    /// changes, so they are not polled.
    pub(crate) async fn answer_again(self: &Arc<Self>, call: &Call) -> Result<Hash, Failure> {
        let (service, call, runtime) = (Arc::clone(self), call.clone(), Handle::current());
        // No token has an empty name, so calls do not wait for this.
        let again = self.compute.run("", move |turn| {
            let request = call.request().ok_or(Failure::Internal)?;
            let sources = &service.sources;
            let config = sources.config.current();
            let (profile, token) = (call.profile.as_deref(), Some(call.token.as_str()));
            let namespaces = runtime.block_on(sources.objects.namespaces(&config));
            let query = config.query(profile, token, request, &namespaces)?;
            if let SourceQuery::ImageDigests(_) = query.source {
                return Err(Failure::Internal);
            }
            let go_on = || turn.go_on();
            let sets = runtime.block_on(sources.sets(&config, query.source, &go_on))?;
            let answer = query.output.answer(sets)?;
            let size = answer.size(service.max_answer)?;
            Ok(ledger::hash(&answer.to_body(size)?))
        });
        let deadline = self.sources.deadline;
        let late = || Failure::Deadline(deadline.as_secs(), "comparing an answer".to_owned());
        let again = timeout(deadline, again).await;
        again.unwrap_or_else(|_| Err(late()))
    }

    /// Whether the replica is not ready, and connections close after their answer, because the process is ending.
    pub(crate) fn is_draining(&self) -> bool {
        self.metrics.draining.get() != 0
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
        if self.synced.load(Ordering::Relaxed) {
            return None;
        }
        let config = self.sources.config.current();
        let unsynced = self.sources.objects.unsynced(&config);
        self.synced.store(unsynced.is_none(), Ordering::Relaxed);
        unsynced
    }

    /// Returns the metrics in the text format of OpenMetrics.
    pub(crate) fn metrics_text(&self) -> String {
        self.metrics.remembered.set(self.ledger().len() as u64);
        let (config, objects) = (&self.sources.config, &self.sources.objects);
        let certificate = self.certificate.as_ref();
        let is_good = config.is_good()
            && certificate.is_none_or(|it| it.is_good())
            && !self.stuck.load(Ordering::Relaxed);
        self.metrics.to_text(is_good, objects.report())
    }
}

/// Shortens `text` for the log.
pub(crate) fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_FIELD))
        .unwrap_or_default()
}
