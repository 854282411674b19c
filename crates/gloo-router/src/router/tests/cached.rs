//! Tests of the router over the cache and a fake API server: which requests are sent, and when. Time is paused.

use std::collections::BTreeSet;
use std::future::Future;

use rollouts_rpc::PodHashes;
use rollouts_rpc::rollout::{HeaderRoutingMatch, StringMatch};
use route_store::{
    CachedRouteStore, ChangeKind, Clusters, FRESH, RolloutReader as _, RouteStore as _,
    fake_api::{FakeApi, Fault},
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::managed_routes::mirror_rollout;
use super::races::Leader;
use super::*;
use crate::background::{Presence, Watched, forget_deleted};

const NOTHING: [&str; 0] = [];
const PATCH: &str = "patch routetables mesh/shop";
const GET: &str = "get routetables mesh/shop";

type Cached = Arc<GlooRouter<CachedRouteStore>>;

/// A router, its cache and a fake API server.
struct World {
    api: FakeApi,
    store: Arc<CachedRouteStore>,
    router: Cached,
    tasks: [JoinHandle<()>; 2],
}

impl World {
    /// Creates a router that has just started.
    fn starting(api: FakeApi) -> Self {
        let store = api.store();
        Self::over(api, Clusters::new(store, None))
    }

    /// Creates a router with the RouteTables of `api` and the Rollouts of any cluster.
    fn over(api: FakeApi, clusters: Clusters) -> Self {
        let policy = Policy {
            plugin_names: vec!["solo-io/glooplatform".into()],
            ..Policy::default()
        };
        let store = CachedRouteStore::new(
            clusters,
            table_keeper(policy.clone()),
            rollout_keeper(policy.clone()),
            Vec::new(),
        );
        let store = Arc::new(store);
        let router = GlooRouter::new(store.clone(), policy);
        let router = Arc::new(router.with_call_timeout(Duration::from_secs(5)));
        let (running, watched, maintained) = (store.clone(), store.clone(), router.clone());
        let tasks = [
            tokio::spawn(async move { running.run().await }),
            tokio::spawn(async move {
                let deferred = async {
                    let marks = watched.first_marks().await;
                    maintained.restore_deferred(&marks, &Leader).await;
                };
                join(forget_deleted(&maintained, &*watched), deferred).await;
            }),
        ];
        Self {
            api,
            store,
            router,
            tasks,
        }
    }

    /// Creates a router with a filled cache.
    async fn synced(api: FakeApi) -> Self {
        let world = Self::starting(api);
        sleep(Duration::from_secs(3)).await;
        world.api.requests();
        world
    }

    /// Creates a router with the table [`shop`] and a filled cache.
    async fn new() -> Self {
        let api = FakeApi::default();
        api.put("routetables", shop());
        Self::synced(api).await
    }

    async fn set_weight(&self, rollout: &Rollout, weight: i32) -> Result<(), String> {
        let set = self.router.set_weight(rollout, desired(weight), &[]).await;
        set.map_err(|error: RouterError| error_chain(error.as_error()))
    }

    async fn verify(&self, rollout: &Rollout, weight: i32) -> Result<Verification, RouterError> {
        self.router
            .verify_weight(rollout, desired(weight), &[])
            .await
    }

    /// Makes the calls of one pass.
    async fn pass(&self, rollout: &Rollout, weight: i32) -> Result<(), String> {
        if weight == 0 {
            let removed: Result<(), RouterError> = self.router.remove_managed_routes(rollout).await;
            removed.map_err(|error| error_chain(error.as_error()))?;
        }
        let hashes = PodHashes {
            stable: rollout.status.stable_rs.as_str().into(),
            canary: rollout.status.current_pod_hash.as_str().into(),
        };
        let updated: Result<(), RouterError> = self.router.update_hash(rollout, &hashes, &[]).await;
        updated.map_err(|error| error_chain(error.as_error()))?;
        self.set_weight(rollout, weight).await?;
        let verified = self.verify(rollout, weight).await;
        verified.map_err(|error| error_chain(error.as_error()))?;
        Ok(())
    }

    /// Checks the requests for single objects since the last check.
    #[track_caller]
    fn check_requests(&self, expect: &[&str]) {
        assert_eq!(self.api.requests_for_objects(), expect);
    }

    fn weights(&self) -> String {
        let table = self.api.get("routetables", &key()).unwrap();
        let destinations = &table["spec"]["http"][0]["forwardTo"]["destinations"];
        let destinations = destinations.as_array().unwrap().iter();
        let weights = destinations.map(|it| it["weight"].to_string());
        weights.collect::<Vec<_>>().join(" ")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if !std::thread::panicking() {
            assert_eq!(self.api.unmet_faults(), BTreeSet::new());
        }
    }
}

/// Returns a Rollout whose status says that it is at rest.
fn resting(name: &str) -> Rollout {
    let mut rollout = rollout(select_shop());
    rollout.metadata.name = name.into();
    let status = json!({
        "stableRS": "s1", "currentPodHash": "s1",
        "canary": {"weights": {"canary": {"weight": 0}, "stable": {"weight": 100}}},
    });
    rollout.status = serde_json::from_value(status).unwrap();
    rollout
}

/// Returns a Rollout during an update, at a step that sets a weight.
fn updating() -> Rollout {
    let mut rollout = rollout(select_shop());
    rollout.status.stable_rs = "s1".into();
    rollout.status.current_pod_hash = "c1".into();
    rollout.status.current_step_index = Some(0);
    let step = json!([{"setWeight": 25}]);
    canary(&mut rollout).steps = serde_json::from_value(step).unwrap();
    rollout
}

async fn within(seconds: u64, done: impl Future<Output = ()>) {
    let start = Instant::now();
    done.await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(seconds), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn d_1_a_steady_pass_sends_nothing() {
    let world = World::new().await;
    let rest = resting("web");
    for _ in 0..500 {
        world.pass(&rest, 0).await.unwrap();
    }
    world.check_requests(&NOTHING);
    let updating = updating();
    world.pass(&updating, 25).await.unwrap();
    world.check_requests(&[PATCH]);
    for _ in 0..500 {
        world.pass(&updating, 25).await.unwrap();
    }
    world.check_requests(&NOTHING);
}

#[tokio::test(start_paused = true)]
async fn d_2_a_changed_weight_is_one_patch() {
    let world = World::new().await;
    let rollout = updating();
    for weight in [25, 60, 100, 0] {
        world.set_weight(&rollout, weight).await.unwrap();
        world.check_requests(&[PATCH]);
    }
}

#[tokio::test(start_paused = true)]
async fn d_2_a_weight_of_subsets_is_one_patch() {
    let api = FakeApi::default();
    let mut route = route_to("web");
    route["forwardTo"]["destinations"][0]["subset"] = json!({"version": "v1"});
    api.put("routetables", table("shop", vec![route]));
    let world = World::synced(api).await;
    let mut block = select_shop();
    block["stableDestination"] = json!({"name": "web", "subset": {"version": "v1"}});
    block["canaryDestination"] = json!({"subset": {"version": "v2"}});
    let mut rollout = rollout(block);
    rollout.status = updating().status;
    canary(&mut rollout).stable_service = String::new();
    canary(&mut rollout).canary_service = String::new();
    world.set_weight(&rollout, 25).await.unwrap();
    world.check_requests(&[PATCH]);
}

#[tokio::test(start_paused = true)]
async fn d_2_a_header_step_is_one_patch() {
    let world = World::new().await;
    let mut rollout = updating();
    routing(&mut rollout).managed_routes = vec![managed("head")];
    let value = StringMatch {
        exact: "yes".into(),
        ..StringMatch::default()
    };
    let route = SetHeaderRoute {
        name: "head".into(),
        matches: vec![HeaderRoutingMatch {
            header_name: "canary".into(),
            header_value: value,
        }],
    };
    let set: Result<(), RouterError> = world.router.set_header_route(&rollout, &route).await;
    assert!(set.is_ok());
    world.check_requests(&[PATCH]);
}

#[tokio::test(start_paused = true)]
async fn d_2_a_mirror_step_is_one_patch_and_one_policy() {
    let api = FakeApi::default();
    api.put("routetables", shop());
    let rollout = mirror_rollout(select_shop());
    api.put("rollouts", mirrored());
    let world = World::synced(api).await;
    let step = rollout.current_step().unwrap().clone();
    let route = step.set_mirror_route.unwrap();
    let set: Result<(), RouterError> = world.router.set_mirror_route(&rollout, &route).await;
    assert!(set.is_ok());
    world.check_requests(&[PATCH, "create mirrorpolicies in mesh"]);
    world.set_weight(&rollout, 0).await.unwrap();
    world.check_requests(&NOTHING);
    // MirrorPolicies are watched only while a Rollout has mirror steps.
    assert_eq!(world.store.policies.status().objects, 1);
    world.api.delete("rollouts", &ObjectKey::new("shop", "web"));
    sleep(Duration::from_secs(3)).await;
    assert_eq!(world.store.policies.status().objects, 0);
}

/// Returns the Rollout of [`mirror_rollout`] as the API server shows it.
fn mirrored() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop", "generation": 1},
        "spec": {"strategy": {"canary": {
            "stableService": "web", "canaryService": "web-canary",
            "trafficRouting": {"managedRoutes": [{"name": "mir"}], "plugins": {"solo-io/glooplatform": select_shop()}},
            "steps": [{"setMirrorRoute": {"name": "mir", "percentage": 30, "match": [{"path": {"prefix": "/"}}]}}],
        }}},
    })
}

