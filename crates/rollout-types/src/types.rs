//! The types of the API.

use std::collections::BTreeMap;

#[cfg(feature = "resource")]
use gloo_types::Resource;

use crate::{RawJson, RawRollout, Timestamp};

/// Declares structs with the names of their fields in Go and in JSON.
///
/// All fields are optional when decoding. As in Go, null in JSON counts as absent.
macro_rules! api_struct {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident as $go_name:literal {
            $(
                $(#[$field_attribute:meta])*
                pub $field:ident: $type:ty as $go_field:literal / $json_field:literal
            ),* $(,)?
            $(;
                $(#[$own_attribute:meta])*
                pub $own:ident: $own_type:ty $(,)?
            )?
        }
    )*) => {
        gob::gob_struct! {$(
            $(#[$attribute])*
            #[derive(Eq, Hash)]
            pub struct $name as $go_name {
                $(
                    $(#[$field_attribute])*
                    pub $field: $type as $go_field / $json_field
                ),*
                $(;
                    $(#[$own_attribute])*
                    pub $own: $own_type
                )?
            }
        )*}
    };
}

api_struct! {
    /// A Rollout at the start of the controller's reconcile, or as the API server returns it.
    pub struct Rollout as "Rollout" {
        /// `metadata`.
        pub metadata: ObjectMeta as "ObjectMeta" / "metadata",
        /// `spec`.
        pub spec: RolloutSpec as "Spec" / "spec",
        /// `status`.
        pub status: RolloutStatus as "Status" / "status";
        /// The Rollout in the controller's wire format, for fields without a type here.
        pub raw: RawRollout,
    }

    /// `metadata` of an object.
    pub struct ObjectMeta as "ObjectMeta" {
        /// `name`.
        pub name: String as "Name" / "name",
        /// `namespace`.
        pub namespace: String as "Namespace" / "namespace",
        /// `uid`.
        pub uid: String as "UID" / "uid",
        /// `resourceVersion`.
        pub resource_version: String as "ResourceVersion" / "resourceVersion",
        /// `generation`.
        pub generation: i64 as "Generation" / "generation",
        /// `labels`.
        pub labels: BTreeMap<String, String> as "Labels" / "labels",
        /// `annotations`.
        pub annotations: BTreeMap<String, String> as "Annotations" / "annotations",
        /// `generateName`.
        pub generate_name: String as "GenerateName" / "generateName",
        /// `creationTimestamp`.
        pub creation_timestamp: Option<Timestamp> as "CreationTimestamp" / "creationTimestamp",
        /// `deletionTimestamp`: when its deletion was requested.
        pub deletion_timestamp: Option<Timestamp> as "DeletionTimestamp" / "deletionTimestamp",
        /// `ownerReferences`.
        pub owner_references: Vec<OwnerReference> as "OwnerReferences" / "ownerReferences",
        /// `finalizers`.
        pub finalizers: Vec<String> as "Finalizers" / "finalizers",
    }

    /// One entry of `metadata.ownerReferences`.
    pub struct OwnerReference as "OwnerReference" {
        /// `apiVersion`.
        pub api_version: String as "APIVersion" / "apiVersion",
        /// `kind`.
        pub kind: String as "Kind" / "kind",
        /// `name`.
        pub name: String as "Name" / "name",
        /// `uid`.
        pub uid: String as "UID" / "uid",
        /// `controller`. Absent and false are the same in gob.
        pub controller: bool as "Controller" / "controller",
        /// `blockOwnerDeletion`. Absent and false are the same in gob.
        pub block_owner_deletion: bool as "BlockOwnerDeletion" / "blockOwnerDeletion",
    }

    /// `spec` of a Rollout.
    pub struct RolloutSpec as "RolloutSpec" {
        /// `replicas`; see [`Rollout::replicas`].
        pub replicas: Option<i32> as "Replicas" / "replicas",
        /// `paused`.
        pub paused: bool as "Paused" / "paused",
        /// `strategy`.
        pub strategy: RolloutStrategy as "Strategy" / "strategy",
        /// `selector` of the Pods. In gob, the controller has resolved it from `workloadRef`, if that is set.
        pub selector: Option<LabelSelector> as "Selector" / "selector",
        /// `workloadRef`.
        pub workload_ref: Option<WorkloadRef> as "WorkloadRef" / "workloadRef",
        /// `minReadySeconds`.
        pub min_ready_seconds: i32 as "MinReadySeconds" / "minReadySeconds",
        /// `revisionHistoryLimit`. Absent (10) and 0 are the same in gob.
        pub revision_history_limit: Option<i32> as "RevisionHistoryLimit" / "revisionHistoryLimit",
        /// `progressDeadlineSeconds`. Absent (600) and 0 are the same in gob.
        pub progress_deadline_seconds: Option<i32> as "ProgressDeadlineSeconds" / "progressDeadlineSeconds",
        /// `progressDeadlineAbort`.
        pub progress_deadline_abort: bool as "ProgressDeadlineAbort" / "progressDeadlineAbort",
        /// `restartAt`.
        pub restart_at: Option<Timestamp> as "RestartAt" / "restartAt",
    }

    /// A label selector.
    pub struct LabelSelector as "LabelSelector" {
        /// `matchLabels`.
        pub match_labels: BTreeMap<String, String> as "MatchLabels" / "matchLabels",
        /// `matchExpressions`.
        pub match_expressions: Vec<LabelSelectorRequirement> as "MatchExpressions" / "matchExpressions",
    }

    /// One entry of `matchExpressions`.
    pub struct LabelSelectorRequirement as "LabelSelectorRequirement" {
        /// `key`.
        pub key: String as "Key" / "key",
        /// `operator`: `In`, `NotIn`, `Exists` or `DoesNotExist`.
        pub operator: String as "Operator" / "operator",
        /// `values`.
        pub values: Vec<String> as "Values" / "values",
    }

    /// `spec.workloadRef`: the object with the Pod template.
    pub struct WorkloadRef as "ObjectRef" {
        /// `apiVersion`.
        pub api_version: String as "APIVersion" / "apiVersion",
        /// `kind`.
        pub kind: String as "Kind" / "kind",
        /// `name`.
        pub name: String as "Name" / "name",
        /// `scaleDown`: `never`, `onsuccess` or `progressively`; controller 1.7 and later.
        pub scale_down: String as "ScaleDown" / "scaleDown",
    }

    /// `spec.strategy`.
    pub struct RolloutStrategy as "RolloutStrategy" {
        /// `canary`; the controller calls routers only for Rollouts that have it.
        pub canary: Option<CanaryStrategy> as "Canary" / "canary",
        /// `blueGreen`; steps and metrics may belong to one.
        pub blue_green: Option<BlueGreenStrategy> as "BlueGreen" / "blueGreen",
    }

    /// `spec.strategy.blueGreen`.
    pub struct BlueGreenStrategy as "BlueGreenStrategy" {
        /// `activeService`.
        pub active_service: String as "ActiveService" / "activeService",
        /// `previewService`.
        pub preview_service: String as "PreviewService" / "previewService",
    }

    /// `spec.strategy.canary`.
    pub struct CanaryStrategy as "CanaryStrategy" {
        /// `canaryService`; may be empty with a traffic router plugin.
        pub canary_service: String as "CanaryService" / "canaryService",
        /// `stableService`; may be empty with a traffic router plugin.
        pub stable_service: String as "StableService" / "stableService",
        /// `steps`.
        pub steps: Vec<CanaryStep> as "Steps" / "steps",
        /// `trafficRouting`.
        pub traffic_routing: Option<TrafficRouting> as "TrafficRouting" / "trafficRouting",
        /// `pingPong`.
        pub ping_pong: Option<PingPong> as "PingPong" / "pingPong",
        /// `dynamicStableScale`.
        pub dynamic_stable_scale: bool as "DynamicStableScale" / "dynamicStableScale",
    }

    /// `pingPong`: two Services that exchange the roles of stable and canary at each promotion.
    pub struct PingPong as "PingPongSpec" {
        /// `pingService`.
        pub ping_service: String as "PingService" / "pingService",
        /// `pongService`.
        pub pong_service: String as "PongService" / "pongService",
    }

    /// One entry of `steps`. One step may set a weight, a header route and a mirror route.
    pub struct CanaryStep as "CanaryStep" {
        /// `setWeight`, in parts of [`Rollout::max_traffic_weight`].
        pub set_weight: Option<i32> as "SetWeight" / "setWeight",
        /// `pause`.
        pub pause: Option<Present> as "Pause" / "pause",
        /// `experiment`.
        pub experiment: Option<Present> as "Experiment" / "experiment",
        /// `analysis`.
        pub analysis: Option<Present> as "Analysis" / "analysis",
        /// `setCanaryScale`.
        pub set_canary_scale: Option<Present> as "SetCanaryScale" / "setCanaryScale",
        /// `setHeaderRoute`.
        pub set_header_route: Option<SetHeaderRoute> as "SetHeaderRoute" / "setHeaderRoute",
        /// `setMirrorRoute`.
        pub set_mirror_route: Option<SetMirrorRoute> as "SetMirrorRoute" / "setMirrorRoute",
        /// `plugin`.
        pub plugin: Option<Present> as "Plugin" / "plugin",
    }

    /// An object of which only the presence is decoded.
    #[derive(Copy)]
    pub struct Present as "Present" {}

    /// `trafficRouting`.
    pub struct TrafficRouting as "RolloutTrafficRouting" {
        /// `managedRoutes`; the first takes precedence.
        pub managed_routes: Vec<ManagedRoute> as "ManagedRoutes" / "managedRoutes",
        /// `plugins`: each plugin's configuration under the plugin's name.
        pub plugins: BTreeMap<String, RawJson> as "Plugins" / "plugins",
        /// `maxTrafficWeight`; see [`Rollout::max_traffic_weight`].
        pub max_traffic_weight: Option<i32> as "MaxTrafficWeight" / "maxTrafficWeight",
    }

    /// One entry of `managedRoutes`. The Go type is spelled `MangedRoutes`.
    pub struct ManagedRoute as "MangedRoutes" {
        /// `name`.
        pub name: String as "Name" / "name",
    }

    /// A `setHeaderRoute` step: matching requests are routed to the canary.
    pub struct SetHeaderRoute as "SetHeaderRoute" {
        /// `name`, one of `managedRoutes`.
        pub name: String as "Name" / "name",
        /// `match`. Empty asks for the removal of the route.
        pub matches: Vec<HeaderRoutingMatch> as "Match" / "match",
    }

    /// A condition on one header of a request.
    pub struct HeaderRoutingMatch as "HeaderRoutingMatch" {
        /// `headerName`.
        pub header_name: String as "HeaderName" / "headerName",
        /// `headerValue`.
        pub header_value: StringMatch as "HeaderValue" / "headerValue",
    }

    /// A `setMirrorRoute` step: matching requests are mirrored to the canary.
    pub struct SetMirrorRoute as "SetMirrorRoute" {
        /// `name`, one of `managedRoutes`.
        pub name: String as "Name" / "name",
        /// `match`. Empty asks for the removal of the route.
        pub matches: Vec<RouteMatch> as "Match" / "match",
        /// `percentage` of the matching requests; absent is all of them. In gob, `None` is absent or 0, and only the live object
        /// distinguishes them.
        pub percentage: Option<i32> as "Percentage" / "percentage",
    }

    /// Conditions on a mirrored request; all conditions must match.
    pub struct RouteMatch as "RouteMatch" {
        /// `method`.
        pub method: Option<StringMatch> as "Method" / "method",
        /// `path`.
        pub path: Option<StringMatch> as "Path" / "path",
        /// `headers`; the controller does not validate their values.
        pub headers: BTreeMap<String, StringMatch> as "Headers" / "headers",
    }

    /// A condition on a text. Where the controller validates it, exactly one field is not empty.
    pub struct StringMatch as "StringMatch" {
        /// `exact`.
        pub exact: String as "Exact" / "exact",
        /// `prefix`.
        pub prefix: String as "Prefix" / "prefix",
        /// `regex`.
        pub regex: String as "Regex" / "regex",
    }

    /// `status`, as of the last reconcile.
    pub struct RolloutStatus as "RolloutStatus" {
        /// `abort`.
        pub abort: bool as "Abort" / "abort",
        /// `controllerPause`.
        pub controller_pause: bool as "ControllerPause" / "controllerPause",
        /// `abortedAt`.
        pub aborted_at: Option<Timestamp> as "AbortedAt" / "abortedAt",
        /// `currentStepHash`: changes with the steps.
        pub current_step_hash: String as "CurrentStepHash" / "currentStepHash",
        /// `restartedAt`.
        pub restarted_at: Option<Timestamp> as "RestartedAt" / "restartedAt",
        /// `selector` of the Pods, as text.
        pub selector: String as "Selector" / "selector",
        /// `workloadObservedGeneration`: the observed generation of the object in `workloadRef`.
        pub workload_observed_generation: String as "WorkloadObservedGeneration" / "workloadObservedGeneration",
        /// `currentPodHash`: the hash of the version in the spec.
        pub current_pod_hash: String as "CurrentPodHash" / "currentPodHash",
        /// `replicas`: Pods of all versions.
        pub replicas: i32 as "Replicas" / "replicas",
        /// `updatedReplicas`: Pods of the current template, which are the canary Pods during an update.
        pub updated_replicas: i32 as "UpdatedReplicas" / "updatedReplicas",
        /// `readyReplicas`.
        pub ready_replicas: i32 as "ReadyReplicas" / "readyReplicas",
        /// `availableReplicas`.
        pub available_replicas: i32 as "AvailableReplicas" / "availableReplicas",
        /// `currentStepIndex`; after the last step it is the number of steps. `None` without steps.
        pub current_step_index: Option<i32> as "CurrentStepIndex" / "currentStepIndex",
        /// `observedGeneration`, a string in this API.
        pub observed_generation: String as "ObservedGeneration" / "observedGeneration",
        /// `canary`.
        pub canary: CanaryStatus as "Canary" / "canary",
        /// `stableRS`: the hash of the stable Pods; empty until the first version is promoted.
        pub stable_rs: String as "StableRS" / "stableRS",
        /// `promoteFull`.
        pub promote_full: bool as "PromoteFull" / "promoteFull",
        /// `phase`: `Healthy`, `Degraded`, `Progressing` or `Paused`.
        pub phase: String as "Phase" / "phase",
        /// `message`.
        pub message: String as "Message" / "message",
    }

    /// `status.canary`.
    pub struct CanaryStatus as "CanaryStatus" {
        /// `currentExperiment`.
        pub current_experiment: String as "CurrentExperiment" / "currentExperiment",
        /// `weights`.
        pub weights: Option<TrafficWeights> as "Weights" / "weights",
        /// `stablePingPong`: `ping` or `pong`; empty counts as `pong`.
        pub stable_ping_pong: String as "StablePingPong" / "stablePingPong",
    }

    /// `status.canary.weights`: the last weights that the controller requested from the router.
    pub struct TrafficWeights as "TrafficWeights" {
        /// `canary`.
        pub canary: WeightDestination as "Canary" / "canary",
        /// `stable`.
        pub stable: WeightDestination as "Stable" / "stable",
        /// `additional`.
        pub additional: Vec<WeightDestination> as "Additional" / "additional",
        /// `verified`. Absent and false are the same in gob.
        pub verified: bool as "Verified" / "verified",
    }

    /// A destination and its weight.
    pub struct WeightDestination as "WeightDestination" {
        /// The weight, in parts of [`Rollout::max_traffic_weight`].
        pub weight: i32 as "Weight" / "weight",
        /// Name of the Service; empty if the Pods of an experiment have no port.
        pub service_name: String as "ServiceName" / "serviceName",
        /// Hash of the Pods of the Service.
        pub pod_template_hash: String as "PodTemplateHash" / "podTemplateHash",
    }
}

#[cfg(feature = "resource")]
impl Resource for Rollout {
    const GROUP: &'static str = "argoproj.io";
    const VERSION: &'static str = "v1alpha1";
    const KIND: &'static str = "Rollout";
    const PLURAL: &'static str = "rollouts";

    type Spec = RolloutSpec;
    type Status = RolloutStatus;
}
