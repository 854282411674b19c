//! Holds promotions: after SetWeight 0 of a promoted Rollout, traffic stays on the canary Service until the stable Service
//! routes to the new Pods.
//!
//! During a hold the canary Service gets all traffic. Writing nothing would not do: after `promote --full` at 40 % the other
//! 60 % would be sent to the old Pods.
//!
//! SetWeight returns `Ok`, so that the controller goes on with the rest of its reconcile. VerifyWeight returns "not
//! verified", so that the controller calls again every 10 s: after a restart, the new process holds or releases with the next
//! call. With "not implemented" the table could stay as it is for up to 15 minutes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::try_join;
use gloo_types::ObjectKey;
use rollouts_rpc::{DesiredWeight, Rollout, error_chain};
use route_planner::{
    ANNOTATION, Plan, Planned,
    promotion::{self, Decision, Facts, Hold, PromotionGuard, Readiness, guarded_services},
    restore,
};
use route_store::{EndpointStream, FRESH, Store, StoreError};
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};
use tracing::{debug, info, warn};

use super::{Fence, GlooRouter, carry_out, deadline::Deadline, read::Plans, write::RepairScope};
use crate::error::Failure;
use crate::from_rpc::{self, Request};
use crate::lock;
use crate::report::{About, HoldEnd, Report};

/// A hold that no call has asked about for this long belongs to a deleted Rollout.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The held promotions, by Rollout.
#[derive(Debug)]
pub(crate) struct Holds {
    begun: Instant,
    held: Mutex<HashMap<ObjectKey, Held>>,
    /// Notified when a hold begins.
    changed: Notify,
    has_warned: AtomicBool,
}

/// One held promotion.
#[derive(Clone, Debug)]
struct Held {
    promotion: Promotion,
    /// Tables whose traffic stays on the canary Service.
    tables: BTreeSet<ObjectKey>,
    /// The last observation of the watched endpoints, and its time; `None` if they are not watched.
    observed: Option<(Readiness, Instant)>,
    hold: Hold,
    /// When the hold was last continued.
    asked: Instant,
}

/// What is promoted, and the Services whose endpoints are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promotion {
    pub(crate) rollout: ObjectKey,
    /// `metadata.uid` of the Rollout.
    pub(crate) uid: String,
    /// Pod template hash of the promoted version.
    pub(crate) hash: String,
    pub(crate) stable: String,
    pub(crate) canary: String,
    pub(crate) guard: PromotionGuard,
}

impl Promotion {
    /// Returns the promotion that a request for weight 0 follows; `None` if it may not be held.
    pub(crate) fn of(rollout: &Rollout, request: &Request) -> Option<Self> {
        // Only after a promotion do both Services select the same Pods.
        let hash = rollout.status.promoted_canary()?;
        let (stable, canary) = guarded_services(&request.config, &request.intent)?;
        Some(Self {
            rollout: request.rollout.clone(),
            uid: rollout.metadata.uid.clone(),
            hash: hash.to_owned(),
            stable: stable.to_owned(),
            canary: canary.to_owned(),
            guard: *request.config.promotion_guard(),
        })
    }

    /// Whether `rollout` is the promoted one, and nothing was rolled out since.
    pub(crate) fn is_of(&self, rollout: &Rollout) -> bool {
        let promoted = rollout.status.promoted_canary();
        rollout.metadata.uid == self.uid && promoted == Some(&self.hash)
    }

    fn about(&self) -> About {
        About {
            key: self.rollout.clone(),
            uid: self.uid.clone(),
        }
    }
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            held: Mutex::default(),
            changed: Notify::new(),
            has_warned: AtomicBool::new(false),
        }
    }
}

impl Holds {
    /// Whether a promotion of the Rollout is held.
    pub(crate) fn is_held(&self, rollout: &ObjectKey) -> bool {
        lock(&self.held).contains_key(rollout)
    }

    /// Whether this very promotion is held.
    pub(crate) fn holds(&self, promotion: &Promotion) -> bool {
        let held = lock(&self.held);
        let held = held.get(&promotion.rollout);
        held.is_some_and(|held| held.promotion == *promotion)
    }

    /// Returns all held promotions, and a future that completes when another hold begins.
    pub(crate) fn all(&self) -> (Vec<Promotion>, Notified<'_>) {
        let changed = self.changed.notified();
        let held = lock(&self.held);
        let all = held.values().map(|held| held.promotion.clone());
        (all.collect(), changed)
    }

