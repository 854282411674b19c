//! The closed list of methods on a dispensed traffic router, and how each reaches the router.

use std::sync::Arc;
use std::time::Duration;

use gob::{Decoder, EncodeError, Encoder};
use serde::de::IgnoredAny;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span, error, error_span, field, warn};

use crate::netrpc::{Body, Decoded, Fault, Service};
use crate::rollout::{Rollout, SetHeaderRoute, SetMirrorRoute};
use crate::traffic_router::{
    DesiredWeight, PodHashes, RouterError, TrafficRouter, Verification, WeightDestination,
};
use crate::wire::{self, RouterArgs};
use crate::{from_wire, to_wire};

/// The methods of Argo Rollouts' `TrafficRouterPlugin`
/// (`rollout/trafficrouting/plugin/rpc/rpc.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    InitPlugin,
    Type,
    UpdateHash,
    SetWeight,
    VerifyWeight,
    SetHeaderRoute,
    SetMirrorRoute,
    RemoveManagedRoutes,
}

/// Everything a host can ask of a traffic router, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterCall {
    /// [`TrafficRouter::init`].
    InitPlugin,
    /// [`TrafficRouter::type_name`].
    Type,
    /// [`TrafficRouter::update_hash`].
    UpdateHash(Box<Rollout>, PodHashes, Vec<WeightDestination>),
    /// [`TrafficRouter::set_weight`].
    SetWeight(Box<Rollout>, DesiredWeight, Vec<WeightDestination>),
    /// [`TrafficRouter::verify_weight`].
    VerifyWeight(Box<Rollout>, DesiredWeight, Vec<WeightDestination>),
    /// [`TrafficRouter::set_header_route`].
    SetHeaderRoute(Box<Rollout>, SetHeaderRoute),
    /// [`TrafficRouter::set_mirror_route`].
    SetMirrorRoute(Box<Rollout>, SetMirrorRoute),
    /// [`TrafficRouter::remove_managed_routes`].
    RemoveManagedRoutes(Box<Rollout>),
}

/// What a router answers.
#[derive(Debug)]
pub(crate) enum RouterReply {
    Type(String),
    Done(Result<(), RouterError>),
    Verified(Result<Verification, RouterError>),
}

/// A traffic router as a net/rpc service.
pub(crate) struct RouterService<R> {
    router: Arc<R>,
    deadline: Duration,
}

impl<R: TrafficRouter> RouterService<R> {
    pub(crate) fn new(router: R, deadline: Duration) -> Self {
        Self {
            router: Arc::new(router),
            deadline,
        }
    }
}

impl<R: TrafficRouter> Service for RouterService<R> {
    type Call = RouterCall;
    type Reply = RouterReply;

    fn decode(method: &str, stream: &mut Decoder) -> Decoded<RouterCall> {
        let Some(known) = Method::of_service_method(method) else {
            let skipped = stream.poll_value()?;
            return Ok(skipped.map(|IgnoredAny| Err(Fault::not_found(method, &["Plugin"]))));
        };
        let args = stream.poll_value::<Option<RouterArgs>>()?;
        Ok(args.map(|args| from_wire::router_call(known, args)))
    }

    /// A task of its own per call: a panic is this call's error, and a call that blocks its thread
    /// is left behind at the deadline.
    async fn call(&self, call: RouterCall) -> Result<RouterReply, Fault> {
        let method = call.method();
        let span = call.span();
        let router = Arc::clone(&self.router);
        let work = async move { dispatch(&*router, call).await }.instrument(span.clone());
        let work = AbortOnDropHandle::new(tokio::spawn(work));
        let reply = match timeout(self.deadline, work).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(panic)) => Err(Fault::Panicked {
                method: method.name(),
                message: panic_message(panic),
            }),
            Err(_elapsed) => RouterReply::late(method, self.deadline),
        };
        span.in_scope(|| log_failure(&reply));
        reply
    }
}

