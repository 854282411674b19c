//! A model of the Argo Rollouts controller: the calls of one pass for a Rollout, and the progress of its status.
//!
//! The branches follow `rollout/trafficrouting.go`, the steps `rollout/canary.go`. Pods become available after two passes, so
//! that most passes change something.

use gloo_types::ObjectKey;
use rollouts_rpc::{DesiredWeight, PodHashes, Rollout, WeightDestination};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::documents::name;
use crate::history::{Services, Setup, Steps};

/// The name of the experiment's Service.
pub(crate) const EXPERIMENT: &str = "experiment";
pub(crate) const HEADER_ROUTE: &str = "hdr";
pub(crate) const MIRROR_ROUTE: &str = "mir";
/// The label that distinguishes Pods where subsets are used.
pub(crate) const POD_HASH: &str = "rollouts-pod-template-hash";

/// Passes after which some, and all, Pods of a new version are available.
const SOME_PODS: u8 = 2;
const ALL_PODS: u8 = 3;

/// One call of the plugin protocol.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    RemoveManagedRoutes,
    /// `true` sets the route, `false` removes it.
    SetHeaderRoute(bool),
    SetMirrorRoute(bool),
    UpdateHash,
    SetWeight,
    VerifyWeight,
}

/// What a pass asks for.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) rollout: Rollout,
    pub(crate) desired: DesiredWeight,
    pub(crate) hashes: PodHashes,
    pub(crate) additional: Vec<WeightDestination>,
    pub(crate) calls: Vec<Call>,
    pub(crate) roles: Roles,
    /// The managed routes that must exist after SetWeight; `None` while the earlier ones are kept.
    pub(crate) managed: Option<Managed>,
}

/// The managed routes that are in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Managed {
    pub(crate) header: bool,
    pub(crate) mirror: bool,
}

/// The name of a destination and, if subsets distinguish the versions, its Pod hash.
pub(crate) type Id = (String, Option<String>);

/// The current destinations of a Rollout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Roles {
    pub(crate) stable: Id,
    pub(crate) canary: Id,
    /// Names of destinations by which an owner's route forwards to the Rollout.
    pub(crate) anchors: Vec<String>,
    /// Whether all Pods behind stable's Service are of one version, so that a route needs no subset.
    pub(crate) is_one_version: bool,
}

impl Roles {
    /// Whether a destination is one by which an owner's route forwards to the Rollout.
    pub(crate) fn is_anchor(&self, destination: &Value) -> bool {
        self.anchors
            .iter()
            .any(|anchor| anchor == name(destination))
    }

    /// Whether two Services swap roles, so that owners may point routes to either.
    pub(crate) fn is_ping_pong(&self) -> bool {
        self.anchors.len() > 1
    }
}

/// A Pod and the hash of its version.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) hash: String,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    weight: Option<i32>,
    header: Option<bool>,
    mirror: Option<bool>,
    pause: bool,
    experiment: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Experiment {
    Absent,
    Running,
    Over,
}

/// `status.canary.weights`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatusWeights {
    pub(crate) canary: i32,
    hash: u32,
    stable_hash: u32,
    service: String,
    stable_service: String,
    pub(crate) additional: Vec<WeightDestination>,
}

/// The controller's state of one Rollout.
#[derive(Debug)]
pub(crate) struct Controller {
    name: &'static str,
    stable_service: &'static str,
    services: Services,
    steps: Vec<Step>,
    pub(crate) max: i32,
    is_dynamic: bool,
    plugin: Value,
    stable: u32,
    current: u32,
    newest: u32,
    index: usize,
    abort: bool,
    promote_full: bool,
    /// Passes since the canary was scaled up.
    pods: u8,
    /// Passes for which a stable pod is missing.
    stable_down: u8,
    /// Passes for which Pods of an earlier version remain.
    old_pods: u8,
    experiment: Experiment,
    is_pong: bool,
    pub(crate) weights: StatusWeights,
    version: u64,
}

impl Step {
    fn weight(percent: i32) -> Self {
        Self {
            weight: Some(percent),
            ..Self::default()
        }
    }

