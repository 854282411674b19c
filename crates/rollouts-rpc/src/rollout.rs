//! The part of a Rollout (`argoproj.io/v1alpha1`) a traffic router needs.
//!
//! Field names are those of the API (`pkg/apis/rollouts/v1alpha1/types.go`) in snake case; the doc
//! comments say only what gob changes on the way. Go's gob drops pointers to zero values, so that nil
//! and zero arrive alike; where one of the two can be ruled out, these types say which it was. Pod
//! template, blue-green strategy and other routers' settings are left in the stream.

mod api;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::traffic_router::WeightDestination;

/// The annotation that counts a Rollout's revisions (`utils/annotations` in Argo Rollouts).
const REVISION_ANNOTATION: &str = "rollout.argoproj.io/revision";

/// A Rollout as it was when the controller's reconcile began.
///
/// It deserializes from the object as the API server shows it; fields that are not listed here are
/// ignored. There, unlike in gob, nil and zero differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "api::Rollout")]
pub struct Rollout {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `spec.replicas`. The controller fills in the default before it reconciles, so absent is 0.
    pub replicas: i32,
    /// `spec.paused`.
    pub paused: bool,
    /// `spec.strategy.canary`; routers are called only for Rollouts that have it.
    pub canary: Option<CanaryStrategy>,
    /// `status`.
    pub status: RolloutStatus,
}

/// `spec.strategy.canary`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CanaryStrategy {
    /// `stableService`; may be empty with a traffic router plugin.
    pub stable_service: String,
    /// `canaryService`; may be empty with a traffic router plugin.
    pub canary_service: String,
    /// `pingPong`.
    pub ping_pong: Option<PingPong>,
    /// `dynamicStableScale`.
    pub dynamic_stable_scale: bool,
    /// `steps`.
    pub steps: Vec<CanaryStep>,
    /// `trafficRouting`.
    pub traffic_routing: Option<TrafficRouting>,
}

/// `pingPong`: two services that swap the roles of stable and canary with every promotion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PingPong {
    /// `pingService`.
    pub ping_service: String,
    /// `pongService`.
    pub pong_service: String,
}

/// One entry of `steps`. A single step may set a weight, a header route and a mirror route at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "api::CanaryStep")]
pub struct CanaryStep {
    /// `setWeight`. A step that arrives empty was `setWeight: 0`, since validation refuses one with
    /// nothing set.
    pub set_weight: Option<i32>,
    /// `setHeaderRoute`.
    pub set_header_route: Option<SetHeaderRoute>,
    /// `setMirrorRoute`.
    pub set_mirror_route: Option<SetMirrorRoute>,
    /// What the step asks of the controller besides.
    pub others: Vec<OtherStep>,
}

/// What a step can hold that does not concern a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherStep {
    /// `pause`.
    Pause,
    /// `experiment`.
    Experiment,
    /// `analysis`.
    Analysis,
    /// `setCanaryScale`.
    SetCanaryScale,
    /// `plugin`.
    Plugin,
}

/// `trafficRouting`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "api::TrafficRouting")]
pub struct TrafficRouting {
    /// `plugins`: the JSON of each plugin's configuration under the plugin's name. The controller
    /// has compacted and escaped it: parse it, never compare it as text.
    pub plugins: BTreeMap<String, Vec<u8>>,
    /// The names in `managedRoutes`; the first takes precedence.
    pub managed_routes: Vec<String>,
    /// `maxTrafficWeight`; absent means 100.
    pub max_traffic_weight: Option<i32>,
}

/// A `setHeaderRoute` step: requests that match go to the canary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SetHeaderRoute {
    /// `name`, one of `managedRoutes`.
    pub name: String,
    /// `match`. Empty asks for the removal of the route.
    #[serde(rename = "match")]
    pub matches: Vec<HeaderRoutingMatch>,
}

/// One header a request must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HeaderRoutingMatch {
    /// `headerName`.
    pub header_name: String,
    /// `headerValue`.
    #[serde(deserialize_with = "api::or_default")]
    pub header_value: StringMatch,
}

/// A `setMirrorRoute` step: requests that match are copied to the canary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SetMirrorRoute {
    /// `name`, one of `managedRoutes`.
    pub name: String,
    /// `match`. Empty asks for the removal of the route.
    #[serde(rename = "match")]
    pub matches: Vec<RouteMatch>,
    /// `percentage`. `None` is either absent (all requests) or 0: only the live Rollout tells.
    pub percentage: Option<i32>,
}

/// What a request to be mirrored must have; all that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteMatch {
    /// `method`.
    pub method: Option<StringMatch>,
    /// `path`.
    pub path: Option<StringMatch>,
    /// `headers`; their values are not validated by the controller.
    pub headers: BTreeMap<String, StringMatch>,
}

/// How a text is matched. Where the controller validates, exactly one of the fields is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StringMatch {
    /// `exact`.
    pub exact: String,
    /// `prefix`.
    pub prefix: String,
    /// `regex`.
    pub regex: String,
}

/// `status`, as the previous reconcile left it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "api::RolloutStatus")]
pub struct RolloutStatus {
    /// `abort`.
    pub abort: bool,
    /// `promoteFull`.
    pub promote_full: bool,
    /// `controllerPause`.
    pub controller_pause: bool,
    /// `phase`.
    pub phase: String,
    /// `message`.
    pub message: String,
    /// `observedGeneration`, a text in this API.
    pub observed_generation: String,
    /// `currentPodHash`.
    pub current_pod_hash: String,
    /// `stableRS`: the hash of the stable pods.
    pub stable_rs: String,
    /// `currentStepIndex`. Absent is 0 when there are steps, and none when there are not.
    pub current_step_index: Option<i32>,
    /// `replicas`: pods of all versions.
    pub replicas: i32,
    /// `updatedReplicas`: pods of the current template, the canary's while there is one.
    pub updated_replicas: i32,
    /// `availableReplicas`.
    pub available_replicas: i32,
    /// `canary.weights`.
    pub weights: Option<TrafficWeights>,
    /// `canary.stablePingPong`: `ping` or `pong`; empty counts as `pong`.
    pub stable_ping_pong: String,
    /// `canary.currentExperiment`.
    pub current_experiment: String,
}

