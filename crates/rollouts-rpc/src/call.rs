//! A dispensed plugin as a net/rpc service: what all three kinds have in common.

mod metric;
#[cfg(all(test, feature = "testing"))]
mod recorded;
mod router;
mod step;

pub use metric::Metrics;
pub(crate) use metric::{MetricCall, MetricMethod};
pub(crate) use router::RouterMethod;
#[cfg(feature = "grpc")]
pub(crate) use router::RouterReply;
pub use router::{Router, RouterCall};
pub use step::Step;
pub(crate) use step::{StepCall, StepMethod};

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use gob::{Decoder, Limits};
use serde::de::IgnoredAny;
use tracing::{Instrument as _, Span, error, error_span, field};

use crate::error::PluginError;
use crate::goplugin::handshake::PluginKind;
use crate::metric_provider::MetricProvider;
use crate::netrpc::server::Serve;
use crate::netrpc::{self, Body, Decoded, Fault};
use crate::step_plugin::StepPlugin;
use crate::to_wire;
use crate::traffic_router::TrafficRouter;
use crate::wire::LIMITS;

/// The closed list of methods of one kind of plugin.
pub(crate) trait Method: Copy + Send + Sync + 'static {
    const ALL: &[Self];

    /// The method's name in Go, without the service.
    fn name(self) -> &'static str;

    /// The method a host means by `Plugin.<name>`.
    fn of_service_method(service_method: &str) -> Option<Self> {
        let name = service_method.strip_prefix("Plugin.")?;
        let mut all = Self::ALL.iter().copied();
        all.find(|method| method.name() == name)
    }
}

/// Declares a [`Method`] whose variants are named as in Go.
macro_rules! methods {
    ($(#[$attribute:meta])* $name:ident { $($method:ident),* $(,)? }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($method),* }

        impl $crate::call::Method for $name {
            const ALL: &[Self] = &[$(Self::$method),*];

            fn name(self) -> &'static str {
                match self { $(Self::$method => stringify!($method)),* }
            }
        }
    };
}
use methods;

/// A plugin to serve: [`Router`], [`Metrics`] or [`Step`] around a type that implements the trait of its kind. The controller learns
/// the kind from it.
pub trait Plugin: sealed::Plugin {}

pub(crate) mod sealed {
    use super::{Duration, PluginKind, Service};

    pub trait Plugin: Send + Sync + 'static {
        const KIND: PluginKind;

        /// The plugin behind the protocol, with `deadline` for each call.
        fn into_service(self, deadline: Duration) -> Service;
    }
}

/// A plugin of any kind, behind the protocol.
pub struct Service(pub(crate) Arc<dyn Serve>);

macro_rules! plugins {
    ($($plugin:ident: $implements:ident),*) => {$(
        impl<P: $implements> Plugin for $plugin<P> {}

        impl<P: $implements> sealed::Plugin for $plugin<P> {
            const KIND: PluginKind = <Self as Answers>::KIND;

            fn into_service(self, deadline: Duration) -> Service {
                Service(Arc::new(PluginService::new(self, deadline)))
            }
        }
    )*};
}

plugins!(Router: TrafficRouter, Metrics: MetricProvider, Step: StepPlugin);

/// One kind of plugin: what a host can ask of it and what it answers.
pub(crate) trait Answers: Send + Sync + 'static {
    const KIND: PluginKind;
    type Method: Method;
    /// A call with the argument that belongs to its method.
    type Call: Send + 'static;
    type Reply: Body + Send + Sync + 'static;

    /// Reads the argument of a call. `None` means that more bytes are needed.
    ///
    /// # Errors
    ///
    /// Of the stream; [`Fault::Argument`] for the argument of another method.
    fn decode(method: Self::Method, stream: &mut Decoder) -> Decoded<Self::Call>;

    fn method(call: &Self::Call) -> Self::Method;

    /// The namespace and name of the object a call is about.
    fn object(call: &Self::Call) -> Option<(&str, &str)>;

    /// Hands a call to the author's code.
    fn answer(&self, call: Self::Call) -> impl Future<Output = Self::Reply> + Send;

    /// The answer to a call that was cut short.
    ///
    /// # Errors
    ///
    /// The fault itself, where a reply has no place for an error.
    fn late(method: Self::Method, late: Fault) -> Result<Self::Reply, Fault>;

    /// The reply instead of any fault, for a method whose host ignores errors.
    fn fail_closed(_method: Self::Method) -> Option<Self::Reply> {
        None
    }

    /// Stops the background work of the plugin.
    fn stop(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// The error that the plugin returned, if any.
    fn refusal(reply: &Self::Reply) -> Option<&PluginError>;
}

/// A plugin as a net/rpc service.
pub(crate) struct PluginService<P> {
    plugin: P,
    deadline: Duration,
}

