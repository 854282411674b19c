//! The kinds of plugin, and what the controller calls each of them.

/// The kinds of plugin that an Argo Rollouts controller loads, each from its own list in `argo-rollouts-config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PluginKind {
    /// Moves traffic between the Services of a Rollout.
    TrafficRouter,
    /// Takes the measurements of an analysis.
    MetricProvider,
    /// Runs as a step of a canary.
    Step,
}

impl PluginKind {
    /// Returns the value of the cookie for this kind (`plugin/client/client.go` of each kind in Argo Rollouts).
    #[must_use]
    pub const fn cookie(self) -> &'static str {
        match self {
            Self::TrafficRouter => "trafficrouter",
            Self::MetricProvider => "metricprovider",
            Self::Step => "step",
        }
    }

    /// Returns the name that the host passes to Dispense for this kind.
    #[must_use]
    pub const fn dispense_name(self) -> &'static str {
        match self {
            Self::TrafficRouter => "RpcTrafficRouterPlugin",
            Self::MetricProvider => "RpcMetricProviderPlugin",
            Self::Step => "RpcStepPlugin",
        }
    }

    /// Returns the key of the ConfigMap `argo-rollouts-config` that lists plugins of this kind.
    #[must_use]
    pub const fn config_key(self) -> &'static str {
        match self {
            Self::TrafficRouter => "trafficRouterPlugins",
            Self::MetricProvider => "metricProviderPlugins",
            Self::Step => "stepPlugins",
        }
    }

    /// Returns the name of this kind for messages.
    pub(crate) const fn noun(self) -> &'static str {
        match self {
            Self::TrafficRouter => "traffic router",
            Self::MetricProvider => "metric provider",
            Self::Step => "step",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_cookie_name_and_list() {
        let facts = [
            PluginKind::TrafficRouter,
            PluginKind::MetricProvider,
            PluginKind::Step,
        ]
        .map(|kind| (kind.cookie(), kind.dispense_name(), kind.config_key()));
        assert_eq!(
            facts,
            [
                (
                    "trafficrouter",
                    "RpcTrafficRouterPlugin",
                    "trafficRouterPlugins"
                ),
                (
                    "metricprovider",
                    "RpcMetricProviderPlugin",
                    "metricProviderPlugins"
                ),
                ("step", "RpcStepPlugin", "stepPlugins"),
            ]
        );
    }
}
