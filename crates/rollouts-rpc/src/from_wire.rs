//! From wire to domain. What gob's dropping of zero values leaves open is decided here, once.

mod metric;
mod step;

pub(crate) use metric::metric_call;
pub(crate) use step::step_call;

use crate::call::{RouterCall, RouterMethod, other_argument};
use crate::netrpc::Fault;
use crate::rollout::{
    CanaryStep, CanaryStrategy, HeaderRoutingMatch, OtherStep, PingPong, Rollout, RolloutStatus,
    RouteMatch, SetHeaderRoute, SetMirrorRoute, StringMatch, TrafficRouting, TrafficWeights,
};
use crate::traffic_router::{DesiredWeight, PodHashes, WeightDestination};
use crate::wire::{self, RouterArgs};

/// A call with the argument that belongs to its method. `None` is Go's nil.
pub(crate) fn router_call(
    method: RouterMethod,
    args: Option<RouterArgs>,
) -> Result<RouterCall, Fault> {
    match (method, args) {
        // Both take an argument that says nothing.
        (RouterMethod::InitPlugin, _) => Ok(RouterCall::InitPlugin),
        (RouterMethod::Type, _) => Ok(RouterCall::Type),
        (RouterMethod::UpdateHash, Some(RouterArgs::UpdateHash(args))) => {
            let hashes = PodHashes {
                canary: args.canary_hash,
                stable: args.stable_hash,
            };
            Ok(RouterCall::UpdateHash(
                boxed(args.rollout),
                hashes,
                all(args.additional_destinations),
            ))
        }
        (RouterMethod::SetWeight, Some(RouterArgs::Weight(args))) => {
            let (rollout, desired, additional) = weight(args);
            Ok(RouterCall::SetWeight(rollout, desired, additional))
        }
        (RouterMethod::VerifyWeight, Some(RouterArgs::Weight(args))) => {
            let (rollout, desired, additional) = weight(args);
            Ok(RouterCall::VerifyWeight(rollout, desired, additional))
        }
        (RouterMethod::SetHeaderRoute, Some(RouterArgs::SetHeader(args))) => Ok(
            RouterCall::SetHeaderRoute(boxed(args.rollout), args.set_header_route.into()),
        ),
        (RouterMethod::SetMirrorRoute, Some(RouterArgs::SetMirror(args))) => Ok(
            RouterCall::SetMirrorRoute(boxed(args.rollout), args.set_mirror_route.into()),
        ),
        (RouterMethod::RemoveManagedRoutes, Some(RouterArgs::RemoveManagedRoutes(args))) => {
            Ok(RouterCall::RemoveManagedRoutes(boxed(args.rollout)))
        }
        (_, args) => {
            let found = args.as_ref().map(RouterArgs::registered_name);
            Err(other_argument(method, found))
        }
    }
}

fn weight(
    args: wire::SetWeightAndVerifyWeightArgs,
) -> (Box<Rollout>, DesiredWeight, Vec<WeightDestination>) {
    let rollout = boxed(args.rollout);
    let desired = DesiredWeight {
        value: args.desired_weight,
        max: rollout.max_traffic_weight(),
    };
    (rollout, desired, all(args.additional_destinations))
}

impl From<wire::Rollout> for Rollout {
    fn from(rollout: wire::Rollout) -> Self {
        let wire::Rollout {
            object_meta: meta,
            spec,
            status,
        } = rollout;
        let canary = spec.strategy.canary.map(CanaryStrategy::from);
        let has_steps = canary
            .as_ref()
            .is_some_and(|canary| !canary.steps.is_empty());
        Self {
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            resource_version: meta.resource_version,
            generation: meta.generation,
            labels: meta.labels,
            annotations: meta.annotations,
            replicas: spec.replicas,
            paused: spec.paused,
            canary,
            status: RolloutStatus {
                // Index 0 arrives as nil, but nil proper occurs only without steps.
                current_step_index: status.current_step_index.or(has_steps.then_some(0)),
                abort: status.abort,
                promote_full: status.promote_full,
                controller_pause: status.controller_pause,
                phase: status.phase,
                message: status.message,
                observed_generation: status.observed_generation,
                current_pod_hash: status.current_pod_hash,
                stable_rs: status.stable_rs,
                replicas: status.replicas,
                updated_replicas: status.updated_replicas,
                available_replicas: status.available_replicas,
                weights: status.canary.weights.map(TrafficWeights::from),
                stable_ping_pong: status.canary.stable_ping_pong,
                current_experiment: status.canary.current_experiment,
            },
        }
    }
}