#[tokio::test(start_paused = true)]
async fn a_percentage_of_zero_is_cached_for_a_generation() {
    let api = FakeApi::default();
    api.put("routetables", shop());
    let mut live = mirrored();
    live["spec"]["strategy"]["canary"]["steps"][0]["setMirrorRoute"]["percentage"] = json!(0);
    api.put("rollouts", live);
    let world = World::synced(api).await;
    let mut rollout = mirror_rollout(select_shop());
    let step = &mut canary(&mut rollout).steps[0];
    step.set_mirror_route.as_mut().unwrap().percentage = None;
    rollout.metadata.generation = 1;
    world.set_weight(&rollout, 0).await.unwrap();
    world.check_requests(&NOTHING);
    rollout.metadata.generation = 2;
    world.set_weight(&rollout, 0).await.unwrap();
    world.check_requests(&["get rollouts shop/web"]);
}

#[tokio::test(start_paused = true)]
async fn d_3_a_write_is_visible_before_its_event_arrives() {
    let world = World::new().await;
    world
        .api
        .behave(|api| api.watch_delay = Duration::from_secs(5));
    let rollout = updating();
    world.set_weight(&rollout, 25).await.unwrap();
    world.verify(&rollout, 25).await.unwrap();
    world.set_weight(&rollout, 25).await.unwrap();
    world.check_requests(&[PATCH]);
    sleep(Duration::from_secs(10)).await;
    world.set_weight(&rollout, 25).await.unwrap();
    world.check_requests(&NOTHING);
}

