//! Serves a plugin of any kind as a net/rpc service: decodes each call, dispatches it to the author's code and encodes the reply.

#[cfg(all(test, feature = "testing"))]
mod tests;

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use gob::Decoder;
use serde::de::IgnoredAny;
use tracing::{Instrument as _, Span, error, error_span, field};

use crate::error::{error_chain, within_limit};
use crate::kind::PluginKind;
use crate::methods::{
    Call, Method, MetricCall, MetricMethod, Reply, RouterCall, RouterMethod, StepCall, StepMethod,
};
use crate::metric_provider::{Measurement, MetricProvider, size_of_metadata};
use crate::netrpc::server::Serve;
use crate::netrpc::{self, Decoded, Fault};
use crate::step_plugin::{StepPlugin, StepResult};
use crate::traffic_router::{TrafficRouter, Verification};
use crate::wire;
use crate::workers::Workers;

/// A plugin that can be served: [`Router`], [`Metrics`] or [`Step`] around a type that implements the trait of its kind.
pub trait Plugin: sealed::IntoService {}

pub(crate) mod sealed {
    use super::{AnyService, Duration, PluginKind, Workers};

    pub trait IntoService: Send + Sync + 'static {
        const KIND: PluginKind;

        /// Returns the plugin as a service that allows each call `deadline`.
        fn into_service(self, deadline: Duration, workers: Workers) -> AnyService;
    }
}

/// A service of any kind of plugin.
pub struct AnyService(pub(crate) Arc<dyn Serve>);

/// A traffic router to serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Router<R>(pub R);

/// A metric provider to serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metrics<P>(pub P);

/// A step plugin to serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<P>(pub P);

macro_rules! plugins {
    ($($plugin:ident: $implements:ident),*) => {$(
        impl<P: $implements> Plugin for $plugin<P> {}

        impl<P: $implements> sealed::IntoService for $plugin<P> {
            const KIND: PluginKind = <Self as Dispatch>::KIND;

            fn into_service(self, deadline: Duration, workers: Workers) -> AnyService {
                AnyService(Arc::new(PluginService::new(self, deadline, workers)))
            }
        }
    )*};
}

plugins!(Router: TrafficRouter, Metrics: MetricProvider, Step: StepPlugin);