/// Hands a call to the router.
pub(crate) async fn dispatch<R: TrafficRouter>(router: &R, call: RouterCall) -> RouterReply {
    use RouterReply::{Done, Type, Verified};
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
            Verified(router.verify_weight(&rollout, desired, &additional).await)
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

impl Method {
    const ALL: [Self; 8] = [
        Self::InitPlugin,
        Self::Type,
        Self::UpdateHash,
        Self::SetWeight,
        Self::VerifyWeight,
        Self::SetHeaderRoute,
        Self::SetMirrorRoute,
        Self::RemoveManagedRoutes,
    ];

    /// The method a host means by `Plugin.<name>`.
    fn of_service_method(service_method: &str) -> Option<Self> {
        let name = service_method.strip_prefix("Plugin.")?;
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// The method's name in Go, without the service.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::InitPlugin => "InitPlugin",
            Self::Type => "Type",
            Self::UpdateHash => "UpdateHash",
            Self::SetWeight => "SetWeight",
            Self::VerifyWeight => "VerifyWeight",
            Self::SetHeaderRoute => "SetHeaderRoute",
            Self::SetMirrorRoute => "SetMirrorRoute",
            Self::RemoveManagedRoutes => "RemoveManagedRoutes",
        }
    }
}

impl RouterCall {
    pub(crate) const fn method(&self) -> Method {
        match self {
            Self::InitPlugin => Method::InitPlugin,
            Self::Type => Method::Type,
            Self::UpdateHash(..) => Method::UpdateHash,
            Self::SetWeight(..) => Method::SetWeight,
            Self::VerifyWeight(..) => Method::VerifyWeight,
            Self::SetHeaderRoute(..) => Method::SetHeaderRoute,
            Self::SetMirrorRoute(..) => Method::SetMirrorRoute,
            Self::RemoveManagedRoutes(..) => Method::RemoveManagedRoutes,
        }
    }

    fn rollout(&self) -> Option<&Rollout> {
        match self {
            Self::InitPlugin | Self::Type => None,
            Self::UpdateHash(rollout, ..)
            | Self::SetWeight(rollout, ..)
            | Self::VerifyWeight(rollout, ..)
            | Self::SetHeaderRoute(rollout, ..)
            | Self::SetMirrorRoute(rollout, ..)
            | Self::RemoveManagedRoutes(rollout) => Some(rollout),
        }
    }

    /// The span around everything a call logs.
    fn span(&self) -> Span {
        // At this level no filter takes it away from an error inside.
        let span = error_span!(
            "call",
            method = self.method().name(),
            rollout = field::Empty
        );
        if let Some(Rollout {
            namespace, name, ..
        }) = self.rollout()
        {
            span.record("rollout", format!("{namespace}/{name}"));
        }
        span
    }
}

impl RouterReply {
    /// The answer to a call that was cut short.
    ///
    /// For VerifyWeight it is no error: after an error the controller would not ask again, and
    /// would promote unverified.
    fn late(method: Method, deadline: Duration) -> Result<Self, Fault> {
        let late = Fault::Late {
            method: method.name(),
            seconds: deadline.as_secs_f32(),
        };
        match method {
            Method::Type => Err(late),
            Method::VerifyWeight => {
                warn!(error = %late, "answered that the weight is not verified");
                Ok(Self::Verified(Ok(Verification::NotVerified)))
            }
            _ => Ok(Self::Done(Err(late.into()))),
        }
    }
}

impl Body for RouterReply {
    fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Type(name) => encoder.encode(name, out),
            Self::Done(outcome) => encoder.encode(&wire::RpcError::from(outcome), out),
            Self::Verified(outcome) => {
                encoder.encode(&wire::VerifyWeightResponse::from(outcome), out)
            }
        }
    }
}

fn log_failure(reply: &Result<RouterReply, Fault>) {
    if let Ok(RouterReply::Done(Err(refused)) | RouterReply::Verified(Err(refused))) = reply {
        error!(
            error = to_wire::error_chain(refused.as_error()),
            "call failed"
        );
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