#[tokio::test(start_paused = true)]
async fn d_3_d_4_a_conflict_causes_one_live_read_and_older_events_are_ignored() {
    let world = World::new().await;
    world
        .api
        .behave(|api| api.watch_delay = Duration::from_secs(5));
    let mut edited = world.api.get("routetables", &key()).unwrap();
    edited["spec"]["hosts"] = json!(["edited.example.com"]);
    world.api.put("routetables", edited);
    let rollout = updating();
    world.set_weight(&rollout, 25).await.unwrap();
    world.check_requests(&[PATCH, GET, PATCH]);
    for _ in 0..10 {
        sleep(Duration::from_secs(1)).await;
        world.set_weight(&rollout, 25).await.unwrap();
    }
    world.check_requests(&NOTHING);
    let table = world.api.get("routetables", &key()).unwrap();
    assert_eq!(table["spec"]["hosts"], json!(["edited.example.com"]));
    assert_eq!(world.weights(), "75 25");
}

#[tokio::test(start_paused = true)]
async fn d_5_stale_tables_are_read() {
    let world = World::new().await;
    let metadata = json!({"namespace": "shop", "name": "web"});
    world.api.put("rollouts", json!({"metadata": metadata}));
    let rollout = updating();
    world.set_weight(&rollout, 25).await.unwrap();
    world.api.behave(|api| api.is_frozen = true);
    world.api.requests();
    let mut edited = world.api.get("routetables", &key()).unwrap();
    edited["spec"] = shop()["spec"].clone();
    world.api.put("routetables", edited);
    // A watch may be silent for a short time.
    world.set_weight(&rollout, 25).await.unwrap();
    world.check_requests(&NOTHING);
    sleep(FRESH + Duration::from_secs(1)).await;
    world.set_weight(&rollout, 25).await.unwrap();
    // The Rollout is read too, before more traffic moves to its canary.
    world.check_requests(&[GET, "get rollouts shop/web", PATCH]);
    assert_eq!(world.weights(), "75 25");
    world.api.behave(|api| api.is_frozen = false);
    sleep(Duration::from_secs(20)).await;
    world.api.requests();
    world.set_weight(&rollout, 25).await.unwrap();
    world.check_requests(&NOTHING);
}

