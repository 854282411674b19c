//! `RetryTimeoutPolicy`: a RouteTable has no timeouts and no retries, this object gives them to routes.
//!
//! Field names follow the Gloo Platform API reference for `resilience.policy.gloo.solo.io/v2`.

use serde::Deserialize;

use crate::mirror_policy::PolicyRouteSelector;

/// `spec` of a RetryTimeoutPolicy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryTimeoutPolicySpec {
    /// The routes that the policy is for. Empty means every route of the workspace.
    pub apply_to_routes: Vec<PolicyRouteSelector>,
    /// Timeout and retries.
    pub config: Option<RetryTimeoutConfig>,
}

/// `spec.config` of a RetryTimeoutPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryTimeoutConfig {
    /// How long a request may take, with all retries, as a duration such as `0.5s`.
    pub request_timeout: Option<String>,
    /// When a request is sent again.
    pub retries: Option<Retries>,
}

/// `spec.config.retries` of a RetryTimeoutPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Retries {
    /// How often a request is sent again.
    pub attempts: Option<u32>,
    /// How long each attempt may take, as a duration.
    pub per_try_timeout: Option<String>,
    /// Envoy's conditions, separated by commas.
    pub retry_on: Option<String>,
}
