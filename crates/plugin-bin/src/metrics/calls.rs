//! A layer around the router that counts the controller's calls, and what became of each pass over a Rollout.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gloo_types::ObjectKey;
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, RouterError, TrafficRouter, Verification, WeightDestination,
};
use tokio::time::Instant;

use super::{CallLabels, MethodLabels, Metrics, PassLabels};
use crate::from_rpc;

/// Rollouts that something is remembered of. The controller works on few at a time; more are left from passes that it did
/// not end.
const MOST: usize = 10_000;

tokio::task_local! {
    static CALL: Call;
}

/// What happens during one call.
#[derive(Default)]
struct Call(Cell<Pass>);

/// A request was sent. Counts for the call of this task, if there is one.
pub(super) fn asked() {
    note(|pass| pass.asked = true);
}

/// An object was changed. Counts for the call of this task, if there is one.
pub(super) fn wrote() {
    note(|pass| pass.wrote = true);
}

/// The call of this task is answered from what is known, and the tables are checked later.
pub(crate) fn deferred() {
    note(|pass| pass.is_deferred = true);
}

/// The call of this task is VerifyWeight at the full weight, which always reads from the API server: the controller promotes
/// on its answer.
pub(crate) fn confirming() {
    note(|pass| pass.is_confirming = true);
}

fn note(change: impl FnOnce(&mut Pass)) {
    let _outside_of_calls = CALL.try_with(|Call(call)| {
        let mut pass = call.get();
        change(&mut pass);
        call.set(pass);
    });
}

/// Counts the calls of a router.
pub(crate) struct Metered<R> {
    pub(super) router: Arc<R>,
    metrics: Arc<Metrics>,
    pub(super) passes: Mutex<HashMap<ObjectKey, Pass>>,
}

/// What is remembered of a Rollout from one call to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pass {
    asked: bool,
    wrote: bool,
    is_deferred: bool,
    /// Whether a call was VerifyWeight at the full weight.
    is_confirming: bool,
    /// Whether that one asked.
    confirmed: bool,
    /// When SetWeight changed something that was not verified since.
    unverified: Option<Instant>,
}

impl<R> Metered<R> {
    pub(crate) fn new(router: Arc<R>, metrics: Arc<Metrics>) -> Self {
        Self {
            router,
            metrics,
            passes: Mutex::default(),
        }
    }

    /// Counts one call.
    async fn count<T>(
        &self,
        method: &'static str,
        rollout: &Rollout,
        call: impl Future<Output = Result<T, RouterError>>,
    ) -> Result<T, RouterError> {
        let mut running = Running {
            metrics: &self.metrics,
            method,
            begin: Instant::now(),
            code: None,
        };
        let (result, noted) = CALL
            .scope(Call::default(), async {
                let result = call.await;
                (result, CALL.with(|Call(call)| call.get()))
            })
            .await;
        running.code = Some(if result.is_ok() { "ok" } else { "error" });
        self.remember(rollout, |pass| {
            if noted.is_confirming {
                pass.confirmed |= noted.asked;
            } else {
                pass.asked |= noted.asked;
            }
            pass.wrote |= noted.wrote;
            pass.is_deferred |= noted.is_deferred;
            if noted.wrote && method == SET_WEIGHT {
                pass.unverified = Some(Instant::now());
            }
        });
        result
    }

    /// The last call of a pass is over: SetWeight with an error, or VerifyWeight.
    fn end_pass(&self, rollout: &Rollout, result: Option<Verification>) {
        self.remember(rollout, |pass| {
            let label = match result {
                None => "failed",
                Some(_) if pass.wrote => "changed",
                Some(_) if pass.is_deferred => "deferred",
                Some(_) if pass.asked => "read",
                Some(_) if pass.confirmed => "confirmed",
                Some(_) => "steady",
            };
            self.metrics.pass(label);
            if result == Some(Verification::Verified)
                && let Some(begin) = pass.unverified
            {
                let lag = begin.elapsed().as_secs_f64();
                self.metrics.verify_lag.observe(lag);
            }
            let is_open = matches!(result, None | Some(Verification::NotVerified));
            *pass = Pass {
                unverified: pass.unverified.filter(|_| is_open),
                ..Pass::default()
            };
        });
    }

    /// Changes what is remembered of a Rollout; what says nothing is not kept.
    fn remember(&self, rollout: &Rollout, change: impl FnOnce(&mut Pass)) {
        let key = from_rpc::key(rollout);
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pass = passes.remove(&key).unwrap_or_default();
        change(&mut pass);
        if pass != Pass::default() {
            if passes.len() >= MOST {
                passes.clear();
            }
            passes.insert(key, pass);
        }
    }
}

const SET_WEIGHT: &str = "SetWeight";

/// A call that has not ended. If it is dropped, it took too long or panicked.
struct Running<'m> {
    metrics: &'m Metrics,
    method: &'static str,
    begin: Instant,
    code: Option<&'static str>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let Self { method, begin, .. } = *self;
        let dropped = if std::thread::panicking() {
            "panic"
        } else {
            "timeout"
        };
        let code = self.code.unwrap_or(dropped);
        if self.code.is_none() && method == SET_WEIGHT {
            self.metrics.pass("failed");
        }
        let calls = &self.metrics.calls;
        calls.get_or_create(&CallLabels { method, code }).inc();
        let seconds = &self.metrics.call_seconds;
        let seconds = seconds.get_or_create(&MethodLabels { method });
        seconds.observe(begin.elapsed().as_secs_f64());
    }
}

impl Metrics {
    fn pass(&self, result: &'static str) {
        self.passes.get_or_create(&PassLabels { result }).inc();
    }
}

impl<R: TrafficRouter> TrafficRouter for Metered<R> {
    fn type_name(&self) -> &str {
        self.router.type_name()
    }

    async fn init(&self) -> Result<(), RouterError> {
        self.router.init().await
    }

    async fn update_hash(
        &self,
        rollout: &Rollout,
        hashes: &PodHashes,
        additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        let call = self.router.update_hash(rollout, hashes, additional);
        self.count("UpdateHash", rollout, call).await
    }

    async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        let call = self.router.set_weight(rollout, desired, additional);
        let result = self.count(SET_WEIGHT, rollout, call).await;
        if result.is_err() {
            self.end_pass(rollout, None);
        } else if let Some(per_rollout) = &self.metrics.per_rollout {
            per_rollout.set(&from_rpc::key(rollout), desired.value);
        }
        result
    }

    async fn verify_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<Verification, RouterError> {
        let call = self.router.verify_weight(rollout, desired, additional);
        let result = self.count("VerifyWeight", rollout, call).await;
        self.end_pass(rollout, result.as_ref().ok().copied());
        result
    }

    async fn set_header_route(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> Result<(), RouterError> {
        let call = self.router.set_header_route(rollout, route);
        self.count("SetHeaderRoute", rollout, call).await
    }

    async fn set_mirror_route(
        &self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> Result<(), RouterError> {
        let call = self.router.set_mirror_route(rollout, route);
        self.count("SetMirrorRoute", rollout, call).await
    }

    async fn remove_managed_routes(&self, rollout: &Rollout) -> Result<(), RouterError> {
        let call = self.router.remove_managed_routes(rollout);
        self.count("RemoveManagedRoutes", rollout, call).await
    }

    async fn stop(&self) {
        self.router.stop().await;
    }
}
