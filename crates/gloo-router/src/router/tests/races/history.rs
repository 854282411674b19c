//! What the controllers, the owner and the Lease do in one history. The seed chooses it.

use futures::future::join3;
use rollouts_rpc::PodHashes;
use route_store::RolloutReader as _;
use tokio::time::{sleep, sleep_until};

use super::super::guard::{pod, slice};
use super::super::*;
use super::process::{Process, start};
use super::world::{FIRST, Mode, World, tables};

/// How long nothing happens before the tables are checked. A table whose Rollout a process has never seen is restored after
/// 20 times 30 s.
const REST: Duration = Duration::from_secs(1000);
/// How long a history may take before that.
const LONGEST: Duration = Duration::from_secs(4 * 60 * 60);
/// Pause before a failed pass is repeated.
const AGAIN: Duration = Duration::from_secs(10);
const PASSES: usize = 60;

/// A Rollout and its controller.
struct Controller {
    world: Arc<World>,
    random: fastrand::Rng,
    name: &'static str,
    uid: u32,
    exists: bool,
    stable: u32,
    current: u32,
    newest: u32,
    index: i32,
    is_aborted: bool,
    /// The recorded weight of the canary, and its version.
    recorded: Option<(i32, u32)>,
    stored: Value,
    /// Version whose Pods the stable Service routes to.
    serving: u32,
}

/// Plays the history of a world, and checks it.
pub(super) async fn play(world: &Arc<World>) {
    let scheduler = tokio::spawn(Arc::clone(world).schedule());
    let history = tokio::time::timeout(LONGEST, act(world));
    if history.await.is_err() {
        world.violation("the history does not end");
    }
    scheduler.abort();
}

async fn act(world: &Arc<World>) {
    let setup = world.setup;
    let names = ["a", "b"].into_iter().take(setup.rollouts);
    let mut controllers: Vec<Controller> = names.map(|it| Controller::new(world, it)).collect();
    let another = json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout",
        "metadata": {"name": "another", "namespace": "shop"},
    });
    world.put_rollout(&ObjectKey::new("shop", "another"), Some(another));
    for controller in &mut controllers {
        controller.endpoints("", controller.stable);
        controller.endpoints("-canary", controller.stable);
    }
    let mut routers = Vec::new();
    if setup.is_marked {
        let before = start(world, "zero");
        world.leader.send_replace(Some(before.clone()));
        for controller in &mut controllers {
            controller.update();
            controller.reconcile().await;
        }
        before.stop().await;
        world.remove_processes();
        for controller in &mut controllers {
            controller.change_while_stopped();
        }
    }
    world.set_mode(Mode::Chooses);
    let first = start(world, FIRST);
    world.leader.send_replace(Some(first.clone()));
    routers.push(first);
    let running = controllers.into_iter().map(Controller::run);
    let (mut controllers, (), second) = join3(
        futures::future::join_all(running),
        edit(world),
        lose_lease(world),
    )
    .await;
    routers.extend(second);
    world.note("nothing changes any more");
    world.set_mode(Mode::Drains);
    for controller in &mut controllers {
        controller.serve();
    }
    sleep(REST).await;
    world.check_rest();
    for router in routers {
        router.stop().await;
    }
}

/// Returns a random time, mostly a short one.
fn short(random: &mut fastrand::Rng) -> Duration {
    let most = if random.u8(0..4) == 0 { 5000 } else { 700 };
    Duration::from_millis(random.u64(0..most))
}

/// The owner edits the tables.
async fn edit(world: &Arc<World>) {
    let mut random = world.fork();
    for number in 0..random.usize(0..7) {
        sleep(short(&mut random)).await;
        world.turn("the owner edits").await;
        let names: Vec<&str> = tables(world.setup).collect();
        let key = ObjectKey::new("mesh", names[random.usize(0..names.len())]);
        let mut live = world.api.table(&key).unwrap();
        let mut owners = world.owners(&key);
        match random.u8(0..4) {
            0 | 1 => world.put_table("applies the manifest again", owners, None),
            2 => {
                let hosts = json!([format!("host-{number}.example.com")]);
                owners["spec"]["hosts"] = hosts.clone();
                live["spec"]["hosts"] = hosts;
                world.put_table("changes a host", live, Some(owners));
            }
            _ => {
                let canary = random.i64(1..100);
                let mut has_changed = false;
                for route in live["spec"]["http"].as_array_mut().unwrap() {
                    let list = route["forwardTo"]["destinations"].as_array_mut().unwrap();
                    if let [one, other] = &mut list[..] {
                        one["weight"] = json!(100 - canary);
                        other["weight"] = json!(canary);
                        has_changed = true;
                    }
                }
                if has_changed {
                    world.put_table("changes weights", live, None);
                }
            }
        }
    }
}

