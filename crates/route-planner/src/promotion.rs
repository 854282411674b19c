//! The promotion guard: traffic stays on the canary Service until the stable Service routes to the new Pods.
//!
//! In one reconcile the controller changes the selector of the stable Service and asks for weight 0. The endpoints of the
//! Service change later, and the gateway receives them even later. Until then requests to the stable Service reach the old
//! Pods, or to none. Both Services select the new Pods now, so the canary Service can serve the traffic meanwhile.
//!
//! ```text
//! ready behind canary Service        ready behind stable Service     result
//! no Pod, or one that is not new     anything                        Broken: write at once
//! new Pods only                      the same or more new Pods only  AllNew: hold for `settle`, then release
//! new Pods only                      anything else                   Incomplete: hold
//! ```
//!
//! The decision depends on endpoints only, so after a restart the next call decides the same. After an abort or rollback the
//! canary Service never routes to new Pods only.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::PluginConfig;
pub use crate::config::PromotionGuard;
use crate::intent::Intent;
use crate::roles::Roles;

/// How often a hold that outlasts its `timeout` is reported.
const REPORT_EVERY: Duration = Duration::from_secs(5 * 60);

/// One endpoint of an EndpointSlice. A Pod with addresses of two families has one in each of two slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// UID of the Pod in `targetRef`; `None` if the endpoint does not name a Pod.
    pub pod: Option<&'a str>,
    /// `conditions.ready`. Absent means ready, as Kubernetes documents.
    pub ready: Option<bool>,
    /// `conditions.terminating`. A terminating endpoint is ready only if its Service sets `publishNotReadyAddresses`.
    pub terminating: Option<bool>,
}

impl Endpoint<'_> {
    /// Whether requests may be sent to the endpoint.
    fn is_ready(&self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// Whether the endpoint is ready and not terminating.
    fn stays(&self) -> bool {
        self.is_ready() && !self.terminating.unwrap_or(false)
    }
}

/// The input of [`compare`]: the endpoints of both Services, and the Pods of the promoted version.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// All endpoints of the stable Service, from all its slices.
    pub stable: Vec<Endpoint<'a>>,
    /// All endpoints of the canary Service, from all its slices.
    pub canary: Vec<Endpoint<'a>>,
    /// UIDs of the Pods with the hash of the promoted version.
    pub new_pods: &'a BTreeSet<String>,
}

/// The result of comparing the endpoints at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Both Services route to new Pods only, and the stable Service routes to all Pods of the canary Service.
    AllNew,
    /// The canary Service routes to new Pods only, but the stable Service does not yet.
    Incomplete {
        /// Number of Pods of the canary Service that are ready behind the stable Service.
        ready: usize,
        /// Number of Pods of the canary Service.
        wanted: usize,
    },
    /// Traffic must not stay on the canary Service: it has no ready endpoint, or one of a Pod that is not new. Or an endpoint of
    /// either Service names no Pod, as for a Service without a selector.
    Broken,
}

/// Compares the endpoints with the Pods.
#[must_use]
pub fn compare(facts: &Facts<'_>) -> Readiness {
    let ready = |endpoint: &&Endpoint<'_>| endpoint.is_ready();
    let canary: Vec<_> = facts.canary.iter().filter(ready).collect();
    let stable: Vec<_> = facts.stable.iter().filter(ready).collect();
    let is_new = |endpoint: &&Endpoint<'_>| {
        let pod = endpoint.pod;
        pod.is_some_and(|pod| facts.new_pods.contains(pod))
    };
    let are_known = stable.iter().all(|it| it.pod.is_some());
    if canary.is_empty() || !canary.iter().all(is_new) || !are_known {
        return Readiness::Broken;
    }
    // Count Pods, not endpoints: a Pod with addresses of two families has two endpoints.
    let wanted: BTreeSet<_> = canary.iter().filter_map(|it| it.pod).collect();
    let stays = stable.iter().filter(|it| it.stays());
    let there: BTreeSet<_> = stays.filter_map(|it| it.pod).collect();
    if stable.iter().all(is_new) && wanted.is_subset(&there) {
        return Readiness::AllNew;
    }
    Readiness::Incomplete {
        ready: wanted.intersection(&there).count(),
        wanted: wanted.len(),
    }
}

/// A promotion that is held. Times are from any monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    begun: Duration,
    all_new_since: Option<Duration>,
    reported: Option<Duration>,
}

