//! Counts the controller's calls and the result of each pass over a Rollout, as a layer around the router.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gloo_router::from_rpc;
use gloo_types::ObjectKey;
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, RouterError, TrafficRouter, Verification, WeightDestination,
};
use tokio::time::Instant;

use super::{CallLabels, MethodLabels, Metrics, PassLabels};

/// Rollouts with state of an unfinished pass. The controller works on few at a time, but may not finish a pass.
const MOST: usize = 10_000;

tokio::task_local! {
    static CALL: Call;
}

/// What happens during one call.
#[derive(Default)]
struct Call(Cell<Pass>);

/// Notes that a request was sent, for the call of this task, if there is one.
pub(super) fn request_sent() {
    note(|pass| pass.has_sent = true);
}

/// Notes that an object was changed, for the call of this task, if there is one.
pub(super) fn object_written() {
    note(|pass| pass.has_written = true);
}

/// Notes that the call of this task is answered from the cache, and that the tables are checked later.
pub(crate) fn deferred() {
    note(|pass| pass.is_deferred = true);
}

/// Notes that the call of this task is VerifyWeight at full weight. It always reads from the API server, because the
/// controller promotes on its answer.
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

/// A router whose calls are counted.
pub(crate) struct Metered<R> {
    pub(super) router: Arc<R>,
    metrics: Arc<Metrics>,
    pub(super) passes: Mutex<HashMap<ObjectKey, Pass>>,
}

/// State of the current pass of a Rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pass {
    has_sent: bool,
    has_written: bool,
    is_deferred: bool,
    /// Whether a call was VerifyWeight at full weight.
    is_confirming: bool,
    /// Whether that call sent a request.
    confirmed: bool,
    /// When SetWeight last changed something that is not verified yet.
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

    /// Counts one call, with its duration and outcome.
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
        self.change(rollout, |pass| {
            if noted.is_confirming {
                pass.confirmed |= noted.has_sent;
            } else {
                pass.has_sent |= noted.has_sent;
            }
            pass.has_written |= noted.has_written;
            pass.is_deferred |= noted.is_deferred;
            if noted.has_written && method == SET_WEIGHT {
                pass.unverified = Some(Instant::now());
            }
        });
        result
    }

    /// Counts a pass after its last call: VerifyWeight, or SetWeight with an error.
    fn end_pass(&self, rollout: &Rollout, result: Option<Verification>) {
        self.change(rollout, |pass| {
            let label = match result {
                None => "failed",
                Some(_) if pass.has_written => "changed",
                Some(_) if pass.is_deferred => "deferred",
                Some(_) if pass.has_sent => "read",
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

    /// Changes the state of a Rollout. An empty state is not kept.
    fn change(&self, rollout: &Rollout, change: impl FnOnce(&mut Pass)) {
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

/// A running call. If it is dropped without a code, it timed out or panicked.
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
