//! A traffic router's methods, and how each reaches the router.

use gob::{Decoder, EncodeError, Encoder};
use tracing::error;

use super::{Answers, methods};
use crate::error::PluginError;
use crate::from_wire;
use crate::goplugin::handshake::PluginKind;
use crate::netrpc::{Body, Decoded, Fault};
use crate::rollout::{Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};
use crate::to_wire::error_chain;
use crate::traffic_router::{DesiredWeight, PodHashes, TrafficRouter, Verification};
use crate::wire;

methods! {
    /// `rollout/trafficrouting/plugin/rpc/rpc.go` in Argo Rollouts.
    RouterMethod {
        InitPlugin,
        Type,
        UpdateHash,
        SetWeight,
        VerifyWeight,
        SetHeaderRoute,
        SetMirrorRoute,
        RemoveManagedRoutes,
    }
}

/// Everything a host can ask of a traffic router, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    Done(Result<(), PluginError>),
    /// Never an error: after one the controller would not ask again, and would promote unverified.
    Verified(Verification),
}

/// A traffic router to serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Router<R>(pub R);

impl<R: TrafficRouter> Answers for Router<R> {
    const KIND: PluginKind = PluginKind::TrafficRouter;
    type Method = RouterMethod;
    type Call = RouterCall;
    type Reply = RouterReply;

    fn decode(method: RouterMethod, stream: &mut Decoder) -> Decoded<RouterCall> {
        from_wire::decode_router_call(method, stream)
    }

    fn method(call: &RouterCall) -> RouterMethod {
        call.method()
    }

    fn object(call: &RouterCall) -> Option<(&str, &str)> {
        let rollout = call.rollout()?;
        Some((&rollout.metadata.namespace, &rollout.metadata.name))
    }

    async fn answer(&self, call: RouterCall) -> RouterReply {
        use RouterReply::{Done, Type, Verified};
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
                        "call failed: answered that the weight is not verified"
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

    fn late(method: RouterMethod, late: Fault) -> Result<RouterReply, Fault> {
        match method {
            RouterMethod::Type | RouterMethod::VerifyWeight => Err(late),
            _ => Ok(RouterReply::Done(Err(late.into()))),
        }
    }

    fn fail_closed(method: RouterMethod) -> Option<RouterReply> {
        let is_verify = method == RouterMethod::VerifyWeight;
        is_verify.then_some(RouterReply::Verified(Verification::NotVerified))
    }

    fn refusal(reply: &RouterReply) -> Option<&PluginError> {
        match reply {
            RouterReply::Type(_) | RouterReply::Verified(_) => None,
            RouterReply::Done(outcome) => outcome.as_ref().err(),
        }
    }
}

impl RouterCall {
    const fn method(&self) -> RouterMethod {
        match self {
            Self::InitPlugin => RouterMethod::InitPlugin,
            Self::Type => RouterMethod::Type,
            Self::UpdateHash(..) => RouterMethod::UpdateHash,
            Self::SetWeight(..) => RouterMethod::SetWeight,
            Self::VerifyWeight(..) => RouterMethod::VerifyWeight,
            Self::SetHeaderRoute(..) => RouterMethod::SetHeaderRoute,
            Self::SetMirrorRoute(..) => RouterMethod::SetMirrorRoute,
            Self::RemoveManagedRoutes(..) => RouterMethod::RemoveManagedRoutes,
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
}

impl Body for RouterReply {
    fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Type(name) => encoder.encode(name, out),
            Self::Done(outcome) => encoder.encode(&wire::RpcError::from(outcome), out),
            Self::Verified(verification) => {
                encoder.encode(&wire::VerifyWeightResponse::from(*verification), out)
            }
        }
    }
}
