//! The traffic router, by call: [`weights`] carries out SetWeight, [`managed`] the calls about header and mirror routes, and
//! [`verification`] answers VerifyWeight. [`target`] shifts without a Rollout.
//!
//! They share [`read`], which reads the inputs of a call, [`mod@write`], which decides what is written and writes it, and
//! [`deadline`], which divides the time of a call between both. [`background`] does the same between the calls.

mod background;
mod deadline;
mod deferred;
mod guard;
mod managed;
mod marks;
mod memory;
mod outside;
mod read;
mod target;
mod verification;
mod weights;
mod write;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use gloo_types::ObjectKey;
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, RouterError, TrafficRouter, Verification, WeightDestination,
    rollout::{SetHeaderRoute, SetMirrorRoute},
};
use route_planner::IntentKind;
use route_store::{Priority, Store, with_context};

pub(crate) use self::{
    background::{Background, Collected, Drift, Fence, LONGEST_RETRY, RETRY},
    guard::{Promotion, Release, end_of, observation_of},
};
pub use self::{
    background::{behind_recorded, portions},
    deferred::{rollout_keeper, table_keeper},
    read::ASSUMED_PORT,
    target::Target,
    write::carry_out,
};
use self::{deadline::Deadline, guard::Holds, memory::Memory, verification::is_waited_for};
use crate::{
    error::ShiftError,
    from_rpc::{self, Policy, Request},
    report::Observer,
};

/// Shifts traffic by editing RouteTables in `S`.
#[derive(Debug)]
pub struct GlooRouter<S> {
    store: Arc<S>,
    policy: Policy,
    memory: Memory,
    /// Rollouts at rest whose calls were answered before their tables were known. `None` once these are restored: later calls are
    /// not deferred.
    deferred: Mutex<Option<BTreeSet<ObjectKey>>>,
    holds: Holds,
    guards_promotions: bool,
    call_timeout: Option<Duration>,
    observer: Arc<dyn Observer>,
    background: Background,
}

impl<S: Store> GlooRouter<S> {
    /// Creates a router over `store` that obeys `policy`. Its calls need a Tokio runtime with timers.
    pub fn new(store: Arc<S>, policy: Policy) -> Self {
        Self {
            store,
            policy,
            memory: Memory::default(),
            deferred: Mutex::new(Some(BTreeSet::new())),
            holds: Holds::default(),
            guards_promotions: true,
            call_timeout: None,
            observer: Arc::new(()),
            background: Background::default(),
        }
    }

    /// Reports to `observer` what the replies to the controller do not show.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Sets a deadline for each call. The reply names the tables that were not written by then.
    #[must_use]
    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self {
            call_timeout: Some(call_timeout),
            ..self
        }
    }

    /// Sets whether promotions wait for Pods. By default they do.
    #[must_use]
    pub fn with_promotion_guard(self, guards_promotions: bool) -> Self {
        Self {
            guards_promotions,
            ..self
        }
    }

    pub(crate) fn store(&self) -> &Arc<S> {
        &self.store
    }

    pub(crate) fn observer(&self) -> &Arc<dyn Observer> {
        &self.observer
    }

    /// Runs a call of the controller. Its requests share the deadline of the call and have `priority`.
    async fn call<F: Future>(
        &self,
        priority: Priority,
        work: impl FnOnce(Deadline) -> F,
    ) -> F::Output {
        let deadline = Deadline::of_call(self.call_timeout);
        // On the heap: otherwise each layer of futures would reserve stack for it again.
        let work = Box::pin(work(deadline));
        with_context(deadline.context(priority), work).await
    }

    fn request(&self, rollout: &Rollout, kind: IntentKind) -> Result<Request, ShiftError> {
        self.store.is_called_for(&from_rpc::key(rollout));
        let are_removed = self.memory.has_removed(rollout);
        let hashes = self.memory.hashes(rollout);
        let request = Request::new(&self.policy, rollout, hashes, are_removed, kind)?;
        Ok(if self.holds.is_held(&request.rollout) {
            request.after_full_weight()
        } else {
            request
        })
    }
}

impl<S: Store> TrafficRouter for GlooRouter<S> {
    fn type_name(&self) -> &str {
        "GlooPlatform"
    }

    async fn init(&self) -> Result<(), RouterError> {
        // The controller holds a lock over all traffic routers during this call, so nothing is contacted here.
        Ok(())
    }

    async fn update_hash(
        &self,
        rollout: &Rollout,
        hashes: &PodHashes,
        _additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        self.background.record_instance(rollout);
        // Nothing is written before SetWeight. Where destinations are Services, the controller has changed their selectors
        // itself.
        self.memory.record_hashes(rollout, hashes);
        Ok(())
    }

    async fn set_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<(), RouterError> {
        self.background.record_instance(rollout);
        if desired.value < desired.max {
            self.memory.end_full(&from_rpc::key(rollout));
        }
        if desired.value == 0 && additional.is_empty() && self.defer(rollout).await {
            return Ok(());
        }
        let others = self.take_over(rollout);
        let priority = deadline::priority_of_weight(rollout, desired);
        let set = self.call(priority, |deadline| {
            self.set_weights(rollout, desired, additional, others, deadline)
        });
        Ok(set.await?)
    }

    async fn verify_weight(
        &self,
        rollout: &Rollout,
        desired: DesiredWeight,
        additional: &[WeightDestination],
    ) -> Result<Verification, RouterError> {
        let verified = if self.holds.is_held(&from_rpc::key(rollout)) {
            Ok(Verification::NotVerified)
        } else if is_waited_for(rollout, desired) {
            let verify = |deadline| self.verify(rollout, desired, additional, deadline);
            self.call(Priority::Call, verify).await
        } else {
            Ok(Verification::NotImplemented)
        };
        self.memory.end_pass(rollout);
        Ok(verified?)
    }

    async fn set_header_route(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> Result<(), RouterError> {
        self.take_over(rollout);
        self.call(Priority::Call, |deadline| async move {
            if let Some(complete) = self.complete_or_defer(rollout, deadline).await {
                let route = from_rpc::managed_header_route(route);
                let kind = IntentKind::SetManagedRoute(route);
                self.manage_or_defer(&complete, kind, deadline).await;
            }
        })
        .await;
        Ok(())
    }

    async fn set_mirror_route(
        &self,
        rollout: &Rollout,
        route: &SetMirrorRoute,
    ) -> Result<(), RouterError> {
        self.take_over(rollout);
        self.call(Priority::Call, |deadline| async move {
            if let Some(complete) = self.complete_or_defer(rollout, deadline).await {
                let route = read::as_in_current_step(&complete, route);
                let kind = IntentKind::SetManagedRoute(from_rpc::managed_mirror_route(route));
                self.manage_or_defer(&complete, kind, deadline).await;
            }
        })
        .await;
        Ok(())
    }

    async fn remove_managed_routes(&self, rollout: &Rollout) -> Result<(), RouterError> {
        self.background.record_instance(rollout);
        self.memory.begin_removal(rollout);
        if self.defer(rollout).await {
            return Ok(());
        }
        self.take_over(rollout);
        let removal = IntentKind::RemoveManagedRoutes;
        self.call(deadline::priority_of_removal(rollout), |deadline| {
            self.manage_or_defer(rollout, removal, deadline)
        })
        .await;
        Ok(())
    }

    async fn stop(&self) {
        self.background.stop().await;
    }
}

#[cfg(test)]
mod tests;
