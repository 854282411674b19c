//! A dispensed plugin as a net/rpc service: what all three kinds have in common.

mod metric;
#[cfg(test)]
mod recorded;
mod router;
mod step;

pub(crate) use metric::{MetricCall, MetricMethod, Metrics};
pub use router::RouterCall;
#[cfg(feature = "grpc")]
pub(crate) use router::RouterReply;
pub(crate) use router::{Router, RouterMethod};
pub(crate) use step::{Step, StepCall, StepMethod};

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use gob::{Decoder, Limits};
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span, error, error_span, field};

use crate::error::PluginError;
use crate::goplugin::handshake::PluginKind;
use crate::netrpc::{Body, Decoded, Fault, Service};
use crate::to_wire;
use crate::wire::LIMITS;

/// The closed list of methods of one kind of plugin.
pub(crate) trait Method: Copy + Send + 'static {
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

/// One kind of plugin: what a host can ask of it and what it answers.
pub(crate) trait Plugin: Send + Sync + 'static {
    const KIND: PluginKind;
    type Method: Method;
    /// The argument of every method, a Go `any`.
    type Args: DeserializeOwned;
    /// A call with the argument that belongs to its method.
    type Call: Send + 'static;
    type Reply: Body + Send + 'static;

    /// `None` is Go's nil.
    ///
    /// # Errors
    ///
    /// [`Fault::Argument`] for the argument of another method.
    fn call(method: Self::Method, args: Option<Self::Args>) -> Result<Self::Call, Fault>;

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

    /// The answer in place of any fault, for a method whose host goes on after an error as if all were well.
    fn fail_closed(_method: Self::Method) -> Option<Self::Reply> {
        None
    }

    /// Ends what the plugin does by itself between the calls.
    fn stop(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Why the plugin said no, if it did.
    fn refusal(reply: &Self::Reply) -> Option<&PluginError>;
}

/// A plugin as a net/rpc service.
pub(crate) struct PluginService<P> {
    plugin: Arc<P>,
    deadline: Duration,
}

impl<P: Plugin> PluginService<P> {
    pub(crate) fn new(plugin: P, deadline: Duration) -> Self {
        Self {
            plugin: Arc::new(plugin),
            deadline,
        }
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
}

impl<P: Plugin> Service for PluginService<P> {
    type Call = P::Call;
    type Reply = P::Reply;

    const LIMITS: Limits = LIMITS;

    fn decode(method: &str, stream: &mut Decoder) -> Decoded<P::Call> {
        let Some(known) = P::Method::of_service_method(method) else {
            let skipped = stream.poll_value()?;
            return Ok(skipped.map(|IgnoredAny| Err(Fault::not_found(method, &["Plugin"]))));
        };
        let args = stream.poll_value::<Option<P::Args>>()?;
        Ok(args.map(|args| P::call(known, args)))
    }

    async fn stop(&self) {
        self.plugin.stop().await;
    }

    /// A task of its own per call: a panic is this call's error, and a call that blocks its thread
    /// is left behind at the deadline.
    async fn call(&self, call: P::Call) -> Result<P::Reply, Fault> {
        let method = P::method(&call);
        let span = span::<P>(&call);
        let plugin = Arc::clone(&self.plugin);
        let work = async move { plugin.answer(call).await }.instrument(span.clone());
        let work = AbortOnDropHandle::new(tokio::spawn(work));
        let method_name = method.name();
        let answered = timeout(self.deadline, work).await;
        span.in_scope(|| {
            let reply = match answered {
                Ok(Ok(reply)) => Ok(reply),
                Ok(Err(panic)) => Self::fault(
                    method,
                    Fault::Panicked {
                        method: method_name,
                        message: panic_message(panic),
                    },
                ),
                Err(_elapsed) => Self::fault(
                    method,
                    Fault::Late {
                        method: method_name,
                        seconds: self.deadline.as_secs_f32(),
                    },
                ),
            };
            if let Some(refused) = reply.as_ref().ok().and_then(P::refusal) {
                let error = to_wire::error_chain(refused.as_error());
                error!(error, "call failed");
            }
            reply
        })
    }

    fn refuse(method: &str, fault: Fault) -> Result<P::Reply, Fault> {
        match P::Method::of_service_method(method) {
            Some(method) => Self::fault(method, fault),
            None => Err(fault),
        }
    }
}

/// The span around everything a call logs.
fn span<P: Plugin>(call: &P::Call) -> Span {
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

fn panic_message(panic: tokio::task::JoinError) -> String {
    let Ok(payload) = panic.try_into_panic() else {
        return "cancelled".to_owned();
    };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast::<&str>()
            .map_or_else(|_| "no message".to_owned(), |text| text.to_string()),
    }
}
