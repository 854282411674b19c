//! Tests of the background work over the memory store. The watch is a channel, and time is paused.

mod garbage;
mod guard;
mod mirrors;
mod monitor;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gloo_types::{ObjectKey, RouteTableDoc};
use rollouts_rpc::{DesiredWeight, Rollout, TrafficRouter as _};
use route_planner::{ANNOTATION, involved, marked};
use route_store::{
    Change, ChangeKind, FIELD_MANAGER, MemoryRouteStore, RouteStore as _, StoreError,
};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::sleep;

use super::*;
use crate::collect::PluginUse;
use crate::from_rpc::Policy;
use crate::report::{About, Observer, RepairOutcome, Report};

const PLUGIN: &str = "solo-io/glooplatform";
/// Name of the Rollout's cluster in a management cluster.
const CLUSTER: &str = "east";

/// The state that the watch, the Lease and the observer share.
struct World {
    store: Arc<MemoryRouteStore>,
    tables: broadcast::Sender<Change>,
    policies: broadcast::Sender<Change>,
    rollouts: broadcast::Sender<Change>,
    /// The existing Rollouts, and whether each uses the plugin.
    known: Mutex<Vec<(ObjectKey, bool)>>,
    /// Name of the table that the Rollout selects.
    selected: Mutex<String>,
    is_leader: AtomicBool,
    /// Whether the next read of the Lease is not answered.
    is_lease_unread: AtomicBool,
    /// A table that another client writes between the plan of a repair and its write.
    meanwhile: Mutex<Option<Value>>,
    /// Whether the watch of some object is too old.
    are_marks_unknown: AtomicBool,
    /// Why changes of tables are not seen.
    unseen: Mutex<Option<String>>,
    reports: Mutex<Vec<Report>>,
}

/// A change of an object; of the Rollout, if it is its key.
fn change(key: ObjectKey, kind: ChangeKind) -> Change {
    let uid = if key == owner() { "u1" } else { "" }.into();
    Change { key, uid, kind }
}

impl Watched for World {
    async fn run(&self) {
        std::future::pending::<()>().await;
    }

    async fn first_marks(&self) -> BTreeSet<ObjectKey> {
        let marked = self.marked().into_iter().flatten();
        marked.map(|it| it.rollout).collect()
    }

    fn table(&self, table: &ObjectKey) -> Option<RouteTableDoc> {
        RouteTableDoc::from_value(self.store.table(table)?).ok()
    }

    fn version(&self, table: &ObjectKey) -> Option<String> {
        let table = self.table(table)?;
        table.resource_version().map(str::to_owned)
    }

    fn unseen(&self, _table: &ObjectKey) -> Option<String> {
        self.unseen.lock().unwrap().clone()
    }

    fn table_changes(&self) -> Receiver<Change> {
        self.tables.subscribe()
    }

    fn policy_changes(&self) -> Receiver<Change> {
        self.policies.subscribe()
    }

    fn rollout_changes(&self) -> Receiver<Change> {
        self.rollouts.subscribe()
    }

    fn marked(&self) -> Option<BTreeSet<Part>> {
        if self.are_marks_unknown.load(Ordering::Relaxed) {
            return None;
        }
        let mut parts = BTreeSet::new();
        for table in self.store.tables().unwrap() {
            let marks = involved(&table).unwrap_or_default();
            parts.extend(marks.iter().map(|mark| Part {
                table: table.key().clone(),
                rollout: marked(mark).0,
            }));
        }
        Some(parts)
    }

    fn unreadable(&self) -> Vec<(About, String)> {
        let tables = self.store.tables().unwrap();
        let read = tables.iter().map(|table| (table, involved(table)));
        let unreadable =
            read.filter_map(|(table, read)| Some((About::of(table), read.err()?.to_string())));
        unreadable.collect()
    }

    fn presence(&self, rollout: &ObjectKey) -> Presence {
        let known = self.known.lock().unwrap();
        let known = known.iter().find(|(key, _)| key == rollout);
        known.map_or(Presence::Absent, |(_, uses_plugin)| Presence::Exists {
            uses_plugin: *uses_plugin,
        })
    }