/// `canary.weights`: what the controller believes to be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TrafficWeights {
    /// `canary`.
    pub canary: WeightDestination,
    /// `stable`.
    pub stable: WeightDestination,
    /// `additional`.
    pub additional: Vec<WeightDestination>,
    /// `verified`; absent and false arrive alike.
    pub verified: bool,
}

/// The two services a canary moves traffic between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Services<'a> {
    /// The service of the stable pods; may be empty.
    pub stable: &'a str,
    /// The service of the canary's pods; may be empty.
    pub canary: &'a str,
}

impl Rollout {
    /// The revision the controller counts in an annotation; 1 is the first deployment.
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        self.annotations.get(REVISION_ANNOTATION)?.parse().ok()
    }

    /// The services in their roles of the moment, by the rule of the controller's
    /// `rollout/trafficrouting/service_helper.go`: with ping-pong the status says which is stable,
    /// unless `stableService` or `canaryService` are set as well. `None` without a canary strategy.
    #[must_use]
    pub fn services(&self) -> Option<Services<'_>> {
        let canary = self.canary.as_ref()?;
        let named = Services {
            stable: &canary.stable_service,
            canary: &canary.canary_service,
        };
        Some(match &canary.ping_pong {
            Some(PingPong {
                ping_service: ping,
                pong_service: pong,
            }) if named.stable.is_empty() && named.canary.is_empty() => {
                if self.status.stable_ping_pong == "ping" {
                    Services {
                        stable: ping,
                        canary: pong,
                    }
                } else {
                    Services {
                        stable: pong,
                        canary: ping,
                    }
                }
            }
            _ => named,
        })
    }

    /// Whether the Services exchange their roles at each promotion, by the same rule as [`Rollout::services`].
    #[must_use]
    pub fn is_ping_pong(&self) -> bool {
        self.canary.as_ref().is_some_and(|canary| {
            let is_named = !canary.stable_service.is_empty() || !canary.canary_service.is_empty();
            canary.ping_pong.is_some() && !is_named
        })
    }

    /// The weight that means all traffic: `maxTrafficWeight`, or 100.
    #[must_use]
    pub fn max_traffic_weight(&self) -> i32 {
        let routing = self
            .canary
            .as_ref()
            .and_then(|canary| canary.traffic_routing.as_ref());
        routing
            .and_then(|routing| routing.max_traffic_weight)
            .unwrap_or(100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canary(stable: &str, canary: &str, ping_pong: bool) -> Option<CanaryStrategy> {
        let ping_pong = ping_pong.then(|| PingPong {
            ping_service: "ping-svc".into(),
            pong_service: "pong-svc".into(),
        });
        Some(CanaryStrategy {
            stable_service: stable.into(),
            canary_service: canary.into(),
            ping_pong,
            ..CanaryStrategy::default()
        })
    }

    #[track_caller]
    fn check_services(
        canary: Option<CanaryStrategy>,
        stable_ping_pong: &str,
        expect: Option<(&str, &str)>,
    ) {
        let status = RolloutStatus {
            stable_ping_pong: stable_ping_pong.into(),
            ..RolloutStatus::default()
        };
        let rollout = Rollout {
            canary,
            status,
            ..Rollout::default()
        };
        assert_eq!(
            rollout.services(),
            expect.map(|(stable, canary)| Services { stable, canary })
        );
    }

    #[test]
    fn services_are_the_named_ones() {
        check_services(canary("s", "c", false), "", Some(("s", "c")));
        check_services(canary("", "", false), "", Some(("", "")));
        check_services(None, "", None);
    }

    #[test]
    fn with_ping_pong_the_status_says_which_service_is_stable() {
        check_services(canary("", "", true), "ping", Some(("ping-svc", "pong-svc")));
        check_services(canary("", "", true), "pong", Some(("pong-svc", "ping-svc")));
        check_services(canary("", "", true), "", Some(("pong-svc", "ping-svc")));
    }

    #[test]
    fn a_named_service_wins_over_ping_pong() {
        check_services(canary("s", "", true), "ping", Some(("s", "")));
        check_services(canary("", "c", true), "ping", Some(("", "c")));
    }

    #[test]
    fn the_revision_is_read_from_its_annotation() {
        let revision = |value: &str| {
            let annotations = BTreeMap::from([(REVISION_ANNOTATION.to_owned(), value.to_owned())]);
            Rollout {
                annotations,
                ..Rollout::default()
            }
            .revision()
        };
        assert_eq!(
            (revision("7"), revision("x"), Rollout::default().revision()),
            (Some(7), None, None)
        );
    }

    #[test]
    fn all_traffic_is_100_unless_the_rollout_says_otherwise() {
        let with = |max_traffic_weight| {
            let traffic_routing = Some(TrafficRouting {
                max_traffic_weight,
                ..TrafficRouting::default()
            });
            let canary = Some(CanaryStrategy {
                traffic_routing,
                ..CanaryStrategy::default()
            });
            Rollout {
                canary,
                ..Rollout::default()
            }
            .max_traffic_weight()
        };
        assert_eq!(
            (
                with(None),
                with(Some(1000)),
                Rollout::default().max_traffic_weight()
            ),
            (100, 1000, 100)
        );
    }
}
