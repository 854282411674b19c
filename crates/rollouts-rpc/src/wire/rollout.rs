//! The parts of `pkg/apis/rollouts/v1alpha1` and Kubernetes' metadata that are read; all others are
//! skipped in the stream.

use std::collections::BTreeMap;

use gob::Bytes;

gob::gob_struct! {
    pub(crate) struct Rollout as "Rollout" {
        pub(crate) object_meta: ObjectMeta as "ObjectMeta",
        pub(crate) spec: RolloutSpec as "Spec",
        pub(crate) status: RolloutStatus as "Status",
    }

    pub(crate) struct ObjectMeta as "ObjectMeta" {
        pub(crate) name: String as "Name",
        pub(crate) namespace: String as "Namespace",
        pub(crate) uid: String as "UID",
        pub(crate) resource_version: String as "ResourceVersion",
        pub(crate) generation: i64 as "Generation",
        pub(crate) labels: BTreeMap<String, String> as "Labels",
        pub(crate) annotations: BTreeMap<String, String> as "Annotations",
    }

    pub(crate) struct RolloutSpec as "RolloutSpec" {
        pub(crate) replicas: i32 as "Replicas",
        pub(crate) paused: bool as "Paused",
        pub(crate) strategy: RolloutStrategy as "Strategy",
    }

    pub(crate) struct RolloutStrategy as "RolloutStrategy" {
        pub(crate) canary: Option<CanaryStrategy> as "Canary",
    }

    pub(crate) struct CanaryStrategy as "CanaryStrategy" {
        pub(crate) canary_service: String as "CanaryService",
        pub(crate) stable_service: String as "StableService",
        pub(crate) steps: Vec<CanaryStep> as "Steps",
        pub(crate) traffic_routing: Option<RolloutTrafficRouting> as "TrafficRouting",
        pub(crate) ping_pong: Option<PingPongSpec> as "PingPong",
        pub(crate) dynamic_stable_scale: bool as "DynamicStableScale",
    }

    pub(crate) struct PingPongSpec as "PingPongSpec" {
        pub(crate) ping_service: String as "PingService",
        pub(crate) pong_service: String as "PongService",
    }

    pub(crate) struct CanaryStep as "CanaryStep" {
        pub(crate) set_weight: Option<i32> as "SetWeight",
        pub(crate) pause: Option<Present> as "Pause",
        pub(crate) experiment: Option<Present> as "Experiment",
        pub(crate) analysis: Option<Present> as "Analysis",
        pub(crate) set_canary_scale: Option<Present> as "SetCanaryScale",
        pub(crate) set_header_route: Option<SetHeaderRoute> as "SetHeaderRoute",
        pub(crate) set_mirror_route: Option<SetMirrorRoute> as "SetMirrorRoute",
        pub(crate) plugin: Option<Present> as "Plugin",
    }

    /// A struct of which only the presence matters.
    #[derive(Copy)]
    pub(crate) struct Present as "Present" {}

    pub(crate) struct RolloutTrafficRouting as "RolloutTrafficRouting" {
        pub(crate) managed_routes: Vec<MangedRoutes> as "ManagedRoutes",
        pub(crate) plugins: BTreeMap<String, Bytes> as "Plugins",
        pub(crate) max_traffic_weight: Option<i32> as "MaxTrafficWeight",
    }

    /// Spelled like this upstream.
    pub(crate) struct MangedRoutes as "MangedRoutes" {
        pub(crate) name: String as "Name",
    }

    pub(crate) struct SetHeaderRoute as "SetHeaderRoute" {
        pub(crate) name: String as "Name",
        pub(crate) matches: Vec<HeaderRoutingMatch> as "Match",
    }

    pub(crate) struct HeaderRoutingMatch as "HeaderRoutingMatch" {
        pub(crate) header_name: String as "HeaderName",
        pub(crate) header_value: Option<StringMatch> as "HeaderValue",
    }

    pub(crate) struct SetMirrorRoute as "SetMirrorRoute" {
        pub(crate) name: String as "Name",
        pub(crate) matches: Vec<RouteMatch> as "Match",
        pub(crate) percentage: Option<i32> as "Percentage",
    }

    pub(crate) struct RouteMatch as "RouteMatch" {
        pub(crate) method: Option<StringMatch> as "Method",
        pub(crate) path: Option<StringMatch> as "Path",
        pub(crate) headers: BTreeMap<String, StringMatch> as "Headers",
    }

    pub(crate) struct StringMatch as "StringMatch" {
        pub(crate) exact: String as "Exact",
        pub(crate) prefix: String as "Prefix",
        pub(crate) regex: String as "Regex",
    }

    pub(crate) struct RolloutStatus as "RolloutStatus" {
        pub(crate) abort: bool as "Abort",
        pub(crate) controller_pause: bool as "ControllerPause",
        pub(crate) current_pod_hash: String as "CurrentPodHash",
        pub(crate) replicas: i32 as "Replicas",
        pub(crate) updated_replicas: i32 as "UpdatedReplicas",
        pub(crate) available_replicas: i32 as "AvailableReplicas",
        pub(crate) current_step_index: Option<i32> as "CurrentStepIndex",
        pub(crate) observed_generation: String as "ObservedGeneration",
        pub(crate) canary: CanaryStatus as "Canary",
        pub(crate) stable_rs: String as "StableRS",
        pub(crate) promote_full: bool as "PromoteFull",
        pub(crate) phase: String as "Phase",
        pub(crate) message: String as "Message",
    }

    pub(crate) struct CanaryStatus as "CanaryStatus" {
        pub(crate) current_experiment: String as "CurrentExperiment",
        pub(crate) weights: Option<TrafficWeights> as "Weights",
        pub(crate) stable_ping_pong: String as "StablePingPong",
    }

    pub(crate) struct TrafficWeights as "TrafficWeights" {
        pub(crate) canary: WeightDestination as "Canary",
        pub(crate) stable: WeightDestination as "Stable",
        pub(crate) additional: Vec<WeightDestination> as "Additional",
        pub(crate) verified: bool as "Verified",
    }

    pub(crate) struct WeightDestination as "WeightDestination" {
        pub(crate) weight: i32 as "Weight",
        pub(crate) service_name: String as "ServiceName",
        pub(crate) pod_template_hash: String as "PodTemplateHash",
    }
}