    fn deselects(&self, rollout: &ObjectKey, table: &ObjectKey) -> bool {
        let selects = self.selected.lock().unwrap();
        self.presence(rollout) == Presence::Exists { uses_plugin: true } && *selects != table.name
    }

    fn rollouts(&self) -> usize {
        self.known.lock().unwrap().len()
    }
}

/// The changes that a channel holds.
const CHANGES: usize = 8;

struct Lease(Arc<World>);

impl Fence for Lease {
    async fn allows(&self) -> Option<bool> {
        if let Some(table) = self.0.meanwhile.lock().unwrap().take() {
            self.0.store.put(table).unwrap();
        }
        match self.0.is_lease_unread.swap(false, Ordering::Relaxed) {
            true => None,
            false => Some(self.0.is_leader.load(Ordering::Relaxed)),
        }
    }
}

impl Observer for World {
    fn observe(&self, report: &Report) {
        self.reports.lock().unwrap().push(report.clone());
    }
}

struct Fixture {
    router: Arc<GlooRouter<MemoryRouteStore>>,
    world: Arc<World>,
}

impl Fixture {
    /// Creates a table, a Rollout during an update, and the background work.
    async fn new() -> Self {
        Self::with(owners(), rollout()).await
    }

    async fn with(table: Value, rollout: Value) -> Self {
        let store = Arc::new(MemoryRouteStore::new([table]).unwrap());
        let world = Arc::new(World {
            store: Arc::clone(&store),
            tables: broadcast::channel(CHANGES).0,
            policies: broadcast::channel(CHANGES).0,
            rollouts: broadcast::channel(CHANGES).0,
            known: Mutex::default(),
            selected: Mutex::new("web".into()),
            is_leader: AtomicBool::new(true),
            is_lease_unread: AtomicBool::new(false),
            meanwhile: Mutex::default(),
            are_marks_unknown: AtomicBool::new(false),
            unseen: Mutex::default(),
            reports: Mutex::default(),
        });
        let policy = Policy {
            plugin_names: vec![PLUGIN.into()],
            cluster: Some(CLUSTER.into()),
            ..Policy::default()
        };
        let router = GlooRouter::new(store, policy).with_observer(world.clone());
        let router = Arc::new(router);
        let settings = Settings {
            repair: true,
            collect_after: Duration::from_secs(30),
            request_timeout: Duration::from_secs(3),
        };
        let (watched, fence) = (Arc::clone(&world), Arc::new(Lease(Arc::clone(&world))));
        let shared = Arc::clone(&router);
        let work = async move {
            let forget = forget_deleted(&shared, &*watched);
            join(run(settings, &shared, Arc::clone(&watched), fence), forget).await;
        };
        let fixture = Self { router, world };
        fixture.show(rollout);
        fixture.router.background().spawn(work);
        // The tasks have time to subscribe.
        sleep(Duration::from_millis(1)).await;
        fixture
    }

    /// Returns a fixture after SetWeight 25, with no pending checks.
    async fn at_25() -> Self {
        let fixture = Self::new().await;
        fixture.set_weight(&rollout(), 25).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(fixture.shares(), [75, 25]);
        fixture
    }

    fn show(&self, rollout: Value) {
        let plugins = rollout.pointer("/spec/strategy/canary/trafficRouting/plugins");
        let uses = plugins.is_some_and(|plugins| plugins.get(PLUGIN).is_some());
        let key = self.world.store.put_rollout(rollout).unwrap();
        let mut known = self.world.known.lock().unwrap();
        known.retain(|(other, _)| *other != key);
        known.push((key, uses));
    }

    fn delete_rollout(&self) {
        let key = owner();
        self.world.store.remove_rollout(&key);
        self.world
            .known
            .lock()
            .unwrap()
            .retain(|(other, _)| *other != key);
        let kind = ChangeKind::Deleted;
        self.world.rollouts.send(change(key, kind)).unwrap();
    }

    async fn set_weight(&self, rollout: &Value, value: i32) {
        let rollout: Rollout = serde_json::from_value(rollout.clone()).unwrap();
        let desired = DesiredWeight { value, max: 100 };
        self.router
            .set_weight(&rollout, desired, &[])
            .await
            .unwrap();
    }