    /// Decides about a promotion from an observation of the endpoints. The caller that ends the hold reports it.
    fn decide(&self, promotion: &Promotion, observation: &Readiness) -> Decision {
        let (at, now) = (Instant::now(), self.now());
        let mut held = lock(&self.held);
        let known = held.remove(&promotion.rollout);
        // A later promotion of the Rollout has waited for nothing yet.
        let known = known.filter(|known| known.promotion == *promotion);
        let is_new = known.is_none();
        let mut it = known.unwrap_or_else(|| Held {
            promotion: promotion.clone(),
            tables: BTreeSet::new(),
            observed: None,
            hold: Hold::begin(now),
            asked: at,
        });
        let decision = it.hold.decide(&promotion.guard, observation, now);
        let goes_on = matches!(decision, Decision::Hold { .. });
        if goes_on {
            it.asked = at;
            // Holds are rare, so a timer of its own is not worth it.
            held.retain(|_, it| at.duration_since(it.asked) < FORGOTTEN_AFTER);
        }
        // A hold that ends stays for the caller, which reports how long it lasted.
        if goes_on || !is_new {
            held.insert(promotion.rollout.clone(), it);
        }
        // The background work watches the endpoints from now on. Otherwise a release would wait for the next call.
        if goes_on && is_new {
            self.changed.notify_one();
        }
        decision
    }

    /// Records an observation of the watched endpoints; `None` if they are no longer watched.
    pub(crate) fn set_observation(&self, promotion: &Promotion, observation: Option<Readiness>) {
        let mut held = lock(&self.held);
        let held = held.get_mut(&promotion.rollout);
        if let Some(held) = held.filter(|it| it.promotion == *promotion) {
            held.observed = observation.map(|observation| (observation, Instant::now()));
        }
    }

    /// Removes the hold of a Rollout. Returns how long it lasted.
    fn end(&self, rollout: &ObjectKey) -> Option<Duration> {
        let ended = lock(&self.held).remove(rollout);
        ended.map(|it| it.hold.lasts(self.now()))
    }

    /// Returns the number of held promotions. A function of its own, because a caller's expression would keep the lock while the
    /// number is reported.
    fn count(&self) -> usize {
        lock(&self.held).len()
    }

    /// Records the tables whose traffic stays on the canary Service.
    fn keep(&self, rollout: &ObjectKey, tables: BTreeSet<ObjectKey>) {
        if let Some(held) = lock(&self.held).get_mut(rollout) {
            held.tables = tables;
        }
    }

    fn tables(&self, rollout: &ObjectKey) -> BTreeSet<ObjectKey> {
        let held = lock(&self.held);
        let held = held.get(rollout);
        held.map(|held| held.tables.clone()).unwrap_or_default()
    }

    /// Returns the last observation of the endpoints of a promotion, if they are watched.
    fn observation(&self, promotion: &Promotion) -> Option<Readiness> {
        let held = lock(&self.held);
        let held = held.get(&promotion.rollout);
        let held = held.filter(|it| it.promotion == *promotion)?;
        let (observation, since) = held.observed.as_ref()?;
        // A watch may be open and silent: what it said long ago proves nothing.
        (since.elapsed() < FRESH).then(|| observation.clone())
    }

    /// Converts a time of a decision to an instant.
    pub(crate) fn at(&self, time: Duration) -> Instant {
        self.begun + time
    }

    fn now(&self) -> Duration {
        Instant::now().duration_since(self.begun)
    }
}

/// The plans of a request, with the held tables kept apart.
pub(super) struct HeldApart {
    pub(super) plans: Plans,
    /// The held tables, planned for the request that is carried out for them instead.
    pub(super) held: Option<(Request, Vec<Planned>)>,
}

