//! A call of the controller to a router.

use std::fmt;

use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, RouterError, TrafficRouter, WeightDestination,
    rollout::{SetHeaderRoute, SetMirrorRoute},
};

/// A call of the controller.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    RemoveManagedRoutes,
    SetHeaderRoute(SetHeaderRoute),
    SetMirrorRoute(SetMirrorRoute),
    /// `SetWeight` alone, before the Pods of another version become the canary.
    ResetWeight(i32, Vec<WeightDestination>),
    /// `UpdateHash`, `SetWeight` and `VerifyWeight`, which end a pass.
    SetWeight(i32, Vec<WeightDestination>),
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveManagedRoutes => f.write_str("RemoveManagedRoutes"),
            Self::SetHeaderRoute(route) => write!(f, "SetHeaderRoute {}", route.name),
            Self::SetMirrorRoute(route) => write!(f, "SetMirrorRoute {}", route.name),
            Self::ResetWeight(weight, additional) | Self::SetWeight(weight, additional) => {
                write!(f, "SetWeight {weight}")?;
                for destination in additional {
                    write!(f, " {}={}", destination.service_name, destination.weight)?;
                }
                Ok(())
            }
        }
    }
}

impl Call {
    /// Makes the call for `rollout`, and the calls that the controller makes with it.
    pub(super) async fn make(
        &self,
        router: &impl TrafficRouter,
        rollout: &Rollout,
    ) -> Result<(), RouterError> {
        let desired = |value| DesiredWeight {
            value,
            max: rollout.max_traffic_weight(),
        };
        match self {
            Self::RemoveManagedRoutes => router.remove_managed_routes(rollout).await,
            Self::SetHeaderRoute(route) => router.set_header_route(rollout, route).await,
            Self::SetMirrorRoute(route) => router.set_mirror_route(rollout, route).await,
            Self::ResetWeight(weight, additional) => {
                let weight = desired(*weight);
                router.set_weight(rollout, weight, additional).await
            }
            Self::SetWeight(weight, additional) => {
                let hashes = PodHashes {
                    canary: rollout.status.current_pod_hash.clone(),
                    stable: rollout.status.stable_rs.clone(),
                };
                let weight = desired(*weight);
                router.update_hash(rollout, &hashes, additional).await?;
                router.set_weight(rollout, weight, additional).await?;
                // It ends a pass. Its answer depends on Gloo and is ignored.
                router.verify_weight(rollout, weight, additional).await?;
                Ok(())
            }
        }
    }
}
