//! A dispensed step plugin, seen from the host: `rollout/steps/plugin/rpc/rpc.go`.

use super::dispensed;
use super::router_client::sent;
use crate::call::StepMethod;
use crate::netrpc::client::{CallError, RpcClient};
use crate::rollout::Rollout;
use crate::step_plugin::{StepContext, StepResult};
use crate::wire::{self, StepArgs, StepCallArgs};

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
        dispensed::perform(&self.rpc, StepMethod::InitPlugin, None::<StepCallArgs>).await
    }

    /// `Type`: the plugin's name.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn type_name(&self) -> Result<String, CallError> {
        dispensed::call(&self.rpc, StepMethod::Type, None::<StepCallArgs>).await
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
        let reply: wire::StepResponse = dispensed::call(&self.rpc, method, Some(args)).await?;
        dispensed::success(reply.error)?;
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
