//! Tests of what is written between the calls: each write asks the fence, and a newer call takes over.

use std::sync::atomic::{AtomicUsize, Ordering};

use route_store::fake_api::{FakeApi, Fault};
use route_store::{CachedRouteStore, Clusters, Controller, RolloutReader as _};
use tokio::time::{sleep, timeout};

use super::managed_routes::{mirror, mirror_rollout};
use super::*;
use crate::background::{Settings, between_calls};
use crate::collect::Part;
use crate::report::{
    OrphanCause,
    RepairOutcome::{self, Unanswered, Written},
};
use crate::standing::Standing;

/// Allows this many writes, as a Lease that is lost afterwards.
struct Allows(AtomicUsize);

impl Allows {
    fn times(number: usize) -> Self {
        Self(AtomicUsize::new(number))
    }
}

impl Fence for Allows {
    async fn allows(&self) -> Option<bool> {
        let left = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        Some(left.is_ok())
    }
}

/// Two tables that a Rollout mirrors requests of.
async fn mirrored() -> Fixture {
    let other = table("shop-2", vec![route_to("web")]);
    let fixture = Fixture::new([shop(), other]);
    let names = json!({"routeTableSelector": {"names": ["shop", "shop-2"], "namespace": "mesh"}});
    let rollout = mirror_rollout(names);
    let set: Result<(), RouterError> = fixture.router.set_mirror_route(&rollout, &mirror(30)).await;
    set.unwrap();
    fixture.set_weight(&rollout, 25).await.unwrap();
    fixture.store.taken();
    fixture
}

/// Collects what the Rollout left in one of the tables, while the fence allows so many writes.
async fn collect(fixture: &Fixture, why: OrphanCause, allowed: usize) {
    let part = Part {
        rollout: ObjectKey::new("shop", "web"),
        table: key(),
    };
    let fence = Allows::times(allowed);
    fixture.router.collect(&part, why, &fence).await;
}

/// Collects what a deleted Rollout left, while the fence allows so many writes.
async fn check_collection(allowed: usize, expect: &[&str]) {
    let fixture = mirrored().await;
    collect(&fixture, OrphanCause::Deleted, allowed).await;
    assert_eq!(fixture.store.taken(), expect, "{allowed} allowed");
}

///
#[tokio::test]
async fn the_fence_is_asked_before_each_write_of_a_collection() {
    check_collection(0, &[]).await;
    check_collection(1, &["delete"]).await;
    check_collection(2, &["delete", "delete"]).await;
    check_collection(3, &["delete", "delete", "table"]).await;
}

/// Collects what a Rollout left in a table that it did not select a while ago; now it selects these tables.
async fn check_deselected(now: &[&str], expect: &[&str]) {
    let fixture = mirrored().await;
    let block = json!({"routeTableSelector": {"names": now, "namespace": "mesh"}});
    fixture.store.put_rollout(rollout_object(block)).unwrap();
    collect(&fixture, OrphanCause::Deselected, 9).await;
    assert_eq!(fixture.store.taken(), expect, "{now:?}");
}

#[tokio::test]
async fn a_table_that_is_selected_again_is_not_restored() {
    check_deselected(&["shop", "shop-2"], &[]).await;
    check_deselected(&["shop-2"], &["delete", "table"]).await;
}

/// Returns a Rollout with this status.
fn with_status(status: Value) -> Rollout {
    let mut rollout = rollout(select_shop());
    rollout.metadata.uid = "u1".into();
    rollout.status = serde_json::from_value(status).unwrap();
    rollout
}

/// A Rollout at rest, whose table still has marks of its last update.
async fn at_rest_with_marks() -> Fixture {
    let fixture = Fixture::new([shop()]).with_call_timeout();
    let status = json!({"stableRS": "s1", "currentPodHash": "c1"});
    fixture.set_weight(&with_status(status), 25).await.unwrap();
    // A new process knows nothing of the update.
    let fixture = Fixture {
        router: GlooRouter::new(fixture.store.clone(), fixture.router.policy.clone()),
        store: fixture.store,
    };
    let mut object = races::object(&json!({}));
    object["status"] = json!({
        "stableRS": "s1", "currentPodHash": "s1",
        "canary": {"weights": {"canary": {"weight": 0}, "stable": {"weight": 100}}},
    });
    fixture.store.put_rollout(object).unwrap();
    fixture
}

