//! Clients of dispensed plugins: one method for each method that the controller calls.
//!
//! The arguments are the same as those of the controller's clients: `plugin/rpc/rpc.go` below `rollout/trafficrouting`,
//! `rollout/steps` and `metricproviders`.

use std::collections::BTreeMap;

use gob::{Encoder, GobType};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::methods::{
    Call as _, GarbageCollectArgs, GetMetadataArgs, Method as _, MetricCall, RouterCall, RunArgs,
    StepCall, TerminateAndResumeArgs,
};
use crate::metric_provider::{AnalysisRun, Measurement, Metric};
use crate::netrpc::client::{CallError, RpcClient};
use crate::rollout::{Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};
use crate::step_plugin::{StepContext, StepResult};
use crate::traffic_router::{DesiredWeight, PodHashes, Verification};
use crate::wire::router::VerifyWeightResponse;
use crate::wire::step::StepResponse;
use crate::wire::{self, RpcError};

/// Declares the clients, with what all of them have in common.
macro_rules! clients {
    ($($(#[$attribute:meta])* $client:ident($call:ident, $encode:path);)*) => {$(
        $(#[$attribute])*
        pub struct $client {
            rpc: RpcClient,
        }

        impl $client {
            pub(super) fn new(rpc: RpcClient) -> Self {
                Self { rpc }
            }

            /// Calls `InitPlugin`.
            ///
            /// # Errors
            ///
            /// See [`CallError`].
            pub async fn init_plugin(&self) -> Result<(), CallError> {
                self.perform($call::InitPlugin).await
            }

            /// Calls `Type`, which returns the plugin's name.
            ///
            /// # Errors
            ///
            /// See [`CallError`].
            pub async fn type_name(&self) -> Result<String, CallError> {
                self.request($call::Type).await
            }

            /// Calls any method with any argument on the plugin's stream, for tests of a plugin.
            ///
            /// # Errors
            ///
            /// See [`CallError`].
            pub async fn call<A, T>(&self, service_method: &str, argument: &A) -> Result<T, CallError>
            where
                A: GobType + Serialize + Sync,
                T: DeserializeOwned + GobType,
            {
                self.rpc.call(service_method, argument).await
            }

            async fn request<T: DeserializeOwned + GobType>(&self, call: $call) -> Result<T, CallError> {
                let method = format!("Plugin.{}", call.method().name());
                let encode = |gob: &mut Encoder, out: &mut Vec<u8>| $encode(call, gob, out);
                self.rpc.call_with(&method, encode).await
            }

            async fn perform(&self, call: $call) -> Result<(), CallError> {
                let reply: RpcError = self.request(call).await?;
                reply.into_outcome().map_err(CallError::Router)
            }
        }
    )*};
}

clients! {
    /// Calls a traffic router.
    ///
    /// Every method returns [`CallError::Router`] with the text of the error if the router returned an error.
    RouterClient(RouterCall, wire::router::encode_call);

    /// Calls a metric provider.
    ///
    /// An error of the provider arrives as a measurement in phase `Error`, and from `GetMetadata` under the key `error`.
    MetricClient(MetricCall, wire::metric::encode_call);

    /// Calls a step plugin.
    ///
    /// Every method returns [`CallError::Router`] with the text of the error if the plugin returned an error.
    StepClient(StepCall, wire::step::encode_call);
}

impl RouterClient {
    /// Calls `UpdateHash`.
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
        let additional = additional.to_vec();
        let call = RouterCall::UpdateHash(boxed(rollout), hashes.clone(), additional);
        self.perform(call).await
    }

    /// Calls `SetWeight`; `desired` is in parts of the Rollout's maximum weight.
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
        let desired = DesiredWeight::of(rollout, desired);
        let call = RouterCall::SetWeight(boxed(rollout), desired, additional.to_vec());
        self.perform(call).await
    }

    /// Calls `VerifyWeight`. A reply that no released controller knows counts as not verified.
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
        let desired = DesiredWeight::of(rollout, desired);
        let call = RouterCall::VerifyWeight(boxed(rollout), desired, additional.to_vec());
        let reply: VerifyWeightResponse = self.request(call).await?;
        reply.into_outcome().map_err(CallError::Router)
    }

    /// Calls `SetHeaderRoute`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn set_header_route(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> Result<(), CallError> {
        self.perform(RouterCall::SetHeaderRoute(boxed(rollout), route.clone()))
            .await
    }

    /// Calls `SetMirrorRoute`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn set_mirror_route(
        &self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> Result<(), CallError> {
        self.perform(RouterCall::SetMirrorRoute(boxed(rollout), route.clone()))
            .await
    }

    /// Calls `RemoveManagedRoutes`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn remove_managed_routes(&self, rollout: &Rollout) -> Result<(), CallError> {
        self.perform(RouterCall::RemoveManagedRoutes(boxed(rollout)))
            .await
    }
}

impl MetricClient {
    /// Calls `Run`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn run(&self, run: &AnalysisRun, metric: &Metric) -> Result<Measurement, CallError> {
        let call = MetricCall::Run(Box::new(RunArgs {
            analysis_run: run.clone(),
            metric: metric.clone(),
        }));
        self.request(call).await
    }

    /// Calls `Resume`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn resume(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
        measurement: &Measurement,
    ) -> Result<Measurement, CallError> {
        let call = MetricCall::Resume(going_on(run, metric, measurement));
        self.request(call).await
    }

    /// Calls `Terminate`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn terminate(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
        measurement: &Measurement,
    ) -> Result<Measurement, CallError> {
        let call = MetricCall::Terminate(going_on(run, metric, measurement));
        self.request(call).await
    }

    /// Calls `GarbageCollect`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn garbage_collect(
        &self,
        run: &AnalysisRun,
        metric: &Metric,
        limit: i64,
    ) -> Result<(), CallError> {
        let call = MetricCall::GarbageCollect(Box::new(GarbageCollectArgs {
            analysis_run: run.clone(),
            metric: metric.clone(),
            limit,
        }));
        self.perform(call).await
    }

    /// Calls `GetMetadata`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn metadata(&self, metric: &Metric) -> Result<BTreeMap<String, String>, CallError> {
        let metric = metric.clone();
        let call = MetricCall::GetMetadata(Box::new(GetMetadataArgs { metric }));
        self.request(call).await
    }
}

impl StepClient {
    /// Calls `Run`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn run(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> Result<StepResult, CallError> {
        self.step(StepCall::Run(boxed(rollout), context.clone()))
            .await
    }

    /// Calls `Terminate`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn terminate(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> Result<StepResult, CallError> {
        self.step(StepCall::Terminate(boxed(rollout), context.clone()))
            .await
    }

    /// Calls `Abort`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn abort(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> Result<StepResult, CallError> {
        self.step(StepCall::Abort(boxed(rollout), context.clone()))
            .await
    }

    async fn step(&self, call: StepCall) -> Result<StepResult, CallError> {
        let reply: StepResponse = self.request(call).await?;
        reply.into_outcome().map_err(CallError::Router)
    }
}

fn going_on(
    run: &AnalysisRun,
    metric: &Metric,
    measurement: &Measurement,
) -> Box<TerminateAndResumeArgs> {
    Box::new(TerminateAndResumeArgs {
        analysis_run: run.clone(),
        metric: metric.clone(),
        measurement: measurement.clone(),
    })
}

fn boxed<T: Clone>(value: &T) -> Box<T> {
    Box::new(value.clone())
}
