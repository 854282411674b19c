//! The host's direction: a Rollout as a controller would send it.

use super::all;
use crate::rollout::{
    CanaryStep, CanaryStrategy, HeaderRoutingMatch, OtherStep, PingPong, Rollout, RolloutStatus,
    RouteMatch, SetHeaderRoute, SetMirrorRoute, StringMatch, TrafficRouting, TrafficWeights,
};
use crate::traffic_router::WeightDestination;
use crate::wire;

impl From<&Rollout> for wire::Rollout {
    fn from(rollout: &Rollout) -> Self {
        Self {
            object_meta: wire::ObjectMeta {
                name: rollout.name.clone(),
                namespace: rollout.namespace.clone(),
                uid: rollout.uid.clone(),
                resource_version: rollout.resource_version.clone(),
                generation: rollout.generation,
                labels: rollout.labels.clone(),
                annotations: rollout.annotations.clone(),
            },
            spec: wire::RolloutSpec {
                replicas: rollout.replicas,
                paused: rollout.paused,
                strategy: wire::RolloutStrategy {
                    canary: rollout.canary.as_ref().map(Into::into),
                },
            },
            status: (&rollout.status).into(),
        }
    }
}

impl From<&CanaryStrategy> for wire::CanaryStrategy {
    fn from(canary: &CanaryStrategy) -> Self {
        Self {
            canary_service: canary.canary_service.clone(),
            stable_service: canary.stable_service.clone(),
            steps: all(&canary.steps),
            traffic_routing: canary.traffic_routing.as_ref().map(Into::into),
            ping_pong: canary.ping_pong.as_ref().map(
                |PingPong {
                     ping_service,
                     pong_service,
                 }| wire::PingPongSpec {
                    ping_service: ping_service.clone(),
                    pong_service: pong_service.clone(),
                },
            ),
            dynamic_stable_scale: canary.dynamic_stable_scale,
        }
    }
}

impl From<&CanaryStep> for wire::CanaryStep {
    fn from(step: &CanaryStep) -> Self {
        let present = |kind| step.others.contains(&kind).then_some(wire::Present {});
        Self {
            set_weight: step.set_weight,
            pause: present(OtherStep::Pause),
            experiment: present(OtherStep::Experiment),
            analysis: present(OtherStep::Analysis),
            set_canary_scale: present(OtherStep::SetCanaryScale),
            set_header_route: step.set_header_route.as_ref().map(Into::into),
            set_mirror_route: step.set_mirror_route.as_ref().map(Into::into),
            plugin: present(OtherStep::Plugin),
        }
    }
}

impl From<&TrafficRouting> for wire::RolloutTrafficRouting {
    fn from(routing: &TrafficRouting) -> Self {
        let managed = |name: &String| wire::MangedRoutes { name: name.clone() };
        Self {
            managed_routes: routing.managed_routes.iter().map(managed).collect(),
            plugins: routing
                .plugins
                .iter()
                .map(|(name, json)| (name.clone(), json.clone().into()))
                .collect(),
            max_traffic_weight: routing.max_traffic_weight,
        }
    }
}

impl From<&SetHeaderRoute> for wire::SetHeaderRoute {
    fn from(route: &SetHeaderRoute) -> Self {
        Self {
            name: route.name.clone(),
            matches: all(&route.matches),
        }
    }
}

impl From<&HeaderRoutingMatch> for wire::HeaderRoutingMatch {
    fn from(header: &HeaderRoutingMatch) -> Self {
        let header_value = Some((&header.header_value).into());
        Self {
            header_name: header.header_name.clone(),
            header_value,
        }
    }
}

impl From<&SetMirrorRoute> for wire::SetMirrorRoute {
    fn from(route: &SetMirrorRoute) -> Self {
        Self {
            name: route.name.clone(),
            matches: all(&route.matches),
            percentage: route.percentage,
        }
    }
}

impl From<&RouteMatch> for wire::RouteMatch {
    fn from(request: &RouteMatch) -> Self {
        Self {
            method: request.method.as_ref().map(Into::into),
            path: request.path.as_ref().map(Into::into),
            headers: request
                .headers
                .iter()
                .map(|(name, value)| (name.clone(), value.into()))
                .collect(),
        }
    }
}

impl From<&StringMatch> for wire::StringMatch {
    fn from(text: &StringMatch) -> Self {
        Self {
            exact: text.exact.clone(),
            prefix: text.prefix.clone(),
            regex: text.regex.clone(),
        }
    }
}

impl From<&RolloutStatus> for wire::RolloutStatus {
    fn from(status: &RolloutStatus) -> Self {
        Self {
            abort: status.abort,
            controller_pause: status.controller_pause,
            current_pod_hash: status.current_pod_hash.clone(),
            replicas: status.replicas,
            updated_replicas: status.updated_replicas,
            available_replicas: status.available_replicas,
            current_step_index: status.current_step_index,
            observed_generation: status.observed_generation.clone(),
            canary: wire::CanaryStatus {
                current_experiment: status.current_experiment.clone(),
                weights: status.weights.as_ref().map(Into::into),
                stable_ping_pong: status.stable_ping_pong.clone(),
            },
            stable_rs: status.stable_rs.clone(),
            promote_full: status.promote_full,
            phase: status.phase.clone(),
            message: status.message.clone(),
        }
    }
}

impl From<&TrafficWeights> for wire::TrafficWeights {
    fn from(weights: &TrafficWeights) -> Self {
        Self {
            canary: (&weights.canary).into(),
            stable: (&weights.stable).into(),
            additional: all(&weights.additional),
            verified: weights.verified,
        }
    }
}

impl From<&WeightDestination> for wire::WeightDestination {
    fn from(destination: &WeightDestination) -> Self {
        Self {
            weight: destination.weight,
            service_name: destination.service_name.clone(),
            pod_template_hash: destination.pod_template_hash.clone(),
        }
    }
}