/// Dispatches the calls of one kind of plugin to the author's code.
pub(crate) trait Dispatch: Send + Sync + 'static {
    const KIND: PluginKind;
    type Call: Call;

    /// Decodes the argument of a call. `None` means that more bytes are needed.
    ///
    /// # Errors
    ///
    /// Returns `Err` if the argument is not gob of the expected type. The inner error is [`Fault::Argument`] if the argument is
    /// nil or belongs to another method.
    fn decode(method: MethodOf<Self>, stream: &mut Decoder) -> Decoded<Self::Call>;

    /// Calls the method of the author's type.
    fn dispatch(&self, call: Self::Call) -> impl Future<Output = Reply> + Send;

    /// Returns the reply that replaces every fault of a method whose host ignores errors.
    fn fail_closed(_method: MethodOf<Self>) -> Option<Reply> {
        None
    }

    /// Stops the background work of the plugin.
    fn stop(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

type MethodOf<P> = <<P as Dispatch>::Call as Call>::Method;

impl<R: TrafficRouter> Dispatch for Router<R> {
    const KIND: PluginKind = PluginKind::TrafficRouter;
    type Call = RouterCall;

    fn decode(method: RouterMethod, stream: &mut Decoder) -> Decoded<RouterCall> {
        wire::router::decode_call(method, stream)
    }

    async fn dispatch(&self, call: RouterCall) -> Reply {
        use Reply::{Done, Type, Verified};
        let router = &self.0;
        match call {
            RouterCall::InitPlugin => Done(router.init().await),
            RouterCall::Type => Type(router.type_name().to_owned()),
            RouterCall::UpdateHash(rollout, hashes, additional) => {
                Done(router.update_hash(&rollout, &hashes, &additional).await)
            }
            RouterCall::SetWeight(rollout, desired, additional) => {
                Done(router.set_weight(&rollout, desired, &additional).await)
            }
            RouterCall::VerifyWeight(rollout, desired, additional) => {
                let answer = router.verify_weight(&rollout, desired, &additional).await;
                Verified(answer.unwrap_or_else(|error| {
                    let error = error_chain(error.as_error());
                    error!(
                        error,
                        "call failed: replied that the weight is not verified"
                    );
                    Verification::NotVerified
                }))
            }
            RouterCall::SetHeaderRoute(rollout, route) => {
                Done(router.set_header_route(&rollout, &route).await)
            }
            RouterCall::SetMirrorRoute(rollout, route) => {
                Done(router.set_mirror_route(&rollout, &route).await)
            }
            RouterCall::RemoveManagedRoutes(rollout) => {
                Done(router.remove_managed_routes(&rollout).await)
            }
        }
    }

    async fn stop(&self) {
        self.0.stop().await;
    }

    fn fail_closed(method: RouterMethod) -> Option<Reply> {
        let is_verify = method == RouterMethod::VerifyWeight;
        is_verify.then_some(Reply::Verified(Verification::NotVerified))
    }
}

impl<P: MetricProvider> Dispatch for Metrics<P> {
    const KIND: PluginKind = PluginKind::MetricProvider;
    type Call = MetricCall;

    fn decode(method: MetricMethod, stream: &mut Decoder) -> Decoded<MetricCall> {
        wire::metric::decode_call(method, stream)
    }

    async fn dispatch(&self, call: MetricCall) -> Reply {
        use Reply::{Done, Measured, Metadata, Type};
        let measured = |outcome: crate::Result<Measurement>| {
            Measured(outcome.and_then(Measurement::limited).map(Box::new))
        };
        let provider = &self.0;
        match call {
            MetricCall::InitPlugin => Done(provider.init().await),
            MetricCall::Type => Type(provider.type_name().to_owned()),
            MetricCall::Run(args) => measured(provider.run(&args.analysis_run, &args.metric).await),
            MetricCall::Resume(args) => {
                let (run, metric) = (&args.analysis_run, &args.metric);
                measured(provider.resume(run, metric, args.measurement).await)
            }
            MetricCall::Terminate(args) => {
                let (run, metric) = (&args.analysis_run, &args.metric);
                measured(provider.terminate(run, metric, args.measurement).await)
            }
            MetricCall::GarbageCollect(args) => {
                // It is not negative, and one that is too large keeps the data of all measurements.
                let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
                let collected = provider.garbage_collect(&args.analysis_run, &args.metric, limit);
                Done(collected.await)
            }
            MetricCall::GetMetadata(args) => {
                let metadata = provider.metadata(&args.metric).await;
                Metadata(metadata.and_then(|metadata| {
                    within_limit("its keys and values", size_of_metadata(&metadata))?;
                    Ok(metadata)
                }))
            }
        }
    }
}

impl<P: StepPlugin> Dispatch for Step<P> {
    const KIND: PluginKind = PluginKind::Step;
    type Call = StepCall;

    fn decode(method: StepMethod, stream: &mut Decoder) -> Decoded<StepCall> {
        wire::step::decode_call(method, stream)
    }

    async fn dispatch(&self, call: StepCall) -> Reply {
        let step = &self.0;
        let result = match call {
            StepCall::InitPlugin => return Reply::Done(step.init().await),
            StepCall::Type => return Reply::Type(step.type_name().to_owned()),
            StepCall::Run(rollout, context) => step.run(&rollout, &context).await,
            StepCall::Terminate(rollout, context) => step.terminate(&rollout, &context).await,
            StepCall::Abort(rollout, context) => step.abort(&rollout, &context).await,
        };
        Reply::Stepped(result.and_then(StepResult::limited))
    }
}

/// A plugin as a net/rpc service.
pub(crate) struct PluginService<P> {
    plugin: Arc<P>,
    deadline: Duration,
    workers: Workers,
}

/// The method and the log span of a call in flight.
#[derive(Clone)]
pub(crate) struct CallInfo<M> {
    method: M,
    span: Span,
}

impl<P: Dispatch> PluginService<P> {
    pub(crate) fn new(plugin: P, deadline: Duration, workers: Workers) -> Self {
        Self {
            plugin: Arc::new(plugin),
            deadline,
            workers,
        }
    }

    /// Converts a fault to a reply, if the method's reply can hold it.
    fn fault(method: MethodOf<P>, fault: Fault) -> Result<Reply, Fault> {
        if let Some(reply) = P::fail_closed(method) {
            let error = error_chain(&fault);
            error!(
                error,
                "call failed: replied that the weight is not verified"
            );
            return Ok(reply);
        }
        match fault {
            Fault::DeadlineExceeded { .. } => method.failed(fault.clone().into()).ok_or(fault),
            fault => Err(fault),
        }
    }

    /// Runs a call in a task and enforces the deadline, for a caller that does not enforce it.
    #[cfg(feature = "grpc")]
    pub(crate) async fn call_with_deadline(self: Arc<Self>, call: P::Call) -> Result<Reply, Fault> {
        use crate::netrpc::Service as _;
        let info = self.call_info(&call);
        let work = tokio::spawn({
            let (service, info) = (Arc::clone(&self), info.clone());
            async move { service.call(&info, call).await }
        });
        let work = tokio_util::task::AbortOnDropHandle::new(work);
        match tokio::time::timeout(self.deadline, work).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_cancelled)) => Err(Fault::Ended),
            Err(_elapsed) => self.deadline_exceeded(&info),
        }
    }
}