/// What the caller must do with a promotion now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Keep traffic on the canary Service.
    Hold {
        /// When to decide again, if no endpoint changes before.
        until: Duration,
        /// Set if the hold has lasted longer than `timeout` and has to be reported: the numbers of ready and of wanted Pods.
        overdue: Option<(usize, usize)>,
    },
    /// Send traffic to the stable Service: the endpoints have been complete for `settle`.
    Complete,
    /// Send traffic to the stable Service: the `timeout` has passed, and at least half of the canary's Pods are ready behind it.
    TimedOut,
    /// Send traffic to the stable Service at once, because it must not stay on the canary Service.
    WriteNow,
}

impl Hold {
    /// Starts a hold.
    #[must_use]
    pub fn begin(now: Duration) -> Self {
        Self {
            begun: now,
            all_new_since: None,
            reported: None,
        }
    }

    /// How long the promotion has been held.
    #[must_use]
    pub fn lasts(&self, now: Duration) -> Duration {
        now.saturating_sub(self.begun)
    }

    /// Decides by the current endpoints. `settle` starts with the first call, even if the endpoints are complete then: the
    /// gateway may not have received yet what the API server has.
    pub fn decide(
        &mut self,
        guard: &PromotionGuard,
        observation: &Readiness,
        now: Duration,
    ) -> Decision {
        let timeout = self.begun.saturating_add(guard.timeout);
        match *observation {
            Readiness::Broken => Decision::WriteNow,
            Readiness::AllNew => {
                let since = *self.all_new_since.get_or_insert(now);
                let settled = since.saturating_add(guard.settle);
                if now >= settled {
                    return Decision::Complete;
                }
                Decision::Hold {
                    until: settled,
                    overdue: None,
                }
            }
            Readiness::Incomplete { ready, wanted } => {
                self.all_new_since = None;
                if now < timeout {
                    return Decision::Hold {
                        until: timeout,
                        overdue: None,
                    };
                }
                if ready.saturating_mul(2) >= wanted {
                    return Decision::TimedOut;
                }
                // With fewer Pods, requests would fail.
                let due = self.reported.map(|last| last.saturating_add(REPORT_EVERY));
                let is_due = due.is_none_or(|due| now >= due);
                if is_due {
                    self.reported = Some(now);
                }
                let reported = self.reported.unwrap_or(now);
                Decision::Hold {
                    until: reported.saturating_add(REPORT_EVERY),
                    overdue: is_due.then_some((ready, wanted)),
                }
            }
        }
    }
}

