//! Tests of the reports that the router makes besides its replies.

use std::sync::{Mutex, OnceLock, Weak, mpsc};
use std::thread;

use super::guard::{at, promoted, sleep, slice};
use super::managed_routes::header;
use super::*;

/// Records reports as text, with the uid of the Rollout.
#[derive(Default)]
struct Reports(Mutex<Vec<String>>);

impl Observer for Reports {
    fn observe(&self, report: &Report) {
        let line = match report {
            Report::ManagedRoutesFailed { rollout, error } => {
                format!("managed routes of {}: {error}", rollout.uid)
            }
            Report::GlooRejected { table, reason, .. } => format!("{}: {reason}", table.key),
            Report::Held { rollout } => format!("held {}", rollout.uid),
            Report::HeldTooLong {
                service,
                ready,
                wanted,
                ..
            } => format!("too long: {ready} of {wanted} behind {service}"),
            Report::Released { end, after, .. } => {
                format!("{} after {} s", end.as_str(), after.as_secs())
            }
            Report::Holds(count) => format!("{count} held"),
            other => other.to_string(),
        };
        self.0.lock().unwrap().push(line);
    }
}

impl Reports {
    #[track_caller]
    fn check(&self, expect: &[&str]) {
        assert_eq!(std::mem::take(&mut *self.0.lock().unwrap()), expect);
    }
}

fn observed(fixture: Fixture) -> (Fixture, Arc<Reports>) {
    let reports = Arc::new(Reports::default());
    let router = fixture.router.with_observer(reports.clone());
    (Fixture { router, ..fixture }, reports)
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_reported_when_it_begins_and_when_it_ends() {
    let (fixture, reports) = observed(at(100).await);
    fixture.set_weight(&promoted(), 0).await.unwrap();
    reports.check(&["held u1", "1 held"]);
    sleep(10.0).await;
    fixture.set_weight(&promoted(), 0).await.unwrap();
    reports.check(&[]);
    fixture.endpoints("web", &["a", "b"]);
    fixture.set_weight(&promoted(), 0).await.unwrap();
    sleep(5.0).await;
    fixture.set_weight(&promoted(), 0).await.unwrap();
    reports.check(&["complete after 15 s", "0 held"]);
}

/// Lets another thread ask for the holds during each report of their number, and notes the answers that arrive in time.
#[derive(Default)]
struct Asking {
    router: OnceLock<Weak<GlooRouter<Faulty>>>,
    answers: Mutex<Vec<Option<usize>>>,
}

impl Observer for Asking {
    fn observe(&self, report: &Report) {
        let router = self.router.get().and_then(Weak::upgrade);
        if let (Report::Holds(_), Some(router)) = (report, router) {
            let (sender, answer) = mpsc::channel();
            thread::spawn(move || sender.send(router.holds().all().0.len()));
            let answer = answer.recv_timeout(Duration::from_secs(5)).ok();
            self.answers.lock().unwrap().push(answer);
        }
    }
}

/// An observer may wait for others, which may need the holds.
#[tokio::test(start_paused = true)]
async fn the_holds_are_not_locked_while_their_number_is_reported() {
    let Fixture { router, store } = at(100).await;
    let asking = Arc::new(Asking::default());
    let router = Arc::new(router.with_observer(asking.clone()));
    asking.router.set(Arc::downgrade(&router)).unwrap();
    for endpoints in [&["x"][..], &["a", "b"]] {
        store.put_endpoint_slice(slice("web", endpoints)).unwrap();
        let set = router.set_weight(&promoted(), desired(0), &[]).await;
        set.unwrap();
        sleep(5.0).await;
    }
    router
        .set_weight(&promoted(), desired(0), &[])
        .await
        .unwrap();
    assert_eq!(*asking.answers.lock().unwrap(), [Some(1), Some(0)]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_lasts_too_long_is_reported_every_five_minutes() {
    let (fixture, reports) = observed(at(100).await);
    fixture.set_weight(&promoted(), 0).await.unwrap();
    reports.check(&["held u1", "1 held"]);
    for _ in 0..2 {
        sleep(301.0).await;
        fixture.set_weight(&promoted(), 0).await.unwrap();
        fixture.set_weight(&promoted(), 0).await.unwrap();
        reports.check(&["too long: 0 of 2 behind web"]);
    }
    fixture.endpoints("web", &["a"]);
    fixture.set_weight(&promoted(), 0).await.unwrap();
    reports.check(&["timeout after 602 s", "0 held"]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_premise_breaks_is_reported() {
    let (fixture, reports) = observed(at(100).await);
    fixture.set_weight(&promoted(), 0).await.unwrap();
    reports.check(&["held u1", "1 held"]);
    fixture.endpoints("web-canary", &["x"]);
    fixture.set_weight(&promoted(), 0).await.unwrap();
    reports.check(&["broken after 0 s", "0 held"]);
}

#[tokio::test]
async fn errors_of_managed_routes_are_reported() {
    let (fixture, reports) = observed(Fixture::new([shop()]));
    let mut rollout =
        rollout(json!({"routeTableSelector": {"name": "absent", "namespace": "mesh"}}));
    rollout.metadata.uid = "u1".into();
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    let reported = reports.0.lock().unwrap().join("\n");
    assert!(reported.starts_with("managed routes of u1: "), "{reported}");
}

#[tokio::test]
async fn a_table_that_gloo_rejects_is_reported() {
    let (fixture, reports) = observed(Fixture::new([shop()]));
    let mut rollout = rollout(select_shop());
    let step = CanaryStep {
        set_weight: Some(25),
        ..CanaryStep::default()
    };
    canary(&mut rollout).steps = vec![step];
    rollout.status.stable_rs = "s1".into();
    rollout.status.current_pod_hash = "c1".into();
    rollout.status.current_step_index = Some(0);
    fixture.set_weight(&rollout, 25).await.unwrap();
    let mut refused = fixture.store.table(&key()).unwrap();
    refused["status"] =
        json!({"common": {"State": {"approval": "INVALID", "message": "no such Service"}}});
    fixture.store.put(refused).unwrap();
    let verified = fixture.router.verify_weight(&rollout, desired(25), &[]);
    assert_eq!(verified.await.unwrap(), Verification::NotVerified);
    reports.check(&["mesh/shop: RouteTable mesh/shop: Gloo says INVALID: no such Service"]);
}

/// At rest, when the router keeps no other state of the Rollout, and during an update.
#[tokio::test]
async fn entries_that_select_no_route_are_reported_once() {
    let mut named = route_to("web");
    named["name"] = "web".into();
    let (fixture, reports) = observed(Fixture::new([table("shop", vec![named])]));
    let absent = |name: &str| {
        format!(
            "no route of the selected tables matches routeSelector name: {name}: correct the entry"
        )
    };
    let (a, b) = (absent("a"), absent("b"));
    for (weight, names, expect) in [
        (0, vec!["web", "a"], vec![a.as_str()]),
        (0, vec!["web", "a"], vec![]),
        (25, vec!["web", "a"], vec![]),
        (25, vec!["web", "b"], vec![b.as_str()]),
        (25, vec!["web"], vec![]),
        (25, vec!["web", "b"], vec![b.as_str()]),
        (0, vec!["web", "b"], vec![]),
    ] {
        let mut block = select_shop();
        block["routeSelector"] = json!({ "names": names });
        fixture.set_weight(&rollout(block), weight).await.unwrap();
        reports.check(&expect);
    }
}