impl<P: Dispatch> netrpc::Service for PluginService<P> {
    type Call = P::Call;
    type Reply = Reply;
    type CallInfo = CallInfo<MethodOf<P>>;

    fn decode(method: &str, stream: &mut Decoder) -> Decoded<P::Call> {
        let Some(known) = MethodOf::<P>::of_service_method(method) else {
            let skipped = stream.poll_value()?;
            return Ok(skipped.map(|IgnoredAny| Err(Fault::not_found(method, &["Plugin"]))));
        };
        P::decode(known, stream)
    }

    async fn stop(&self) {
        let plugin = Arc::clone(&self.plugin);
        let stop = async move { AssertUnwindSafe(plugin.stop()).catch_unwind().await };
        if let Some(Err(panic)) = self.workers.run(stop).await {
            let message = panic_message(panic);
            error!("the plugin panicked while it stopped its background work: {message}");
        }
    }

    fn call_info(&self, call: &P::Call) -> Self::CallInfo {
        CallInfo {
            method: call.method(),
            span: span::<P>(call),
        }
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.deadline)
    }

    async fn call(&self, info: &Self::CallInfo, call: P::Call) -> Result<Reply, Fault> {
        let CallInfo { method, span } = info;
        let plugin = Arc::clone(&self.plugin);
        let work = async move { AssertUnwindSafe(plugin.dispatch(call)).catch_unwind().await };
        let outcome = self.workers.run(work.instrument(span.clone())).await;
        span.in_scope(|| {
            let fault = match outcome {
                Some(Ok(reply)) => return log_plugin_error(Ok(reply)),
                Some(Err(panic)) => Fault::Panicked {
                    method: method.name(),
                    message: panic_message(panic),
                },
                None => Fault::Ended,
            };
            log_plugin_error(Self::fault(*method, fault))
        })
    }

    fn deadline_exceeded(&self, info: &Self::CallInfo) -> Result<Reply, Fault> {
        let CallInfo { method, span } = info;
        let fault = Fault::DeadlineExceeded {
            method: method.name(),
            seconds: self.deadline.as_secs_f32(),
        };
        span.in_scope(|| log_plugin_error(Self::fault(*method, fault)))
    }

    fn refuse(method: &str, fault: Fault) -> Result<Reply, Fault> {
        match MethodOf::<P>::of_service_method(method) {
            Some(method) => Self::fault(method, fault),
            None => Err(fault),
        }
    }
}

/// Logs the error that the plugin returned, if any.
fn log_plugin_error(reply: Result<Reply, Fault>) -> Result<Reply, Fault> {
    if let Some(error) = reply.as_ref().ok().and_then(Reply::error) {
        let error = error_chain(error.as_error());
        error!(error, "call failed");
    }
    reply
}

/// Returns the span of a call, with the object in its arguments.
fn span<P: Dispatch>(call: &P::Call) -> Span {
    let method = call.method().name();
    // The span has level error, so that no level filter removes its fields from an error record.
    let span = error_span!(
        "call",
        method,
        rollout = field::Empty,
        analysis_run = field::Empty
    );
    if let Some((namespace, name)) = call.object() {
        let field = match P::KIND {
            PluginKind::TrafficRouter | PluginKind::Step => "rollout",
            PluginKind::MetricProvider => "analysis_run",
        };
        span.record(field, format!("{namespace}/{name}"));
    }
    span
}

fn panic_message(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast::<&str>()
            .map_or_else(|_| "no message".to_owned(), |text| text.to_string()),
    }
}
