//! Turns [reports](Report) into metrics, log records and Kubernetes Events: the reason and severity of each Event, and the
//! cluster that it goes to.

use std::sync::Arc;

use gloo_router::report::{About, HoldEnd, Observer, Reason, RepairOutcome, Report};
use gloo_types::RouteTable;
use rollouts_rpc::Rollout;
use route_store::event_sink::{Event, EventObject, EventSink};
use tracing::{info, warn};

use crate::metrics::{Metrics, calls};

/// Counts reports, and posts those that users have to know about.
pub(crate) struct Reporter {
    metrics: Arc<Metrics>,
    events: Events,
}

impl Reporter {
    pub(crate) fn new(metrics: Arc<Metrics>, events: Events) -> Self {
        Self { metrics, events }
    }
}

impl Observer for Reporter {
    fn observe(&self, report: &Report) {
        let (metrics, events) = (&self.metrics.background, &self.events);
        match report {
            Report::Repair {
                rollout,
                table,
                outcome,
                delay,
            } => {
                metrics.repair(outcome.as_str(), *delay);
                info!(rollout = %rollout.key, "{report}");
                if *outcome == RepairOutcome::Written {
                    let reason = Reason::TrafficDriftRepaired;
                    events.on_rollout(of_rollout(rollout), reason, report);
                    events.on_table(of_table(table), reason, report);
                }
            }
            Report::Fight { rollout, table, .. } => {
                warn!(rollout = %rollout.key, "{report}");
                let reason = Reason::TrafficDriftFight;
                events.on_rollout(of_rollout(rollout), reason, report);
                events.on_table(of_table(table), reason, report);
            }
            Report::Fights(count) => metrics.fights(*count),
            Report::Orphaned { rollout, table, .. } => {
                warn!(%rollout, "{report}");
                events.on_table(of_table(table), Reason::OrphanedTraffic, report);
            }
            Report::Unreadable { table, .. } => {
                warn!(route_table = %table.key, "{report}");
                events.on_table(of_table(table), Reason::UnreadableRecord, report);
            }
            Report::Orphans(count) => metrics.orphans(*count),
            Report::Restored {
                rollout,
                table,
                why,
            } => {
                metrics.restore(why.as_str());
                info!(%rollout, "{report}");
                events.on_table(of_table(table), Reason::TrafficRestored, report);
            }
            Report::ManagedRoutesFailed { rollout, .. } => {
                events.on_rollout(of_rollout(rollout), Reason::ManagedRoutesError, report);
            }
            Report::GlooRejected { rollout, table, .. } => {
                let reason = Reason::GlooRejected;
                events.on_rollout(of_rollout(rollout), reason, report);
                events.on_table(of_table(table), reason, report);
            }
            Report::Held { rollout } => {
                events.on_rollout(of_rollout(rollout), Reason::PromotionHeld, report);
            }
            Report::HeldTooLong { rollout, .. } => {
                events.on_rollout(of_rollout(rollout), Reason::PromotionGuardTimeout, report);
            }
            Report::Released {
                rollout,
                end,
                after,
            } => {
                metrics.released(end.as_str(), *after);
                let reason = match end {
                    HoldEnd::TimedOut => Reason::PromotionGuardTimeout,
                    HoldEnd::Complete | HoldEnd::Broken | HoldEnd::Ended => {
                        Reason::PromotionReleased
                    }
                };
                events.on_rollout(of_rollout(rollout), reason, report);
            }
            Report::Unmatched { rollout, .. } => {
                warn!(rollout = %rollout.key, "{report}");
                events.on_rollout(of_rollout(rollout), Reason::NothingSelected, report);
            }
            Report::Behind { rollout, .. } => {
                warn!(rollout = %rollout.key, "{report}");
                events.on_rollout(of_rollout(rollout), Reason::TrafficBehind, report);
            }
            Report::CaughtUp { rollout, .. } => info!(%rollout, "{report}"),
            Report::RolloutsBehind(lack, count) => metrics.behind(lack.as_str(), *count),
            Report::Holds(count) => metrics.holds(*count),
            Report::Leads(leads) => metrics.leads(*leads),
            Report::Deferred => calls::deferred(),
            Report::Confirming => calls::confirming(),
            other => info!("{other}"),
        }
    }
}

fn of_rollout(about: &About) -> EventObject {
    EventObject::new::<Rollout>(about.key.clone(), &about.uid)
}

fn of_table(about: &About) -> EventObject {
    EventObject::new::<RouteTable>(about.key.clone(), &about.uid)
}

/// Posts Events. By default there is no cluster to post them to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    rollouts: Option<EventSink>,
    tables: Option<EventSink>,
}

impl Events {
    /// Posts Events about Rollouts to one sink and Events about RouteTables, which may be in another cluster, to the other.
    pub(crate) fn to(rollouts: EventSink, tables: EventSink) -> Self {
        Self {
            rollouts: Some(rollouts),
            tables: Some(tables),
        }
    }

    /// Posts an Event about a Rollout.
    pub(crate) fn on_rollout(&self, about: EventObject, reason: Reason, message: impl ToString) {
        record(self.rollouts.as_ref(), about, reason, message);
    }

    /// Posts an Event about a RouteTable.
    pub(crate) fn on_table(&self, about: EventObject, reason: Reason, message: impl ToString) {
        record(self.tables.as_ref(), about, reason, message);
    }
}

