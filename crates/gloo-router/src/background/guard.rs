//! Releases held promotions outside of calls.
//!
//! ```text
//! a call holds a promotion --> watch the endpoints of both Services
//!                                       |
//!             a slice changes, settle or timeout is over, the Rollout changes
//!                                       |
//!                                       v
//!                      hold on, or release through the fences
//! ```
//!
//! Tables are planned only for a release: continuing a hold costs a comparison of Pod uids.

use std::collections::{BTreeSet, HashMap, hash_map::Entry};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use gloo_types::ObjectKey;
use route_planner::promotion::{Decision, Readiness};
use route_store::{Endpoint, Priority, RequestContext, Store, with_context};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use super::Watched;
use crate::report::HoldEnd;
use crate::router::{Fence, GlooRouter, Promotion, RETRY, Release, end_of, observation_of};

/// Deadline of a release.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Releases held promotions.
pub(crate) struct PromotionGuard<S, W, F> {
    pub(crate) router: Arc<GlooRouter<S>>,
    pub(crate) watched: Arc<W>,
    pub(crate) fence: Arc<F>,
}

impl<S: Store, W: Watched, F: Fence> PromotionGuard<S, W, F> {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let holds = self.router.holds();
        let mut changes = self.watched.rollout_changes();
        let mut running: FuturesUnordered<BoxFuture<'_, ObjectKey>> = FuturesUnordered::new();
        let mut watched: HashMap<ObjectKey, watch::Sender<()>> = HashMap::new();
        loop {
            let (held, another) = holds.all();
            for promotion in held {
                if let Entry::Vacant(free) = watched.entry(promotion.rollout.clone()) {
                    let (changed, rollout) = watch::channel(());
                    free.insert(changed);
                    running.push(self.watch(promotion, rollout).boxed());
                }
            }
            tokio::select! {
                () = another => {}
                change = changes.recv() => match change {
                    Ok(change) => {
                        if let Some(changed) = watched.get(&change.key) {
                            changed.send_replace(());
                        }
                    }
                    Err(RecvError::Lagged(_)) => {
                        for changed in watched.values() {
                            changed.send_replace(());
                        }
                    }
                    Err(RecvError::Closed) => return,
                },
                Some(ended) = running.next() => {
                    watched.remove(&ended);
                }
            }
        }
    }

    /// Watches the endpoints of a promotion until its hold ends. `rollout` notifies of changes of the Rollout.
    async fn watch(&self, promotion: Promotion, mut rollout: watch::Receiver<()>) -> ObjectKey {
        let holds = self.router.holds();
        let mut endpoints = self.router.watch_endpoints(&promotion);
        let mut pods = KnownPods::default();
        let mut known: Option<Vec<Endpoint>> = None;
        let mut observation: Option<Readiness> = None;
        let mut is_changed = false;
        // The call that began the hold has just checked the endpoints, so nothing is due yet.
        let mut due: Option<Instant> = None;
        let mut release: Option<HoldEnd> = None;
        let mut is_superseded = false;
        while holds.holds(&promotion) {
            let is_due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                next = endpoints.next() => {
                    known = next.flatten();
                    observation = None;
                }
                Ok(()) = rollout.changed() => is_changed = true,
                () = is_due => {}
            }
            if is_changed {
                let is_promoted = self.within(self.router.is_still_promoted(&promotion)).await;
                is_changed = is_promoted.is_none();
                if is_promoted == Some(false) {
                    is_superseded = true;
                    release = Some(HoldEnd::Broken);
                }
            }
            if observation.is_none() {
                observation = match &known {
                    Some(known) => self.observe(&promotion, known, &mut pods).await,
                    None => None,
                };
                holds.set_observation(&promotion, observation.clone());
            }
            let now = Instant::now();
            let is_unanswered = is_changed || known.is_some() && observation.is_none();
            due = is_unanswered.then(|| now + RETRY);
            if release.is_none()
                && let Some(observation) = &observation
                && holds.holds(&promotion)
            {
                let decision = self.router.decide(&promotion, observation);
                release = end_of(&decision);
                if let Decision::Hold { until, .. } = decision {
                    let until = holds.at(until);
                    due = Some(due.map_or(until, |due| due.min(until)));
                }
            }
            if let Some(end) = release {
                let released = self
                    .router
                    .release_promotion(&promotion, end, self.fence.as_ref());
                if self.within(released).await == Release::Failed {
                    sleep(RETRY).await;
                    due = Some(now);
                    // The endpoints may have changed, so the decision is made again. A superseded promotion stays released.
                    release = release.filter(|_| is_superseded);
                }
            }
        }
        promotion.rollout
    }

    /// Returns the observation for `endpoints`. Pods are read again if an unknown one appears.
    async fn observe(
        &self,
        promotion: &Promotion,
        endpoints: &[Endpoint],
        pods: &mut KnownPods,
    ) -> Option<Readiness> {
        let seen = endpoints.iter().filter_map(|it| it.pod.as_deref());
        if !seen.clone().all(|pod| pods.knows(pod)) {
            let seen = seen.map(str::to_owned).collect();
            match self.within(self.router.new_pods(promotion)).await {
                Ok(new) => *pods = KnownPods { new, seen },
                Err(error) => {
                    debug!(rollout = %promotion.rollout, "the Pods cannot be read: {error}");
                    return None;
                }
            }
        }
        Some(observation_of(promotion, endpoints, &pods.new))
    }

    /// Runs `work` with the deadline and the priority of a release.
    async fn within<T>(&self, work: impl Future<Output = T>) -> T {
        let context = RequestContext {
            deadline: Some(Instant::now() + TIMEOUT),
            priority: Priority::Repair,
        };
        with_context(context, work).await
    }
}

/// The observed Pods behind both Services.
#[derive(Default)]
struct KnownPods {
    /// Uids of Pods of the promoted version.
    new: BTreeSet<String>,
    /// Uids of all Pods that were behind a Service when the promoted version was read.
    seen: BTreeSet<String>,
}

impl KnownPods {
    fn knows(&self, pod: &str) -> bool {
        self.new.contains(pod) || self.seen.contains(pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a Pod that was not behind a Service before is a reason to read the Pods again.
    #[test]
    fn the_pods_of_both_versions_are_known() {
        let pods = |names: &[&str]| names.iter().copied().map(String::from).collect();
        let known = KnownPods {
            new: pods(&["new"]),
            seen: pods(&["new", "old"]),
        };
        let known = ["new", "old", "another"].map(|pod| known.knows(pod));
        assert_eq!(known, [true, true, false]);
    }
}
