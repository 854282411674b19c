//! A dispensed traffic router, seen from the host: the controller's `plugin/rpc/rpc.go`.

use gob::{GobType, WithRaw};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::dispensed;
use crate::call::RouterMethod;
use crate::netrpc::client::{CallError, RpcClient};
use crate::rollout::{Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};
use crate::traffic_router::{PodHashes, Verification};
use crate::wire::{self, RouterArgs};

/// Calls a traffic router, with the arguments a controller would send.
///
/// Every method returns [`CallError::Router`] with the text of an error that the router returned.
pub struct RouterClient {
    rpc: RpcClient,
}

impl RouterClient {
    pub(super) fn new(rpc: RpcClient) -> Self {
        Self { rpc }
    }

    /// `InitPlugin`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn init_plugin(&self) -> Result<(), CallError> {
        self.perform(RouterMethod::InitPlugin, None).await
    }

    /// `Type`: the router's name.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn type_name(&self) -> Result<String, CallError> {
        dispensed::call(&self.rpc, RouterMethod::Type, None::<RouterArgs>).await
    }

    /// `UpdateHash`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn update_hash(
        &self,
        rollout: &Rollout,
        hashes: &PodHashes,
        additional: &[WeightDestination],
    ) -> Result<(), CallError> {
        let args = RouterArgs::UpdateHash(wire::UpdateHashArgs {
            rollout: sent(rollout),
            canary_hash: hashes.canary.clone(),
            stable_hash: hashes.stable.clone(),
            additional_destinations: additional.to_vec(),
        });
        self.perform(RouterMethod::UpdateHash, Some(args)).await
    }

    /// `SetWeight`; `desired` is out of the Rollout's maximum weight.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: i32,
        additional: &[WeightDestination],
    ) -> Result<(), CallError> {
        self.perform(
            RouterMethod::SetWeight,
            Some(weight(rollout, desired, additional)),
        )
        .await
    }

    /// `VerifyWeight`. A number the plugin should not have sent counts as not verified.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn verify_weight(
        &self,
        rollout: &Rollout,
        desired: i32,
        additional: &[WeightDestination],
    ) -> Result<Verification, CallError> {
        let args = weight(rollout, desired, additional);
        let reply: wire::VerifyWeightResponse =
            dispensed::call(&self.rpc, RouterMethod::VerifyWeight, Some(args)).await?;
        dispensed::success(reply.err)?;
        Ok(match reply.verified {
            1 => Verification::Verified,
            2 => Verification::NotImplemented,
            _ => Verification::NotVerified,
        })
    }

    /// `SetHeaderRoute`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn set_header_route(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> Result<(), CallError> {
        let args = wire::SetHeaderArgs {
            rollout: sent(rollout),
            set_header_route: route.clone(),
        };
        self.perform(
            RouterMethod::SetHeaderRoute,
            Some(RouterArgs::SetHeader(args)),
        )
        .await
    }

    /// `SetMirrorRoute`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn set_mirror_route(
        &self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> Result<(), CallError> {
        let args = wire::SetMirrorArgs {
            rollout: sent(rollout),
            set_mirror_route: route.clone(),
        };
        self.perform(
            RouterMethod::SetMirrorRoute,
            Some(RouterArgs::SetMirror(args)),
        )
        .await
    }

    /// `RemoveManagedRoutes`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn remove_managed_routes(&self, rollout: &Rollout) -> Result<(), CallError> {
        let args = wire::RemoveManagedRoutesArgs {
            rollout: sent(rollout),
        };
        self.perform(
            RouterMethod::RemoveManagedRoutes,
            Some(RouterArgs::RemoveManagedRoutes(args)),
        )
        .await
    }

    /// Makes any call on the router's stream, for tests of what a plugin does with it.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn call<A, T>(&self, service_method: &str, argument: &A) -> Result<T, CallError>
    where
        A: GobType + Serialize + Sync,
        T: DeserializeOwned + Send + 'static,
    {
        self.rpc.call(service_method, argument).await
    }

    async fn perform(
        &self,
        method: RouterMethod,
        args: Option<RouterArgs>,
    ) -> Result<(), CallError> {
        dispensed::perform(&self.rpc, method, args).await
    }
}

fn weight(rollout: &Rollout, desired_weight: i32, additional: &[WeightDestination]) -> RouterArgs {
    RouterArgs::Weight(wire::SetWeightAndVerifyWeightArgs {
        rollout: sent(rollout),
        desired_weight,
        additional_destinations: additional.to_vec(),
    })
}

/// A Rollout as a controller sends it.
pub(super) fn sent(rollout: &Rollout) -> WithRaw<Rollout> {
    WithRaw {
        value: rollout.clone().with_defaults(),
        raw: None,
    }
}
