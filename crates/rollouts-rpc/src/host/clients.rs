//! Dispensed plugins, seen from the host: what the controller calls on a plugin of each kind.
//!
//! The arguments are those of the controller's clients: `plugin/rpc/rpc.go` below `rollout/trafficrouting`, `rollout/steps` and
//! `metricproviders`.

use std::collections::BTreeMap;

use gob::{GobType, WithRaw};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{Method, MetricMethod, RouterMethod, StepMethod};
use crate::metric_provider::{AnalysisRun, Measurement, Metric};
use crate::netrpc::client::{CallError, RpcClient};
use crate::rollout::{Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};
use crate::step_plugin::{StepContext, StepResult};
use crate::traffic_router::{PodHashes, Verification};
use crate::wire;
use crate::wire::{MetricArgs, RouterArgs, RpcError, StepArgs, StepCallArgs};

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
        call(&self.rpc, RouterMethod::Type, None::<RouterArgs>).await
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
            call(&self.rpc, RouterMethod::VerifyWeight, Some(args)).await?;
        success(reply.err)?;
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
        perform(&self.rpc, method, args).await
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
fn sent(rollout: &Rollout) -> WithRaw<Rollout> {
    WithRaw {
        value: rollout.clone().with_defaults(),
        raw: None,
    }
}

/// Calls a metric provider, with the arguments a controller would send.
///
/// An error of a provider arrives as a measurement in phase `Error`, and from
/// `GetMetadata` with the key `error`.
pub struct MetricClient {
    rpc: RpcClient,
}

impl MetricClient {
    pub(super) fn new(rpc: RpcClient) -> Self {
        Self { rpc }
    }

    /// `InitPlugin`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn init_plugin(&self) -> Result<(), CallError> {
        perform(&self.rpc, MetricMethod::InitPlugin, None::<MetricArgs>).await
    }

    /// `Type`: the provider's name.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn type_name(&self) -> Result<String, CallError> {
        call(&self.rpc, MetricMethod::Type, None::<MetricArgs>).await
    }

    /// `Run`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn run(&self, run: &AnalysisRun, metric: &Metric) -> Result<Measurement, CallError> {
        let args = MetricArgs::Run(wire::MetricRunArgs {
            analysis_run: run.into(),
            metric: metric.into(),
        });
        self.measure(MetricMethod::Run, args).await
    }

    /// `Resume`.
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
        let args = resumed(run, metric, measurement);
        self.measure(MetricMethod::Resume, args).await
    }

    /// `Terminate`.
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
        let args = resumed(run, metric, measurement);
        self.measure(MetricMethod::Terminate, args).await
    }

    /// `GarbageCollect`.
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
        let args = MetricArgs::GarbageCollect(wire::GarbageCollectArgs {
            analysis_run: run.into(),
            metric: metric.into(),
            limit,
        });
        perform(&self.rpc, MetricMethod::GarbageCollect, Some(args)).await
    }

    /// `GetMetadata`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn metadata(&self, metric: &Metric) -> Result<BTreeMap<String, String>, CallError> {
        let args = MetricArgs::GetMetadata(wire::GetMetadataArgs {
            metric: metric.into(),
        });
        call(&self.rpc, MetricMethod::GetMetadata, Some(args)).await
    }

    async fn measure(
        &self,
        method: MetricMethod,
        args: MetricArgs,
    ) -> Result<Measurement, CallError> {
        let measurement: wire::Measurement = call(&self.rpc, method, Some(args)).await?;
        Ok(measurement.into())
    }
}

fn resumed(run: &AnalysisRun, metric: &Metric, measurement: &Measurement) -> MetricArgs {
    MetricArgs::TerminateAndResume(wire::TerminateAndResumeArgs {
        analysis_run: run.into(),
        metric: metric.into(),
        measurement: measurement.into(),
    })
}

/// Calls a step plugin, with the arguments a controller would send.
///
/// Every method returns [`CallError::Router`] with the text of an error that the plugin returned.
pub struct StepClient {
    rpc: RpcClient,
}

impl StepClient {
    pub(super) fn new(rpc: RpcClient) -> Self {
        Self { rpc }
    }

    /// `InitPlugin`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn init_plugin(&self) -> Result<(), CallError> {
        perform(&self.rpc, StepMethod::InitPlugin, None::<StepCallArgs>).await
    }

    /// `Type`: the plugin's name.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn type_name(&self) -> Result<String, CallError> {
        call(&self.rpc, StepMethod::Type, None::<StepCallArgs>).await
    }

    /// `Run`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn run(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> Result<StepResult, CallError> {
        let args = StepCallArgs::Run(arguments(rollout, context));
        self.step(StepMethod::Run, args).await
    }

    /// `Terminate`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn terminate(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> Result<StepResult, CallError> {
        let args = StepCallArgs::Terminate(arguments(rollout, context));
        self.step(StepMethod::Terminate, args).await
    }

    /// `Abort`.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn abort(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> Result<StepResult, CallError> {
        let args = StepCallArgs::Abort(arguments(rollout, context));
        self.step(StepMethod::Abort, args).await
    }

    async fn step(&self, method: StepMethod, args: StepCallArgs) -> Result<StepResult, CallError> {
        let reply: wire::StepResponse = call(&self.rpc, method, Some(args)).await?;
        success(reply.error)?;
        Ok(reply.result.into())
    }
}

fn arguments(rollout: &Rollout, context: &StepContext) -> StepArgs {
    StepArgs {
        rollout: sent(rollout),
        context: wire::RpcStepContext {
            plugin_name: context.plugin_name.clone(),
            config: context.config.clone().into(),
            status: context.status.clone().into(),
        },
    }
}

/// Calls a method that returns a value.
async fn call<A, T>(rpc: &RpcClient, method: impl Method, args: Option<A>) -> Result<T, CallError>
where
    A: GobType + Serialize + Sync,
    T: DeserializeOwned + Send + 'static,
{
    rpc.call(&format!("Plugin.{}", method.name()), &args).await
}

/// Calls a method that returns nothing but an error.
async fn perform<A>(rpc: &RpcClient, method: impl Method, args: Option<A>) -> Result<(), CallError>
where
    A: GobType + Serialize + Sync,
{
    success(call(rpc, method, args).await?)
}

/// `Err` with the plugin's text, if it returned an error.
fn success(error: RpcError) -> Result<(), CallError> {
    if error.error_string.is_empty() {
        Ok(())
    } else {
        Err(CallError::Router(error.error_string))
    }
}