    fn to_json(self, max: i32) -> Value {
        let mut step = json!({});
        if let Some(percent) = self.weight {
            step["setWeight"] = json!(percent * max / 100);
        }
        if let Some(is_set) = self.header {
            step["setHeaderRoute"] = header_route(is_set);
        }
        if let Some(is_set) = self.mirror {
            step["setMirrorRoute"] = mirror_route(is_set);
        }
        if self.pause {
            step["pause"] = json!({});
        }
        if self.experiment {
            step["experiment"] = json!({"templates": [{"name": EXPERIMENT, "weight": 5}]});
        }
        step
    }
}

pub(crate) fn header_route(is_set: bool) -> Value {
    let header = json!({"headerName": "x-canary", "headerValue": {"exact": "1"}});
    let matches = if is_set { vec![header] } else { Vec::new() };
    json!({"name": HEADER_ROUTE, "match": matches})
}

pub(crate) fn mirror_route(is_set: bool) -> Value {
    let request = json!({"method": {"exact": "GET"}});
    let matches = if is_set { vec![request] } else { Vec::new() };
    json!({"name": MIRROR_ROUTE, "percentage": 30, "match": matches})
}

fn steps(steps: Steps) -> Vec<Step> {
    let weight = Step::weight;
    let pause = Step {
        pause: true,
        ..Step::default()
    };
    let header = |is_set| Step {
        header: Some(is_set),
        ..Step::default()
    };
    let mirror = Step {
        mirror: Some(true),
        ..Step::default()
    };
    let experiment = Step {
        experiment: true,
        ..Step::default()
    };
    match steps {
        Steps::Plain => vec![weight(25), pause, weight(50), pause],
        Steps::Header => vec![
            weight(20),
            header(true),
            weight(40),
            pause,
            header(false),
            weight(60),
            pause,
        ],
        Steps::Experiment => vec![header(true), weight(10), experiment, pause, weight(50)],
        Steps::Mirror => vec![weight(30), mirror, pause, weight(70), pause],
    }
}

impl Controller {
    /// Creates the Rollout `reviews` of a setup.
    pub(crate) fn first(setup: &Setup, plugin: Value) -> Self {
        Self::new(
            "reviews",
            "reviews",
            setup.services,
            steps(setup.steps),
            setup,
            plugin,
        )
    }

    /// Creates a second Rollout, with plain steps and two Services.
    pub(crate) fn second(
        name: &'static str,
        stable_service: &'static str,
        setup: &Setup,
        plugin: Value,
    ) -> Self {
        Self::new(
            name,
            stable_service,
            Services::Pair,
            steps(Steps::Plain),
            setup,
            plugin,
        )
    }

    fn new(
        name: &'static str,
        stable_service: &'static str,
        services: Services,
        steps: Vec<Step>,
        setup: &Setup,
        plugin: Value,
    ) -> Self {
        let mut controller = Self {
            name,
            stable_service,
            services,
            index: steps.len(),
            steps,
            max: setup.max,
            is_dynamic: setup.dynamic_stable_scale,
            plugin,
            stable: 1,
            current: 1,
            newest: 1,
            abort: false,
            promote_full: false,
            pods: ALL_PODS,
            stable_down: 0,
            old_pods: 0,
            experiment: Experiment::Absent,
            is_pong: false,
            weights: StatusWeights {
                canary: 0,
                hash: 1,
                stable_hash: 1,
                service: String::new(),
                stable_service: String::new(),
                additional: Vec::new(),
            },
            version: 1,
        };
        controller.weights.service = controller.canary_service();
        controller.weights.stable_service = controller.stable_service();
        controller
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new("shop", self.name)
    }

    /// Whether the status has no update.
    pub(crate) fn is_promoted(&self) -> bool {
        self.stable == self.current
    }

    /// Whether ping and pong have swapped roles.
    pub(crate) fn is_pong(&self) -> bool {
        self.is_pong
    }

    // Commands of people.

    pub(crate) fn update(&mut self) {
        self.newest += 1;
        self.current = self.newest;
        self.begin();
        self.pods = 0;
    }

    pub(crate) fn rollback(&mut self) {
        if !self.is_promoted() {
            self.current = self.stable;
            self.begin();
            self.index = self.steps.len();
            self.old_pods = 2;
        }
    }