fn record(sink: Option<&EventSink>, about: EventObject, reason: Reason, message: impl ToString) {
    if let Some(sink) = sink {
        sink.record(Event {
            about,
            severity: reason.severity(),
            reason: reason.as_str(),
            message: message.to_string(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use gloo_types::ObjectKey;
    use route_store::StoreError;
    use route_store::event_sink::EventWriter;
    use serde_json::Value;

    use super::*;
    use gloo_router::report::OrphanCause;

    /// Records Events as cluster, object, type and reason.
    #[derive(Clone, Default)]
    struct Posted(Arc<Mutex<Vec<String>>>);

    struct Cluster(&'static str, Posted);

    impl EventWriter for Cluster {
        async fn create_event(&self, _: &ObjectKey, event: &Value) -> Result<(), StoreError> {
            let text = |path| {
                event
                    .pointer(path)
                    .and_then(Value::as_str)
                    .unwrap()
                    .to_owned()
            };
            let line = format!(
                "{} {} {} {} {}",
                self.0,
                text("/involvedObject/kind"),
                text("/involvedObject/uid"),
                text("/type"),
                text("/reason")
            );
            self.1.0.lock().unwrap().push(line);
            Ok(())
        }

        async fn patch_event(&self, _: &ObjectKey, _: &Value) -> Result<(), StoreError> {
            Ok(())
        }
    }

    fn about(name: &str, uid: &str) -> About {
        About {
            key: ObjectKey::new("shop", name),
            uid: uid.to_owned(),
        }
    }

    async fn check(report: Report, expect: &[&str]) {
        let metrics = Metrics::new(false);
        let posted = Posted::default();
        let sink = |name| {
            let sink = EventSink::new("plugin", metrics.count_events());
            let (task, cluster) = (sink.clone(), Cluster(name, posted.clone()));
            tokio::spawn(async move { task.post_to(&cluster).await });
            sink
        };
        let events = Events::to(sink("local"), sink("tables"));
        Reporter::new(metrics, events).observe(&report);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let mut posted = posted.0.lock().unwrap().clone();
        posted.sort();
        assert_eq!(posted, expect, "{report}");
    }

    #[tokio::test]
    async fn events_go_to_the_cluster_of_their_object() {
        let (rollout, table) = (about("reviews", "r1"), about("web", "t1"));
        let repair = |outcome| Report::Repair {
            rollout: rollout.clone(),
            table: table.clone(),
            outcome,
            delay: Duration::from_millis(200),
        };
        check(
            repair(RepairOutcome::Written),
            &[
                "local Rollout r1 Normal TrafficDriftRepaired",
                "tables RouteTable t1 Normal TrafficDriftRepaired",
            ],
        )
        .await;
        check(repair(RepairOutcome::FencedLease), &[]).await;
        let fight = Report::Fight {
            rollout: rollout.clone(),
            table: table.clone(),
            with: None,
        };
        check(
            fight,
            &[
                "local Rollout r1 Warning TrafficDriftFight",
                "tables RouteTable t1 Warning TrafficDriftFight",
            ],
        )
        .await;
        let (gone, why) = (ObjectKey::new("shop", "reviews"), OrphanCause::Deleted);
        let orphaned = Report::Orphaned {
            rollout: gone.clone(),
            table: table.clone(),
            why,
            after: None,
        };
        check(orphaned, &["tables RouteTable t1 Warning OrphanedTraffic"]).await;
        let unreadable = Report::Unreadable {
            table: table.clone(),
            error: "RouteTable shop/web: no JSON".to_owned(),
        };
        check(
            unreadable,
            &["tables RouteTable t1 Warning UnreadableRecord"],
        )
        .await;
        let restored = Report::Restored {
            rollout: gone,
            table,
            why,
        };
        check(restored, &["tables RouteTable t1 Normal TrafficRestored"]).await;
    }

    #[tokio::test]
    async fn reports_of_calls_become_events() {
        let (rollout, table) = (about("reviews", "r1"), about("web", "t1"));
        let failed = Report::ManagedRoutesFailed {
            rollout: rollout.clone(),
            error: "no route".to_owned(),
        };
        check(failed, &["local Rollout r1 Warning ManagedRoutesError"]).await;
        let rejected = Report::GlooRejected {
            rollout: rollout.clone(),
            table,
            reason: "RouteTable shop/web: Gloo says INVALID".to_owned(),
        };
        check(
            rejected,
            &[
                "local Rollout r1 Warning GlooRejected",
                "tables RouteTable t1 Warning GlooRejected",
            ],
        )
        .await;
        let held = Report::Held {
            rollout: rollout.clone(),
        };
        check(held, &["local Rollout r1 Normal PromotionHeld"]).await;
        let too_long = Report::HeldTooLong {
            rollout: rollout.clone(),
            service: "reviews".to_owned(),
            ready: 1,
            wanted: 3,
        };
        check(
            too_long,
            &["local Rollout r1 Warning PromotionGuardTimeout"],
        )
        .await;
        let released = |end| Report::Released {
            rollout: rollout.clone(),
            end,
            after: Duration::from_secs(7),
        };
        for end in [HoldEnd::Complete, HoldEnd::Broken, HoldEnd::Ended] {
            check(
                released(end),
                &["local Rollout r1 Normal PromotionReleased"],
            )
            .await;
        }
        check(
            released(HoldEnd::TimedOut),
            &["local Rollout r1 Warning PromotionGuardTimeout"],
        )
        .await;
    }
}