    /// Writes the table as another client, and sends its watch event.
    fn write(&self, table: Value) {
        self.world.store.put(table).unwrap();
        self.tell();
    }

    fn tell(&self) {
        let (key, kind) = (table_key(), ChangeKind::Applied);
        self.world.tables.send(change(key, kind)).unwrap();
    }

    fn table(&self) -> Value {
        self.world.store.table(&table_key()).unwrap()
    }

    /// Returns the weights of the first route's destinations.
    fn shares(&self) -> Vec<u64> {
        let table = self.table();
        let list = table["spec"]["http"][0]["forwardTo"]["destinations"].clone();
        let weight = |it: &Value| it.get("weight").and_then(Value::as_u64).unwrap_or(100);
        list.as_array().unwrap().iter().map(weight).collect()
    }

    /// Returns the number of writes since `before`.
    fn writes_since(&self, before: usize) -> usize {
        self.world.store.writes() - before
    }

    fn outcomes(&self) -> Vec<RepairOutcome> {
        let reports = self.world.reports.lock().unwrap();
        let outcome = |report: &Report| match report {
            Report::Repair {
                outcome, rollout, ..
            } => {
                // `kubectl describe` finds an Event by the uid.
                assert_eq!(rollout.uid, "u1");
                Some(*outcome)
            }
            _ => None,
        };
        reports.iter().filter_map(outcome).collect()
    }
}

fn table_key() -> ObjectKey {
    ObjectKey::new("mesh", "web")
}

fn owner() -> ObjectKey {
    ObjectKey::new("shop", "reviews")
}

/// Returns the table as its owner wrote it.
fn owners() -> Value {
    let to = json!({"ref": {"name": "reviews", "namespace": "shop"}, "port": {"number": 80}});
    json!({
        "apiVersion": "networking.gloo.solo.io/v2",
        "kind": "RouteTable",
        "metadata": {"name": "web", "namespace": "mesh", "uid": "t1"},
        "spec": {"hosts": ["shop.example.com"], "http": [{"name": "all", "forwardTo": {"destinations": [to]}}]},
    })
}

/// Returns a Rollout during an update, at the pause after `setWeight: 25`.
fn rollout() -> Value {
    let mut plugins = json!({});
    plugins[PLUGIN] = json!({"routeTableSelector": {"name": "web", "namespace": "mesh"}});
    json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "metadata": {"name": "reviews", "namespace": "shop", "uid": "u1", "generation": 7},
        "spec": {"replicas": 4, "strategy": {"canary": {
            "stableService": "reviews",
            "canaryService": "reviews-canary",
            "trafficRouting": {"plugins": plugins},
            "steps": [{"setWeight": 25}, {"pause": {}}, {"setWeight": 50}, {"pause": {}}],
        }}},
        "status": {"stableRS": "s1", "currentPodHash": "c1", "currentStepIndex": 1, "abort": false},
    })
}

fn with(mut object: Value, path: &str, value: Value) -> Value {
    *object.pointer_mut(path).unwrap() = value;
    object
}

const DESTINATIONS: &str = "/spec/http/0/forwardTo/destinations";

/// Returns `table` with other weights.
fn with_shares(table: Value, shares: [u64; 2]) -> Value {
    let [stable, canary] = shares;
    let table = with(table, &format!("{DESTINATIONS}/0/weight"), json!(stable));
    with(table, &format!("{DESTINATIONS}/1/weight"), json!(canary))
}

/// Returns `table` with a canary destination that its owner added.
fn with_a_canary(mut table: Value) -> Value {
    let canary = json!({"ref": {"name": "reviews-canary", "namespace": "shop"}, "port": {"number": 80}, "weight": 10});
    let list = table.pointer_mut(DESTINATIONS).unwrap();
    list[0]["weight"] = json!(90);
    list.as_array_mut().unwrap().push(canary);
    table
}

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Which tables have changed is unknown after more changes than the channel holds, so all are checked.
#[tokio::test(start_paused = true)]
async fn drift_is_repaired_after_changes_were_missed() {
    let fixture = Fixture::at_25().await;
    let drifted = with_shares(fixture.table(), [40, 60]);
    fixture.world.store.put(drifted).unwrap();
    for _ in 0..=CHANGES {
        let (key, kind) = (ObjectKey::new("mesh", "other"), ChangeKind::Applied);
        fixture.world.tables.send(change(key, kind)).unwrap();
    }
    sleep(milliseconds(200)).await;
    assert_eq!(fixture.shares(), [75, 25]);
}