impl Fixture {
    /// Restores the tables of the Rollout, whose call was deferred. Returns whether that ends within ten minutes.
    async fn restore(&self, fence: &impl Fence) -> bool {
        let rollout = ObjectKey::new("shop", "web");
        let marked = BTreeSet::from([rollout]);
        *crate::lock(&self.router.deferred) = Some(marked.clone());
        let restore = self.router.restore_deferred(&marked, fence);
        let has_ended = timeout(Duration::from_secs(600), restore).await.is_ok();
        assert_eq!(has_ended, crate::lock(&self.router.deferred).is_none());
        has_ended
    }
}

///
#[tokio::test(start_paused = true)]
async fn a_deferred_rollout_is_restored_only_through_the_fence() {
    for (allowed, expect) in [
        (0, named(&[("web", Some(75)), ("web-canary", Some(25))])),
        (1, named(&[("web", None)])),
    ] {
        let fixture = at_rest_with_marks().await;
        let has_ended = fixture.restore(&Allows::times(allowed)).await;
        assert_eq!(has_ended, allowed > 0);
        assert_eq!(fixture.weights(&key()), expect, "{allowed} allowed");
    }
}

/// The controller may not call again for a long time.
#[tokio::test(start_paused = true)]
async fn a_restore_of_a_deferred_rollout_that_fails_is_tried_again() {
    for request in ["patch shop", "get rollout"] {
        let fixture = at_rest_with_marks().await;
        fixture.store.fail(request, faulty::Fault::Timeout);
        assert!(!fixture.restore(&Allows::times(100)).await);
        fixture.store.heal();
        assert!(fixture.restore(&Allows::times(100)).await);
        assert_eq!(fixture.weights(&key()), named(&[("web", None)]));
    }
}

/// A Rollout whose block cannot be used is restored by the marks alone, which is no failure.
#[tokio::test(start_paused = true)]
async fn a_restore_of_a_deferred_rollout_with_an_unusable_block_is_made_once() {
    let fixture = at_rest_with_marks().await;
    let object = fixture.store.rollout(&ObjectKey::new("shop", "web")).await;
    let mut object = object.unwrap().unwrap().into_raw();
    let plugins = "/spec/strategy/canary/trafficRouting/plugins/solo-io~1glooplatform";
    *object.pointer_mut(plugins).unwrap() = json!({"routeTableSelectr": {}});
    fixture.store.put_rollout(object).unwrap();
    fixture.store.contexts();
    assert!(fixture.restore(&Allows::times(100)).await);
    assert_eq!(fixture.weights(&key()), named(&[("web", None)]));
    let requests = fixture.store.contexts().into_iter();
    let reads = requests.filter(|(request, _)| request == "get rollout");
    assert_eq!(reads.count(), 1);
}

/// The cache of another namespace may begin to be filled later.
#[tokio::test]
async fn no_call_is_deferred_after_the_start() {
    let fixture = at_rest_with_marks().await;
    assert!(fixture.restore(&Allows::times(1)).await);
    let at_rest = fixture.store.rollout(&ObjectKey::new("shop", "web")).await;
    let at_rest = races::read(at_rest.unwrap().unwrap().into_raw());
    assert!(!fixture.router.defer(&at_rest).await);
    assert_eq!(*crate::lock(&fixture.router.deferred), None);
}

