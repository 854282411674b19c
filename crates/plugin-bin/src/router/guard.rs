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
use rollouts_rpc::{Rollout, error_chain};
use route_planner::{
    ANNOTATION, plan,
    promotion::{self, Decision, Facts, Hold, Look, PromotionGuard, Released, guarded_services},
};
use route_store::{Store, StoreError};
use tokio::{sync::Notify, time::Instant};
use tracing::{debug, info, warn};

use super::{GlooRouter, deadline::Deadline, selected::Selected};
use crate::from_rpc::Request;
use crate::resident::report::{About, HoldEnd, Report};

/// A hold that no call has asked about for this long belongs to a Rollout that is gone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The promotions that are held, by Rollout.
#[derive(Debug)]
pub(crate) struct Holds {
    begun: Instant,
    held: Mutex<HashMap<ObjectKey, Held>>,
    /// Told when a promotion begins to be held.
    pub(crate) changed: Notify,
    has_warned: AtomicBool,
}

/// A promotion that is held.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// What is promoted.
    pub(crate) promotion: Promotion,
    /// What the endpoints said last, as long as somebody follows them.
    pub(crate) followed: Option<Look>,
    hold: Hold,
    /// When a call asked for it last.
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

    /// Decides about a promotion by what the endpoints say. A hold that ends is forgotten.
    pub(crate) fn decide(&self, promotion: &Promotion, look: &Look) -> Decision {
        let (at, now) = (Instant::now(), self.now());
        let mut held = self.held();
        let is_same = |it: &Held| it.promotion == *promotion;
        let known = held.remove(&promotion.rollout).filter(is_same);
        let is_new = known.is_none();
        let mut it = match known {
            Some(held) => held,
            None => Held {
                promotion: promotion.clone(),
                followed: None,
                hold: Hold::begin(now),
                asked: at,
            },
        };
        let decision = it.hold.decide(&promotion.guard, look, now);
        if let Decision::Hold { .. } = decision {
            it.asked = at;
            held.retain(|_, it| at.duration_since(it.asked) < FORGOTTEN_AFTER);
            held.insert(promotion.rollout.clone(), it);
            if is_new {
                self.changed.notify_one();
            }
        }
        decision
    }

    /// Ends the hold of a Rollout, and tells how long it was.
    pub(crate) fn end(&self, rollout: &ObjectKey) -> Option<Duration> {
        let ended = self.held().remove(rollout);
        ended.map(|it| it.hold.lasts(self.now()))
    }

    /// How long the promotion of a Rollout has been held.
    pub(crate) fn lasts(&self, rollout: &ObjectKey) -> Option<Duration> {
        let held = self.held();
        held.get(rollout).map(|it| it.hold.lasts(self.now()))
    }

    /// Number of promotions that are held.
    pub(crate) fn count(&self) -> usize {
        self.held().len()
    }

    /// What the endpoints say about a promotion, if somebody follows them.
    fn followed(&self, promotion: &Promotion) -> Option<Look> {
        let held = self.held();
        let held = held.get(&promotion.rollout);
        let held = held.filter(|it| it.promotion == *promotion);
        held.and_then(|it| it.followed.clone())
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
            None => match deadline.reading(look(&self.store, promotion)).await {
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
        let before = self.holds.lasts(key);
        let decision = self.holds.decide(promotion, &look);
        self.report(promotion, before, &decision);
        match decision {
            Decision::Hold { overdue, .. } => {
                debug!(rollout = %key, "the promotion is held: {look:?}");
                if let Some((ready, wanted)) = overdue {
                    warn!(rollout = %key, "the promotion is still held: {ready} of {wanted} Pods are ready behind Service {}", promotion.stable);
                }
                true
            }
            Decision::Release(released) => {
                info!(rollout = %key, "the promotion is released: {released}");
                false
            }
            Decision::WriteNow(broken) => {
                info!(rollout = %key, "the promotion is not held: {broken}");
                false
            }
        }
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

    /// Reports a decision about a promotion that had been held for the time `before`, if it was.
    pub(crate) fn report(
        &self,
        promotion: &Promotion,
        before: Option<Duration>,
        decision: &Decision,
    ) {
        let end = match decision {
            Decision::Hold { overdue, .. } => {
                if before.is_none() {
                    let rollout = promotion.about();
                    self.observer.observe(&Report::Held { rollout });
                    self.observer.observe(&Report::Holds(self.holds.count()));
                }
                if let &Some((ready, wanted)) = overdue {
                    self.observer.observe(&Report::HeldTooLong {
                        rollout: promotion.about(),
                        service: promotion.stable.clone(),
                        ready,
                        wanted,
                    });
                }
                return;
            }
            Decision::Release(Released::Complete) => HoldEnd::Complete,
            Decision::Release(Released::TimedOut { .. }) => HoldEnd::TimedOut,
            Decision::WriteNow(_) => HoldEnd::Broken,
        };
        if let Some(after) = before {
            self.released(promotion.about(), end, after);
        }
    }

    /// Ends the hold of a Rollout, if it has one, and reports it.
    pub(crate) fn end_hold(&self, rollout: About, end: HoldEnd) {
        if let Some(after) = self.holds.end(&rollout.key) {
            info!(rollout = %rollout.key, "the promotion is no longer held: {}", end.as_str());
            self.released(rollout, end, after);
        }
    }

    fn released(&self, rollout: About, end: HoldEnd, after: Duration) {
        let report = Report::Released {
            rollout,
            end,
            after,
        };
        self.observer.observe(&report);
        self.observer.observe(&Report::Holds(self.holds.count()));
    }

    fn warn_once(&self, rollout: &ObjectKey, why: &str) {
        if !self.holds.has_warned.swap(true, Ordering::Relaxed) {
            warn!(%rollout, "promotions do not wait for Pods: {why}");
        }
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