impl From<wire::CanaryStrategy> for CanaryStrategy {
    fn from(canary: wire::CanaryStrategy) -> Self {
        Self {
            stable_service: canary.stable_service,
            canary_service: canary.canary_service,
            ping_pong: canary.ping_pong.map(|services| PingPong {
                ping_service: services.ping_service,
                pong_service: services.pong_service,
            }),
            dynamic_stable_scale: canary.dynamic_stable_scale,
            steps: all(canary.steps),
            traffic_routing: canary.traffic_routing.map(TrafficRouting::from),
        }
    }
}

impl From<wire::CanaryStep> for CanaryStep {
    fn from(step: wire::CanaryStep) -> Self {
        let others = [
            (step.pause, OtherStep::Pause),
            (step.experiment, OtherStep::Experiment),
            (step.analysis, OtherStep::Analysis),
            (step.set_canary_scale, OtherStep::SetCanaryScale),
            (step.plugin, OtherStep::Plugin),
        ];
        let others = others
            .into_iter()
            .filter_map(|(present, kind)| present.map(|_| kind))
            .collect();
        let mut step = Self {
            set_weight: step.set_weight,
            set_header_route: step.set_header_route.map(SetHeaderRoute::from),
            set_mirror_route: step.set_mirror_route.map(SetMirrorRoute::from),
            others,
        };
        if step == Self::default() {
            step.set_weight = Some(0);
        }
        step
    }
}

impl From<wire::RolloutTrafficRouting> for TrafficRouting {
    fn from(routing: wire::RolloutTrafficRouting) -> Self {
        Self {
            plugins: routing
                .plugins
                .into_iter()
                .map(|(name, json)| (name, json.0))
                .collect(),
            managed_routes: routing
                .managed_routes
                .into_iter()
                .map(|route| route.name)
                .collect(),
            max_traffic_weight: routing.max_traffic_weight,
        }
    }
}

impl From<wire::SetHeaderRoute> for SetHeaderRoute {
    fn from(route: wire::SetHeaderRoute) -> Self {
        Self {
            name: route.name,
            matches: all(route.matches),
        }
    }
}

impl From<wire::HeaderRoutingMatch> for HeaderRoutingMatch {
    fn from(header: wire::HeaderRoutingMatch) -> Self {
        let value = header.header_value.unwrap_or_default();
        Self {
            header_name: header.header_name,
            header_value: value.into(),
        }
    }
}

impl From<wire::SetMirrorRoute> for SetMirrorRoute {
    fn from(route: wire::SetMirrorRoute) -> Self {
        Self {
            name: route.name,
            matches: all(route.matches),
            percentage: route.percentage,
        }
    }
}

impl From<wire::RouteMatch> for RouteMatch {
    fn from(request: wire::RouteMatch) -> Self {
        Self {
            method: request.method.map(StringMatch::from),
            path: request.path.map(StringMatch::from),
            headers: request
                .headers
                .into_iter()
                .map(|(name, value)| (name, value.into()))
                .collect(),
        }
    }
}

impl From<wire::StringMatch> for StringMatch {
    fn from(text: wire::StringMatch) -> Self {
        Self {
            exact: text.exact,
            prefix: text.prefix,
            regex: text.regex,
        }
    }
}

impl From<wire::TrafficWeights> for TrafficWeights {
    fn from(weights: wire::TrafficWeights) -> Self {
        Self {
            canary: weights.canary.into(),
            stable: weights.stable.into(),
            additional: all(weights.additional),
            verified: weights.verified,
        }
    }
}

impl From<wire::WeightDestination> for WeightDestination {
    fn from(destination: wire::WeightDestination) -> Self {
        Self {
            weight: destination.weight,
            service_name: destination.service_name,
            pod_template_hash: destination.pod_template_hash,
        }
    }
}

fn boxed(rollout: wire::Rollout) -> Box<Rollout> {
    Box::new(rollout.into())
}

