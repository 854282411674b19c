//! One order of events that a test chooses itself.

use tokio::time::sleep;

use super::super::guard::{pod, slice};
use super::super::*;
use super::process::{Process, start};
use super::world::{FIRST, Mode, Setup, World};

/// In a moment, every task goes on until it waits.
const MOMENT: Duration = Duration::from_millis(1);

/// Rollouts at 25 % in a table, and what a test lets go.
struct Table {
    world: Arc<World>,
    router: Arc<GlooRouter<Process>>,
}

impl Table {
    async fn new(names: &[&str]) -> Self {
        let setup = Setup {
            rollouts: names.len(),
            tables: 1,
            is_marked: false,
            is_faulty: false,
            has_pods: false,
            loses_lease: false,
            collect_after: Duration::from_secs(30),
            request_timeout: Duration::from_secs(60),
        };
        let world = World::with(setup, fastrand::Rng::with_seed(0));
        let router = start(&world, FIRST);
        sleep(MOMENT).await;
        let table = Self { world, router };
        for name in names {
            let rollout = rollout_of(name);
            let key = ObjectKey::new("shop", *name);
            table.world.put_rollout(&key, Some(rollout.clone()));
            table.set_weight(rollout, 25).await;
        }
        sleep(Duration::from_secs(1)).await;
        table
    }

    async fn set_weight(&self, rollout: Value, weight: i32) {
        let rollout = super::read(rollout);
        let set: Result<(), RouterError> =
            self.router.set_weight(&rollout, desired(weight), &[]).await;
        set.unwrap();
    }

    /// Another client changes the weights of a route.
    fn drift(&self, route: usize) {
        let mut table = self.world.api.table(&key()).unwrap();
        let list = &mut table["spec"]["http"][route]["forwardTo"]["destinations"];
        list[0]["weight"] = json!(60);
        list[1]["weight"] = json!(40);
        self.world.put_table("changes weights", table, None);
    }

    async fn go(&self, labels: &[&str]) {
        for label in labels {
            self.world.let_go(label);
            sleep(MOMENT).await;
        }
    }

    #[track_caller]
    fn check_waiting(&self, expect: &[&str]) {
        assert_eq!(self.world.waiting(), expect);
    }

    async fn end(self) {
        self.router.stop().await;
        self.world.clear();
    }
}

fn rollout_of(name: &str) -> Value {
    let mut object = super::object(&json!({}));
    object["metadata"]["name"] = json!(name);
    let canary = &mut object["spec"]["strategy"]["canary"];
    canary["stableService"] = json!(name);
    canary["canaryService"] = json!(format!("{name}-canary"));
    object
}

const SEEN: &[&str] = &["one sees tables"];
const READ: &[&str] = &["one: get shop", "one: get shop is answered"];
const WRITE: &[&str] = &["one: patch shop", "one: patch shop is answered"];
/// A repair until it writes.
const REPAIR: &[&str] = &[
    "one: get Rollout a",
    "one: get Rollout a is answered",
    "one: get the Lease",
    "one: get the Lease is answered",
];
const SENT: &[&str] = &["one: patch shop is sent"];
const PODS: &[&str] = &["one: list Pods", "one: list Pods is answered"];

/// A fight is reported after a read so slow that the next repair of the table is under way. The repair after that has
/// to wait for it.
#[tokio::test(start_paused = true)]
async fn a_reported_fight_lets_no_second_repair_begin_beside_the_first() {
    let table = Table::new(&["a"]).await;
    // The third repair within a minute begins a fight.
    for _ in 0..2 {
        table.drift(0);
        sleep(Duration::from_secs(1)).await;
    }
    table.drift(0);
    table.world.set_mode(Mode::Chooses);
    sleep(Duration::from_millis(110)).await;
    for part in [READ, REPAIR, SENT, WRITE, SEEN] {
        table.go(part).await;
    }
    // Now the report reads the table. The fight delays the next repair by 10 s.
    table.check_waiting(&READ[..1]);
    table.drift(0);
    table.go(SEEN).await;
    sleep(Duration::from_secs(11)).await;
    for part in [REPAIR, SENT] {
        table.go(part).await;
    }
    table.check_waiting(&[READ[0], WRITE[0]]);
    table.go(READ).await;
    table.drift(0);
    table.go(SEEN).await;
    sleep(Duration::from_secs(1)).await;
    table.check_waiting(&WRITE[..1]);
    table.end().await;
}

