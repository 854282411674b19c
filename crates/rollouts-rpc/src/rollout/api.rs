//! A Rollout as the API server shows it: the shape of `pkg/apis/rollouts/v1alpha1/types.go` in JSON,
//! where it differs from the domain's.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{CanaryStrategy, OtherStep, SetHeaderRoute, SetMirrorRoute, TrafficWeights};

/// `spec.replicas` of a Rollout that leaves it out (`utils/defaults` in Argo Rollouts).
const DEFAULT_REPLICAS: i32 = 1;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Rollout {
    metadata: Metadata,
    spec: Spec,
    #[serde(deserialize_with = "or_default")]
    status: super::RolloutStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    generation: i64,
    #[serde(deserialize_with = "or_default")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    replicas: Option<i32>,
    paused: bool,
    strategy: Strategy,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Strategy {
    canary: Option<CanaryStrategy>,
}

impl From<Rollout> for super::Rollout {
    fn from(rollout: Rollout) -> Self {
        let Rollout {
            metadata,
            spec,
            status,
        } = rollout;
        Self {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            generation: metadata.generation,
            labels: metadata.labels,
            annotations: metadata.annotations,
            replicas: spec.replicas.unwrap_or(DEFAULT_REPLICAS),
            paused: spec.paused,
            canary: spec.strategy.canary,
            status,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct CanaryStep {
    set_weight: Option<i32>,
    set_header_route: Option<SetHeaderRoute>,
    set_mirror_route: Option<SetMirrorRoute>,
    pause: Option<Value>,
    experiment: Option<Value>,
    analysis: Option<Value>,
    set_canary_scale: Option<Value>,
    plugin: Option<Value>,
}

impl From<CanaryStep> for super::CanaryStep {
    fn from(step: CanaryStep) -> Self {
        let others = [
            (step.pause, OtherStep::Pause),
            (step.experiment, OtherStep::Experiment),
            (step.analysis, OtherStep::Analysis),
            (step.set_canary_scale, OtherStep::SetCanaryScale),
            (step.plugin, OtherStep::Plugin),
        ];
        Self {
            set_weight: step.set_weight,
            set_header_route: step.set_header_route,
            set_mirror_route: step.set_mirror_route,
            others: others
                .into_iter()
                .filter_map(|(present, kind)| present.map(|_| kind))
                .collect(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TrafficRouting {
    plugins: BTreeMap<String, Value>,
    managed_routes: Vec<ManagedRoute>,
    max_traffic_weight: Option<i32>,
}

#[derive(Deserialize)]
struct ManagedRoute {
    name: String,
}

impl From<TrafficRouting> for super::TrafficRouting {
    fn from(routing: TrafficRouting) -> Self {
        let plugins = routing.plugins.into_iter();
        let managed_routes = routing.managed_routes.into_iter();
        Self {
            plugins: plugins
                .map(|(name, block)| (name, block.to_string().into_bytes()))
                .collect(),
            managed_routes: managed_routes.map(|route| route.name).collect(),
            max_traffic_weight: routing.max_traffic_weight,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RolloutStatus {
    abort: bool,
    promote_full: bool,
    controller_pause: bool,
    phase: String,
    message: String,
    observed_generation: String,
    current_pod_hash: String,
    #[serde(rename = "stableRS")]
    stable_rs: String,
    current_step_index: Option<i32>,
    replicas: i32,
    updated_replicas: i32,
    available_replicas: i32,
    canary: CanaryStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CanaryStatus {
    weights: Option<TrafficWeights>,
    stable_ping_pong: String,
    current_experiment: String,
}

impl From<RolloutStatus> for super::RolloutStatus {
    fn from(status: RolloutStatus) -> Self {
        Self {
            abort: status.abort,
            promote_full: status.promote_full,
            controller_pause: status.controller_pause,
            phase: status.phase,
            message: status.message,
            observed_generation: status.observed_generation,
            current_pod_hash: status.current_pod_hash,
            stable_rs: status.stable_rs,
            current_step_index: status.current_step_index,
            replicas: status.replicas,
            updated_replicas: status.updated_replicas,
            available_replicas: status.available_replicas,
            weights: status.canary.weights,
            stable_ping_pong: status.canary.stable_ping_pong,
            current_experiment: status.canary.current_experiment,
        }
    }
}

/// Reads `null` as absent, as Go does.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::*;

    #[test]
    fn a_rollout_is_read_as_the_api_server_shows_it() {
        let rollout: Rollout = serde_json::from_value(json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Rollout",
            "metadata": {"name": "demo", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 2,
                "creationTimestamp": null, "labels": null, "annotations": {"a": "b"}},
            "spec": {"replicas": 3, "template": {"spec": {"containers": []}}, "strategy": {"canary": {
                "stableService": "s", "canaryService": "c", "maxSurge": "25%",
                "steps": [
                    {"setWeight": 0}, {"pause": {}}, {"setCanaryScale": {"weight": 1}},
                    {"setHeaderRoute": {"name": "h", "match": [{"headerName": "x", "headerValue": {"exact": "1"}}]}},
                    {"setMirrorRoute": {"name": "m", "percentage": 0, "match": [{"path": {"prefix": "/"}}]}},
                ],
                "trafficRouting": {"managedRoutes": [{"name": "h"}], "maxTrafficWeight": 1000, "plugins": {"a/b": {"c": [1, null]}}},
            }}},
            "status": {"abort": true, "stableRS": "1", "observedGeneration": "2", "currentStepIndex": 0,
                "canary": {"stablePingPong": "ping", "weights": {"canary": {"weight": 5}, "stable": {"weight": 95}, "verified": true}}},
        }))
        .unwrap();
        assert_eq!(
            (rollout.namespace.as_str(), rollout.name.as_str()),
            ("shop", "demo")
        );
        assert_eq!((rollout.replicas, rollout.max_traffic_weight()), (3, 1000));
        let canary = rollout.canary.unwrap();
        let routing = canary.traffic_routing.unwrap();
        assert_eq!(routing.plugins["a/b"], br#"{"c":[1,null]}"#);
        assert_eq!(routing.managed_routes, ["h"]);
        let [weight, pause, scale, header, mirror] = canary.steps.as_slice() else {
            panic!("{:?}", canary.steps);
        };
        assert_eq!(weight.set_weight, Some(0));
        assert_eq!(
            (pause.others.as_slice(), scale.others.as_slice()),
            (&[OtherStep::Pause][..], &[OtherStep::SetCanaryScale][..])
        );
        let header = header.set_header_route.as_ref().unwrap();
        assert_eq!(header.matches[0].header_value.exact, "1");
        let mirror = mirror.set_mirror_route.as_ref().unwrap();
        assert_eq!(mirror.percentage, Some(0));
        let status = rollout.status;
        assert_eq!(
            (
                status.abort,
                status.stable_rs.as_str(),
                status.stable_ping_pong.as_str()
            ),
            (true, "1", "ping")
        );
        let weights = status.weights.unwrap();
        assert_eq!(
            (
                weights.canary.weight,
                weights.stable.weight,
                weights.verified
            ),
            (5, 95, true)
        );
    }

    #[test]
    fn what_go_writes_as_null_is_absent() {
        let rollout: Rollout = serde_json::from_value(json!({
            "metadata": {"name": "demo"},
            "spec": {"strategy": {"canary": null}},
            "status": null,
        }))
        .unwrap();
        assert_eq!(rollout.canary, None);
        let header: HeaderRoutingMatch =
            serde_json::from_value(json!({"headerName": "x", "headerValue": null})).unwrap();
        assert_eq!(header.header_value, StringMatch::default());
    }

    #[test]
    fn replicas_that_are_left_out_are_one() {
        let rollout: Rollout = serde_json::from_value(json!({})).unwrap();
        assert_eq!(rollout.replicas, 1);
    }
}