/// Two tables at 25 %, and a mirror route in both. `damage` changes the table `shop`, or the policies.
async fn check_repair(
    damage: fn(&mut Value),
    without_policies: bool,
    fault: Option<&str>,
    expect: Option<RepairOutcome>,
) {
    let fixture = Fixture::new([shop(), table("shop-2", vec![route_to("web")])]);
    let mut object = races::object(&json!({"currentStepIndex": 2}));
    let canary = object.pointer_mut("/spec/strategy/canary").unwrap();
    let mirror = json!({"name": "mir", "percentage": 30, "match": [{"method": {"exact": "GET"}}]});
    canary["steps"] = json!([{"setWeight": 25}, {"setMirrorRoute": mirror}, {"pause": {}}]);
    let routing = &mut canary["trafficRouting"];
    routing["managedRoutes"] = json!([{"name": "mir"}]);
    routing["plugins"]["solo-io/glooplatform"] =
        json!({"routeTableSelector": {"names": ["shop", "shop-2"], "namespace": "mesh"}});
    fixture.store.put_rollout(object.clone()).unwrap();
    let rollout = races::read(object);
    let mirror = rollout.steps()[1].set_mirror_route.clone().unwrap();
    let set: Result<(), RouterError> = fixture.router.set_mirror_route(&rollout, &mirror).await;
    set.unwrap();
    fixture.set_weight(&rollout, 25).await.unwrap();
    let tables = || [key(), ObjectKey::new("mesh", "shop-2")].map(|it| fixture.spec(&it));
    let right = tables();

    let mut damaged = fixture.store.table(&key()).unwrap();
    damage(&mut damaged);
    fixture.store.put(damaged).unwrap();
    if without_policies {
        for policy in fixture.store.policies().await.unwrap() {
            fixture.store.delete_policy(&policy).await.unwrap();
        }
    }
    fixture.store.taken();
    if let Some(request) = fault {
        fixture.store.fail(request, faulty::Fault::Timeout);
    }
    let part = Part {
        rollout: ObjectKey::new("shop", "web"),
        table: key(),
    };
    let repair = async || fixture.router.repair(&part, &races::Leader).await;
    let repaired = repair().await;
    assert_eq!(repaired.outcome, expect, "{fault:?}");
    assert_eq!(repaired.is_open, fault.is_some(), "{fault:?}");
    if fault.is_some() {
        fixture.store.heal();
        assert_eq!(repair().await, Some(Written).into(), "{fault:?}");
    }
    assert_eq!(tables(), right, "{fault:?}");
    assert_eq!(repair().await, None.into());
}

/// What is not read for another object can be the reason why a table gets nothing. Otherwise the repair would end here.
#[tokio::test]
async fn a_repair_that_waits_for_another_object_is_unanswered() {
    let less = |table: &mut Value| {
        let routes = table["spec"]["http"].as_array_mut().unwrap();
        let split = routes.iter_mut().find(|it| it["name"] != "mir").unwrap();
        split["forwardTo"]["destinations"][0]["weight"] = json!(90);
        split["forwardTo"]["destinations"][1]["weight"] = json!(10);
    };
    check_repair(less, false, None, Some(Written)).await;
    // The mirror route gets less copies at once, and the rest later.
    check_repair(less, false, Some("select shop-2"), Some(Written)).await;
    check_repair(less, false, Some("list policies"), Some(Written)).await;
    check_repair(|_| {}, true, None, Some(Written)).await;
    check_repair(|_| {}, true, Some("list policies"), Some(Unanswered)).await;
}

/// A fence that is answered after a call for the next version.
struct After {
    fixture: Arc<Fixture>,
    /// A weight that the status does not admit leaves no intent.
    steps: Value,
}

impl Fence for After {
    async fn allows(&self) -> Option<bool> {
        let mut called = with_status(json!({"stableRS": "s1", "currentPodHash": "c2"}));
        canary(&mut called).steps = serde_json::from_value(self.steps.clone()).unwrap();
        self.fixture.set_weight(&called, 40).await.unwrap();
        Some(true)
    }
}

fn weight_of(standing: &Standing) -> i32 {
    match &standing.request.intent.kind {
        IntentKind::SetWeight(split) => split.desired,
        other => panic!("{other:?}"),
    }
}

async fn check_newer_call(steps: Value, intent: Option<i32>) {
    let fixture = Arc::new(at_rest_with_marks().await);
    let rollout = ObjectKey::new("shop", "web");
    let before = fixture.store.writes();
    let fence = After {
        fixture: fixture.clone(),
        steps,
    };
    assert!(fixture.restore(&fence).await);
    assert_eq!(fixture.store.writes(), before + 1, "only the call writes");
    let standing = fixture.router.background.standing().of(&rollout).cloned();
    assert_eq!(standing.map(|it| weight_of(&it)), intent);
}

///
#[tokio::test]
async fn the_restore_of_a_deferred_rollout_leaves_a_newer_call_alone() {
    check_newer_call(json!([{"setWeight": 40}]), Some(40)).await;
    check_newer_call(json!([]), None).await;
}