/// The repair has compared the table with its intent before another Rollout is repaired, and conflicts with that.
#[tokio::test(start_paused = true)]
async fn a_repair_that_conflicts_with_another_rollouts_repair_is_made_again() {
    let table = Table::new(&["a", "b"]).await;
    table.world.set_mode(Mode::Chooses);
    table.drift(0);
    table.drift(1);
    table.go(SEEN).await;
    table.go(SEEN).await;
    sleep(Duration::from_millis(150)).await;
    let of_b = ["one: get Rollout b", "one: get Rollout b is answered"];
    table.go(&REPAIR[..2]).await;
    table.go(&of_b).await;
    // Both have planned, and ask the fence.
    table.go(&[REPAIR[2], REPAIR[3]]).await;
    for part in [SENT, WRITE, SEEN] {
        table.go(part).await;
    }
    table.go(&[REPAIR[2], REPAIR[3]]).await;
    for part in [SENT, WRITE] {
        table.go(part).await;
    }
    sleep(Duration::from_millis(200)).await;
    table.world.set_mode(Mode::Drains);
    let scheduler = tokio::spawn(table.world.clone().schedule());
    sleep(Duration::from_secs(1)).await;
    scheduler.abort();
    assert_eq!(table.world.shares(&key()), [25, 25]);
    table.end().await;
}

/// A repair meets a call of another Rollout, which holds the table and ends without a write, so no event follows.
#[tokio::test(start_paused = true)]
async fn a_repair_that_meets_another_rollouts_call_is_made_after_it() {
    let table = Table::new(&["a", "b"]).await;
    table.world.set_mode(Mode::Chooses);
    let mut called = rollout_of("b");
    called["status"]["abort"] = json!(true);
    let call = table.set_weight(called, 0);
    let events = async {
        sleep(MOMENT).await;
        table.go(SENT).await;
        let owners = table.world.owners(&key());
        table
            .world
            .put_table("applies the manifest again", owners, None);
        table.go(SEEN).await;
        sleep(Duration::from_millis(500)).await;
        table.go(REPAIR).await;
        table.check_waiting(&WRITE[..1]);
        table.go(WRITE).await;
        // A pause after the conflict.
        sleep(Duration::from_millis(25)).await;
        table.go(READ).await;
        sleep(Duration::from_millis(500)).await;
        for part in [REPAIR, SENT, WRITE] {
            table.go(part).await;
        }
    };
    join(call, events).await;
    assert_eq!(table.world.shares(&key()), [25, 0]);
    table.end().await;
}

/// A new Pod appears behind the Service of a held promotion, and the API server does not say to which version it belongs.
#[tokio::test(start_paused = true)]
async fn a_hold_ends_although_a_read_of_the_pods_is_not_answered() {
    let table = Table::new(&["a"]).await;
    let api = &table.world.api;
    api.put_pod(pod("old", "s1")).unwrap();
    api.put_pod(pod("new", "c1")).unwrap();
    let serve = |service, pods: &[&str]| api.put_endpoint_slice(slice(service, pods)).unwrap();
    serve("a", &["old"]);
    serve("a-canary", &["new"]);
    let mut promoted = rollout_of("a");
    let status = json!({
        "stableRS": "c1", "currentPodHash": "c1",
        "canary": {"weights": {"canary": {"weight": 100, "podTemplateHash": "c1"}}},
    });
    json_patch::merge(&mut promoted["status"], &status);
    table
        .world
        .put_rollout(&ObjectKey::new("shop", "a"), Some(promoted.clone()));
    table.set_weight(promoted, 0).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(table.world.shares(&key()), [100]);
    table.world.set_mode(Mode::Chooses);
    api.put_pod(pod("newer", "c1")).unwrap();
    serve("a", &["new", "newer"]);
    sleep(MOMENT).await;
    table.check_waiting(&PODS[..1]);
    // Longer than the guard waits for an answer.
    sleep(Duration::from_secs(7)).await;
    table.check_waiting(&[PODS[0], PODS[0]]);
    // Nobody waits for the first one any more.
    table.go(&PODS[..1]).await;
    table.go(PODS).await;
    // The endpoints have to stay as they are.
    sleep(Duration::from_secs(6)).await;
    for part in [REPAIR, READ, SENT, WRITE] {
        table.go(part).await;
    }
    assert_eq!(table.world.shares(&key()), [0]);
    table.end().await;
}
