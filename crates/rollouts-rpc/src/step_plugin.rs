//! What an author of a step plugin implements (`rollout/steps/plugin` in Argo Rollouts, since 1.8).

use std::future::Future;
use std::time::Duration;

use rollout_types::ConfigError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Result, short_name};
use crate::rollout::Rollout;

/// Runs as a step of a canary.
///
/// The controller calls from several workers at once: calls for different Rollouts overlap, those
/// for one Rollout do not. A step is kept in the Rollout's status, not in the process: whatever one
/// `run` has to tell the next goes into [`StepResult::status`].
///
/// After an error the step stands in phase `Error` and is run again every 30 s, without an end; a step that
/// is to fail answers [`StepPhase::Failed`].
pub trait StepPlugin: Send + Sync + 'static {
    /// The name the controller logs; that of the type unless a plugin says otherwise.
    fn type_name(&self) -> &str {
        short_name::<Self>()
    }

    /// Called once per process, before anything else.
    ///
    /// It should return at once and not fail for reasons that may pass: the controller holds a lock
    /// over every step plugin meanwhile, and it uses the plugin all the same after an error.
    fn init(&self) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Begins the step, or looks after one that is running.
    fn run(
        &self,
        rollout: &Rollout,
        context: &StepContext,
    ) -> impl Future<Output = Result<StepResult>> + Send;

    /// Ends a step that is still running when its Rollout is fully promoted (`rollout/stepplugin.go`). It is called
    /// once, even after an error, and cannot go on in the background.
    ///
    /// Until a plugin implements it, there is nothing to do.
    fn terminate(
        &self,
        _rollout: &Rollout,
        _context: &StepContext,
    ) -> impl Future<Output = Result<StepResult>> + Send {
        async { Ok(StepResult::default()) }
    }

    /// Takes back what a running or successful step has done, because its Rollout is aborted. It is called once,
    /// even after an error, and cannot go on in the background.
    ///
    /// Until a plugin implements it, there is nothing to do.
    fn abort(
        &self,
        _rollout: &Rollout,
        _context: &StepContext,
    ) -> impl Future<Output = Result<StepResult>> + Send {
        async { Ok(StepResult::default()) }
    }
}

/// What a step knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepContext {
    /// The plugin's name in the Rollout.
    pub plugin_name: String,
    /// The step's JSON configuration in the Rollout; empty if it is not set.
    pub config: Vec<u8>,
    /// The JSON of the last [`StepResult::status`]; empty before the first.
    pub status: Vec<u8>,
}

impl StepContext {
    /// A step of this plugin, with its configuration.
    #[must_use]
    pub fn new(plugin_name: &str, config: &Value) -> Self {
        Self {
            plugin_name: plugin_name.to_owned(),
            config: config.to_string().into_bytes(),
            status: Vec::new(),
        }
    }

    /// The step's configuration; null if it is not set.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let json = match self.config.as_slice() {
            [] => b"null",
            json => json,
        };
        ConfigError::parse(json, || format!("config of step {}", self.plugin_name))
    }

    /// What the last call left in [`StepResult::status`]; the default before the first.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn status<T: DeserializeOwned + Default>(&self) -> Result<T, ConfigError> {
        if self.status.is_empty() {
            return Ok(T::default());
        }
        ConfigError::parse(&self.status, || {
            format!("status of step {}", self.plugin_name)
        })
    }
}

/// What has come of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepResult {
    /// How it stands.
    pub phase: StepPhase,
    /// For people; shown in the Rollout's status.
    pub message: String,
    /// When to run a running step again. The controller waits 30 s unless this is more than 10 s.
    pub requeue_after: Duration,
    /// Replaces what the next call gets as [`StepContext::status`], unless the phase is `Error`.
    pub status: Option<Value>,
}

impl StepResult {
    /// The step stands like this.
    #[must_use]
    pub fn new(phase: StepPhase, message: impl Into<String>) -> Self {
        Self {
            phase,
            message: message.into(),
            ..Self::default()
        }
    }

    /// Sets when a running step is run again.
    #[must_use]
    pub fn requeue_after(self, wait: Duration) -> Self {
        Self {
            requeue_after: wait,
            ..self
        }
    }

    /// Sets what the next call gets from [`StepContext::status`].
    ///
    /// # Errors
    ///
    /// When `status` has no form in JSON.
    pub fn with_status(self, status: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self {
            status: Some(serde_json::to_value(status)?),
            ..self
        })
    }
}

/// How a step stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepPhase {
    /// To be run again.
    Running,
    /// Done; the Rollout continues with its next step.
    #[default]
    Successful,
    /// Done; the Rollout is aborted.
    Failed,
    /// Something went wrong that may pass; run again after a while.
    Error,
}
