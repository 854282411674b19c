//! Arguments and replies of a traffic router (`rollout/trafficrouting/plugin/rpc/rpc.go`).

use gob::WithRaw;
use rollout_types::{Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};

gob::gob_struct! {
    pub(crate) struct UpdateHashArgs as "UpdateHashArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
        pub(crate) canary_hash: String as "CanaryHash",
        pub(crate) stable_hash: String as "StableHash",
        pub(crate) additional_destinations: Vec<WeightDestination> as "AdditionalDestinations",
    }

    pub(crate) struct SetWeightAndVerifyWeightArgs as "SetWeightAndVerifyWeightArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
        pub(crate) desired_weight: i32 as "DesiredWeight",
        pub(crate) additional_destinations: Vec<WeightDestination> as "AdditionalDestinations",
    }

    pub(crate) struct SetHeaderArgs as "SetHeaderArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
        pub(crate) set_header_route: SetHeaderRoute as "SetHeaderRoute",
    }

    pub(crate) struct SetMirrorArgs as "SetMirrorArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
        pub(crate) set_mirror_route: SetMirrorRoute as "SetMirrorRoute",
    }

    pub(crate) struct RemoveManagedRoutesArgs as "RemoveManagedRoutesArgs" {
        pub(crate) rollout: WithRaw<Rollout> as "Rollout",
    }

    pub(crate) struct RpcError as "RpcError" {
        /// Empty for success.
        pub(crate) error_string: String as "ErrorString",
    }

    pub(crate) struct VerifyWeightResponse as "VerifyWeightResponse" {
        /// 0 not verified, 1 verified, 2 not implemented.
        pub(crate) verified: i32 as "Verified",
        pub(crate) err: RpcError as "Err",
    }
}

gob::gob_interface! {
    /// The argument of every method, a Go `any` under a registered name.
    pub(crate) enum RouterArgs {
        UpdateHash(UpdateHashArgs) as "UpdateHashArgs",
        Weight(SetWeightAndVerifyWeightArgs) as "SetWeightAndVerifyWeightArgs",
        SetHeader(SetHeaderArgs) as "SetHeaderArgs",
        SetMirror(SetMirrorArgs) as "SetMirrorArgs",
        RemoveManagedRoutes(RemoveManagedRoutesArgs) as "RemoveManagedRoutesArgs",
    }
}