/// The stable and the canary Service whose endpoints decide about a hold; `None` if a promotion of this Rollout is never
/// held.
///
/// It is held only if the table routes to the stable and the canary Service of the Rollout, because the controller changes
/// the selectors of these two. With [ping-pong](crate::ServicePair::ping_pong) the two exchange their roles instead, and
/// with subsets no selector changes. The endpoints of other kinds of destinations, and of other namespaces, are not known.
#[must_use]
pub fn guarded_services<'a>(
    config: &'a PluginConfig,
    intent: &'a Intent,
) -> Option<(&'a str, &'a str)> {
    let services = &intent.services;
    if !intent.sends_all_to_stable() || services.ping_pong {
        return None;
    }
    let roles = Roles::new(config, intent).ok()?;
    let are_services = !roles.distinction.subset
        && roles.is_service(&roles.stable, &services.stable)
        && roles.is_service(&roles.canary, &services.canary);
    (are_services && services.stable != services.canary)
        .then_some((services.stable.as_str(), services.canary.as_str()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn pods(names: &str) -> BTreeSet<String> {
        names.split_whitespace().map(str::to_owned).collect()
    }

    /// Endpoints in a short form: `a` is ready, `a?` has no conditions, `a-` is not ready, `a~` is ready and terminating,
    /// and `_` names no Pod.
    fn endpoints(text: &str) -> Vec<Endpoint<'_>> {
        text.split_whitespace()
            .map(|word| {
                let pod = word.trim_end_matches(['?', '-', '~']);
                Endpoint {
                    pod: (pod != "_").then_some(pod),
                    ready: match word.chars().last() {
                        Some('?') => None,
                        Some('-') => Some(false),
                        _ => Some(true),
                    },
                    terminating: word.ends_with('~').then_some(true),
                }
            })
            .collect()
    }

    /// The Pods `a` to `d` are new.
    fn observe_pods(canary: &str, stable: &str) -> Readiness {
        compare(&Facts {
            stable: endpoints(stable),
            canary: endpoints(canary),
            new_pods: &pods("a b c d"),
        })
    }

    #[track_caller]
    fn check(canary: &str, stable: &str, expect: Readiness) {
        assert_eq!(observe_pods(canary, stable), expect, "{canary} | {stable}");
    }

    const fn incomplete(ready: usize, wanted: usize) -> Readiness {
        Readiness::Incomplete { ready, wanted }
    }

    #[test]
    fn traffic_does_not_stay_on_a_canary_service_without_new_pods() {
        for stable in ["", "a b", "old", "a old"] {
            check("", stable, Readiness::Broken);
            check("a- b-", stable, Readiness::Broken);
            check("bad", stable, Readiness::Broken);
            check("a bad", stable, Readiness::Broken);
            check("a bad?", stable, Readiness::Broken);
            // The Service sets publishNotReadyAddresses.
            check("a bad~", stable, Readiness::Broken);
        }
        check("a bad-", "a", Readiness::AllNew);
    }

    #[test]
    fn the_stable_service_must_lead_to_all_new_pods_and_no_other() {
        check("a b", "a b", Readiness::AllNew);
        check("a b", "a b c", Readiness::AllNew);
        check("a? b", "a b?", Readiness::AllNew);
        check("a b", "", incomplete(0, 2));
        check("a b", "old older", incomplete(0, 2));
        check("a b", "a", incomplete(1, 2));
        check("a b", "a b old", incomplete(2, 2));
        check("a b", "a b-", incomplete(1, 2));
        check("a b", "a b old-", Readiness::AllNew);
        // The same number, but other Pods.
        check("a b", "c d", incomplete(0, 2));
    }

    #[test]
    fn a_terminating_pod_does_not_count() {
        check("a b", "a b~", incomplete(1, 2));
        check("a b", "a b old~", incomplete(2, 2));
        check("a b~", "a", incomplete(1, 2));
    }

    #[test]
    fn an_endpoint_without_a_pod_is_broken() {
        check("_", "a", Readiness::Broken);
        check("a _", "a", Readiness::Broken);
        check("a", "a _", Readiness::Broken);
        check("a", "_", Readiness::Broken);
        check("a _-", "a _-", Readiness::AllNew);
    }

    #[test]
    fn a_pod_with_addresses_of_two_families_counts_once() {
        check("a a b b", "a b", Readiness::AllNew);
        check("a b", "a a b b", Readiness::AllNew);
        check("a a b b", "a a", incomplete(1, 2));
        check("a a- b", "a- a b", Readiness::AllNew);
    }

    /// Calls `decide` at the given seconds, and checks each decision.
    #[track_caller]
    fn check_decisions(guard: PromotionGuard, observations: &[(u64, Readiness, &str)]) {
        let mut hold = Hold::begin(seconds(100));
        for (at, observation, expect) in observations {
            let now = seconds(100 + at);
            let decision = match hold.decide(&guard, observation, now) {
                Decision::Hold { until, overdue } => {
                    let overdue = overdue.map(|(ready, wanted)| format!(" {ready}/{wanted}"));
                    let until = until.as_secs() - 100;
                    format!("hold {until}{}", overdue.unwrap_or_default())
                }
                Decision::Complete => "complete".to_owned(),
                Decision::TimedOut => "timed out".to_owned(),
                Decision::WriteNow => "write now".to_owned(),
            };
            assert_eq!(&decision, expect, "after {at} s");
        }
    }

    /// D-29
    #[test]
    fn a_hold_ends_when_the_endpoints_have_settled() {
        let guard = PromotionGuard::default();
        let partly = || incomplete(1, 4);
        check_decisions(
            guard,
            &[
                (0, partly(), "hold 120"),
                (7, Readiness::AllNew, "hold 12"),
                (11, Readiness::AllNew, "hold 12"),
                (12, Readiness::AllNew, "complete"),
            ],
        );
        // A Pod that becomes unready restarts `settle`.
        check_decisions(
            guard,
            &[
                (0, Readiness::AllNew, "hold 5"),
                (4, partly(), "hold 120"),
                (6, Readiness::AllNew, "hold 11"),
                (11, Readiness::AllNew, "complete"),
            ],
        );
    }

    #[test]
    fn settle_starts_with_the_first_observation() {
        check_decisions(
            PromotionGuard::default(),
            &[
                (0, Readiness::AllNew, "hold 5"),
                (5, Readiness::AllNew, "complete"),
            ],
        );
        let at_once = PromotionGuard {
            settle: Duration::ZERO,
            ..PromotionGuard::default()
        };
        check_decisions(at_once, &[(0, Readiness::AllNew, "complete")]);
    }

    #[test]
    fn after_the_timeout_half_of_the_pods_are_enough() {
        let guard = PromotionGuard::default();
        check_decisions(
            guard,
            &[
                (0, incomplete(0, 4), "hold 120"),
                (119, incomplete(2, 4), "hold 120"),
                (120, incomplete(2, 4), "timed out"),
            ],
        );
        // All new Pods are ready, but an old Pod is, too.
        check_decisions(guard, &[(120, incomplete(4, 4), "timed out")]);
        // If the endpoints are complete, the timeout does not shorten `settle`.
        check_decisions(guard, &[(118, Readiness::AllNew, "hold 123")]);
    }

    #[test]
    fn with_fewer_pods_the_hold_goes_on_and_is_reported_every_five_minutes() {
        check_decisions(
            PromotionGuard::default(),
            &[
                (0, incomplete(0, 3), "hold 120"),
                (120, incomplete(1, 3), "hold 420 1/3"),
                (121, incomplete(0, 3), "hold 420"),
                (419, incomplete(0, 3), "hold 420"),
                (420, incomplete(0, 3), "hold 720 0/3"),
                (500, incomplete(1, 3), "hold 720"),
                (501, Readiness::AllNew, "hold 506"),
                (506, Readiness::AllNew, "complete"),
            ],
        );
    }

    /// D-30
    #[test]
    fn broken_endpoints_end_a_hold_at_once() {
        for at in [1, 3, 119, 5000] {
            let observations = [
                (0, Readiness::AllNew, "hold 5"),
                (at, Readiness::Broken, "write now"),
            ];
            check_decisions(PromotionGuard::default(), &observations);
        }
    }

    /// Endpoints of a Service: Pods of the new version and of another one.
    fn service() -> impl Strategy<Value = Vec<(usize, Option<bool>, Option<bool>)>> {
        let flag = || proptest::option::of(any::<bool>());
        proptest::collection::vec((0..6_usize, flag(), flag()), 0..6)
    }

    const PODS: [&str; 6] = ["a", "b", "c", "d", "x", "y"];

    fn of(service: &[(usize, Option<bool>, Option<bool>)]) -> Vec<Endpoint<'static>> {
        let endpoint = |(pod, ready, terminating): &(usize, _, _)| Endpoint {
            pod: PODS.get(*pod).copied(),
            ready: *ready,
            terminating: *terminating,
        };
        service.iter().map(endpoint).collect()
    }

    proptest! {
        /// D-27: traffic stays on the canary Service only while all its Pods are new, and until the stable Service is
        /// complete.
        #[test]
        fn an_observation_agrees_with_the_endpoints(canary in service(), stable in service()) {
            let new_pods = pods("a b c d");
            let facts = Facts { stable: of(&stable), canary: of(&canary), new_pods: &new_pods };
            let ready = |list: Vec<Endpoint<'static>>| -> BTreeSet<&str> {
                list.iter().filter(|it| it.ready != Some(false)).filter_map(|it| it.pod).collect()
            };
            let (at_canary, at_stable) = (ready(of(&canary)), ready(of(&stable)));
            let are_new = |pods: &BTreeSet<&str>| pods.iter().all(|pod| new_pods.contains(*pod));
            match compare(&facts) {
                Readiness::Broken => prop_assert!(at_canary.is_empty() || !are_new(&at_canary)),
                Readiness::AllNew => {
                    prop_assert!(!at_canary.is_empty() && are_new(&at_canary) && are_new(&at_stable));
                    prop_assert!(at_canary.is_subset(&at_stable));
                }
                Readiness::Incomplete { ready, wanted } => {
                    prop_assert!(!at_canary.is_empty() && are_new(&at_canary));
                    prop_assert!(ready <= wanted && wanted == at_canary.len());
                }
            }
        }
    }
}