#[tokio::test(start_paused = true)]
async fn d_6_an_unknown_table_is_read() {
    let world = World::synced(FakeApi::default()).await;
    world
        .api
        .behave(|api| api.watch_delay = Duration::from_secs(5));
    let rollout = updating();
    let error = world.set_weight(&rollout, 25).await.unwrap_err();
    assert!(error.contains("RouteTable mesh/shop not found"), "{error}");
    world.check_requests(&[GET]);
    world.api.put("routetables", shop());
    world.set_weight(&rollout, 25).await.unwrap();
    world.check_requests(&[GET, PATCH]);
}

#[tokio::test(start_paused = true)]
async fn d_6_a_promotion_is_verified_with_a_live_read() {
    let world = World::new().await;
    let mut rollout = updating();
    rollout.status.current_step_index = Some(1);
    world.set_weight(&rollout, 100).await.unwrap();
    let with_state = |state: &str| {
        let mut table = world.api.get("routetables", &key()).unwrap();
        let generation = table["metadata"]["generation"].clone();
        let common = json!({"state": {"approval": state, "observedGeneration": generation}});
        table["status"] = json!({"common": common});
        world.api.put("routetables", table);
    };
    with_state("ACCEPTED");
    sleep(Duration::from_secs(1)).await;
    world.api.requests();
    let verified = world.verify(&rollout, 100).await.unwrap();
    assert_eq!(verified, Verification::Verified);
    world.check_requests(&[GET]);
    world.api.behave(|api| api.is_frozen = true);
    with_state("PENDING");
    let verified = world.verify(&rollout, 100).await.unwrap();
    assert_eq!(verified, Verification::NotVerified);
}

#[tokio::test(start_paused = true)]
async fn d_8_calls_at_rest_are_answered_while_the_cache_is_being_filled() {
    let api = FakeApi::default();
    // The previous process was killed during an update, which has been rolled back since.
    api.put("routetables", shop());
    let before = World::synced(api.clone()).await;
    before.set_weight(&updating(), 25).await.unwrap();
    drop(before);
    let mut live = mirrored();
    live["spec"]["strategy"]["canary"]["steps"] = json!([{"setWeight": 25}]);
    let rest = json!({"canary": {"weight": 0}, "stable": {"weight": 100}});
    live["status"] = json!({"stableRS": "s1", "currentPodHash": "s1", "canary": {"weights": rest}});
    api.put("rollouts", live);
    api.behave(|api| api.list_delay = Duration::from_secs(2));
    api.requests();

    let world = World::starting(api);
    within(2, async {
        for number in 0..2000 {
            let rollout = resting(&format!("other-{number}"));
            world.pass(&rollout, 0).await.unwrap();
        }
        world.pass(&resting("web"), 0).await.unwrap();
    })
    .await;
    world.check_requests(&NOTHING);
    assert_eq!(world.weights(), "75 25");
    // Any other call reads the tables.
    let mut other = updating();
    other.metadata.name = "other".into();
    let refused = world.set_weight(&other, 25).await.unwrap_err();
    assert!(refused.contains("shop/web"), "{refused}");
    world.check_requests(&[GET]);

    sleep(Duration::from_secs(10)).await;
    world.check_requests(&["get rollouts shop/web", PATCH]);
    assert_eq!(world.weights(), "null");
    world.pass(&resting("web"), 0).await.unwrap();
    world.check_requests(&NOTHING);
}

#[tokio::test(start_paused = true)]
async fn d_9_without_permission_to_watch_every_call_reads() {
    let api = FakeApi::default();
    api.put("routetables", shop());
    api.behave(|api| {
        for line in ["watch routetables", "watch rollouts"] {
            api.faults.insert(line.to_owned(), Fault::Forbidden);
        }
    });
    let world = World::synced(api).await;
    let rollout = updating();
    for expect in [&[GET, PATCH][..], &[GET]] {
        world.set_weight(&rollout, 25).await.unwrap();
        let mut requests = world.api.requests_for_objects();
        requests.retain(|line| !line.starts_with("list "));
        assert_eq!(requests, expect);
    }
    let status = world.store.tables.status();
    assert!(status.scopes.iter().all(|scope| scope.age.is_none()));
    // The permission is granted while the process runs.
    world.api.behave(|api| api.faults.clear());
    sleep(Duration::from_secs(40)).await;
    world.api.requests();
    world.set_weight(&rollout, 25).await.unwrap();
    world.check_requests(&NOTHING);
}