    pub(crate) fn abort(&mut self) {
        if !self.is_promoted() {
            self.begin();
            self.abort = true;
        }
    }

    pub(crate) fn retry(&mut self) {
        if self.abort {
            self.begin();
        }
    }

    fn begin(&mut self) {
        self.index = 0;
        self.abort = false;
        self.promote_full = false;
        self.experiment = Experiment::Absent;
        self.version += 1;
    }

    pub(crate) fn promote(&mut self) {
        let step = self.steps.get(self.index);
        if step.is_some_and(|step| step.pause) && !self.is_promoted() && !self.abort {
            self.index += 1;
            self.version += 1;
        }
    }

    pub(crate) fn promote_full(&mut self) {
        if !self.is_promoted() && !self.abort {
            self.promote_full = true;
            self.experiment = Experiment::Absent;
            self.version += 1;
        }
    }

    pub(crate) fn canary_down(&mut self) {
        if !self.is_promoted() {
            self.pods = 0;
            self.version += 1;
        }
    }

    pub(crate) fn stable_down(&mut self) {
        self.stable_down = 2;
        self.version += 1;
    }

    // One pass.

    /// Returns the calls of the next pass.
    pub(crate) fn pass(&self) -> Pass {
        let (desired, removes, with_experiment) = self.branch();
        let step = self.steps.get(self.index).filter(|_| !self.is_promoted());
        let experiment = WeightDestination {
            weight: 5 * self.max / 100,
            service_name: EXPERIMENT.to_owned(),
            pod_template_hash: "e1".to_owned(),
        };
        let runs = with_experiment && self.experiment == Experiment::Running;
        let additional = runs.then_some(experiment).into_iter().collect();

        let mut calls = Vec::new();
        if removes {
            calls.push(Call::RemoveManagedRoutes);
        }
        if self.stable_down == 0 {
            calls.extend(step.and_then(|step| step.header).map(Call::SetHeaderRoute));
            calls.extend(step.and_then(|step| step.mirror).map(Call::SetMirrorRoute));
            if self.canary_pods() == 0 && !self.is_promoted() && self.weights.canary > 0 {
                calls.push(Call::SetWeight);
            }
            calls.extend([Call::UpdateHash, Call::SetWeight, Call::VerifyWeight]);
        }
        let is_back_to_stable = self.goes_back_to_stable();
        let canary = if is_back_to_stable {
            self.weights.hash
        } else {
            self.current
        };
        Pass {
            rollout: self.rollout(),
            desired: DesiredWeight {
                value: desired,
                max: self.max,
            },
            hashes: PodHashes {
                canary: hash(canary),
                stable: hash(self.stable),
            },
            additional,
            calls,
            roles: self.roles(canary),
            managed: self.managed(removes),
        }
    }

    /// Returns the desired weight, whether managed routes are removed, and whether an experiment gets its share.
    fn branch(&self) -> (i32, bool, bool) {
        if self.goes_back_to_stable() {
            return (self.weights.canary.min(self.max / 4), false, false);
        }
        if self.is_promoted() {
            return (0, true, false);
        }
        if self.abort {
            let lower = self.steps.iter().filter_map(|step| step.weight);
            let lower = lower.map(|percent| percent * self.max / 100);
            let lower = lower.filter(|weight| *weight < self.weights.canary).max();
            let desired = lower.filter(|_| self.is_dynamic && self.canary_pods() > 0);
            return (desired.unwrap_or(0), true, false);
        }
        if self.canary_pods() == 0 {
            return (0, true, true);
        }
        if self.promote_full {
            let scaled = self.max * i32::from(self.canary_pods()) / 3;
            let desired = if self.is_dynamic {
                scaled
            } else {
                self.weights.canary
            };
            return (desired, true, false);
        }
        let is_scaled = self.pods >= ALL_PODS;
        if is_scaled && self.index >= self.steps.len() {
            return (self.max, false, false);
        }
        let so_far = self.index + usize::from(is_scaled);
        let steps = self.steps.iter().take(so_far);
        let weight = steps.filter_map(|step| step.weight).next_back();
        (weight.unwrap_or(0) * self.max / 100, false, true)
    }