impl<S: Store> GlooRouter<S> {
    /// Separates the tables that keep their traffic on the canary Service for now.
    pub(super) async fn hold_apart(
        &self,
        rollout: &Rollout,
        request: &Request,
        mut plans: Plans,
        deadline: Deadline,
    ) -> HeldApart {
        let is_rolled_back = self.memory.is_rolled_back(rollout);
        let promotion = Promotion::of(rollout, request);
        let promotion = promotion.filter(|_| self.guards_promotions && !is_rolled_back);
        let Some(promotion) = promotion else {
            // An abort, a rollback or a new version: the canary Service does not route to promoted Pods only.
            self.end_hold(About::of_call(rollout), HoldEnd::Broken);
            return HeldApart { plans, held: None };
        };
        // Not the weights that are in force: after a full promotion at 40 % the other 60 % go to old Pods.
        let full = request.with_all_to_canary();
        let (mut free, mut held) = (Vec::new(), Vec::new());
        for planned in plans.tables {
            match planned_hold(&full, &planned) {
                Some(hold) => held.push((planned, hold)),
                None => free.push(planned),
            }
        }
        plans.tables = free;
        if held.is_empty() {
            self.end_hold(promotion.about(), HoldEnd::Ended);
            return HeldApart { plans, held: None };
        }
        let (planned, held): (Vec<_>, Vec<_>) = held.into_iter().unzip();
        // Endpoints first, which are watched: most holds end here, and the Rollout is not read.
        if self.is_held(&promotion, deadline).await
            && self.may_get_all(&promotion, &held, deadline).await
        {
            let keys = held.iter().map(|it| it.table.key().clone());
            self.holds.keep(&promotion.rollout, keys.collect());
            return HeldApart {
                plans,
                held: Some((full, held)),
            };
        }
        plans.tables.extend(planned);
        HeldApart { plans, held: None }
    }

    /// Whether a promotion is held now. If endpoints or Pods cannot be read, it is not.
    async fn is_held(&self, promotion: &Promotion, deadline: Deadline) -> bool {
        let key = &promotion.rollout;
        let observation = match self.holds.observation(promotion) {
            Some(observation) => observation,
            None => match deadline.reading(observe(&*self.store, promotion)).await {
                Some(Ok(Some(observation))) => observation,
                // A store over files has no endpoints.
                Some(Ok(None)) => return false,
                Some(Err(error)) => {
                    // A missing permission must not keep promotions from ending.
                    self.warn_unguarded_once(key, &error_chain(&error));
                    self.end_hold(promotion.about(), HoldEnd::Broken);
                    return false;
                }
                None => {
                    self.warn_unguarded_once(key, "the endpoints were not read in time");
                    self.end_hold(promotion.about(), HoldEnd::Broken);
                    return false;
                }
            },
        };
        let decision = self.decide(promotion, &observation);
        if let Readiness::Incomplete { ready, wanted } = observation {
            debug!(rollout = %key, ready, wanted, "the stable Service does not route to all new Pods");
        }
        match end_of(&decision) {
            None => true,
            Some(end) => {
                self.end_hold(promotion.about(), end);
                false
            }
        }
    }

    /// Decides about a promotion from an observation of the endpoints. Reports a hold that begins or lasts too long.
    pub(crate) fn decide(&self, promotion: &Promotion, observation: &Readiness) -> Decision {
        let was_held = self.holds.holds(promotion);
        let decision = self.holds.decide(promotion, observation);
        let Decision::Hold { overdue, .. } = &decision else {
            return decision;
        };
        let rollout = || promotion.about();
        if !was_held {
            info!(rollout = %promotion.rollout, "the promotion is held until Service {} routes to the new Pods", promotion.stable);
            self.observer.observe(&Report::Held { rollout: rollout() });
            self.observer.observe(&Report::Holds(self.holds.count()));
        }
        if let Some((ready, wanted)) = *overdue {
            warn!(rollout = %promotion.rollout, "the promotion is still held: {ready} of {wanted} Pods are ready behind Service {}", promotion.stable);
            self.observer.observe(&Report::HeldTooLong {
                rollout: rollout(),
                service: promotion.stable.clone(),
                ready,
                wanted,
            });
        }
        decision
    }

    /// Whether the canary Service may get all traffic of the held tables. If this moves traffic to it, the live Rollout
    /// decides: a late call, from a process whose controller was not the leader for some time, must not send traffic to the
    /// Pods of the next version.
    async fn may_get_all(
        &self,
        promotion: &Promotion,
        held: &[Planned],
        deadline: Deadline,
    ) -> bool {
        if !held.iter().filter_map(Planned::plan).any(Plan::grows) {
            return true;
        }
        let key = &promotion.rollout;
        let live = deadline.reading(self.store.rollout(key)).await;
        let live = match live {
            Some(Ok(Some(live))) => serde_json::from_value(live.into_raw()).ok(),
            Some(Ok(None) | Err(_)) | None => None,
        };
        let is_current = live.is_some_and(|live: Rollout| promotion.is_of(&live));
        if !is_current {
            info!(rollout = %key, "the promotion is not held: the Rollout is not promoted any more, or cannot be read");
            self.end_hold(promotion.about(), HoldEnd::Broken);
        }
        is_current
    }

