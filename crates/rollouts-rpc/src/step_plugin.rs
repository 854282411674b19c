//! The trait of step plugins (`rollout/steps/plugin` in Argo Rollouts, since 1.8).

use std::future::Future;
use std::time::Duration;

use rollout_types::{ConfigError, RawJson};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Result, short_name, within_limit};
use crate::rollout::Rollout;

/// Runs as a step of a canary.
///
/// The controller calls from several workers: calls for different Rollouts are concurrent, calls for one Rollout are not. The state of
/// a step is in the Rollout's status, not in the process: `run` stores it in [`StepResult::status`] for the next `run`.
///
/// After an error the step is in phase `Error`, and the controller runs it again every 30 s without a limit. To fail a step, return
/// [`StepPhase::Failed`].
pub trait StepPlugin: Send + Sync + 'static {
    /// Returns the name that the controller logs. The default is the name of the type.
    fn type_name(&self) -> &str {
        short_name::<Self>()
    }

    /// Initializes the plugin. It is called once per process, before all other methods.
    ///
    /// It should return at once and not fail for temporary reasons: the controller holds a lock on all step plugins during the call, and
    /// uses the plugin even after an error.
    fn init(&self) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Starts the step, or continues a running step.
    fn run(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> impl Future<Output = Result<StepResult>> + Send;

    /// Stops a running step because its Rollout is fully promoted (`rollout/stepplugin.go`). It must finish within the call: the
    /// controller calls it once, and not again after an error.
    ///
    /// The default does nothing.
    fn terminate(
        &self,
        _rollout: &Rollout,
        _context: &StepContext,
    ) -> impl Future<Output = Result<StepResult>> + Send {
        async { Ok(StepResult::default()) }
    }

    /// Reverts a running or successful step because its Rollout is aborted. It must finish within the call: the controller calls it once,
    /// and not again after an error.
    ///
    /// The default does nothing.
    fn abort(
        &self,
        _rollout: &Rollout,
        _context: &StepContext,
    ) -> impl Future<Output = Result<StepResult>> + Send {
        async { Ok(StepResult::default()) }
    }
}

gob::gob_struct! {
    /// The configuration and the state of a step.
    #[derive(Eq)]
    pub struct StepContext as "RpcStepContext" {
        /// The plugin's name in the Rollout.
        pub plugin_name: String as "PluginName",
        /// The step's configuration in the Rollout; empty if it is not set.
        pub config: RawJson as "Config",
        /// The last [`StepResult::status`]; empty before the first.
        pub status: RawJson as "Status",
    }
}

impl StepContext {
    /// Returns the context of a step of this plugin with this configuration and without a status.
    #[must_use]
    pub fn new(plugin_name: &str, config: &Value) -> Self {
        Self {
            plugin_name: plugin_name.to_owned(),
            config: config.into(),
            status: RawJson::default(),
        }
    }

    /// Parses the step's configuration. A step without one has `None::<T>`.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        ConfigError::parse(self.config.as_ref(), || {
            format!("step {}: config", self.plugin_name)
        })
    }

    /// Parses the [`StepResult::status`] of the last call. Returns the default before the first call.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn status<T: DeserializeOwned + Default>(&self) -> Result<T, ConfigError> {
        if self.status.0.is_empty() {
            return Ok(T::default());
        }
        ConfigError::parse(self.status.as_ref(), || {
            format!("step {}: status", self.plugin_name)
        })
    }
}

/// The result of a call to a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepResult {
    /// The phase of the step.
    pub phase: StepPhase,
    /// A message for people, shown in the Rollout's status. With `status`, at most [`MAX_RESULT`](crate::MAX_RESULT) bytes.
    pub message: String,
    /// When to run a running step again. If it is 10 s or less, the controller waits 30 s.
    pub requeue_after: Duration,
    /// The [`StepContext::status`] of the next call. The controller ignores it in phase `Error`.
    pub status: Option<Value>,
}

impl StepResult {
    /// Refuses a result that is larger than [`MAX_RESULT`](crate::MAX_RESULT).
    pub(crate) fn limited(self) -> Result<Self> {
        let status = self.status.as_ref().map(ToString::to_string);
        let size = self.message.len() + status.map_or(0, |json| json.len());
        within_limit("message and status", size)?;
        Ok(self)
    }

    /// Returns a result with this phase and message.
    #[must_use]
    pub fn new(phase: StepPhase, message: impl Into<String>) -> Self {
        Self {
            phase,
            message: message.into(),
            ..Self::default()
        }
    }

    /// Sets when to run a running step again.
    #[must_use]
    pub fn requeue_after(self, wait: Duration) -> Self {
        Self {
            requeue_after: wait,
            ..self
        }
    }

    /// Sets the status for the next call, which reads it with [`StepContext::status`].
    ///
    /// # Errors
    ///
    /// Returns `Err` if `status` cannot be represented in JSON.
    pub fn with_status(self, status: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self {
            status: Some(serde_json::to_value(status)?),
            ..self
        })
    }
}

/// The phase of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepPhase {
    /// Still running; the controller runs the step again.
    Running,
    /// Completed; the Rollout continues with its next step.
    #[default]
    Successful,
    /// Failed; the Rollout is aborted.
    Failed,
    /// A temporary error; the controller runs the step again later.
    Error,
}