    /// Whether a rollback with `dynamicStableScale` waits for the Pods of stable.
    fn goes_back_to_stable(&self) -> bool {
        self.is_dynamic
            && self.is_promoted()
            && self.weights.hash != self.current
            && self.old_pods > 0
    }

    fn canary_pods(&self) -> u8 {
        match self.pods {
            ALL_PODS.. => 3,
            SOME_PODS => 1,
            _ => 0,
        }
    }

    fn managed(&self, removes: bool) -> Option<Managed> {
        let mut managed = Managed::default();
        if removes {
            return Some(managed);
        }
        if self.is_promoted() {
            return None;
        }
        for step in self.steps.iter().take(self.index + 1) {
            managed.header = step.header.unwrap_or(managed.header);
            managed.mirror = step.mirror.unwrap_or(managed.mirror);
        }
        Some(managed)
    }

    /// Updates the status after a pass. `is_verified` is `false` if VerifyWeight answered "not verified".
    pub(crate) fn finish(&mut self, pass: &Pass, is_verified: bool) {
        let was_called = pass.calls.contains(&Call::SetWeight);
        let desired = pass.desired.value;
        if was_called {
            if !is_verified && desired == self.max {
                return;
            }
            let canary = if self.goes_back_to_stable() {
                self.weights.hash
            } else {
                self.current
            };
            let weights = StatusWeights {
                canary: desired,
                hash: canary,
                stable_hash: self.stable,
                service: self.canary_service(),
                stable_service: self.stable_service(),
                additional: pass.additional.clone(),
            };
            if weights != self.weights {
                self.weights = weights;
                self.version += 1;
            }
        }
        if self.is_promoted() || self.abort || self.pods < ALL_PODS {
            return;
        }
        if self.promote_full {
            return self.end();
        }
        let Some(step) = self.steps.get(self.index) else {
            if was_called && desired == self.max {
                self.end();
            }
            return;
        };
        self.version += 1;
        if step.experiment {
            self.experiment = match self.experiment {
                Experiment::Absent => Experiment::Running,
                Experiment::Running => Experiment::Over,
                Experiment::Over => {
                    self.index += 1;
                    Experiment::Absent
                }
            };
        } else if !step.pause && (is_verified || step.weight.is_none()) {
            self.index += 1;
        }
    }

    fn end(&mut self) {
        self.stable = self.current;
        self.index = self.steps.len();
        self.promote_full = false;
        self.is_pong ^= self.services == Services::PingPong;
        self.old_pods = 2;
        self.version += 1;
    }

    /// Lets time pass: Pods start and end, whether a pass succeeds or not.
    pub(crate) fn wait(&mut self) {
        let before = (self.pods, self.stable_down, self.old_pods);
        self.stable_down = self.stable_down.saturating_sub(1);
        self.old_pods = self.old_pods.saturating_sub(1);
        if self.abort {
            self.pods = self.pods.saturating_sub(1);
        } else {
            self.pods = (self.pods + 1).min(ALL_PODS);
        }
        if before != (self.pods, self.stable_down, self.old_pods) {
            self.version += 1;
        }
    }

    // What the plugin sees.

    fn stable_service(&self) -> String {
        match (self.services, self.is_pong) {
            (Services::PingPong, true) => format!("{}-pong", self.stable_service),
            (Services::PingPong, false) => format!("{}-ping", self.stable_service),
            (Services::Pair | Services::Subsets, _) => self.stable_service.to_owned(),
        }
    }

    fn canary_service(&self) -> String {
        match (self.services, self.is_pong) {
            (Services::PingPong, true) => format!("{}-ping", self.stable_service),
            (Services::PingPong, false) => format!("{}-pong", self.stable_service),
            (Services::Pair, _) => format!("{}-canary", self.name),
            (Services::Subsets, _) => self.stable_service.to_owned(),
        }
    }

    fn roles(&self, canary: u32) -> Roles {
        let with = |version: u32| (self.services == Services::Subsets).then(|| hash(version));
        let anchors = match self.services {
            Services::PingPong => vec![self.stable_service(), self.canary_service()],
            Services::Pair | Services::Subsets => vec![self.stable_service()],
        };
        let (_, updated, all) = self.replicas();
        Roles {
            stable: (self.stable_service(), with(self.stable)),
            canary: (self.canary_service(), with(canary)),
            anchors,
            is_one_version: match self.services {
                Services::Pair | Services::PingPong => true,
                Services::Subsets if self.is_promoted() => updated == all && canary == self.current,
                Services::Subsets => self.abort && updated == 0,
            },
        }
    }