/// The cache sees the deletion of a Rollout only after the controller has called for one that was created anew.
#[tokio::test(start_paused = true)]
async fn drift_is_repaired_after_a_late_deletion_of_a_rollout_of_the_same_name() {
    let fixture = Fixture::at_25().await;
    let mut anew = rollout();
    anew["metadata"]["uid"] = json!("u2");
    fixture.show(anew.clone());
    fixture.set_weight(&anew, 25).await;
    let late = change(owner(), ChangeKind::Deleted);
    fixture.world.rollouts.send(late).unwrap();
    sleep(Duration::from_secs(1)).await;
    fixture.write(with_shares(fixture.table(), [40, 60]));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.shares(), [75, 25]);
}

#[tokio::test(start_paused = true)]
async fn a_repair_waits_100_ms_or_500_if_the_canary_share_grows() {
    for (change, wait) in [([40, 60], 100), ([90, 10], 500)] {
        let fixture = Fixture::at_25().await;
        let before = fixture.world.store.writes();
        fixture.write(with_shares(fixture.table(), change));
        sleep(milliseconds(wait - 1)).await;
        assert_eq!(fixture.writes_since(before), 0);
        sleep(milliseconds(2)).await;
        assert_eq!(
            (fixture.writes_since(before), fixture.shares()),
            (1, vec![75, 25])
        );
        // Events of its own write, and of Gloo's status, cause no repair.
        fixture.tell();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(fixture.writes_since(before), 1);
        assert_eq!(fixture.outcomes(), [RepairOutcome::Written]);
    }
}

/// Returns a Rollout whose status records the weights of its last SetWeight.
fn recorded(weight: i32) -> Value {
    let mut rollout = rollout();
    rollout["status"]["observedGeneration"] = json!("7");
    rollout["status"]["canary"] = json!({"weights": {
        "canary": {"weight": weight, "podTemplateHash": "c1"},
        "stable": {"weight": 100 - weight, "podTemplateHash": "s1"},
    }});
    rollout
}

#[tokio::test(start_paused = true)]
async fn a_new_process_repairs_later_drift_without_a_call() {
    let split = Fixture::at_25().await.table();
    for (weight, found, expect) in [
        (25, split.clone(), vec![75, 25]),
        // The table differs from the recorded status: the next pass decides.
        (25, with_shares(split.clone(), [80, 20]), vec![40, 60]),
        (0, split, vec![40, 60]),
    ] {
        let fixture = Fixture::with(found, recorded(weight)).await;
        sleep(Duration::from_secs(1)).await;
        let before = fixture.world.store.writes();
        fixture.write(with_shares(fixture.table(), [40, 60]));
        sleep(Duration::from_secs(60)).await;
        assert_eq!(fixture.shares(), expect, "{weight}");
        let repairs = usize::from(expect == [75, 25]);
        assert_eq!(fixture.writes_since(before), repairs);
    }
}

