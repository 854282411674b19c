//! Reports of weights that are not in force, not accepted or not seen.

use super::*;
use crate::report::Lack;

impl Fixture {
    /// Returns what was reported about weights since the last check, as one word each.
    fn reported(&self) -> Vec<String> {
        let mut reports = self.world.reports.lock().unwrap();
        let reports = std::mem::take(&mut *reports);
        let words = reports.iter().filter_map(|report| match report {
            Report::Behind { behind, .. } => Some(behind.lack.as_str().to_owned()),
            Report::CaughtUp { lack, .. } => Some(format!("no longer {}", lack.as_str())),
            Report::RolloutsBehind(lack, count) if *count > 0 => {
                Some(format!("{count} {}", lack.as_str()))
            }
            _ => None,
        });
        let mut words: Vec<String> = words.collect();
        words.dedup();
        words
    }

    /// Returns a fixture whose table is reported, because it cannot be repaired.
    async fn behind() -> Self {
        let fixture = Self::at_25().await;
        fixture.world.is_leader.store(false, Ordering::Relaxed);
        fixture.write(owners());
        fixture
            .check_reports(3, &["not_in_force", "1 not_in_force"])
            .await;
        fixture
    }

    /// Checks what is reported in the next minutes.
    async fn check_reports(&self, minutes: u64, expect: &[&str]) {
        sleep(Duration::from_secs(minutes * 60)).await;
        assert_eq!(self.reported(), expect);
    }
}

/// The table with Gloo's status.
fn with_gloo(mut table: Value, approval: &str) -> Value {
    let generation = table["metadata"]["generation"].as_i64().unwrap_or(1);
    let state = json!({"observedGeneration": generation, "approval": approval});
    table["status"] = json!({"common": {"State": state}});
    table
}

#[tokio::test(start_paused = true)]
async fn a_weight_in_force_is_not_reported() {
    let fixture = Fixture::at_25().await;
    fixture.check_reports(5, &[]).await;
}

/// The race of a repair with an abort: the repair is written after the abort was answered.
#[tokio::test(start_paused = true)]
async fn a_write_after_an_abort_is_reported() {
    let fixture = Fixture::at_25().await;
    let at_25 = fixture.table();
    let mut aborted = rollout();
    let weight = |weight: i32, hash: &str| json!({"weight": weight, "podTemplateHash": hash});
    aborted["status"]["abort"] = json!(true);
    aborted["status"]["observedGeneration"] = json!("7");
    aborted["status"]["canary"]["weights"] =
        json!({"canary": weight(0, "c1"), "stable": weight(100, "s1")});
    fixture.show(aborted.clone());
    fixture.set_weight(&aborted, 0).await;
    assert_eq!(fixture.shares(), [100]);
    fixture.write(at_25);
    fixture
        .check_reports(3, &["not_in_force", "1 not_in_force"])
        .await;

    fixture.set_weight(&aborted, 0).await;
    fixture.check_reports(3, &["no longer not_in_force"]).await;
    assert_eq!(fixture.shares(), [100]);
}

#[tokio::test(start_paused = true)]
async fn a_table_that_cannot_be_repaired_is_reported() {
    let fixture = Fixture::behind().await;
    fixture.set_weight(&rollout(), 25).await;
    fixture.check_reports(3, &["no longer not_in_force"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_report_stays_while_it_is_not_known_whether_it_is_right() {
    let fixture = Fixture::behind().await;
    fixture.router.background().standing().suspend(&owner());
    fixture.check_reports(3, &["1 not_in_force"]).await;
    fixture
        .world
        .are_marks_unknown
        .store(true, Ordering::Relaxed);
    fixture.set_weight(&rollout(), 25).await;
    fixture.check_reports(3, &["1 not_in_force"]).await;
    fixture
        .world
        .are_marks_unknown
        .store(false, Ordering::Relaxed);
    fixture.check_reports(3, &["no longer not_in_force"]).await;
}

/// The block becomes invalid and is then removed: the controller calls no more.
#[tokio::test(start_paused = true)]
async fn a_report_ends_when_the_rollout_uses_the_plugin_no_more() {
    let fixture = Fixture::behind().await;
    let plugins = "/spec/strategy/canary/trafficRouting/plugins";
    let mut block = json!({});
    block[PLUGIN] = json!({"routeTableSelectr": {}});
    let called: Rollout = serde_json::from_value(with(rollout(), plugins, block)).unwrap();
    let desired = DesiredWeight {
        value: 25,
        max: 100,
    };
    let failed = fixture.router.set_weight(&called, desired, &[]).await;
    assert!(failed.is_err());
    fixture.show(with(rollout(), plugins, json!({})));
    fixture.check_reports(3, &["no longer not_in_force"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_table_that_gloo_does_not_accept_is_reported() {
    let fixture = Fixture::at_25().await;
    fixture.write(with_gloo(fixture.table(), "PENDING"));
    fixture
        .check_reports(3, &["not_accepted", "1 not_accepted"])
        .await;
    fixture.write(with_gloo(fixture.table(), "ACCEPTED"));
    fixture.check_reports(3, &["no longer not_accepted"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_table_that_is_not_watched_is_reported() {
    let fixture = Fixture::at_25().await;
    let unseen = |reason: Option<&str>| {
        *fixture.world.unseen.lock().unwrap() = reason.map(str::to_owned);
    };
    unseen(Some("not allowed"));
    fixture.check_reports(3, &["not_seen", "1 not_seen"]).await;
    unseen(None);
    fixture.check_reports(3, &["no longer not_seen"]).await;
    assert_eq!(Lack::ALL.len(), 3);
}