/// The Lease is lost, and another controller starts another process.
async fn lose_lease(world: &Arc<World>) -> Option<Arc<GlooRouter<Process>>> {
    if !world.setup.loses_lease {
        return None;
    }
    let mut random = world.fork();
    sleep(short(&mut random) * 2).await;
    world.turn("the Lease").await;
    let at = world.lose_lease();
    sleep_until(at).await;
    let second = start(world, "two");
    world.note("another controller is the leader");
    world.leader.send_replace(Some(second.clone()));
    Some(second)
}

impl Controller {
    fn new(world: &Arc<World>, name: &'static str) -> Self {
        Self {
            world: Arc::clone(world),
            random: world.fork(),
            name,
            uid: 1,
            exists: true,
            stable: 1,
            current: 1,
            newest: 1,
            index: 4,
            is_aborted: false,
            recorded: None,
            stored: Value::Null,
            serving: 1,
        }
    }

    async fn run(mut self) -> Self {
        self.reconcile().await;
        for _ in 0..self.random.usize(1..7) {
            sleep(short(&mut self.random)).await;
            self.world.turn(format!("{} changes", self.name)).await;
            self.change();
            self.reconcile().await;
        }
        if self.world.setup.loses_lease {
            let is_second = |it: &Option<Arc<GlooRouter<Process>>>| {
                it.as_ref().is_some_and(|it| it.store().name() != FIRST)
            };
            let mut leader = self.world.leader.subscribe();
            leader.wait_for(is_second).await.unwrap();
            self.reconcile().await;
        }
        self
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::new("shop", self.name)
    }

    fn weight(&self) -> i32 {
        match self.index {
            _ if self.is_aborted || self.stable == self.current => 0,
            0 | 1 => 25,
            2 | 3 => 50,
            _ => 100,
        }
    }

    fn update(&mut self) {
        self.serve();
        self.newest += 1;
        self.current = self.newest;
        self.index = 0;
        self.is_aborted = false;
        self.endpoints("-canary", self.current);
    }

    /// Something happens to the Rollout.
    fn change(&mut self) {
        self.serve();
        let is_updating = self.stable != self.current;
        match self.random.u8(0..12) {
            _ if !self.exists => {
                if self.random.bool() {
                    self.exists = true;
                    self.uid += 1;
                    self.recorded = None;
                    self.current = self.stable;
                    self.is_aborted = false;
                }
            }
            0 => {
                self.exists = false;
                self.world.note(format!("{} is deleted", self.name));
                self.world.put_rollout(&self.key(), None);
                self.world.deleted(self.name);
                self.stored = Value::Null;
            }
            // The controller calls again, and asks for the same.
            1 | 2 => {}
            _ if !is_updating => self.update(),
            3 => self.update(),
            4 => {
                self.current = self.stable;
                self.endpoints("-canary", self.stable);
            }
            _ if self.is_aborted => {
                self.is_aborted = false;
                self.index = 0;
            }
            5..8 => {
                self.is_aborted = true;
                self.index = 0;
            }
            _ if self.index < 4 => self.index += 1,
            _ => self.stable = self.current,
        }
    }

    /// What happened after a process had left its marks.
    fn change_while_stopped(&mut self) {
        match self.random.u8(0..4) {
            0 => self.is_aborted = true,
            // The status says that the weight is 0 already.
            1 | 2 => {
                self.current = self.stable;
                self.recorded = Some((0, self.stable));
            }
            _ => {}
        }
    }

    /// The stable Service routes to the Pods of the stable version.
    fn serve(&mut self) {
        if self.serving != self.stable {
            self.serving = self.stable;
            self.endpoints("", self.stable);
        }
    }