    /// Returns the Pods that the stable and the canary Service select; `None` unless two Services distinguish the versions.
    pub(crate) fn selected_pods(&self) -> Option<[(String, Vec<Pod>); 2]> {
        if self.services != Services::Pair {
            return None;
        }
        let pods = |version: u32, count: u8| {
            let pod = |index| Pod {
                name: format!("{}-{version}-{index}", self.name),
                hash: hash(version),
            };
            (0..count).map(pod).collect()
        };
        let canary = match self.canary_pods() {
            0 => pods(self.stable, 3),
            _ if self.abort => pods(self.stable, 3),
            count => pods(self.current, count),
        };
        Some([
            (self.stable_service(), pods(self.stable, 3)),
            (self.canary_service(), canary),
        ])
    }

    /// Returns the number of stable, updated and all replicas.
    fn replicas(&self) -> (u8, u8, u8) {
        if self.is_promoted() {
            let old = if self.old_pods > 0 { 3 } else { 0 };
            return (3, 3, 3 + old);
        }
        let canary = self.canary_pods();
        (3, canary, 3 + canary)
    }

    pub(crate) fn rollout(&self) -> Rollout {
        let object = self.object();
        Rollout::deserialize(object).expect("a Rollout of the API")
    }

    /// Returns the object as the API server shows it.
    pub(crate) fn object(&self) -> Value {
        let steps: Vec<Value> = self
            .steps
            .iter()
            .map(|step| step.to_json(self.max))
            .collect();
        let mut canary = json!({
            "dynamicStableScale": self.is_dynamic,
            "steps": steps,
            "trafficRouting": {
                "managedRoutes": [{"name": HEADER_ROUTE}, {"name": MIRROR_ROUTE}],
                "maxTrafficWeight": self.max,
                "plugins": {"solo-io/glooplatform": self.plugin},
            },
        });
        match self.services {
            Services::Pair => {
                canary["stableService"] = json!(self.stable_service());
                canary["canaryService"] = json!(self.canary_service());
            }
            Services::PingPong => {
                canary["pingPong"] = json!({
                    "pingService": format!("{}-ping", self.stable_service),
                    "pongService": format!("{}-pong", self.stable_service),
                });
            }
            Services::Subsets => {}
        }
        let (_, updated, all) = self.replicas();
        let ping_pong = if self.is_pong { "pong" } else { "ping" };
        let weights = &self.weights;
        let additional: Vec<Value> = weights
            .additional
            .iter()
            .map(|it| json!({"weight": it.weight, "serviceName": it.service_name, "podTemplateHash": it.pod_template_hash}))
            .collect();
        let experiment: i32 = weights.additional.iter().map(|it| it.weight).sum();
        json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Rollout",
            "metadata": {
                "name": self.name,
                "namespace": "shop",
                "uid": format!("uid-{}", self.name),
                "resourceVersion": self.version.to_string(),
                "generation": self.newest,
                "annotations": {"rollout.argoproj.io/revision": (self.newest + 1).to_string()},
            },
            "spec": {"replicas": 3, "strategy": {"canary": canary}},
            "status": {
                "abort": self.abort,
                "promoteFull": self.promote_full,
                "stableRS": hash(self.stable),
                "currentPodHash": hash(self.current),
                "currentStepIndex": self.index,
                "replicas": all,
                "updatedReplicas": updated,
                "availableReplicas": all,
                "canary": {
                    "stablePingPong": ping_pong,
                    "weights": {
                        "canary": {"weight": weights.canary, "serviceName": weights.service, "podTemplateHash": hash(weights.hash)},
                        "stable": {"weight": self.max - weights.canary - experiment, "serviceName": weights.stable_service, "podTemplateHash": hash(weights.stable_hash)},
                        "additional": additional,
                    },
                },
            },
        })
    }
}

fn hash(version: u32) -> String {
    format!("v{version}")
}
