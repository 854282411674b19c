//! The service of the router: converts requests to calls, and outcomes to replies or a status.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use tonic::{Code, Request, Response, Status};
use tracing::warn;

use super::proto::traffic_router_server;
use super::proto::{
    InitPluginRequest, InitPluginResponse, RemoveManagedRoutesRequest, RemoveManagedRoutesResponse,
    SetHeaderRouteRequest, SetHeaderRouteResponse, SetMirrorRouteRequest, SetMirrorRouteResponse,
    SetWeightRequest, SetWeightResponse, TypeRequest, TypeResponse, UpdateHashRequest,
    UpdateHashResponse, Verification as WireVerification, VerifyWeightRequest,
    VerifyWeightResponse, WeightDestination as WireDestination,
};
use crate::call::{PluginService, Router};
use crate::error::{PluginError, error_chain};
use crate::methods::{Reply, RouterCall};
use crate::netrpc::{Fault, Service as _};
use crate::rollout::{Rollout, WeightDestination};
use crate::traffic_router::{DesiredWeight, PodHashes, TrafficRouter, Verification};

pub(super) struct Calls<R> {
    router: Arc<PluginService<Router<R>>>,
}

impl<R: TrafficRouter> Calls<R> {
    pub(super) fn new(router: Arc<PluginService<Router<R>>>) -> Self {
        Self { router }
    }

    async fn call(&self, call: RouterCall) -> Result<Reply, Status> {
        let reply = Arc::clone(&self.router).call_with_deadline(call).await;
        let reply = reply.map_err(|fault| fault_status(&fault))?;
        match reply.error() {
            Some(error) => Err(plugin_error_status(error)),
            None => Ok(reply),
        }
    }

    /// Makes a call whose reply has no value.
    async fn perform<T: Default>(&self, call: RouterCall) -> Result<Response<T>, Status> {
        let _done = self.call(call).await?;
        Ok(Response::new(T::default()))
    }
}

#[tonic::async_trait]
impl<R: TrafficRouter> traffic_router_server::TrafficRouter for Calls<R> {
    async fn init_plugin(
        &self,
        _request: Request<InitPluginRequest>,
    ) -> Result<Response<InitPluginResponse>, Status> {
        self.perform(RouterCall::InitPlugin).await
    }

