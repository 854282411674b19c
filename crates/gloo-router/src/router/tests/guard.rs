//! Tests of promotions that wait for Pods, and of what else waits for Gloo.

use proptest::prelude::*;
use rollouts_rpc::rollout::{TrafficWeights, WeightDestination as Recorded};
use route_planner::promotion::Readiness;
use route_store::FRESH;

use super::*;

pub(super) const NEW: &str = "n1";
pub(super) const OLD: &str = "o1";

/// Returns an EndpointSlice of a Service with these Pods, all of them ready.
pub(super) fn slice(service: &str, pods: &[&str]) -> Value {
    let endpoints = pods.iter().map(|pod| {
        json!({
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": pod, "uid": pod},
        })
    });
    json!({
        "metadata": {
            "name": format!("{service}-x"), "namespace": "shop", "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
}

pub(super) fn pod(name: &str, hash: &str) -> Value {
    json!({"metadata": {
        "name": name, "namespace": "shop", "uid": name, "labels": {"rollouts-pod-template-hash": hash},
    }})
}

/// Returns a Rollout with these stable and current versions, whose last recorded weights are of the version `recorded`.
pub(super) fn status(stable: &str, current: &str, recorded: &str) -> Rollout {
    let mut rollout = rollout(select_shop());
    rollout.metadata.uid = "u1".into();
    rollout.status.stable_rs = stable.into();
    rollout.status.current_pod_hash = current.into();
    rollout.status.canary.weights = Some(TrafficWeights {
        canary: Recorded {
            weight: 100,
            pod_template_hash: recorded.into(),
            ..Recorded::default()
        },
        ..TrafficWeights::default()
    });
    rollout
}

/// Replaces the plugin block of a Rollout.
fn set_block(rollout: &mut Rollout, block: &Value) {
    let block = RawJson::from(block);
    let plugins = &mut routing(rollout).plugins;
    plugins.insert("solo-io/glooplatform".into(), block);
}

fn wait_8_s_before_a_promotion(rollout: &mut Rollout) {
    let mut block = select_shop();
    block["promotionGuard"] = json!({"before": "8s"});
    set_block(rollout, &block);
}

pub(super) fn promoted() -> Rollout {
    status(NEW, NEW, NEW)
}

/// Returns a fixture at this canary weight. The canary Service routes to the new Pods, and stable to the old ones.
pub(super) async fn at(weight: i32) -> Fixture {
    let fixture = Fixture::new([shop()]);
    for (name, hash) in [("a", NEW), ("b", NEW), ("x", OLD)] {
        fixture.store.put_pod(pod(name, hash)).unwrap();
    }
    fixture.endpoints("web", &["x"]);
    fixture.endpoints("web-canary", &["a", "b"]);
    fixture.live(&promoted());
    let updating = status(OLD, NEW, NEW);
    fixture.set_weight(&updating, weight).await.unwrap();
    fixture
}

impl Fixture {
    pub(super) fn endpoints(&self, service: &str, pods: &[&str]) {
        self.store.put_endpoint_slice(slice(service, pods)).unwrap();
    }

    /// Stores the Rollout as the API server has it.
    fn live(&self, rollout: &Rollout) {
        let status = &rollout.status;
        let weights = status.canary.weights.as_ref();
        let recorded = weights.map_or("", |weights| &weights.canary.pod_template_hash);
        let object = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": rollout.metadata.uid},
            "status": {
                "stableRS": status.stable_rs,
                "currentPodHash": status.current_pod_hash,
                "abort": status.abort,
                "canary": {"weights": {"canary": {"podTemplateHash": recorded}}},
            },
        });
        self.store.put_rollout(object).unwrap();
    }

    /// Returns the same store with a new router.
    fn restarted(&self) -> Self {
        let store = self.store.clone();
        let policy = Policy {
            plugin_names: vec!["solo-io/glooplatform".into()],
            ..Policy::default()
        };
        Self {
            router: GlooRouter::new(store.clone(), policy),
            store: Checked(store),
        }
    }

    async fn verify(&self, rollout: &Rollout, weight: i32) -> Verification {
        let verified: Result<_, RouterError> = self
            .router
            .verify_weight(rollout, desired(weight), &[])
            .await;
        verified.unwrap_or_else(|error| panic!("{}", error_chain(error.as_error())))
    }

    #[track_caller]
    fn check_held(&self) {
        assert_eq!(
            self.weights(&key()),
            named(&[("web-canary", Some(100))]),
            "the canary Service has all traffic"
        );
    }

    #[track_caller]
    fn check_restored(&self) {
        assert_eq!(self.weights(&key()), named(&[("web", None)]));
    }
}

pub(super) async fn sleep(seconds: f32) {
    tokio::time::sleep(Duration::from_secs_f32(seconds)).await;
}

/// D-29: one write at the beginning unless all traffic is already on the canary, one at the end, and none between.
#[tokio::test(start_paused = true)]
async fn a_promotion_waits_until_the_endpoints_have_settled() {
    for weight in [100, 40] {
        let fixture = at(weight).await;
        let before = fixture.store.writes();
        fixture.set_weight(&promoted(), 0).await.unwrap();
        fixture.check_held();
        assert_eq!(fixture.store.writes() - before, usize::from(weight < 100));
        assert_eq!(
            fixture.verify(&promoted(), 0).await,
            Verification::NotVerified
        );
        for (pods, seconds) in [(vec![], 10.0), (vec!["a"], 10.0), (vec!["a", "b"], 4.9)] {
            fixture.endpoints("web", &pods);
            fixture.set_weight(&promoted(), 0).await.unwrap();
            fixture.check_held();
            sleep(seconds).await;
            fixture.set_weight(&promoted(), 0).await.unwrap();
            fixture.check_held();
        }
        let before = fixture.store.writes();
        sleep(0.2).await;
        fixture.set_weight(&promoted(), 0).await.unwrap();
        fixture.check_restored();
        assert_eq!(fixture.store.writes() - before, 1);
        assert_eq!(
            fixture.verify(&promoted(), 0).await,
            Verification::NotImplemented
        );
        assert!(fixture.router.memory.is_empty());
    }
}

/// As soon as the first pass of a rollback is recorded, its status is that of a promotion.
#[tokio::test(start_paused = true)]
async fn a_rollback_is_not_held_when_its_split_appears_again() {
    let fixture = at(40).await;
    let split = fixture.store.table(&key()).unwrap();
    fixture.set_weight(&status(OLD, OLD, NEW), 0).await.unwrap();
    fixture.check_restored();
    // The canary Service selects the stable Pods now. The split is of a PATCH that was carried out late.
    let rest = status(OLD, OLD, OLD);
    fixture.live(&rest);
    fixture.endpoints("web", &[]);
    fixture.endpoints("web-canary", &["x"]);
    fixture.store.put(split).unwrap();
    fixture.set_weight(&rest, 0).await.unwrap();
    fixture.check_restored();
    // A later promotion of the same version is one.
    let updating = status(NEW, OLD, OLD);
    fixture.set_weight(&updating, 40).await.unwrap();
    fixture.set_weight(&rest, 0).await.unwrap();
    fixture.check_held();
}

/// Returns a fixture after the first call of a promotion whose stable Service already routes to the new Pods.
async fn settling() -> Fixture {
    let fixture = at(100).await;
    fixture.endpoints("web", &["a", "b"]);
    fixture.set_weight(&promoted(), 0).await.unwrap();
    fixture
}

/// The gateway may not have received yet what the API server already shows.
#[tokio::test(start_paused = true)]
async fn complete_endpoints_settle_too() {
    let fixture = settling().await;
    fixture.check_held();
    sleep(5.0).await;
    fixture.set_weight(&promoted(), 0).await.unwrap();
    fixture.check_restored();
}

/// D-32
#[tokio::test(start_paused = true)]
async fn a_restart_only_restarts_the_timer() {
    let fixture = settling().await;
    sleep(4.0).await;
    let fixture = fixture.restarted();
    for seconds in [4.0, 1.0] {
        fixture.set_weight(&promoted(), 0).await.unwrap();
        fixture.check_held();
        sleep(seconds).await;
    }
    fixture.set_weight(&promoted(), 0).await.unwrap();
    fixture.check_restored();
}

#[tokio::test(start_paused = true)]
async fn the_next_promotion_has_its_own_timer() {
    let fixture = settling().await;
    sleep(4.0).await;
    // Another Rollout of the same name.
    let mut recreated = promoted();
    recreated.metadata.uid = "u2".into();
    fixture.set_weight(&recreated, 0).await.unwrap();
    sleep(4.0).await;
    fixture.set_weight(&recreated, 0).await.unwrap();
    fixture.check_held();
}

/// D-31. In each case the endpoints show only new Pods behind the canary Service.
#[tokio::test(start_paused = true)]
async fn only_a_promotion_is_held() {
    let mut aborted = status(OLD, NEW, NEW);
    aborted.status.abort = true;
    let mut aborted_again = promoted();
    aborted_again.status.abort = true;
    let mut unrecorded = promoted();
    unrecorded.status.canary.weights = None;
    let ping_pong = {
        let mut rollout = promoted();
        let canary = canary(&mut rollout);
        canary.ping_pong = Some(rollouts_rpc::rollout::PingPong {
            ping_service: canary.canary_service.clone(),
            pong_service: canary.stable_service.clone(),
        });
        (canary.stable_service, canary.canary_service) = Default::default();
        rollout
    };
    for rollout in [
        status(OLD, NEW, NEW),
        aborted,
        aborted_again,
        unrecorded,
        // A rollback to the stable version: both Services already route to its Pods.
        status(NEW, NEW, OLD),
        ping_pong,
    ] {
        let fixture = at(100).await;
        fixture.endpoints("web", &["a", "b"]);
        fixture.set_weight(&rollout, 0).await.unwrap();
        fixture.check_restored();
        assert!(!fixture.router.holds.is_held(&ObjectKey::new("shop", "web")));
    }
}

/// D-30, for changes that a call detects.
#[tokio::test(start_paused = true)]
async fn a_hold_ends_when_its_condition_is_violated() {
    for canary_pods in [vec![], vec!["x"], vec!["a", "b", "x"]] {
        let fixture = at(100).await;
        fixture.set_weight(&promoted(), 0).await.unwrap();
        fixture.check_held();
        fixture.endpoints("web-canary", &canary_pods);
        fixture.set_weight(&promoted(), 0).await.unwrap();
        fixture.check_restored();
    }
    let fixture = at(100).await;
    fixture.set_weight(&promoted(), 0).await.unwrap();
    fixture
        .set_weight(&status(NEW, "next", NEW), 0)
        .await
        .unwrap();
    fixture.check_restored();
    assert_eq!(
        fixture.verify(&status(NEW, "next", NEW), 0).await,
        Verification::NotImplemented
    );
}

#[tokio::test(start_paused = true)]
async fn without_endpoints_nothing_is_held() {
    for (what, fault) in [
        ("list endpointslices", faulty::Fault::Forbidden),
        ("list pods", faulty::Fault::Timeout),
        ("list endpointslices", faulty::Fault::Silence),
    ] {
        let fixture = at(100).await.with_call_timeout();
        fixture.store.fail(what, fault);
        fixture.set_weight(&promoted(), 0).await.unwrap();
        fixture.check_restored();
    }
    let off = at(100).await;
    let off = Fixture {
        router: off.router.with_promotion_guard(false),
        ..off
    };
    off.set_weight(&promoted(), 0).await.unwrap();
    off.check_restored();
    assert_eq!(off.store.endpoints_read(), 0);
    let nowhere = Fixture::new([shop()]);
    nowhere
        .set_weight(&status(OLD, NEW, NEW), 100)
        .await
        .unwrap();
    nowhere.set_weight(&promoted(), 0).await.unwrap();
    nowhere.check_restored();
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_are_watched_are_not_read_again() {
    let fixture = at(100).await;
    fixture.set_weight(&promoted(), 0).await.unwrap();
    let (promotions, _) = fixture.router.holds().all();
    let watched = Readiness::Incomplete {
        ready: 0,
        wanted: 2,
    };
    fixture
        .router
        .holds()
        .set_observation(&promotions[0], Some(watched));
    for (seconds, reads) in [(0.0, 0), (FRESH.as_secs_f32() - 0.1, 0), (0.1, 1)] {
        sleep(seconds).await;
        let before = fixture.store.endpoints_read();
        fixture.set_weight(&promoted(), 0).await.unwrap();
        assert_eq!(
            fixture.store.endpoints_read() - before,
            reads,
            "after {seconds} s more"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn no_endpoints_are_read_at_rest() {
    let fixture = settling().await;
    sleep(5.0).await;
    fixture.set_weight(&promoted(), 0).await.unwrap();
    let before = fixture.store.endpoints_read();
    for _ in 0..3 {
        fixture.set_weight(&promoted(), 0).await.unwrap();
    }
    assert_eq!(fixture.store.endpoints_read(), before);
}

/// One of two tables has already returned to stable.
#[tokio::test(start_paused = true)]
async fn only_tables_with_traffic_on_the_canary_are_held() {
    let block = json!({"routeTableSelector": {"names": ["shop", "other"], "namespace": "mesh"}});
    let fixture = at(100).await;
    let other = fixture
        .store
        .put(table("other", vec![route_to("web")]))
        .unwrap();
    let mut both = promoted();
    set_block(&mut both, &block);
    fixture.set_weight(&both, 0).await.unwrap();
    fixture.check_held();
    assert_eq!(fixture.weights(&other), named(&[("web", None)]));
}

/// A process whose controller was not the leader for some time carries out its last call: the canary Service may already lead
/// to the next version.
#[tokio::test(start_paused = true)]
async fn a_late_call_sends_no_more_traffic_to_the_canary() {
    for (weight, is_held) in [(40, false), (100, true)] {
        let fixture = at(weight).await;
        fixture.live(&status(NEW, "next", NEW));
        fixture.set_weight(&promoted(), 0).await.unwrap();
        if is_held {
            // No traffic moves, and the next pass decides.
            fixture.check_held();
        } else {
            fixture.check_restored();
        }
    }
    let fixture = at(40).await;
    fixture.store.fail("get rollout", faulty::Fault::Timeout);
    fixture.set_weight(&promoted(), 0).await.unwrap();
    fixture.check_restored();
}

/// A table that cannot send all traffic to the canary returns to stable.
#[tokio::test(start_paused = true)]
async fn a_table_that_cannot_be_held_is_restored() {
    let fixture = at(40).await;
    let mut table = fixture.store.table(&key()).unwrap();
    // A second route to the stable Service, split by its owner: it cannot get a canary share.
    let mut foreign = route_to("web");
    foreign["name"] = json!("foreign");
    foreign["forwardTo"]["destinations"] = json!([
        {"ref": {"name": "web", "namespace": "shop"}, "weight": 50},
        {"ref": {"name": "web", "namespace": "shop"}, "port": {"number": 80}, "weight": 50},
    ]);
    table["spec"]["http"].as_array_mut().unwrap().push(foreign);
    fixture.store.put(table).unwrap();
    let _ = fixture.set_weight(&promoted(), 0).await;
    assert_eq!(fixture.weights(&key()), named(&[("web", None)]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// D-31: for a Rollout that is not promoted, weight 0 is written in the call, whatever the endpoints show and whatever
    /// was held before.
    #[test]
    fn an_abort_is_never_held(
        weight in 1..=100,
        stable in proptest::sample::subsequence(vec!["a", "b", "x"], 0..=3),
        canary in proptest::sample::subsequence(vec!["a", "b", "x"], 0..=3),
        was_promoted in any::<bool>(),
        abort in any::<bool>(),
        versions in proptest::sample::select(vec![(OLD, NEW), (NEW, "c2"), (NEW, OLD), (OLD, "c2")]),
        recorded in proptest::sample::select(vec![OLD, NEW, "c2"]),
        seconds in 0..200_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let fixture = at(weight).await;
            fixture.endpoints("web", &stable);
            fixture.endpoints("web-canary", &canary);
            if was_promoted {
                fixture.set_weight(&promoted(), 0).await.unwrap();
                sleep(seconds as f32).await;
            }
            let mut rollout = status(versions.0, versions.1, recorded);
            rollout.status.abort = abort;
            fixture.set_weight(&rollout, 0).await.unwrap();
            fixture.check_restored();
        });
    }
}

/// Returns a Rollout with `dynamicStableScale` and this recorded weight of stable.
fn dynamic(recorded_stable: i32) -> Rollout {
    let mut rollout = status(OLD, NEW, NEW);
    canary(&mut rollout).dynamic_stable_scale = true;
    let weights = rollout.status.canary.weights.as_mut().unwrap();
    weights.stable.weight = recorded_stable;
    weights.canary.weight = 100 - recorded_stable;
    rollout
}

/// Lets Gloo accept the current table after `delay` seconds, once.
fn accept_after(store: &Arc<Faulty>, delay: f32) {
    let store = store.clone();
    tokio::spawn(async move {
        sleep(delay).await;
        let mut table = store.table(&key()).unwrap();
        table["metadata"]["generation"] = json!(2);
        table["status"] =
            json!({"common": {"State": {"observedGeneration": 2, "approval": "ACCEPTED"}}});
        store.put(table).unwrap();
    });
}

/// Returns a table whose previous generation Gloo has seen.
fn pending() -> Value {
    let mut table = shop();
    table["metadata"]["generation"] = json!(2);
    table["status"] =
        json!({"common": {"State": {"observedGeneration": 1, "approval": "ACCEPTED"}}});
    table
}

const NOT_ACCEPTED: &str = "RouteTable mesh/shop: Gloo has seen generation 1 of 2: \
    the stable Pods are kept until Gloo accepts it";

/// D-34
#[tokio::test(start_paused = true)]
async fn with_dynamic_stable_scale_a_growing_share_waits_for_gloo() {
    for (delay, expect) in [(0.3, Ok(())), (3.0, Err(NOT_ACCEPTED.to_owned()))] {
        let fixture = Fixture::new([pending()]);
        accept_after(&fixture.store, delay);
        let begun = tokio::time::Instant::now();
        let outcome = fixture.set_weight(&dynamic(100), 25).await;
        assert_eq!(outcome, expect);
        let took = begun.elapsed().as_secs_f32();
        assert!((0.3..=1.01).contains(&took), "{took}");
        assert_eq!(fixture.store.writes(), 1);
        if expect.is_err() {
            // Later calls only check once.
            let begun = tokio::time::Instant::now();
            assert_eq!(fixture.set_weight(&dynamic(100), 25).await, expect);
            assert!(begun.elapsed().is_zero());
            sleep(2.1).await;
            fixture.set_weight(&dynamic(100), 25).await.unwrap();
        }
        // The controller has recorded the weight.
        fixture.set_weight(&dynamic(75), 25).await.unwrap();
        assert_eq!(fixture.store.writes(), 1);
    }
}

/// D-34
#[tokio::test(start_paused = true)]
async fn a_share_that_does_not_grow_never_waits_for_gloo() {
    for (recorded_stable, weight, verify) in [
        (75, 25, "auto"),
        (50, 25, "auto"),
        (50, 0, "auto"),
        (100, 25, "weights"),
    ] {
        let fixture = Fixture::new([pending()]);
        let mut rollout = dynamic(recorded_stable);
        let mut block = select_shop();
        block["verify"] = json!(verify);
        set_block(&mut rollout, &block);
        let begun = tokio::time::Instant::now();
        fixture.set_weight(&rollout, weight).await.unwrap();
        assert!(begun.elapsed().is_zero());
    }
    // Without `dynamicStableScale` the stable Pods stay.
    let fixture = Fixture::new([pending()]);
    fixture
        .set_weight(&status(OLD, NEW, NEW), 25)
        .await
        .unwrap();
}

/// D-35
#[tokio::test(start_paused = true)]
async fn before_a_promotion_the_canary_has_all_traffic_for_some_time() {
    let with_before = || {
        let mut rollout = status(OLD, NEW, NEW);
        wait_8_s_before_a_promotion(&mut rollout);
        rollout
    };
    let (not_yet, now) = (Verification::NotVerified, Verification::Verified);
    let rollout = with_before();
    let fixture = Fixture::new([shop()]);
    fixture.set_weight(&rollout, 100).await.unwrap();
    assert_eq!(fixture.verify(&rollout, 100).await, not_yet);
    sleep(7.9).await;
    assert_eq!(fixture.verify(&rollout, 100).await, not_yet);
    // A new process measures from its own start.
    let fixture = fixture.restarted();
    for seconds in [7.9, 0.2] {
        fixture.set_weight(&rollout, 100).await.unwrap();
        assert_eq!(fixture.verify(&rollout, 100).await, not_yet);
        sleep(seconds).await;
    }
    assert_eq!(fixture.verify(&rollout, 100).await, now);
    // The time starts again after a lower weight, and for another version.
    fixture.set_weight(&rollout, 50).await.unwrap();
    fixture.set_weight(&rollout, 100).await.unwrap();
    assert_eq!(fixture.verify(&rollout, 100).await, not_yet);
    sleep(8.0).await;
    let mut next = with_before();
    next.status.current_pod_hash = "c2".into();
    assert_eq!(fixture.verify(&next, 100).await, not_yet);
    // A full promotion does not wait.
    let mut full = with_before();
    full.status.promote_full = true;
    assert_eq!(fixture.verify(&full, 100).await, now);
}

/// A step of 100 % before the end: the time counts during the step, but does not delay it.
#[tokio::test(start_paused = true)]
async fn the_time_before_a_promotion_counts_from_a_step_with_all_traffic() {
    let mut rollout = status(OLD, NEW, NEW);
    wait_8_s_before_a_promotion(&mut rollout);
    canary(&mut rollout).steps = vec![CanaryStep {
        set_weight: Some(100),
        ..CanaryStep::default()
    }];
    rollout.status.current_step_index = Some(0);
    let fixture = Fixture::new([shop()]);
    fixture.set_weight(&rollout, 100).await.unwrap();
    assert_eq!(fixture.verify(&rollout, 100).await, Verification::Verified);
    sleep(8.0).await;
    rollout.status.current_step_index = Some(1);
    assert_eq!(fixture.verify(&rollout, 100).await, Verification::Verified);
}
