//! `status --watch`: shows the progress of each Rollout repeatedly.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use gloo_router::report::Reason;
use k8s_openapi::jiff::Timestamp;
use route_planner::Portion;
use route_store::{Clusters, FIELD_MANAGER, StoreError};
use serde_json::{Value, json};

use super::super::output::{self, RED, YELLOW};
use super::{Args, Report, RolloutStatus, Verdict, overview, read};

/// Interval between two reads of the cluster.
const PAUSE: Duration = Duration::from_secs(2);
/// Moves the cursor to the upper left corner; the old text is overwritten.
const HOME: &str = "\x1b[H";
/// Clear the rest of a line, and of the screen.
const END_OF_LINE: &str = "\x1b[K";
const END_OF_SCREEN: &str = "\x1b[J";

/// Shows the view until the process ends, for example by Ctrl-C.
pub(super) async fn run(args: &Args, clusters: &Clusters) -> anyhow::Result<bool> {
    let is_terminal = stdout().is_terminal();
    let mut shown = String::new();
    loop {
        let namespace = args.namespace.as_deref();
        let events = clusters.local.events(namespace, FIELD_MANAGER).await;
        let text = match read(args, clusters).await {
            Ok(report) => view(&report, &events, Timestamp::now()),
            Err(error) => output::line(RED, "error", &crate::one_line(&error)),
        };
        let mut is_read = true;
        if is_terminal {
            let text = text.replace('\n', &format!("{END_OF_LINE}\n"));
            is_read = output::print(&format!("{HOME}{text}{END_OF_SCREEN}"))?;
        } else if text != shown {
            // A log cannot be overwritten, so only changes are printed.
            let separator = if shown.is_empty() { "" } else { "\n" };
            is_read = output::print(&format!("{separator}{text}"))?;
            shown = text;
        }
        if !is_read {
            return Ok(true);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Renders the view at the time `now`.
fn view(report: &Report, events: &Result<Vec<Value>, StoreError>, now: Timestamp) -> String {
    let head = [
        "ROLLOUT", "PHASE", "STEP", "ASKED", "IN FORCE", "GLOO", "GUARD", "REPAIRS",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    let known = events.as_deref().unwrap_or_default();
    for rollout in &report.rollouts {
        let asked = rollout.asked;
        let asked = asked.map_or("-".to_owned(), |it| it.to_string());
        let [name, phase, step] = rollout.cells();
        rows.push([
            name,
            phase,
            step,
            asked,
            in_force(rollout),
            gloo(rollout),
            guard(known, &rollout.rollout, now),
            repairs(known, &rollout.rollout, now),
        ]);
    }
    let mut text = overview(&report.rollouts, &rows);
    if let Err(error) = events {
        text += &output::line(YELLOW, "Events cannot be read", &error.chain());
    }
    text
}

/// Returns the canary's percentage of what the Rollout has of its routes: one number if it is equal for all of them.
fn in_force(rollout: &RolloutStatus) -> String {
    // At rest, a route of subsets forwards to no version.
    let shares = rollout.portions.iter().map(Portion::percent);
    let shares: BTreeSet<u32> = shares.map(Option::unwrap_or_default).collect();
    match (shares.first(), shares.last()) {
        (Some(least), Some(most)) if least == most => least.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "-".to_owned(),
    }
}

/// Returns the worst state of Gloo among the tables.
fn gloo(rollout: &RolloutStatus) -> String {
    let mut tables = rollout.tables.iter();
    if let Some(table) = tables.clone().find(|table| table.gloo.is_bad) {
        return format!("{}: {}", table.table, table.gloo.shown());
    }
    let is_late = |gloo: &Verdict| !gloo.is_current && gloo.approval.is_some();
    if let Some(table) = tables.clone().find(|table| is_late(&table.gloo)) {
        return format!("{}: not seen yet", table.table);
    }
    let word = tables.next().and_then(|table| table.gloo.approval.clone());
    word.unwrap_or_else(|| "-".to_owned())
}

/// Returns the Events of one reason about a Rollout.
fn about<'e>(
    events: &'e [Value],
    rollout: &'e str,
    reason: Reason,
) -> impl Iterator<Item = &'e Value> {
    let (namespace, name) = rollout.split_once('/').unwrap_or_default();
    let object = json!({"kind": "Rollout", "namespace": namespace, "name": name});
    events.iter().filter(move |event| {
        let about = event.get("involvedObject");
        let is = |key| about.and_then(|it| it.get(key)) == object.get(key);
        event.get("reason").is_some_and(|it| it == reason.as_str())
            && ["kind", "namespace", "name"].into_iter().all(is)
    })
}

/// Returns the time of the last Event of a reason.
fn latest(events: &[Value], rollout: &str, reason: Reason) -> Option<Timestamp> {
    let times = about(events, rollout, reason);
    let times = times.filter_map(|it| it.get("lastTimestamp")?.as_str()?.parse().ok());
    times.max()
}

/// Describes whether a promotion is held, and since when.
fn guard(events: &[Value], rollout: &str, now: Timestamp) -> String {
    let held = latest(events, rollout, Reason::PromotionHeld);
    let released = latest(events, rollout, Reason::PromotionReleased);
    match (held, released) {
        (Some(held), released) if released.is_none_or(|released| released < held) => {
            format!("held for {}", ago(held, now))
        }
        (_, Some(released)) => format!("released {} ago", ago(released, now)),
        _ => "-".to_owned(),
    }
}

/// Describes how often drift was repaired within the hour that Events are kept, and when last.
fn repairs(events: &[Value], rollout: &str, now: Timestamp) -> String {
    let repaired = about(events, rollout, Reason::TrafficDriftRepaired);
    let counts = repaired.filter_map(|event| event.get("count")?.as_u64());
    let count: u64 = counts.sum();
    let when = latest(events, rollout, Reason::TrafficDriftRepaired);
    let mut text = match when {
        Some(when) => format!("{count}, {} ago", ago(when, now)),
        None => "-".to_owned(),
    };
    if let Some(fight) = latest(events, rollout, Reason::TrafficDriftFight) {
        text += &format!("; fight {} ago", ago(fight, now));
    }
    text
}

/// Returns the time since `then`, in its largest unit.
fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::super::TableStatus;
    use super::*;

    const NOW: &str = "2026-11-23T03:00:00Z";

    fn table(approval: &str, is_current: bool) -> TableStatus {
        TableStatus {
            table: "gloo-mesh/shop".to_owned(),
            is_changed: true,
            gloo: Verdict {
                approval: Some(approval.to_owned()),
                message: "no such Service".to_owned(),
                is_current,
                is_bad: approval == "INVALID",
            },
            routes: Vec::new(),
        }
    }

    /// A Rollout with routes of which the canary and all versions get these percentages.
    fn rollout(
        name: &str,
        asked: i32,
        tables: Vec<TableStatus>,
        of: &[(u32, u32)],
    ) -> RolloutStatus {
        let portion = |&(canary, all): &(u32, u32)| Portion {
            route: "r".to_owned(),
            canary,
            all,
        };
        RolloutStatus {
            rollout: format!("shop/{name}"),
            phase: "Paused".to_owned(),
            step: Some((1, 4)),
            tables,
            portions: of.iter().map(portion).collect(),
            asked: Some(asked),
            ..RolloutStatus::default()
        }
    }

    fn event(rollout: &str, reason: Reason, count: u32, last: &str) -> Value {
        json!({
            "reason": reason.as_str(), "count": count, "lastTimestamp": last,
            "involvedObject": {"kind": "Rollout", "namespace": "shop", "name": rollout},
        })
    }

    #[track_caller]
    fn check(report: &Report, events: Result<Vec<Value>, StoreError>, expect: &str) {
        let text = view(report, &events, NOW.parse().unwrap());
        let plain = anstream::adapter::strip_str(&text).to_string();
        let lines: Vec<&str> = plain.lines().map(str::trim_end).collect();
        let expect: Vec<&str> = expect.lines().map(str::trim).skip(1).collect();
        assert_eq!(lines, expect, "\n{plain}");
    }

    #[test]
    fn requested_current_and_accepted_weights_are_shown() {
        let report = Report {
            rollouts: vec![
                rollout("reviews", 25, vec![table("ACCEPTED", true)], &[(25, 100)]),
                RolloutStatus {
                    behind: Some("RouteTable gloo-mesh/shop: not yet applied".to_owned()),
                    ..rollout("late", 50, vec![table("ACCEPTED", false)], &[(0, 100)])
                },
                rollout(
                    "reviews",
                    50,
                    vec![table("INVALID", true)],
                    &[(50, 100), (25, 100)],
                ),
                rollout(
                    "shared",
                    25,
                    vec![table("PENDING", true)],
                    &[(25, 100), (15, 60)],
                ),
                rollout("subsets", 0, vec![table("PENDING", true)], &[(0, 0)]),
                RolloutStatus {
                    problem: Some("selects no RouteTable".to_owned()),
                    ..rollout("alone", 0, Vec::new(), &[])
                },
            ],
            left_behind: Vec::new(),
        };
        check(
            &report,
            Ok(Vec::new()),
            "
            ROLLOUT       PHASE   STEP  ASKED  IN FORCE  GLOO                                      GUARD  REPAIRS
            shop/reviews  Paused  1/4   25     25        ACCEPTED                                  -      -
            shop/late     Paused  1/4   50     0         gloo-mesh/shop: not seen yet              -      -
            shop/reviews  Paused  1/4   50     25 to 50  gloo-mesh/shop: INVALID: no such Service  -      -
            shop/shared   Paused  1/4   25     25        PENDING                                   -      -
            shop/subsets  Paused  1/4   0      0         PENDING                                   -      -
            shop/alone    Paused  1/4   0      -         -                                         -      -
            behind: shop/late: RouteTable gloo-mesh/shop: not yet applied
            problem: shop/alone: selects no RouteTable",
        );
    }

    #[test]
    fn guard_and_repairs_are_read_from_events() {
        let accepted = || vec![table("ACCEPTED", true)];
        let report = Report {
            rollouts: ["a", "b", "c"]
                .map(|name| rollout(name, 0, accepted(), &[]))
                .into(),
            left_behind: Vec::new(),
        };
        let events = vec![
            event("a", Reason::PromotionReleased, 1, "2026-11-23T01:00:00Z"),
            event("a", Reason::PromotionHeld, 1, "2026-11-23T02:59:48Z"),
            event("b", Reason::PromotionHeld, 1, "2026-11-23T02:30:00Z"),
            event("b", Reason::PromotionReleased, 1, "2026-11-23T02:30:07Z"),
            event("b", Reason::TrafficDriftRepaired, 3, "2026-11-23T02:50:00Z"),
            event("b", Reason::TrafficDriftRepaired, 2, "2026-11-23T02:58:30Z"),
            event("b", Reason::TrafficDriftFight, 1, "2026-11-22T23:58:30Z"),
        ];
        check(
            &report,
            Ok(events),
            "
            ROLLOUT  PHASE   STEP  ASKED  IN FORCE  GLOO      GUARD                REPAIRS
            shop/a   Paused  1/4   0      -         ACCEPTED  held for 12 s        -
            shop/b   Paused  1/4   0      -         ACCEPTED  released 29 min ago  5, 90 s ago; fight 3 h ago
            shop/c   Paused  1/4   0      -         ACCEPTED  -                    -",
        );
    }

    #[test]
    fn without_permission_for_events_one_line_says_so() {
        let report = Report {
            rollouts: Vec::new(),
            left_behind: Vec::new(),
        };
        let what = "events".to_owned();
        check(
            &report,
            Err(StoreError::NotFound { what }),
            "
            no Rollout uses the plugin
            Events cannot be read: events not found: create it or correct routeTableSelector",
        );
    }
}
