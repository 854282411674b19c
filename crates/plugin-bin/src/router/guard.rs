//! Holds promotions: SetWeight 0 of a promoted Rollout leaves traffic on the canary Service until the stable Service leads
//! to the new Pods.
//!
//! A hold is not "write nothing": the canary Service gets all traffic. After `promote --full` at 40 % the rest would meet the
//! old Pods.
//!
//! The call answers Ok, so that nothing else of the Rollout waits, and VerifyWeight answers "not verified", so that the
//! controller asks again every 10 s: if this process ended, a new one would hold or release with the next call. "Not
//! implemented" would leave the table as it is for up to 15 minutes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::try_join;
use gloo_types::{ObjectKey, RouteTableDoc};
use rollouts_rpc::{DesiredWeight, Rollout, error_chain};
use route_planner::{
    ANNOTATION, plan,
    promotion::{self, Decision, Facts, Hold, Look, PromotionGuard, Released, guarded_services},
    restore,
};
use route_store::{EndpointStream, FRESH, Store, StoreError};
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};
use tracing::{debug, info, warn};

use super::{Fence, GlooRouter, Only, carry_out, deadline::Deadline, selected::Selected};
use crate::error::Failure;
use crate::from_rpc::{self, Request};
use crate::report::{About, HoldEnd, Report};

/// A hold that no call has asked about for this long belongs to a Rollout that is gone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The promotions that are held, by Rollout.
#[derive(Debug)]
pub(crate) struct Holds {
    begun: Instant,
    held: Mutex<HashMap<ObjectKey, Held>>,
    /// Told when a promotion begins to be held.
    changed: Notify,
    has_warned: AtomicBool,
}

/// A promotion that is held.
#[derive(Clone, Debug)]
struct Held {
    promotion: Promotion,
    /// The tables whose traffic stays.
    tables: BTreeSet<ObjectKey>,
    /// The last known state of the endpoints, and its time, if they are watched.
    followed: Option<(Look, Instant)>,
    hold: Hold,
    /// When it was decided last to go on.
    asked: Instant,
}

/// What is promoted, and where its Pods have to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promotion {
    pub(crate) rollout: ObjectKey,
    /// `metadata.uid` of the Rollout.
    pub(crate) uid: String,
    /// Hash of the new Pods.
    pub(crate) hash: String,
    pub(crate) stable: String,
    pub(crate) canary: String,
    pub(crate) guard: PromotionGuard,
}