fn all<W, D: From<W>>(wire: Vec<W>) -> Vec<D> {
    wire.into_iter().map(D::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_step(step: wire::CanaryStep, expect: CanaryStep) {
        assert_eq!(CanaryStep::from(step), expect);
    }

    #[test]
    fn a_step_that_arrives_empty_was_set_weight_0() {
        check_step(
            wire::CanaryStep::default(),
            CanaryStep {
                set_weight: Some(0),
                ..CanaryStep::default()
            },
        );
    }

    #[test]
    fn a_step_with_anything_in_it_sets_no_weight_by_itself() {
        let present = Some(wire::Present {});
        for (step, kind) in [
            (
                wire::CanaryStep {
                    pause: present,
                    ..Default::default()
                },
                OtherStep::Pause,
            ),
            (
                wire::CanaryStep {
                    experiment: present,
                    ..Default::default()
                },
                OtherStep::Experiment,
            ),
            (
                wire::CanaryStep {
                    analysis: present,
                    ..Default::default()
                },
                OtherStep::Analysis,
            ),
            (
                wire::CanaryStep {
                    set_canary_scale: present,
                    ..Default::default()
                },
                OtherStep::SetCanaryScale,
            ),
            (
                wire::CanaryStep {
                    plugin: present,
                    ..Default::default()
                },
                OtherStep::Plugin,
            ),
        ] {
            check_step(
                step,
                CanaryStep {
                    others: vec![kind],
                    ..CanaryStep::default()
                },
            );
        }
        check_step(
            wire::CanaryStep {
                set_header_route: Some(wire::SetHeaderRoute::default()),
                ..Default::default()
            },
            CanaryStep {
                set_header_route: Some(SetHeaderRoute::default()),
                ..CanaryStep::default()
            },
        );
    }

    #[track_caller]
    fn check_step_index(steps: usize, index: Option<i32>, expect: Option<i32>) {
        let mut rollout = wire::Rollout::default();
        let steps = vec![wire::CanaryStep::default(); steps];
        rollout.spec.strategy.canary = Some(wire::CanaryStrategy {
            steps,
            ..Default::default()
        });
        rollout.status.current_step_index = index;
        assert_eq!(Rollout::from(rollout).status.current_step_index, expect);
    }

    #[test]
    fn a_step_index_that_is_absent_is_0_if_there_are_steps() {
        check_step_index(2, None, Some(0));
        check_step_index(2, Some(1), Some(1));
        check_step_index(0, None, None);
    }

    #[test]
    fn the_maximum_weight_comes_from_the_rollout() {
        let mut args = wire::SetWeightAndVerifyWeightArgs {
            desired_weight: 7,
            ..Default::default()
        };
        let routing = wire::RolloutTrafficRouting {
            max_traffic_weight: Some(1000),
            ..Default::default()
        };
        args.rollout.spec.strategy.canary = Some(wire::CanaryStrategy {
            traffic_routing: Some(routing),
            ..Default::default()
        });
        assert_eq!(
            weight(args).1,
            DesiredWeight {
                value: 7,
                max: 1000
            }
        );
        assert_eq!(
            weight(Default::default()).1,
            DesiredWeight { value: 0, max: 100 }
        );
    }

    #[track_caller]
    fn check_refused(method: RouterMethod, args: Option<RouterArgs>, expect: &str) {
        let fault = router_call(method, args).unwrap_err();
        assert!(fault.to_string().ends_with(expect), "{fault}");
    }

    #[test]
    fn an_argument_of_another_method_is_refused_by_name() {
        check_refused(RouterMethod::SetWeight, None, "it is nil");
        let args = RouterArgs::UpdateHash(Default::default());
        check_refused(
            RouterMethod::SetWeight,
            Some(args.clone()),
            "it is UpdateHashArgs",
        );
        check_refused(
            RouterMethod::RemoveManagedRoutes,
            Some(args),
            "it is UpdateHashArgs",
        );
    }

    #[test]
    fn methods_without_arguments_take_anything() {
        let args = RouterArgs::UpdateHash(Default::default());
        assert_eq!(router_call(RouterMethod::Type, None), Ok(RouterCall::Type));
        assert_eq!(
            router_call(RouterMethod::InitPlugin, Some(args)),
            Ok(RouterCall::InitPlugin)
        );
    }
}