/// Lets every list of all namespaces fail.
fn break_lists_of_all(api: &FakeApi, fault: Fault) {
    api.behave(|api| {
        for kind in ["routetables", "rollouts", "mirrorpolicies"] {
            api.faults.insert(format!("list all {kind}"), fault);
        }
    });
}

/// Checks that the namespaces of calls are watched while the lists of all namespaces fail as given, one fault after another.
async fn check_single_namespaces(faults: &[Fault]) {
    let api = FakeApi::default();
    api.put("routetables", shop());
    api.put("rollouts", mirrored());
    break_lists_of_all(&api, faults[0]);
    let world = World::synced(api).await;
    let rollout = updating();
    world.set_weight(&rollout, 25).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let mut deletions = world.store.tables.subscribe();
    for fault in faults {
        break_lists_of_all(&world.api, *fault);
        sleep(Duration::from_secs(150)).await;
        world.api.requests();
        world.set_weight(&rollout, 25).await.unwrap();
        world.check_requests(&NOTHING);
        world.set_weight(&rollout, 60).await.unwrap();
        world.set_weight(&rollout, 25).await.unwrap();
        world.check_requests(&[PATCH, PATCH]);
        let table = world.store.read(&key()).await;
        assert!(table.is_ok(), "{fault:?}: {table:?}");
        world.api.requests();
    }
    // The cache was never emptied.
    while let Ok(change) = deletions.try_recv() {
        assert_ne!(change.kind, ChangeKind::Deleted, "{faults:?}");
    }
    // Deleted Rollouts are noticed as with a watch of all namespaces.
    world.api.delete("rollouts", &ObjectKey::new("shop", "web"));
    sleep(Duration::from_secs(3)).await;
    assert!(
        world
            .router
            .background()
            .standing()
            .rollouts(|_| true)
            .is_empty()
    );
    assert!(Watched::marked(&*world.store).is_some());

    // The lists succeed, so the narrower watches end.
    world.api.behave(|api| api.faults.clear());
    sleep(Duration::from_secs(200)).await;
    world.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(world.store.tables.status().scopes.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn c_1_single_namespaces_are_watched_whatever_happens_to_the_lists_of_all() {
    use Fault::{Broken, Forbidden, Hangs, Lost};
    for first in [Forbidden, Broken, Lost, Hangs] {
        check_single_namespaces(&[first, Forbidden, Broken, Lost, Hangs]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_cache_knows_which_tables_a_rollout_does_not_select() {
    let world = World::new().await;
    world
        .api
        .put("routetables", table("other", vec![route_to("web")]));
    world.api.put("rollouts", mirrored());
    world.api.put(
        "rollouts",
        json!({"metadata": {"namespace": "shop", "name": "plain"}}),
    );
    sleep(Duration::from_secs(1)).await;
    assert_eq!(Watched::rollouts(&*world.store), 2);
    let check = |rollout: &str, table: &str, expect: bool| {
        let (rollout, table) = (
            ObjectKey::new("shop", rollout),
            ObjectKey::new("mesh", table),
        );
        assert_eq!(
            world.store.deselects(&rollout, &table),
            expect,
            "{rollout} {table}"
        );
    };
    check("web", "shop", false);
    check("web", "other", true);
    // Of these nothing is known, so nothing may be restored.
    check("web", "gone", false);
    check("plain", "shop", false);
    check("gone", "shop", false);
}

/// A table is compared with its weight again if its version is another one.
#[tokio::test(start_paused = true)]
async fn the_cache_knows_the_version_of_a_table() {
    let world = World::new().await;
    let version = |name: &str| world.store.version(&ObjectKey::new("mesh", name));
    let before = version("shop");
    assert!(before.is_some());
    world
        .api
        .put("routetables", table("shop", vec![route_to("other")]));
    sleep(Duration::from_secs(1)).await;
    assert!(version("shop").is_some() && version("shop") != before);
    assert_eq!(version("gone"), None);
}

/// C-4
#[tokio::test(start_paused = true)]
async fn a_rollout_is_absent_only_if_that_is_proven() {
    let world = World::new().await;
    let metadata = json!({"namespace": "shop", "name": "web"});
    world.api.put("rollouts", json!({"metadata": metadata}));
    sleep(Duration::from_secs(1)).await;
    let presence = |name: &str| world.store.presence(&ObjectKey::new("shop", name));
    let exists = Presence::Exists { uses_plugin: false };
    assert_eq!(
        (presence("web"), presence("gone")),
        (exists, Presence::Absent)
    );
    world.api.behave(|api| api.is_frozen = true);
    sleep(FRESH * 2).await;
    assert_eq!(
        (presence("web"), presence("gone")),
        (Presence::Unknown, Presence::Unknown)
    );
}

#[tokio::test(start_paused = true)]
async fn the_standing_intent_of_a_rollout_deleted_in_an_update_is_dropped() {
    let world = World::new().await;
    world.api.put("rollouts", mirrored());
    sleep(Duration::from_secs(1)).await;
    world.set_weight(&updating(), 25).await.unwrap();
    let key = ObjectKey::new("shop", "web");
    let intents = || world.router.background().standing().rollouts(|_| true);
    assert_eq!(intents(), std::slice::from_ref(&key));
    world.api.delete("rollouts", &key);
    sleep(Duration::from_secs(3)).await;
    assert!(intents().is_empty());
}

#[tokio::test(start_paused = true)]
async fn d_10_cached_state_is_dropped_with_its_object() {
    let world = World::new().await;
    let size = world.store.rollouts.status().bytes;
    for round in 0..10 {
        for number in 0..100 {
            let mut live = mirrored();
            let name = format!("r{round}-{number}");
            live["metadata"]["name"] = json!(name);
            world.api.put("rollouts", live);
            let mut rollout = updating();
            rollout.metadata.name = name;
            let hashes = PodHashes {
                stable: "s0".into(),
                canary: "c0".into(),
            };
            world.router.memory.record_hashes(&rollout, &hashes);
            let tables = [key()].into();
            world
                .router
                .memory
                .left_behind(&from_rpc::key(&rollout), &tables);
        }
        sleep(Duration::from_secs(1)).await;
        assert_eq!(world.store.rollouts.status().objects, 100);
        for number in 0..100 {
            let key = ObjectKey::new("shop", format!("r{round}-{number}"));
            world.api.delete("rollouts", &key);
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.store.rollouts.status().bytes, size);
    assert!(world.router.memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn d_41_steady_passes_succeed_while_the_api_server_is_down_and_others_fail() {
    let world = World::new().await;
    let updating = updating();
    world.set_weight(&updating, 25).await.unwrap();
    world.api.behave(|api| api.is_down = true);
    sleep(FRESH * 2).await;
    world.set_weight(&updating, 25).await.unwrap();
    assert!(world.verify(&updating, 25).await.is_err());
    world.set_weight(&updating, 0).await.unwrap_err();
    world.set_weight(&updating, 60).await.unwrap_err();
    assert_eq!(world.weights(), "75 25");
    world.api.behave(|api| api.is_down = false);
    within(10, async {
        while world.set_weight(&updating, 0).await.is_err() {
            sleep(Duration::from_millis(500)).await;
        }
    })
    .await;
    assert_eq!(world.weights(), "null");
    // The same holds at rest.
    world.api.behave(|api| api.is_down = true);
    sleep(FRESH * 2).await;
    world.pass(&resting("web"), 0).await.unwrap();
}

/// Calls are not delayed by a cache that is never filled.
#[tokio::test(start_paused = true)]
async fn d_41_calls_at_rest_are_answered_if_the_api_server_is_down_at_the_start() {
    let api = FakeApi::default();
    api.behave(|api| api.is_down = true);
    let world = World::starting(api);
    within(3, async {
        world.pass(&resting("web"), 0).await.unwrap();
        world.pass(&resting("web"), 0).await.unwrap();
    })
    .await;
    assert!(world.set_weight(&updating(), 25).await.is_err());
}

/// Makes a call with an old version of [`updating`], after `change` was made to it `silence` ago.
async fn check_outdated(
    silence: Duration,
    change: fn(&FakeApi, &mut Value),
    expect: Result<(), &str>,
) {
    let world = World::new().await;
    let mut object = json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"strategy": {"canary": {
            "canaryService": "canary", "stableService": "stable",
            "trafficRouting": {"plugins": {"solo-io/glooplatform": {"routeTableSelector": {"name": "shop"}}}},
        }}},
        "status": {"stableRS": "s1", "currentPodHash": "c1"},
    });
    world.api.put("rollouts", object.clone());
    let mut known = updating();
    let read = world.api.get("rollouts", &from_rpc::key(&known)).unwrap();
    let metadata = serde_json::from_value(read["metadata"].clone());
    known.metadata = metadata.unwrap();
    sleep(Duration::from_secs(1)).await;
    world.set_weight(&known, 25).await.unwrap();

    world.api.behave(|api| api.is_frozen = !silence.is_zero());
    change(&world.api, &mut object);
    world.api.put("rollouts", object);
    sleep(silence + Duration::from_secs(1)).await;
    let set = world.set_weight(&known, 50).await;
    match expect {
        Ok(()) => assert_eq!(set, Ok(())),
        Err(why) => {
            let error = set.unwrap_err();
            assert!(error.contains(why), "{error}");
            assert_eq!(world.weights(), "75 25");
            // Lowering the weight is still possible.
            world.set_weight(&known, 10).await.unwrap();
            assert_eq!(world.weights(), "90 10");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn d_21_a_call_from_before_an_abort_moves_no_traffic_to_the_canary() {
    let now = Duration::ZERO;
    check_outdated(now, |_, _| (), Ok(())).await;
    let scaled = |_: &FakeApi, object: &mut Value| object["spec"]["replicas"] = json!(7);
    check_outdated(now, scaled, Ok(())).await;
    for silence in [now, FRESH * 2] {
        let abort = |_: &FakeApi, object: &mut Value| object["status"]["abort"] = json!(true);
        check_outdated(silence, abort, Err("it was aborted")).await;
        let promotion =
            |_: &FakeApi, object: &mut Value| object["status"]["stableRS"] = json!("c1");
        check_outdated(silence, promotion, Err("its stable version changed")).await;
        let version =
            |_: &FakeApi, object: &mut Value| object["status"]["currentPodHash"] = json!("c2");
        check_outdated(silence, version, Err("its version changed")).await;
        let another =
            |api: &FakeApi, _: &mut Value| api.delete("rollouts", &ObjectKey::new("shop", "web"));
        check_outdated(silence, another, Err("it was deleted")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn d_42_two_api_servers_fail_independently() {
    let (local, tables) = (FakeApi::default(), FakeApi::default());
    tables.put("routetables", shop());
    let metadata = json!({"namespace": "shop", "name": "web"});
    local.put("rollouts", json!({"metadata": metadata}));
    let clusters = Clusters::new(local.store(), Some(tables.store()));
    let world = World::over(tables, clusters);
    sleep(Duration::from_secs(3)).await;
    let rollout = updating();

    local.behave(|api| api.is_down = true);
    sleep(FRESH * 2).await;
    // It is not known whether the Rollout has changed, so no traffic moves to its canary.
    let refused = world.set_weight(&rollout, 25).await.unwrap_err();
    assert!(refused.contains("cannot get Rollout shop/web"), "{refused}");
    assert_eq!(world.weights(), "null");
    let key = from_rpc::key(&rollout);
    world.store.rollout(&key).await.unwrap_err();

    local.behave(|api| api.is_down = false);
    sleep(FRESH).await;
    world.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(world.weights(), "75 25");
    local.behave(|api| api.is_down = true);
    sleep(FRESH * 2).await;
    world.set_weight(&rollout, 10).await.unwrap();
    assert_eq!(world.weights(), "90 10");

    local.behave(|api| api.is_down = false);
    world.api.behave(|api| api.is_down = true);
    sleep(FRESH * 2).await;
    // Enough failures to open the circuit breaker.
    for _ in 0..10 {
        world.store.read(&super::key()).await.unwrap_err();
    }
    assert!(world.store.rollout(&key).await.unwrap().is_some());
    world.set_weight(&rollout, 50).await.unwrap_err();

    world.api.behave(|api| api.is_down = false);
    sleep(FRESH).await;
    world.set_weight(&rollout, 50).await.unwrap();
    assert_eq!(world.weights(), "50 50");
}