#[tokio::test(start_paused = true)]
async fn a_table_from_git_is_split_again_with_and_without_its_annotation() {
    let fixture = Fixture::at_25().await;
    fixture.write(owners());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.shares(), [75, 25]);
    let mut kept = owners();
    kept["metadata"]["annotations"] = fixture.table()["metadata"]["annotations"].clone();
    assert!(kept["metadata"]["annotations"][ANNOTATION].is_string());
    fixture.write(kept);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.shares(), [75, 25]);
    assert_eq!(fixture.outcomes(), [RepairOutcome::Written; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_later_change_restarts_the_wait() {
    let fixture = Fixture::at_25().await;
    let before = fixture.world.store.writes();
    fixture.write(with_shares(fixture.table(), [90, 10]));
    sleep(milliseconds(400)).await;
    fixture.write(with_shares(fixture.table(), [80, 20]));
    sleep(milliseconds(499)).await;
    assert_eq!(fixture.writes_since(before), 0);
    sleep(milliseconds(2)).await;
    assert_eq!(fixture.writes_since(before), 1);
    // The client that wrote it corrects it.
    let right = fixture.table();
    fixture.write(with_shares(right.clone(), [40, 60]));
    fixture.write(right);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.writes_since(before), 1);
}

/// Violates one fence and checks that nothing is written.
async fn check_fence(violate: impl FnOnce(&Fixture), expect: &[RepairOutcome]) {
    let fixture = Fixture::at_25().await;
    fixture.write(with_shares(fixture.table(), [40, 60]));
    violate(&fixture);
    let before = fixture.world.store.writes();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(fixture.writes_since(before), 0, "{expect:?}");
    assert_eq!(fixture.outcomes(), expect);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_past_a_fence() {
    use RepairOutcome::{Conflict, Failed, FencedLease, FencedRollout};
    let not_leader = |it: &Fixture| it.world.is_leader.store(false, Ordering::Relaxed);
    check_fence(not_leader, &[FencedLease]).await;
    let abort = |it: &Fixture| it.show(with(rollout(), "/status/abort", json!(true)));
    check_fence(abort, &[FencedRollout]).await;
    let promote = |it: &Fixture| it.show(with(rollout(), "/status/stableRS", json!("c1")));
    check_fence(promote, &[FencedRollout]).await;
    let delete = |it: &Fixture| it.world.store.remove_rollout(&owner());
    check_fence(delete, &[FencedRollout]).await;
    let another = |it: &Fixture| it.show(with(rollout(), "/metadata/uid", json!("u2")));
    check_fence(another, &[FencedRollout]).await;
    let later_step = |it: &Fixture| it.show(with(rollout(), "/status/currentStepIndex", json!(4)));
    check_fence(later_step, &[FencedRollout]).await;
    let write_meanwhile = |it: &Fixture| {
        let table = with_shares(it.table(), [30, 70]);
        *it.world.meanwhile.lock().unwrap() = Some(table);
    };
    check_fence(write_meanwhile, &[Conflict]).await;
    let refuse = |it: &Fixture| {
        let error = StoreError::Rejected {
            what: "RouteTable mesh/web".into(),
            reason: "no".into(),
        };
        it.world.store.fail_next_patch(error);
    };
    check_fence(refuse, &[Failed]).await;
}

/// Lets requests of a repair get no answer. They fail in less than a second, so that repairs begin after 0.5, 1.5 and 3 s.
async fn check_unanswered(fail: impl Fn(&Fixture), repairs: usize) {
    let fixture = Fixture::at_25().await;
    fixture.write(with_shares(fixture.table(), [40, 60]));
    for _ in 1..repairs {
        fail(&fixture);
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.shares(), [75, 25]);
    let mut expect = vec![RepairOutcome::Unanswered; repairs - 1];
    expect.push(RepairOutcome::Written);
    assert_eq!(fixture.outcomes(), expect);
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_is_not_answered_is_made_again() {
    let unanswered = || StoreError::CallEnded {
        verb: "patch",
        what: "RouteTable mesh/web".into(),
    };
    let patch = |it: &Fixture| it.world.store.fail_next_patch(unanswered());
    check_unanswered(patch, 2).await;
    check_unanswered(patch, 3).await;
    let lease = |it: &Fixture| it.world.is_lease_unread.store(true, Ordering::Relaxed);
    check_unanswered(lease, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_begins_again() {
    let begun = AtomicUsize::new(0);
    let task = async || assert!(begun.fetch_add(1, Ordering::Relaxed) >= 3, "a bug");
    going_on("a test", task).await;
    assert_eq!(begun.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_after_the_end_of_the_session() {
    let fixture = Fixture::at_25().await;
    let before = fixture.world.store.writes();
    fixture
        .world
        .store
        .put(with_shares(fixture.table(), [40, 60]))
        .unwrap();
    fixture.tell();
    sleep(milliseconds(50)).await;
    fixture.router.stop().await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.writes_since(before), 0);
    assert_eq!(fixture.world.tables.receiver_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_call_takes_over_the_table() {
    let fixture = Fixture::at_25().await;
    fixture.write(with_shares(fixture.table(), [40, 60]));
    // The next pass removes managed routes, and the controller delays its SetWeight.
    let called: Rollout = serde_json::from_value(rollout()).unwrap();
    fixture.router.remove_managed_routes(&called).await.unwrap();
    let before = fixture.world.store.writes();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.writes_since(before), 0);
    // A change during a call is checked after the call.
    fixture.set_weight(&rollout(), 25).await;
    fixture
        .world
        .store
        .put(with_shares(fixture.table(), [40, 60]))
        .unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.shares(), [75, 25]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_may_edit_at_rest() {
    let fixture = Fixture::at_25().await;
    let promoted = with(rollout(), "/status/stableRS", json!("c1"));
    fixture.show(promoted.clone());
    fixture.set_weight(&promoted, 0).await;
    assert_eq!(fixture.table()["spec"], owners()["spec"]);
    let before = fixture.world.store.writes();
    fixture.write(with_a_canary(fixture.table()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (fixture.writes_since(before), fixture.outcomes()),
        (0, vec![])
    );
}

/// After a failed SetWeight 0, the intent remains, and a repair restores the table.
#[tokio::test(start_paused = true)]
async fn an_owner_may_edit_at_rest_after_a_failed_weight_0() {
    let fixture = Fixture::at_25().await;
    let promoted = with(rollout(), "/status/stableRS", json!("c1"));
    fixture.show(promoted.clone());
    fixture.world.store.fail_next_patch(StoreError::Rejected {
        what: "RouteTable mesh/web".into(),
        reason: "no".into(),
    });
    let called: Rollout = serde_json::from_value(promoted).unwrap();
    let rest = DesiredWeight { value: 0, max: 100 };
    let failed = fixture.router.set_weight(&called, rest, &[]).await;
    assert!(failed.is_err());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.table()["spec"], owners()["spec"]);
    let before = fixture.world.store.writes();
    fixture.write(with_a_canary(fixture.table()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.writes_since(before), 0);
}

#[tokio::test(start_paused = true)]
async fn the_annotation_of_the_owner_stops_repairs_but_not_calls() {
    let fixture = Fixture::at_25().await;
    let mut table = with_shares(fixture.table(), [40, 60]);
    table["metadata"]["annotations"]["rollouts-plugin-trafficrouter-glooplatform/repair"] =
        json!("off");
    fixture.write(table);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (fixture.shares(), fixture.outcomes()),
        (vec![40, 60], vec![])
    );
    fixture.set_weight(&rollout(), 25).await;
    assert_eq!(fixture.shares(), [75, 25]);
}

#[tokio::test(start_paused = true)]
async fn a_fight_delays_repairs_and_reports_the_other_manager_once() {
    let fixture = Fixture::at_25().await;
    let before = fixture.world.store.writes();
    for _ in 0..20 * 12 {
        let mut table = with_shares(fixture.table(), [40, 60]);
        let managers = ["argocd-controller", FIELD_MANAGER].map(|manager| {
            json!({"manager": manager, "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}})
        });
        table["metadata"]["managedFields"] = json!(managers);
        fixture.write(table);
        sleep(Duration::from_secs(5)).await;
    }
    assert!(
        (3..=10).contains(&fixture.writes_since(before)),
        "{}",
        fixture.writes_since(before)
    );
    let fights = |fixture: &Fixture| {
        let reports = fixture.world.reports.lock().unwrap();
        let fights = reports
            .iter()
            .filter(|it| matches!(it, Report::Fight { .. }));
        fights.map(ToString::to_string).collect::<Vec<_>>()
    };
    let seen = fights(&fixture);
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(
        seen[0].contains("argocd-controller") && seen[0].contains("ignoreDifferences"),
        "{seen:?}"
    );
    let last = |fixture: &Fixture| {
        let reports = fixture.world.reports.lock().unwrap();
        let mut counts = reports.iter().filter_map(|it| match it {
            Report::Fights(count) => Some(*count),
            _ => None,
        });
        counts.next_back()
    };
    assert_eq!(last(&fixture), Some(1));
    sleep(Duration::from_secs(1200)).await;
    assert_eq!(last(&fixture), Some(0));
}