    fn endpoints(&self, suffix: &str, version: u32) {
        if !self.world.setup.has_pods {
            return;
        }
        let api = &self.world.api;
        let name = format!("{}-v{version}", self.name);
        api.put_pod(pod(&name, &name)).unwrap();
        let service = format!("{}{suffix}", self.name);
        api.put_endpoint_slice(slice(&service, &[&name])).unwrap();
    }

    /// Stores the Rollout if it has changed.
    fn put(&mut self) {
        let (name, hash) = (self.name, |version| format!("{}-v{version}", self.name));
        let names: Vec<&str> = tables(self.world.setup).collect();
        let block = json!({"routeTableSelector": {"names": names, "namespace": "mesh"}});
        let mut object = json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Rollout",
            "metadata": {
                "name": name, "namespace": "shop", "uid": format!("{name}-{}", self.uid), "generation": self.newest,
            },
            "spec": {"replicas": 1, "strategy": {"canary": {
                "stableService": name,
                "canaryService": format!("{name}-canary"),
                "trafficRouting": {"plugins": {"solo-io/glooplatform": block}},
                "steps": [{"setWeight": 25}, {"pause": {}}, {"setWeight": 50}, {"pause": {}}],
            }}},
            "status": {
                "stableRS": hash(self.stable),
                "currentPodHash": hash(self.current),
                "currentStepIndex": self.index,
                "abort": self.is_aborted,
                "observedGeneration": self.newest.to_string(),
                "replicas": 1, "updatedReplicas": 1,
            },
        });
        if let Some((weight, version)) = self.recorded {
            object["status"]["canary"] = json!({"weights": {
                "canary": {"weight": weight, "podTemplateHash": hash(version), "serviceName": format!("{name}-canary")},
                "stable": {"weight": 100 - weight, "podTemplateHash": hash(self.stable), "serviceName": name},
            }});
        }
        if object != self.stored {
            self.world.put_rollout(&self.key(), Some(object.clone()));
            self.stored = object;
        }
    }

    /// Makes passes until one succeeds, as the controller does.
    async fn reconcile(&mut self) {
        if !self.exists {
            return;
        }
        for _ in 0..PASSES {
            let router = self.leader().await;
            self.put();
            if self.pass(&router).await {
                return;
            }
            sleep(AGAIN).await;
        }
        self.world
            .violation(format!("{} never succeeds", self.name));
    }

    /// Makes one pass. Returns whether it succeeds.
    async fn pass(&mut self, router: &GlooRouter<Process>) -> bool {
        let world = Arc::clone(&self.world);
        let live = world.api.rollout(&self.key()).await.unwrap().unwrap();
        let rollout: Rollout = serde_json::from_value(live.into_raw()).unwrap();
        let weight = self.weight();
        world.asked(self.name, weight);
        if weight == 0 {
            let removed: Result<(), RouterError> = router.remove_managed_routes(&rollout).await;
            removed.unwrap();
        }
        let hashes = PodHashes {
            stable: rollout.status.stable_rs.clone(),
            canary: rollout.status.current_pod_hash.clone(),
        };
        let updated: Result<(), RouterError> = router.update_hash(&rollout, &hashes, &[]).await;
        updated.unwrap();
        let set: Result<(), RouterError> = router.set_weight(&rollout, desired(weight), &[]).await;
        if let Err(error) = set {
            let error = error_chain(error.as_error());
            world.note(format!("{}: SetWeight fails: {error}", self.name));
            return false;
        }
        let is_promoted = rollout.status.promoted_canary().is_some();
        world.answered(self.name, weight, is_promoted);
        // Its failure means "not verified".
        let _: Result<Verification, RouterError> =
            router.verify_weight(&rollout, desired(weight), &[]).await;
        self.recorded = Some((weight, self.current));
        if weight > 0 && self.index % 2 == 0 && self.index < 4 {
            self.index += 1;
        }
        self.put();
        true
    }

    /// Waits until there is a leader.
    async fn leader(&self) -> Arc<GlooRouter<Process>> {
        let mut leader = self.world.leader.subscribe();
        let router = leader.wait_for(Option::is_some).await.unwrap();
        router.clone().unwrap()
    }
}