/// Starts a router with the work between the calls.
fn started(api: &FakeApi) -> Arc<GlooRouter<CachedRouteStore>> {
    let policy = Policy {
        plugin_names: vec!["solo-io/glooplatform".into()],
        ..Policy::default()
    };
    let store = Arc::new(CachedRouteStore::new(
        Clusters::new(api.store(), None),
        table_keeper(policy.clone()),
        rollout_keeper(policy.clone()),
        Vec::new(),
    ));
    let router = GlooRouter::new(store, policy);
    let router = Arc::new(router.with_call_timeout(Duration::from_secs(5)));
    let controller = Controller::new("argo-rollouts", "pod-1");
    router.spawn(between_calls(
        router.clone(),
        Settings::default(),
        controller,
    ));
    router
}

async fn set_25(router: &GlooRouter<CachedRouteStore>, object: Value) {
    let rollout = races::read(object);
    let set: Result<(), RouterError> = router.set_weight(&rollout, desired(25), &[]).await;
    set.unwrap();
}

/// A process that starts during an update learns from the Rollout's status what to repair, and asks until it is answered.
#[tokio::test(start_paused = true)]
async fn a_new_process_repairs_drift_although_its_first_reads_are_not_answered() {
    for request in ["get rollouts", "get routetables"] {
        let api = FakeApi::default();
        api.put("routetables", shop());
        let weights = json!({
            "canary": {"weight": 25, "podTemplateHash": "c1"},
            "stable": {"weight": 75, "podTemplateHash": "s1"},
        });
        let status = json!({"observedGeneration": "1", "canary": {"weights": weights}});
        let object = races::object(&status);
        api.put("rollouts", object.clone());
        let before = started(&api);
        set_25(&before, object.clone()).await;
        before.stop().await;
        let split = api.get("routetables", &key()).unwrap();

        api.behave(|api| {
            api.faults.insert(request.to_owned(), Fault::Lost);
        });
        let router = started(&api);
        // The work between the calls begins with the first call, here for another Rollout.
        let other = Rollout::default();
        let removed: Result<(), RouterError> = router.remove_managed_routes(&other).await;
        removed.unwrap();
        sleep(Duration::from_secs(30)).await;
        api.behave(|api| api.faults.clear());
        sleep(Duration::from_secs(60)).await;
        let mut drifted = split.clone();
        let destinations = &mut drifted["spec"]["http"][0]["forwardTo"]["destinations"];
        destinations[0]["weight"] = json!(40);
        destinations[1]["weight"] = json!(60);
        api.put("routetables", drifted);
        sleep(Duration::from_secs(2)).await;
        let table = api.get("routetables", &key()).unwrap();
        assert_eq!(table["spec"], split["spec"], "{request}");
        router.stop().await;
    }
}

/// The tables cannot be listed anywhere, so it is never known which deferred Rollouts have marks, and Rollouts are
/// watched in one namespace.
#[tokio::test(start_paused = true)]
async fn a_deleted_rollout_is_forgotten_while_the_check_of_deferred_calls_waits() {
    let api = FakeApi::default();
    api.put("routetables", shop());
    let live = races::object(&json!({}));
    api.put("rollouts", live.clone());
    api.behave(|api| {
        for request in ["list routetables", "list all rollouts"] {
            api.faults.insert(request.to_owned(), Fault::Forbidden);
        }
    });
    let router = started(&api);
    sleep(Duration::from_secs(3)).await;
    let live = api.get("rollouts", &ObjectKey::new("shop", "web")).unwrap();
    let called: Rollout = serde_json::from_value(live).unwrap();
    let set: Result<(), RouterError> = router.set_weight(&called, desired(25), &[]).await;
    set.unwrap();
    sleep(Duration::from_secs(5)).await;
    let rollout = from_rpc::key(&called);
    assert!(
        router
            .background
            .standing()
            .rollouts(|_| true)
            .contains(&rollout)
    );
    let tables = &router.store.tables;
    assert!(
        tables.objects(None, Duration::MAX).is_err(),
        "the check goes on"
    );
    api.delete("rollouts", &rollout);
    sleep(Duration::from_secs(3)).await;
    assert!(router.background.standing().rollouts(|_| true).is_empty());
    assert!(router.memory.is_empty());
    assert!(api.unmet_faults().is_empty());
    router.stop().await;
}