    /// Ends the hold of a Rollout, if there is one, and reports it.
    fn end_hold(&self, rollout: About, end: HoldEnd) {
        if let Some(after) = self.holds.end(&rollout.key) {
            info!(rollout = %rollout.key, "the promotion is no longer held: {}", end.as_str());
            let report = Report::Released {
                rollout,
                end,
                after,
            };
            self.observer.observe(&report);
            self.observer.observe(&Report::Holds(self.holds.count()));
        }
    }

    fn warn_unguarded_once(&self, rollout: &ObjectKey, why: &str) {
        // Every call of every Rollout would repeat it.
        if !self.holds.has_warned.swap(true, Ordering::Relaxed) {
            warn!(%rollout, "promotions do not wait for Pods: {why}");
        }
    }
}

/// Returns how a decision ends the hold; `None` if the hold continues.
pub(crate) fn end_of(decision: &Decision) -> Option<HoldEnd> {
    match decision {
        Decision::Hold { .. } => None,
        Decision::Complete => Some(HoldEnd::Complete),
        Decision::TimedOut => Some(HoldEnd::TimedOut),
        Decision::WriteNow => Some(HoldEnd::Broken),
    }
}

/// The outcome of releasing a hold outside of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The tables route to the stable Service, or a call has taken over.
    Done,
    /// A table was not written. Try again.
    Failed,
}

impl<S: Store> GlooRouter<S> {
    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    /// Whether the Rollout of a held promotion still exists, and nothing was rolled out since; `None` if the API server does
    /// not answer.
    pub(crate) async fn is_still_promoted(&self, promotion: &Promotion) -> Option<bool> {
        match self.live_rollout(&promotion.rollout).await {
            Ok(live) => {
                Some(live.is_some_and(|(live, is_deleting)| !is_deleting && promotion.is_of(&live)))
            }
            Err(error) => {
                debug!(rollout = %promotion.rollout, "the Rollout cannot be read: {error}");
                None
            }
        }
    }

    /// Reads the uids of the promoted version's Pods from the API server.
    ///
    /// # Errors
    /// Returns `Err` if the API server does not answer the request.
    pub(crate) async fn new_pods(
        &self,
        promotion: &Promotion,
    ) -> Result<BTreeSet<String>, StoreError> {
        let namespace = &promotion.rollout.namespace;
        self.store.pods_of_version(namespace, &promotion.hash).await
    }

    /// Watches the endpoints of both Services of a promotion.
    pub(crate) fn watch_endpoints(&self, promotion: &Promotion) -> EndpointStream<'_> {
        let services = [promotion.stable.as_str(), promotion.canary.as_str()];
        self.store
            .watch_endpoints(&promotion.rollout.namespace, &services)
    }

    /// Ends a hold outside of a call: each table gets what the call asked for, with one guarded PATCH.
    ///
    /// Weight 0 is right whatever was rolled out since: a Rollout may return to it at any time, and the next call sets a
    /// higher weight. If the Rollout was deleted, its tables are restored.
    pub(crate) async fn release_promotion(
        &self,
        promotion: &Promotion,
        end: HoldEnd,
        fence: &impl Fence,
    ) -> Release {
        let key = &promotion.rollout;
        let release = self.try_release_promotion(promotion, fence);
        match self.background.outside.run(key, release).await {
            Ok(true) => {
                self.end_hold(promotion.about(), end);
                Release::Done
            }
            Ok(false) => Release::Done,
            Err(failure) => {
                info!(rollout = %key, "the promotion is still held: {}", error_chain(&failure));
                Release::Failed
            }
        }
    }

    /// Returns whether this function ended the hold, and not a concurrent call.
    async fn try_release_promotion(
        &self,
        promotion: &Promotion,
        fence: &impl Fence,
    ) -> Result<bool, Failure> {
        let key = &promotion.rollout;
        let live = self.live_rollout(key).await?;
        let live = live.filter(|(live, _)| live.metadata.uid == promotion.uid);
        // Another controller's plugin may have ended this hold, and grown the canary of the next version.
        if fence.allows().await != Some(true) {
            return Err(Failure::NotWritten(format!("Rollout {key}")));
        }
        let request = live.and_then(|(live, _)| {
            let rest = DesiredWeight {
                value: 0,
                max: live.max_traffic_weight(),
            };
            let hashes = self.memory.hashes(&live);
            Request::new(
                &self.policy,
                &live,
                hashes,
                true,
                from_rpc::weight(rest, &[]),
            )
            .ok()
        });
        let deadline = Deadline::of_call(self.call_timeout);
        for table in self.holds.tables(key) {
            let document = match self.store.read(&table).await {
                Err(StoreError::NotFound { .. }) => continue,
                read => read?,
            };
            // A call ends its hold before it writes, so from here on its write would conflict with this one.
            if !self.holds.holds(promotion) {
                return Ok(false);
            }
            // Deleted, or no longer configured for the plugin: only the record says what to restore.
            let Some(request) = &request else {
                let plan = restore(&self.policy.mark(key), &document)?;
                if !plan.is_noop() {
                    carry_out(&*self.store, &plan).await?;
                }
                continue;
            };
            let plans = Plans::of(Planned::new(&request.config, &request.intent, document));
            let only = RepairScope {
                table: &table,
                // A release takes traffic from the canary Service, and never gives it any.
                may_grow: false,
            };
            let shifted = self.shift(request, plans, deadline, Some(only)).await;
            if let Some(failure) = shifted.into_failures().into_iter().next() {
                return Err(failure);
            }
        }
        Ok(true)
    }
}