impl Promotion {
    /// The promotion that a request for weight 0 follows; `None` if it may not be held.
    pub(crate) fn of(rollout: &Rollout, request: &Request) -> Option<Self> {
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

    /// Whether a Rollout is the one that was promoted, and nothing was rolled out since.
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
    /// Whether the promotion of a Rollout is held.
    pub(crate) fn is_held(&self, rollout: &ObjectKey) -> bool {
        self.held().contains_key(rollout)
    }

    /// Whether it is this promotion that is held.
    pub(crate) fn holds(&self, promotion: &Promotion) -> bool {
        let held = self.held();
        let held = held.get(&promotion.rollout);
        held.is_some_and(|held| held.promotion == *promotion)
    }

    /// All promotions that are held. The future ends when another one is.
    pub(crate) fn all(&self) -> (Vec<Promotion>, Notified<'_>) {
        let changed = self.changed.notified();
        let held = self.held();
        let all = held.values().map(|held| held.promotion.clone());
        (all.collect(), changed)
    }

    /// Decides about a promotion by what the endpoints say. The caller that ends the hold reports it.
    fn decide(&self, promotion: &Promotion, look: &Look) -> Decision {
        let (at, now) = (Instant::now(), self.now());
        let mut held = self.held();
        let known = held.remove(&promotion.rollout);
        let known = known.filter(|known| known.promotion == *promotion);
        let is_new = known.is_none();
        let mut it = known.unwrap_or_else(|| Held {
            promotion: promotion.clone(),
            tables: BTreeSet::new(),
            followed: None,
            hold: Hold::begin(now),
            asked: at,
        });
        let decision = it.hold.decide(&promotion.guard, look, now);
        let goes_on = matches!(decision, Decision::Hold { .. });
        if goes_on {
            it.asked = at;
            held.retain(|_, it| at.duration_since(it.asked) < FORGOTTEN_AFTER);
        }
        if goes_on || !is_new {
            held.insert(promotion.rollout.clone(), it);
        }
        if goes_on && is_new {
            self.changed.notify_one();
        }
        decision
    }

    /// The last known state of watched endpoints; `None` if they are not watched any more.
    pub(crate) fn follow(&self, promotion: &Promotion, look: Option<Look>) {
        let mut held = self.held();
        let held = held.get_mut(&promotion.rollout);
        if let Some(held) = held.filter(|it| it.promotion == *promotion) {
            held.followed = look.map(|look| (look, Instant::now()));
        }
    }

    /// Ends the hold of a Rollout, and tells how long it was.
    fn end(&self, rollout: &ObjectKey) -> Option<Duration> {
        let ended = self.held().remove(rollout);
        ended.map(|it| it.hold.lasts(self.now()))
    }

    /// Number of promotions that are held.
    fn count(&self) -> usize {
        self.held().len()
    }

    /// Remembers the tables whose traffic stays.
    fn keep(&self, rollout: &ObjectKey, tables: BTreeSet<ObjectKey>) {
        if let Some(held) = self.held().get_mut(rollout) {
            held.tables = tables;
        }
    }

    fn tables(&self, rollout: &ObjectKey) -> BTreeSet<ObjectKey> {
        let held = self.held();
        let held = held.get(rollout);
        held.map(|held| held.tables.clone()).unwrap_or_default()
    }

    /// What the endpoints say about a promotion, if they are watched.
    fn followed(&self, promotion: &Promotion) -> Option<Look> {
        let held = self.held();
        let held = held.get(&promotion.rollout);
        let held = held.filter(|it| it.promotion == *promotion)?;
        let (look, since) = held.followed.as_ref()?;
        (since.elapsed() < FRESH).then(|| look.clone())
    }

    /// A time that a decision named, on the clock.
    pub(crate) fn at(&self, time: Duration) -> Instant {
        self.begun + time
    }

    fn now(&self) -> Duration {
        Instant::now().duration_since(self.begun)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<ObjectKey, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The selected tables, divided into those that get what the call asks for and those whose traffic is held.
pub(super) struct Divided {
    pub(super) selected: Selected,
    /// The tables that are held, with what they get instead.
    pub(super) held: Option<(Request, Selected)>,
}

impl<S: Store> GlooRouter<S> {
    /// Decides which of the selected tables keep their traffic on the canary Service for now.
    pub(super) async fn divide(
        &self,
        rollout: &Rollout,
        request: &Request,
        selected: Selected,
        deadline: Deadline,
    ) -> Divided {
        let free = |selected| Divided {
            selected,
            held: None,
        };
        let promotion = Promotion::of(rollout, request).filter(|_| self.guards_promotions);
        let Some(promotion) = promotion else {
            self.end_hold(About::of_call(rollout), HoldEnd::Broken);
            return free(selected);
        };
        let full = request.with_all_to_canary();
        let is_led_by_canary = |table: &RouteTableDoc| {
            // At rest no table has a record, and nothing has to be planned here.
            let annotations = table.annotations();
            if annotations.is_none_or(|it| !it.contains_key(ANNOTATION)) {
                return false;
            }
            let plan = plan(&request.config, &request.intent, table);
            // Where all traffic cannot go to the canary Service, it goes to stable, as asked.
            plan.is_ok_and(|plan| plan.takes_from_canary()) && plan_is_whole(&full, table)
        };
        let Selected { tables, failures } = selected;
        let (held, tables): (Vec<_>, Vec<_>) = tables.into_iter().partition(is_led_by_canary);
        let selected = Selected { tables, failures };
        if held.is_empty() {
            self.end_hold(promotion.about(), HoldEnd::Ended);
            return free(selected);
        }
        let held = Selected {
            tables: held,
            failures: Vec::new(),
        };
        if self.is_held(&promotion, deadline).await
            && self.may_get_all(&promotion, &full, &held, deadline).await
        {
            self.holds.keep(&promotion.rollout, held.keys());
            return Divided {
                selected,
                held: Some((full, held)),
            };
        }
        let mut tables = selected.tables;
        tables.extend(held.tables);
        free(Selected {
            tables,
            failures: selected.failures,
        })
    }

    /// Whether a promotion is held now. What cannot be read holds nothing.
    async fn is_held(&self, promotion: &Promotion, deadline: Deadline) -> bool {
        let key = &promotion.rollout;
        let look = match self.holds.followed(promotion) {
            Some(look) => look,
            None => match deadline.reading(look(&*self.store, promotion)).await {
                Some(Ok(Some(look))) => look,
                Some(Ok(None)) => return false,
                Some(Err(error)) => {
                    self.warn_once(key, &error_chain(&error));
                    self.end_hold(promotion.about(), HoldEnd::Broken);
                    return false;
                }
                None => {
                    self.warn_once(key, "the endpoints were not read in time");
                    self.end_hold(promotion.about(), HoldEnd::Broken);
                    return false;
                }
            },
        };
        let decision = self.decide(promotion, &look);
        debug!(rollout = %key, "{look:?}: {decision:?}");
        match end_of(&decision) {
            None => true,
            Some(end) => {
                self.end_hold(promotion.about(), end);
                false
            }
        }
    }

    /// Decides about a promotion by what the endpoints say, and reports a hold that begins or lasts too long.
    pub(crate) fn decide(&self, promotion: &Promotion, look: &Look) -> Decision {
        let was_held = self.holds.holds(promotion);
        let decision = self.holds.decide(promotion, look);
        let Decision::Hold { overdue, .. } = &decision else {
            return decision;
        };
        let rollout = || promotion.about();
        if !was_held {
            info!(rollout = %promotion.rollout, "the promotion is held until Service {} leads to the new Pods", promotion.stable);
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

    /// Whether the canary Service may get all traffic of the tables to be held. If it has less so far, the Rollout as it is
    /// now decides: a call that comes late, from a process that was no leader for some time, may not send traffic to the
    /// Pods of the next version.
    async fn may_get_all(
        &self,
        promotion: &Promotion,
        full: &Request,
        held: &Selected,
        deadline: Deadline,
    ) -> bool {
        let grows = |table: &RouteTableDoc| {
            let plan = plan(&full.config, &full.intent, table);
            plan.is_ok_and(|plan| plan.grows())
        };
        if !held.tables.iter().any(grows) {
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

    /// Ends the hold of a Rollout, if it has one, and reports it.
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

    fn warn_once(&self, rollout: &ObjectKey, why: &str) {
        if !self.holds.has_warned.swap(true, Ordering::Relaxed) {
            warn!(%rollout, "promotions do not wait for Pods: {why}");
        }
    }
}

/// How a hold ends by a decision; `None` if it goes on.
pub(crate) fn end_of(decision: &Decision) -> Option<HoldEnd> {
    match decision {
        Decision::Hold { .. } => None,
        Decision::Release(Released::Complete) => Some(HoldEnd::Complete),
        Decision::Release(Released::TimedOut { .. }) => Some(HoldEnd::TimedOut),
        Decision::WriteNow(_) => Some(HoldEnd::Broken),
    }
}

/// What became of a hold that was to end between the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The table leads to the stable Service, or another call takes care of it.
    Done,
    /// It was not written: it is worth another try.
    Failed,
}

impl<S: Store> GlooRouter<S> {
    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    /// Whether the Rollout of a promotion that is held is still there, and nothing was rolled out since; `None` if the API
    /// server does not tell.
    pub(crate) async fn is_still_promoted(&self, promotion: &Promotion) -> Option<bool> {
        match self.live_rollout(&promotion.rollout).await {
            Ok(live) => {
                Some(live.is_some_and(|(live, is_deleting)| !is_deleting && promotion.is_of(&live)))
            }
            Err(error) => {
                debug!(rollout = %promotion.rollout, "not known: {error}");
                None
            }
        }
    }

    /// What the endpoints of a promotion say, live.
    ///
    /// # Errors
    /// Whatever kept the API server from answering.
    pub(crate) async fn new_pods(
        &self,
        promotion: &Promotion,
    ) -> Result<BTreeSet<String>, StoreError> {
        let namespace = &promotion.rollout.namespace;
        self.store.pods_of_version(namespace, &promotion.hash).await
    }

    /// Follows the endpoints of both Services of a promotion.
    pub(crate) fn follow_endpoints(&self, promotion: &Promotion) -> EndpointStream<'_> {
        let services = [promotion.stable.as_str(), promotion.canary.as_str()];
        self.store
            .follow_endpoints(&promotion.rollout.namespace, &services)
    }

    /// Ends a hold between the calls: the tables get what the call asked for, by one guarded PATCH each.
    ///
    /// Weight 0 is right whatever was rolled out since: a Rollout may ask for it at any time, and the next call asks for
    /// more. What a Rollout that was deleted left is restored.
    pub(crate) async fn release_promotion(
        &self,
        promotion: &Promotion,
        end: HoldEnd,
        fence: &impl Fence,
    ) -> Release {
        let key = &promotion.rollout;
        match self.try_release_promotion(promotion, fence).await {
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

    /// Whether the hold was ended, and not by a call meanwhile.
    async fn try_release_promotion(
        &self,
        promotion: &Promotion,
        fence: &impl Fence,
    ) -> Result<bool, Failure> {
        let key = &promotion.rollout;
        let live = self.live_rollout(key).await?;
        let live = live.filter(|(live, _)| live.metadata.uid == promotion.uid);
        if !fence.allows().await {
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
            // A call ends the hold before it writes: from here on its write is a conflict.
            if !self.holds.holds(promotion) {
                return Ok(false);
            }
            let Some(request) = &request else {
                let plan = restore(&self.policy.mark(key), &document)?;
                if !plan.is_noop() {
                    carry_out(&*self.store, &plan).await?;
                }
                continue;
            };
            let selected = Selected {
                tables: vec![document],
                failures: Vec::new(),
            };
            let only = Only {
                table: &table,
                may_grow: false,
            };
            let shifted = self.shift(request, selected, deadline, Some(only)).await;
            if let Some(failure) = shifted.into_failures().into_iter().next() {
                return Err(failure);
            }
        }
        Ok(true)
    }
}

/// Whether a request can be carried out on a whole table.
fn plan_is_whole(request: &Request, table: &RouteTableDoc) -> bool {
    let plan = plan(&request.config, &request.intent, table);
    plan.is_ok_and(|plan| plan.left().next().is_none())
}

/// What the endpoints say about a promotion now; `None` where no endpoints are kept.
pub(crate) async fn look<S: Store>(
    store: &S,
    promotion: &Promotion,
) -> Result<Option<Look>, StoreError> {
    let namespace = &promotion.rollout.namespace;
    let services = [promotion.stable.as_str(), promotion.canary.as_str()];
    let endpoints = store.endpoints(namespace, &services);
    let pods = store.pods_of_version(namespace, &promotion.hash);
    let (endpoints, pods) = try_join(endpoints, pods).await?;
    Ok(endpoints.map(|endpoints| look_at(promotion, &endpoints, &pods)))
}

/// What `endpoints` of both Services say about a promotion of `pods`.
pub(crate) fn look_at(
    promotion: &Promotion,
    endpoints: &[route_store::Endpoint],
    pods: &BTreeSet<String>,
) -> Look {
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
    promotion::look(&Facts {
        stable: of(&promotion.stable),
        canary: of(&promotion.canary),
        new_pods: pods,
    })
}
