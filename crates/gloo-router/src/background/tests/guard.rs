//! Tests of held promotions that are released outside of calls.

use tokio::time::Instant;

use super::*;

fn slice(service: &str, pods: &[&str]) -> Value {
    let endpoint = |pod: &&str| json!({"targetRef": {"kind": "Pod", "uid": pod}});
    json!({
        "metadata": {
            "name": service, "namespace": "shop", "labels": {"kubernetes.io/service-name": service},
        },
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// Returns the Rollout right after the promotion of c1.
fn promoted() -> Value {
    let status = json!({
        "stableRS": "c1", "currentPodHash": "c1", "currentStepIndex": 4,
        "canary": {"weights": {"canary": {"weight": 100, "podTemplateHash": "c1"}}},
    });
    with(rollout(), "/status", status)
}

impl Fixture {
    fn endpoints(&self, service: &str, pods: &[&str]) {
        let slice = slice(service, pods);
        self.world.store.put_endpoint_slice(slice).unwrap();
    }

    /// Returns a fixture with a held promotion: the stable Service routes to the old Pod.
    async fn held() -> Self {
        let fixture = Self::new().await;
        for (name, hash) in [("a", "c1"), ("b", "c1"), ("x", "s1"), ("n", "n1")] {
            let labels = json!({"rollouts-pod-template-hash": hash});
            let metadata =
                json!({"name": name, "namespace": "shop", "uid": name, "labels": labels});
            let pod = json!({ "metadata": metadata });
            fixture.world.store.put_pod(pod).unwrap();
        }
        fixture.endpoints("reviews", &["x"]);
        fixture.endpoints("reviews-canary", &["a", "b"]);
        fixture.set_weight(&rollout(), 25).await;
        sleep(Duration::from_secs(1)).await;
        fixture.show(promoted());
        fixture.set_weight(&promoted(), 0).await;
        sleep(milliseconds(1)).await;
        assert_eq!(fixture.shares(), [100]);
        assert!(fixture.is_held());
        fixture
    }

    fn is_held(&self) -> bool {
        self.router.holds().is_held(&owner())
    }

    /// Waits until the table is restored. Returns how long it took.
    async fn released(&self) -> Duration {
        let begun = Instant::now();
        while self.table().pointer("/metadata/annotations").is_some() {
            assert!(begun.elapsed() < Duration::from_secs(3000), "never");
            sleep(milliseconds(10)).await;
        }
        assert_eq!(self.table()["spec"], owners()["spec"]);
        sleep(milliseconds(1)).await;
        assert!(!self.is_held());
        begun.elapsed()
    }

    fn tell_of_rollout(&self, kind: ChangeKind) {
        let key = owner();
        self.world.rollouts.send(change(key, kind)).unwrap();
    }

    /// Returns the reports of promotions, with the seconds for which they were held.
    fn promotions(&self) -> Vec<String> {
        let reports = self.world.reports.lock().unwrap();
        let outcome = |report: &Report| match report {
            Report::Held { .. } => Some("held".to_owned()),
            Report::HeldTooLong { ready, wanted, .. } => Some(format!("{ready} of {wanted}")),
            Report::Released { end, after, .. } => {
                Some(format!("{} {}", end.as_str(), after.as_secs()))
            }
            _ => None,
        };
        reports.iter().filter_map(outcome).collect()
    }

    fn last_count(&self) -> Option<usize> {
        let reports = self.world.reports.lock().unwrap();
        let count = |report: &Report| match report {
            Report::Holds(count) => Some(*count),
            _ => None,
        };
        reports.iter().filter_map(count).next_back()
    }
}

/// D-29
#[tokio::test(start_paused = true)]
async fn a_hold_ends_when_the_endpoints_have_settled_by_one_write() {
    let fixture = Fixture::held().await;
    let before = fixture.world.store.writes();
    for pods in [vec!["x", "a"], vec!["a"], vec![], vec!["a", "b", "x"]] {
        fixture.endpoints("reviews", &pods);
        sleep(Duration::from_secs(7)).await;
        assert_eq!(fixture.writes_since(before), 0, "{pods:?}");
    }
    fixture.endpoints("reviews", &["b", "a"]);
    let took = fixture.released().await;
    assert!((5.0..5.1).contains(&took.as_secs_f32()), "{took:?}");
    assert_eq!(fixture.writes_since(before), 1);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(fixture.writes_since(before), 1);
    assert_eq!(fixture.promotions(), ["held", "complete 33"]);
    assert_eq!(fixture.last_count(), Some(0));
}

/// A new Pod may become ready late, and its uid is unknown.
#[tokio::test(start_paused = true)]
async fn a_pod_that_appears_later_is_recognised_as_new() {
    let fixture = Fixture::held().await;
    let labels = json!({"rollouts-pod-template-hash": "c1"});
    let metadata = json!({"name": "c", "namespace": "shop", "uid": "c", "labels": labels});
    fixture
        .world
        .store
        .put_pod(json!({ "metadata": metadata }))
        .unwrap();
    fixture.endpoints("reviews-canary", &["a", "b", "c"]);
    sleep(Duration::from_secs(1)).await;
    assert!(fixture.is_held());
    fixture.endpoints("reviews", &["a", "b", "c"]);
    let took = fixture.released().await;
    assert!((5.0..5.1).contains(&took.as_secs_f32()), "{took:?}");
}

type Break<'a> = &'a dyn Fn(&Fixture);

/// D-30, without a call.
#[tokio::test(start_paused = true)]
async fn a_violated_condition_ends_a_hold_within_a_second() {
    let next_version = |fixture: &Fixture| {
        let next = with(promoted(), "/status/currentPodHash", json!("n1"));
        fixture.show(next);
        fixture.tell_of_rollout(ChangeKind::Applied);
    };
    let foreign = |fixture: &Fixture| fixture.endpoints("reviews-canary", &["a", "n"]);
    let none = |fixture: &Fixture| fixture.endpoints("reviews-canary", &[]);
    let deleted = |fixture: &Fixture| fixture.delete_rollout();
    let recreated = |fixture: &Fixture| {
        fixture.show(with(promoted(), "/metadata/uid", json!("u2")));
        fixture.tell_of_rollout(ChangeKind::Applied);
    };
    let breaks: [(&str, Break<'_>); 5] = [
        ("next version", &next_version),
        ("foreign Pod", &foreign),
        ("no Pod", &none),
        ("deleted", &deleted),
        ("recreated", &recreated),
    ];
    for (what, breaks) in breaks {
        let fixture = Fixture::held().await;
        let before = fixture.world.store.writes();
        sleep(Duration::from_secs(3)).await;
        breaks(&fixture);
        let took = fixture.released().await;
        assert!(took < Duration::from_secs(1), "{what}: {took:?}");
        assert_eq!(fixture.writes_since(before), 1, "{what}");
    }
}

/// A change of the Rollout that does not affect the promotion, for example another number of replicas.
#[tokio::test(start_paused = true)]
async fn other_changes_of_the_rollout_do_not_end_a_hold() {
    let fixture = Fixture::held().await;
    fixture.show(with(promoted(), "/spec/replicas", json!(9)));
    fixture.tell_of_rollout(ChangeKind::Applied);
    sleep(Duration::from_secs(60)).await;
    assert!(fixture.is_held());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_without_the_fence() {
    let fixture = Fixture::held().await;
    fixture.world.is_leader.store(false, Ordering::Relaxed);
    let before = fixture.world.store.writes();
    fixture.endpoints("reviews", &["a", "b"]);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(fixture.writes_since(before), 0);
    fixture.world.is_leader.store(true, Ordering::Relaxed);
    let took = fixture.released().await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_is_retried_after_a_conflict() {
    let fixture = Fixture::held().await;
    fixture.endpoints("reviews", &["a", "b"]);
    let conflict = StoreError::Conflict("RouteTable mesh/web".into());
    fixture.world.store.fail_next_patch(conflict);
    let took = fixture.released().await;
    assert!((6.0..6.1).contains(&took.as_secs_f32()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn without_pods_a_hold_continues_and_is_reported_every_five_minutes() {
    let fixture = Fixture::held().await;
    fixture.endpoints("reviews", &[]);
    let before = fixture.world.store.writes();
    sleep(Duration::from_secs(115)).await;
    assert_eq!(fixture.promotions(), ["held"]);
    sleep(Duration::from_secs(610)).await;
    assert_eq!(fixture.writes_since(before), 0);
    assert_eq!(fixture.promotions(), ["held", "0 of 2", "0 of 2", "0 of 2"]);
    // After the timeout, half of the Pods are enough.
    fixture.endpoints("reviews", &["a"]);
    assert!(fixture.released().await < Duration::from_secs(1));
    assert_eq!(fixture.promotions().pop().unwrap(), "timeout 725");
}

/// Another client writes the table: it is neither repaired during the hold nor written repeatedly.
#[tokio::test(start_paused = true)]
async fn a_table_that_is_held_is_not_repaired() {
    let fixture = Fixture::held().await;
    let before = fixture.world.store.writes();
    for number in 0..50 {
        fixture.write(with(
            fixture.table(),
            "/metadata/uid",
            json!(number.to_string()),
        ));
        sleep(milliseconds(200)).await;
    }
    assert_eq!(fixture.writes_since(before), 0);
    assert!(fixture.is_held());
}

/// While the endpoints are watched, a call does not read them.
#[tokio::test(start_paused = true)]
async fn a_hold_is_released_once_by_calls_and_the_watch() {
    let fixture = Fixture::held().await;
    let before = fixture.world.store.writes();
    fixture.endpoints("reviews", &["a", "b"]);
    for _ in 0..60 {
        sleep(milliseconds(100)).await;
        fixture.set_weight(&promoted(), 0).await;
    }
    assert_eq!(fixture.writes_since(before), 1);
    assert!(!fixture.is_held());
    assert_eq!(fixture.promotions().len(), 2);
}

/// D-19
#[tokio::test(start_paused = true)]
async fn nothing_is_released_after_the_session() {
    let fixture = Fixture::held().await;
    let before = fixture.world.store.writes();
    fixture.endpoints("reviews", &["a", "b"]);
    sleep(Duration::from_secs(4)).await;
    fixture.router.stop().await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(fixture.writes_since(before), 0);
}
