//! What an author of a traffic router implements (`rollout/trafficrouting/plugin/rpc` in Argo Rollouts).

use std::future::Future;
use std::sync::Arc;

use crate::error::{PluginError, Result, short_name};
use crate::rollout::{ObjectMeta, Rollout, SetHeaderRoute, SetMirrorRoute, WeightDestination};

/// Moves traffic between the stable and the canary of a Rollout.
///
/// The controller calls from several workers at once: calls for different Rollouts overlap, those
/// for one Rollout do not. It repeats every call on every reconcile, so each must be idempotent and
/// cheap when nothing changes. Errors become one line in the controller's log; of all methods only
/// `set_weight` and `verify_weight` get theirs shown as an event (`rollout/trafficrouting.go`).
pub trait TrafficRouter: Send + Sync + 'static {
    /// The name the controller logs, such as `Istio`; that of the type unless a plugin says otherwise.
    fn type_name(&self) -> &str {
        short_name::<Self>()
    }

    /// Called once per process, before anything else.
    ///
    /// It should return at once and not fail for reasons that may pass: the controller holds a lock
    /// over every traffic plugin meanwhile, and it uses the plugin all the same after an error.
    fn init(&self) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Tells which pods are canary and stable now.
    ///
    /// The default does nothing and succeeds.
    fn update_hash(
        &self,
        _rollout: &Rollout,
        _hashes: &PodHashes,
        _additional: &[WeightDestination],
    ) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Sends `desired` of the traffic to the canary and the given share to each additional
    /// destination; the rest goes to stable.
    fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> impl Future<Output = Result> + Send;

    /// Says whether traffic is split as `set_weight` was asked to.
    ///
    /// After an error the controller would not ask again, and would promote at the end
    /// (`rollout/trafficrouting.go`). So an error, a panic, a late answer and an argument that cannot be decoded
    /// all reach it as [`Verification::NotVerified`]; the log has the error.
    ///
    /// The default is [`Verification::NotImplemented`], with which the controller continues.
    fn verify_weight(
        &self,
        _rollout: &Rollout,
        _desired: DesiredWeight,
        _additional: &[WeightDestination],
    ) -> impl Future<Output = Result<Verification>> + Send {
        async { Ok(Verification::NotImplemented) }
    }

    /// Sends requests with certain headers to the canary. Without a match the route of that name is
    /// to be removed.
    ///
    /// Until a router implements it, the controller gets an error that says so.
    fn set_header_route(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> impl Future<Output = Result> + Send {
        async { Err(not_supported("SetHeaderRoute", rollout, &route.name)) }
    }

    /// Copies certain requests to the canary. Without a match the route of that name is to be
    /// removed.
    ///
    /// Until a router implements it, the controller gets an error that says so.
    fn set_mirror_route(
        &self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> impl Future<Output = Result> + Send {
        async { Err(not_supported("SetMirrorRoute", rollout, &route.name)) }
    }

    /// Removes every route the two methods above have made. Called often, and mostly in vain.
    ///
    /// A router that implements neither of them has nothing to remove.
    fn remove_managed_routes(&self, _rollout: &Rollout) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }

    /// Ends what the router does by itself between the calls.
    ///
    /// Called when the host says Quit, before the reply, and when the session ends in any other way: another controller may
    /// be the leader from then on. It may be called more than once. It has 500 ms.
    fn stop(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A shared router is a router, for one that also works between the calls.
impl<R: TrafficRouter> TrafficRouter for Arc<R> {
    fn type_name(&self) -> &str {
        R::type_name(self)
    }

    async fn init(&self) -> Result {
        R::init(self).await
    }

    async fn update_hash(
        &self,
        rollout: &Rollout,
        hashes: &PodHashes,
        additional: &[WeightDestination],
    ) -> Result {
        R::update_hash(self, rollout, hashes, additional).await
    }

    async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result {
        R::set_weight(self, rollout, desired, additional).await
    }

    async fn verify_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<Verification> {
        R::verify_weight(self, rollout, desired, additional).await
    }

    async fn set_header_route(&self, rollout: &Rollout, route: &SetHeaderRoute) -> Result {
        R::set_header_route(self, rollout, route).await
    }

    async fn set_mirror_route(&self, rollout: &Rollout, route: &SetMirrorRoute) -> Result {
        R::set_mirror_route(self, rollout, route).await
    }

    async fn remove_managed_routes(&self, rollout: &Rollout) -> Result {
        R::remove_managed_routes(self, rollout).await
    }

    async fn stop(&self) {
        R::stop(self).await;
    }
}

/// The destinations beside stable and canary, with their shares: those of an experiment.
pub type Additional = [WeightDestination];

/// The pod template hashes of both sides; either may be empty, and both are equal once promoted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHashes {
    /// Hash of the canary's pods.
    pub canary: String,
    /// Hash of the stable pods.
    pub stable: String,
}

/// The canary's share of the traffic: `value` out of `max`, as the controller sent it.
///
/// The controller can send a value above `max` (full promotion with `dynamicStableScale`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredWeight {
    /// The share, in parts of `max`.
    pub value: i32,
    /// `trafficRouting.maxTrafficWeight`, 100 unless the Rollout sets it.
    pub max: i32,
}

/// The answer to VerifyWeight (`RpcVerified` in `utils/plugin/types`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verification {
    /// Traffic is split as asked.
    Verified,
    /// Not yet; the controller asks again in 10 s.
    NotVerified,
    /// This router does not verify weights; the controller continues.
    NotImplemented,
}

/// What a router's methods fail with.
pub type RouterError = PluginError;

fn not_supported(method: &str, rollout: &Rollout, route: &str) -> RouterError {
    let ObjectMeta {
        namespace, name, ..
    } = &rollout.metadata;
    format!("{method} is not supported yet: remove the step with route {route:?} from rollout {namespace}/{name}").into()
}