/// Plans all traffic to the canary Service for a table that may be held: its plan takes traffic from the canary. `None` if it may
/// not. A table that cannot send all traffic to the canary Service returns to stable, as requested.
fn planned_hold(full: &Request, planned: &Planned) -> Option<Planned> {
    // At rest no table has an annotation, and nothing has to be planned for `full`.
    let annotations = planned.table.annotations()?;
    let is_split = annotations.contains_key(ANNOTATION);
    // A table that routes to stable already must not return to the canary Service.
    if !is_split || !planned.plan()?.takes_from_canary() {
        return None;
    }
    let hold = Planned::new(&full.config, &full.intent, planned.table.clone());
    // Half a hold would split traffic between old and new Pods.
    let is_complete = hold.plan()?.left().next().is_none();
    is_complete.then_some(hold)
}

/// Reads endpoints and Pods, and returns the observation for a promotion; `None` if the store has no endpoints.
pub(crate) async fn observe<S: Store>(
    store: &S,
    promotion: &Promotion,
) -> Result<Option<Readiness>, StoreError> {
    let namespace = &promotion.rollout.namespace;
    let services = [promotion.stable.as_str(), promotion.canary.as_str()];
    let endpoints = store.endpoints(namespace, &services);
    let pods = store.pods_of_version(namespace, &promotion.hash);
    let (endpoints, pods) = try_join(endpoints, pods).await?;
    Ok(endpoints.map(|endpoints| observation_of(promotion, &endpoints, &pods)))
}

/// Returns what `endpoints` of both Services mean for a promotion whose new Pods are `pods`.
pub(crate) fn observation_of(
    promotion: &Promotion,
    endpoints: &[route_store::Endpoint],
    pods: &BTreeSet<String>,
) -> Readiness {
    let of = |service: &str| {
        let of_service = endpoints.iter().filter(|it| it.service == service);
        of_service
            .map(|it| promotion::Endpoint {
                pod: it.pod.as_deref(),
                ready: it.ready,
                terminating: it.terminating,
            })
            .collect()
    };
    promotion::compare(&Facts {
        stable: of(&promotion.stable),
        canary: of(&promotion.canary),
        new_pods: pods,
    })
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn promotions_are_held_side_by_side_until_nobody_asks_any_more() {
        let holds = Holds::default();
        let hold = |name: &str| {
            let promotion = Promotion {
                rollout: ObjectKey::new("shop", name),
                uid: String::new(),
                hash: String::new(),
                stable: String::new(),
                canary: String::new(),
                guard: PromotionGuard::default(),
            };
            let incomplete = Readiness::Incomplete {
                ready: 0,
                wanted: 2,
            };
            let decision = holds.decide(&promotion, &incomplete);
            assert!(matches!(decision, Decision::Hold { .. }));
            holds.all().0.len()
        };
        assert_eq!((hold("a"), hold("b"), hold("a")), (1, 2, 2));
        sleep(FORGOTTEN_AFTER).await;
        assert_eq!(hold("c"), 1);
    }
}