/// A call that is being carried out.
#[derive(Clone)]
pub(crate) struct Ticket<M> {
    method: M,
    /// Around everything that the call logs.
    span: Span,
}

impl<P: Answers> PluginService<P> {
    pub(crate) fn new(plugin: P, deadline: Duration) -> Self {
        Self { plugin, deadline }
    }

    /// The answer to a call that the plugin's code did not answer.
    fn fault(method: P::Method, fault: Fault) -> Result<P::Reply, Fault> {
        if let Some(reply) = P::fail_closed(method) {
            let error = to_wire::error_chain(&fault);
            error!(error, "call failed: answered in the safe way");
            return Ok(reply);
        }
        match fault {
            late @ Fault::Late { .. } => P::late(method, late),
            fault => Err(fault),
        }
    }

    /// Carries out a call in a task of its own, for a caller who does not watch the deadline.
    #[cfg(feature = "grpc")]
    pub(crate) async fn call_in_time(self: Arc<Self>, call: P::Call) -> Result<P::Reply, Fault> {
        use crate::netrpc::Service as _;
        let ticket = self.ticket(&call);
        let work = tokio::spawn({
            let (service, ticket) = (Arc::clone(&self), ticket.clone());
            async move { service.call(&ticket, call).await }
        });
        let work = tokio_util::task::AbortOnDropHandle::new(work);
        match tokio::time::timeout(self.deadline, work).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_cancelled)) => Err(Fault::Ended),
            Err(_elapsed) => self.late(&ticket),
        }
    }
}

impl<P: Answers> netrpc::Service for PluginService<P> {
    type Call = P::Call;
    type Reply = P::Reply;
    type Ticket = Ticket<P::Method>;

    const LIMITS: Limits = LIMITS;

    fn decode(method: &str, stream: &mut Decoder) -> Decoded<P::Call> {
        let Some(known) = P::Method::of_service_method(method) else {
            let skipped = stream.poll_value()?;
            return Ok(skipped.map(|IgnoredAny| Err(Fault::not_found(method, &["Plugin"]))));
        };
        P::decode(known, stream)
    }

    async fn stop(&self) {
        self.plugin.stop().await;
    }

    fn ticket(&self, call: &P::Call) -> Self::Ticket {
        Ticket {
            method: P::method(call),
            span: span::<P>(call),
        }
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.deadline)
    }

    async fn call(&self, ticket: &Self::Ticket, call: P::Call) -> Result<P::Reply, Fault> {
        let Ticket { method, span } = ticket;
        let work = AssertUnwindSafe(self.plugin.answer(call)).catch_unwind();
        let answered = work.instrument(span.clone()).await;
        span.in_scope(|| {
            concluded::<P>(match answered {
                Ok(reply) => Ok(reply),
                Err(panic) => Self::fault(
                    *method,
                    Fault::Panicked {
                        method: method.name(),
                        message: panic_message(panic),
                    },
                ),
            })
        })
    }

    fn late(&self, Ticket { method, span }: &Self::Ticket) -> Result<P::Reply, Fault> {
        let late = Fault::Late {
            method: method.name(),
            seconds: self.deadline.as_secs_f32(),
        };
        span.in_scope(|| concluded::<P>(Self::fault(*method, late)))
    }

    fn refuse(method: &str, fault: Fault) -> Result<P::Reply, Fault> {
        match P::Method::of_service_method(method) {
            Some(method) => Self::fault(method, fault),
            None => Err(fault),
        }
    }
}

/// Logs the error that the plugin returned.
fn concluded<P: Answers>(reply: Result<P::Reply, Fault>) -> Result<P::Reply, Fault> {
    if let Some(refused) = reply.as_ref().ok().and_then(P::refusal) {
        let error = to_wire::error_chain(refused.as_error());
        error!(error, "call failed");
    }
    reply
}

/// The span around everything a call logs.
fn span<P: Answers>(call: &P::Call) -> Span {
    let method = P::method(call).name();
    // At this level no filter takes it away from an error inside.
    let span = error_span!(
        "call",
        method,
        rollout = field::Empty,
        analysis_run = field::Empty
    );
    if let Some((namespace, name)) = P::object(call) {
        let field = match P::KIND {
            PluginKind::TrafficRouter | PluginKind::Step => "rollout",
            PluginKind::MetricProvider => "analysis_run",
        };
        span.record(field, format!("{namespace}/{name}"));
    }
    span
}

/// The fault of a call whose argument belongs to another method, or is nil.
pub(crate) fn other_argument(method: impl Method, found: Option<&'static str>) -> Fault {
    Fault::Argument {
        method: format!("Plugin.{}", method.name()),
        reason: format!("it is {}", found.unwrap_or("nil")),
    }
}

fn panic_message(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast::<&str>()
            .map_or_else(|_| "no message".to_owned(), |text| text.to_string()),
    }
}
