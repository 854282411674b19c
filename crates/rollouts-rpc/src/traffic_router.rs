//! The trait of traffic routers (`rollout/trafficrouting/plugin/rpc` in Argo Rollouts).

use std::future::Future;

use crate::error::{PluginError, Result, short_name};
use crate::rollout::{ObjectMeta, Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};

/// Moves traffic between the stable and the canary of a Rollout.
///
/// The controller calls from several workers: calls for different Rollouts are concurrent, calls for one Rollout are not. It repeats
/// every call on every reconcile, so each call must be idempotent, and cheap if nothing changes. The controller logs each error as
/// one line. Only errors of `set_weight` and `verify_weight` also become events (`rollout/trafficrouting.go`).
pub trait TrafficRouter: Send + Sync + 'static {
    /// Returns the name that the controller logs, such as `Istio`. The default is the name of the type.
    fn type_name(&self) -> &str {
        short_name::<Self>()
    }

    /// Initializes the plugin. It is called once per process, before all other methods.
    ///
    /// It should return at once and not fail for temporary reasons: the controller holds a lock on all traffic plugins during the call,
    /// and uses the plugin even after an error.
    fn init(&self) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Receives the hashes of the canary and stable Pods.
    ///
    /// The default does nothing.
    fn update_hash(
        &self,
        _rollout: &Rollout,
        _hashes: &PodHashes,
        _additional: &[WeightDestination],
    ) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Routes `desired` of the traffic to the canary, its weight to each additional destination, and the rest to stable.
    fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> impl Future<Output = Result> + Send;

    /// Returns whether traffic is split as `set_weight` requested.
    ///
    /// After an error the controller does not ask again, and promotes at the end (`rollout/trafficrouting.go`). So the reply is
    /// [`Verification::NotVerified`] after an error, a panic, an exceeded deadline and an argument that does not decode. The log has the
    /// error.
    ///
    /// The default is [`Verification::NotImplemented`], and the controller continues.
    fn verify_weight(
        &self,
        _rollout: &Rollout,
        _desired: DesiredWeight,
        _additional: &[WeightDestination],
    ) -> impl Future<Output = Result<Verification>> + Send {
        async { Ok(Verification::NotImplemented) }
    }

    /// Routes requests with certain headers to the canary. An empty `match` removes the route of that name.
    ///
    /// The default returns an error: the method is not supported.
    fn set_header_route(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> impl Future<Output = Result> + Send {
        async { Err(not_supported("SetHeaderRoute", rollout, &route.name)) }
    }

    /// Mirrors certain requests to the canary. An empty `match` removes the route of that name.
    ///
    /// The default returns an error: the method is not supported.
    fn set_mirror_route(
        &self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> impl Future<Output = Result> + Send {
        async { Err(not_supported("SetMirrorRoute", rollout, &route.name)) }
    }

    /// Removes all routes that `set_header_route` and `set_mirror_route` created. The controller calls it often, usually when there is
    /// no such route.
    ///
    /// The default does nothing.
    fn remove_managed_routes(&self, _rollout: &Rollout) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Stops the background work of the router.
    ///
    /// It is called before the reply to Quit, and when the session ends in any other way, also by SIGTERM: another controller may become the
    /// leader. In gRPC mode it is called after the last call. It may be called more than once, and has 500 ms.
    fn stop(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// The Pod template hashes of canary and stable. Either may be empty, and both are equal after promotion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHashes {
    /// Hash of the canary Pods.
    pub canary: String,
    /// Hash of the stable Pods.
    pub stable: String,
}

/// The canary's weight: `value` out of `max`, as the controller sent it.
///
/// The controller may send a value above `max` (full promotion with `dynamicStableScale`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredWeight {
    /// The weight, in parts of `max`.
    pub value: i32,
    /// `trafficRouting.maxTrafficWeight` of the Rollout; 100 if unset.
    pub max: i32,
}

impl DesiredWeight {
    /// Returns `value` out of the Rollout's maximum weight.
    pub(crate) fn of(rollout: &Rollout, value: i32) -> Self {
        Self {
            value,
            max: rollout.max_traffic_weight(),
        }
    }
}

/// The reply to VerifyWeight (`RpcVerified` in `utils/plugin/types`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verification {
    /// Traffic is split as requested.
    Verified,
    /// Traffic is not split as requested yet; the controller asks again in 10 s.
    NotVerified,
    /// The router does not verify weights; the controller continues.
    NotImplemented,
}

/// The error of a router's methods.
pub type RouterError = PluginError;

fn not_supported(method: &str, rollout: &Rollout, route: &str) -> RouterError {
    let ObjectMeta {
        namespace, name, ..
    } = &rollout.metadata;
    format!("{method} is not supported: remove the step with route \"{route}\" from rollout {namespace}/{name}").into()
}