    async fn r#type(
        &self,
        _request: Request<TypeRequest>,
    ) -> Result<Response<TypeResponse>, Status> {
        match self.call(RouterCall::Type).await? {
            Reply::Type(r#type) => Ok(Response::new(TypeResponse { r#type })),
            _ => Err(mismatched()),
        }
    }

    async fn update_hash(
        &self,
        request: Request<UpdateHashRequest>,
    ) -> Result<Response<UpdateHashResponse>, Status> {
        let request = request.into_inner();
        let hashes = PodHashes {
            canary: request.canary_hash,
            stable: request.stable_hash,
        };
        self.perform(RouterCall::UpdateHash(
            rollout("UpdateHash", &request.rollout)?,
            hashes,
            all(request.additional_destinations),
        ))
        .await
    }

    async fn set_weight(
        &self,
        request: Request<SetWeightRequest>,
    ) -> Result<Response<SetWeightResponse>, Status> {
        let request = request.into_inner();
        let rollout = rollout("SetWeight", &request.rollout)?;
        let desired = DesiredWeight::of(&rollout, request.desired_weight);
        let additional = all(request.additional_destinations);
        self.perform(RouterCall::SetWeight(rollout, desired, additional))
            .await
    }

    async fn verify_weight(
        &self,
        request: Request<VerifyWeightRequest>,
    ) -> Result<Response<VerifyWeightResponse>, Status> {
        let request = request.into_inner();
        let reply = match decode("VerifyWeight", "rollout", &request.rollout) {
            Ok(rollout) => {
                let rollout: Box<Rollout> = Box::new(rollout);
                let desired = DesiredWeight::of(&rollout, request.desired_weight);
                let additional = all(request.additional_destinations);
                self.call(RouterCall::VerifyWeight(rollout, desired, additional))
                    .await?
            }
            Err(fault) => PluginService::<Router<R>>::refuse("Plugin.VerifyWeight", fault)
                .map_err(|fault| fault_status(&fault))?,
        };
        match reply {
            Reply::Verified(verification) => {
                let verification = WireVerification::from(verification).into();
                Ok(Response::new(VerifyWeightResponse { verification }))
            }
            _ => Err(mismatched()),
        }
    }

    async fn set_header_route(
        &self,
        request: Request<SetHeaderRouteRequest>,
    ) -> Result<Response<SetHeaderRouteResponse>, Status> {
        let request = request.into_inner();
        let rollout = rollout("SetHeaderRoute", &request.rollout)?;
        let route = json(
            "SetHeaderRoute",
            "set_header_route",
            &request.set_header_route,
        )?;
        self.perform(RouterCall::SetHeaderRoute(rollout, route))
            .await
    }

    async fn set_mirror_route(
        &self,
        request: Request<SetMirrorRouteRequest>,
    ) -> Result<Response<SetMirrorRouteResponse>, Status> {
        let request = request.into_inner();
        let rollout = rollout("SetMirrorRoute", &request.rollout)?;
        let route = json(
            "SetMirrorRoute",
            "set_mirror_route",
            &request.set_mirror_route,
        )?;
        self.perform(RouterCall::SetMirrorRoute(rollout, route))
            .await
    }

    async fn remove_managed_routes(
        &self,
        request: Request<RemoveManagedRoutesRequest>,
    ) -> Result<Response<RemoveManagedRoutesResponse>, Status> {
        let rollout = rollout("RemoveManagedRoutes", &request.into_inner().rollout)?;
        self.perform(RouterCall::RemoveManagedRoutes(rollout)).await
    }
}

fn rollout(method: &str, text: &[u8]) -> Result<Box<Rollout>, Status> {
    json(method, "rollout", text).map(Box::new)
}

fn json<T: DeserializeOwned>(method: &str, field: &str, text: &[u8]) -> Result<T, Status> {
    decode(method, field, text).map_err(|fault| fault_status(&fault))
}

fn decode<T: DeserializeOwned>(method: &str, field: &str, text: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(text).map_err(|error| Fault::Argument {
        method: method.to_owned(),
        reason: format!("{field}: {error}"),
    })
}

fn all(destinations: Vec<WireDestination>) -> Vec<WeightDestination> {
    destinations
        .into_iter()
        .map(|destination| WeightDestination {
            weight: destination.weight,
            service_name: destination.service_name,
            pod_template_hash: destination.pod_template_hash,
        })
        .collect()
}

impl From<Verification> for WireVerification {
    fn from(verification: Verification) -> Self {
        match verification {
            Verification::NotVerified => Self::NotVerified,
            Verification::Verified => Self::Verified,
            Verification::NotImplemented => Self::NotImplemented,
        }
    }
}

/// Returns the status of an error that the router returned. Its code is not one on which clients retry, because a host repeats
/// its calls anyway.
fn plugin_error_status(error: &PluginError) -> Status {
    let error = error.as_error();
    let code = match error.downcast_ref::<Fault>() {
        Some(Fault::DeadlineExceeded { .. }) => Code::DeadlineExceeded,
        _ => Code::FailedPrecondition,
    };
    Status::new(code, error_chain(error))
}

/// Returns the status of a call that was not carried out.
fn fault_status(fault: &Fault) -> Status {
    let code = match fault {
        Fault::Argument { .. } => Code::InvalidArgument,
        Fault::DeadlineExceeded { .. } => Code::DeadlineExceeded,
        _ => Code::Internal,
    };
    let error = error_chain(fault);
    warn!(error, "call refused");
    Status::new(code, error)
}

fn mismatched() -> Status {
    Status::internal("the router returned the reply of another method")
}
