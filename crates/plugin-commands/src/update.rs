//! The calls that the controller makes to a router during an update, pass by pass.
//!
//! A pass is the traffic part of one reconcile. [`Update`] plays the controller: it keeps the status of a Rollout and the Pods of
//! its versions, and follows `rollout/trafficrouting.go`, `rollout/canary.go` and `utils/replicaset/canary.go` of Argo Rollouts.
//! `tests/tests/cluster_previews.rs` compares it with released controllers.
//!
//! What depends on time happens in this order: the controller first does all that it can do at once, then all Pods of a version
//! become available together, and then a pause, an experiment or a delay ends.

mod pods;

use clap::ValueEnum;
use rollouts_rpc::{
    Rollout, WeightDestination,
    rollout::{CanaryStep, REVISION_ANNOTATION, TrafficWeights},
};
use serde_json::Value;

use super::call::Call;
use super::controller::ControllerRelease;
use super::misuse;
use super::node::Node;
use super::world::Subject;

use self::pods::Pods;

/// Placeholders for the hashes of Pods that do not exist yet.
const CANARY: &str = "canary";
const STABLE: &str = "stable";
const NEWER: &str = "newer";

/// More passes than any update has. It only ends one in which a fault of this model never settles.
const MOST_PASSES: usize = 10_000;

/// The calls of one reconcile, and the Rollout at that time.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    /// The stage of the update, for people.
    pub(super) at: String,
    /// The current step; `None` before the first and after the last one.
    pub(super) step: Option<usize>,
    /// Whether the controller still waits for Pods or for an experiment to start, so that the calls may be those of the pass before.
    pub(super) is_waiting: bool,
    /// Whether the controller would weight the canary, but it has no available Pods.
    pub(super) lacks_pods: bool,
    /// The weight that the canary gets as soon as its first Pod is available, if a rollback skips the steps and the canary needs
    /// several Pods.
    pub(super) first_pods_get: Option<i32>,
    pub(super) rollout: Rollout,
    pub(super) calls: Vec<Call>,
}

/// What a person does at a step of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Abort,
    /// Aborts, and starts again when the abort has ended.
    Retry,
    PromoteFull,
    NewVersion,
    /// Applies the stable version again.
    StableVersion,
}

/// What has become of the version before the stable one when an update goes back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Rollback {
    /// Its Pods still run, because scaleDownDelaySeconds are not over.
    Early,
    /// It has no Pods.
    Late,
}

/// Behaviour of the controller that depends on its release.
mod since {
    use super::ControllerRelease;

    /// An update no longer waits until the Pods of earlier versions are gone.
    pub(super) const OLD_PODS_IGNORED: ControllerRelease = ControllerRelease::new(1, 6, 0);
    /// A rollback within `rollbackWindow` to a version with Pods skips the steps at once.
    pub(super) const ACTIVE_ROLLBACK: ControllerRelease = ControllerRelease::new(1, 6, 0);
    /// With `dynamicStableScale`, a rollback to the stable version waits for its Pods.
    pub(super) const ROLLBACK_WAITS: ControllerRelease = ControllerRelease::new(1, 6, 1);
    /// Managed routes are removed while the canary has no Pods, and weights wait for stable Pods.
    pub(super) const PODS_CHECKED: ControllerRelease = ControllerRelease::new(1, 8, 1);
    /// A canary with more Pods than the Rollout is promoted.
    pub(super) const SURPLUS_PROMOTED: ControllerRelease = ControllerRelease::new(1, 9, 0);
    /// `replicaProgressThreshold` is known.
    pub(super) const THRESHOLD: ControllerRelease = ControllerRelease::new(1, 9, 0);
    /// The weight is reset before another version becomes the canary, and `dynamicStableScale` aborts step by step.
    pub(super) const STEPWISE_ABORT: ControllerRelease = ControllerRelease::new(1, 9, 0);
}

/// The Experiment of the current step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Experiment {
    Pending,
    Running,
    Successful,
}

/// An update of a Rollout, as the controller plays it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Update<'a> {
    /// The whole object.
    api: Node<'a>,
    /// Spec and status.
    rollout: Rollout,
    release: ControllerRelease,
    /// The Rollout before the update, or during an update that has already started, so that the tables may be split.
    first: Rollout,
    canary: Pods,
    stable: Pods,
    /// The Pods of a canary that was replaced by a newer version.
    replaced: Pods,
    /// Whether the wait of the current step has ended: a pause, an analysis, a plugin.
    is_resumed: bool,
    experiment: Experiment,
    /// The steps of the Experiments that have run. Another one at the same step gets another name.
    experiments: Vec<usize>,
    /// Whether the time has passed after which an abort ends the canary's Pods.
    is_abort_delay_over: bool,
    is_retried: bool,
    /// Whether the update is a rollback within `rollbackWindow`.
    skips_steps: bool,
    /// Why the steps are played again.
    again: &'static str,
}

impl<'a> Update<'a> {
    /// Takes the running update of a Rollout, or starts one.
    pub(super) fn new(subject: &'a Subject, release: Option<ControllerRelease>) -> Self {
        let mut rollout = subject.rollout.clone();
        start(&mut rollout);
        let mut first = rollout.clone();
        if is_under_way(&subject.rollout) {
            first.status.canary = subject.rollout.status.canary.clone();
            first.status.abort = true;
        } else {
            first.status.current_pod_hash = first.status.stable_rs.clone();
        }
        let replicas = rollout.replicas();
        Self {
            api: Node::root(&subject.api),
            rollout,
            release: release.unwrap_or(ControllerRelease::NEWEST),
            first,
            canary: Pods::default(),
            stable: Pods::of(replicas),
            replaced: Pods::default(),
            is_resumed: false,
            experiment: Experiment::Pending,
            experiments: Vec::new(),
            is_abort_delay_over: false,
            is_retried: false,
            skips_steps: false,
            again: "",
        }
    }

    /// Returns the update to the version before the stable one, if there is a rollback.
    pub(super) fn going_back(mut self, rollback: Option<Rollback>) -> Self {
        let Some(rollback) = rollback else {
            return self;
        };
        let window = self.api.get("spec.rollbackWindow.revisions").number();
        self.skips_steps = window.is_some_and(|it| it > 0);
        // With dynamicStableScale, its Pods have ended with the promotion of the stable version.
        if rollback == Rollback::Early && !self.is_dynamic() {
            self.canary = Pods::of(self.rollout.replicas());
            if self.skips_steps && self.release >= since::ACTIVE_ROLLBACK {
                self.set_index(self.steps().len());
            }
        }
        self.next_revision("rollback: ");
        self
    }

    /// Returns the passes of a whole update, from one version at rest to the next. A person does `event` at a step.
    pub(super) fn passes(mut self, event: Option<(usize, Event)>) -> Vec<Pass> {
        let mut passes = vec![self.at_rest()];
        let mut event = event;
        for _ in 0..MOST_PASSES {
            let before = self.clone();
            let calls = self.traffic();
            if !calls.is_empty() {
                passes.push(before.pass(calls));
            }
            self.scale_and_complete(&before);
            let has_left = |step| before.index() == Some(step) && self.index() != Some(step);
            if let Some((step, what)) = event
                && has_left(step)
            {
                event = None;
                self.happens(what);
            }
            if self != before || self.pods_start() {
                continue;
            }
            match event {
                Some((step, what)) if self.index() == Some(step) => {
                    event = None;
                    self.happens(what);
                }
                _ if self.waits_no_longer() => {}
                _ => break,
            }
        }
        passes
    }

    /// Returns the passes while a step is current.
    pub(super) fn step(&self, index: usize) -> Vec<Pass> {
        let mut passes = self.clone().passes(None);
        passes.retain(|pass| pass.step == Some(index) && !pass.is_waiting);
        passes
    }

    /// Returns the pass before the update, or the abort of an update that has already started.
    fn at_rest(&self) -> Pass {
        Pass {
            at: "at rest".to_owned(),
            step: None,
            is_waiting: false,
            lacks_pods: false,
            first_pods_get: None,
            rollout: self.first.clone(),
            calls: vec![Call::RemoveManagedRoutes, Call::SetWeight(0, Vec::new())],
        }
    }

    fn pass(&self, calls: Vec<Call>) -> Pass {
        let status = &self.rollout.status;
        let is_stepping = !status.is_promoted() && !status.abort && !status.promote_full;
        let steps = self.steps().len();
        let step = self.index().filter(|index| is_stepping && *index < steps);
        let experiment = step.filter(|index| self.step_node(*index).has("experiment"));
        let experiment = experiment.map(|_| self.experiment);
        let is_waiting =
            is_stepping && (!self.is_scaled(None) || experiment == Some(Experiment::Pending));
        let during = match experiment {
            Some(Experiment::Running) => " runs".to_owned(),
            Some(Experiment::Successful) => " has ended".to_owned(),
            _ if is_waiting => ", Pods start".to_owned(),
            _ if is_stepping && self.needs_pods() => self.sufficient_pods(),
            _ => String::new(),
        };
        let what = match step {
            Some(index) => format!("{index} {}", describe(self.step_node(index).value)),
            None if self.is_rolling_back() => "stable Pods start".to_owned(),
            // A promotion ends a rollback to another version than the stable one.
            None if status.is_promoted() && self.again.is_empty() => "promoted".to_owned(),
            None if status.is_promoted() => "done".to_owned(),
            None if status.abort => "aborted".to_owned(),
            None if status.promote_full => "promoted in full".to_owned(),
            None if steps == 0 => "new version".to_owned(),
            None => "steps done".to_owned(),
        };
        Pass {
            at: format!("{}{what}{during}", self.again),
            step,
            is_waiting,
            lacks_pods: is_stepping && self.canary.available == 0,
            first_pods_get: self.weight_of_first_pods().filter(|_| is_stepping),
            rollout: self.rollout.clone(),
            calls,
        }
    }
}

/// The traffic part of a reconcile (`reconcileTrafficRouting`).
impl Update<'_> {
    /// Returns the calls of the current state, and records the weight.
    fn traffic(&mut self) -> Vec<Call> {
        let max = self.rollout.max_traffic_weight();
        let status = &self.rollout.status;
        let is_promoted = status.is_promoted();
        let new = if is_promoted {
            self.stable
        } else {
            self.canary
        };
        let recorded = self.recorded_weight();
        let mut calls = Vec::new();
        let mut additional = Vec::new();
        let mut weight = 0;
        if self.is_rolling_back() {
            weight = self.weight_of_abort();
        } else if is_promoted {
            calls.push(Call::RemoveManagedRoutes);
        } else if status.abort {
            weight = self.weight_of_abort();
            calls.push(Call::RemoveManagedRoutes);
        } else if new.available == 0 {
            additional = self.additional();
            if self.release >= since::PODS_CHECKED {
                calls.push(Call::RemoveManagedRoutes);
            }
        } else if status.promote_full {
            weight = match self.is_dynamic() {
                true => part(max, new.available, self.rollout.replicas()),
                false => recorded.unwrap_or(0),
            };
            calls.push(Call::RemoveManagedRoutes);
        } else if let Some(index) = self.index() {
            if !self.is_scaled(None) {
                weight = self.weight_of(index);
                additional = self.additional();
            } else if index < self.steps().len() {
                weight = self.weight_of(index + 1);
                additional = self.additional();
            } else {
                weight = max;
            }
        }
        let needed = part(max.saturating_sub(weight), self.rollout.replicas(), max);
        let has_stable = self.stable.available >= needed || self.suffice(self.stable, needed);
        if self.release >= since::PODS_CHECKED && !has_stable {
            return calls;
        }
        if let Some(step) = self.rollout.current_step() {
            calls.extend(step.set_header_route.clone().map(Call::SetHeaderRoute));
            calls.extend(step.set_mirror_route.clone().map(Call::SetMirrorRoute));
        }
        let has_weight = recorded.is_some_and(|weight| weight > 0);
        if self.release >= since::STEPWISE_ABORT && new.available == 0 && has_weight {
            calls.push(Call::ResetWeight(weight, additional.clone()));
        }
        calls.push(Call::SetWeight(weight, additional.clone()));
        self.record(weight, additional);
        calls
    }

    /// Sets `status.canary.weights`.
    fn record(&mut self, weight: i32, additional: Vec<WeightDestination>) {
        let is_rolling_back = self.is_rolling_back();
        let max = self.rollout.max_traffic_weight();
        let others = additional.iter().map(|it| it.weight);
        let others = others.fold(weight, i32::saturating_add);
        let status = &mut self.rollout.status;
        let destination = |weight, hash: &str| WeightDestination {
            weight,
            service_name: String::new(),
            pod_template_hash: hash.to_owned(),
        };
        let recorded = status.canary.weights.as_ref().filter(|_| is_rolling_back);
        let canary = recorded.map_or(&status.current_pod_hash, |it| &it.canary.pod_template_hash);
        status.canary.weights = Some(TrafficWeights {
            canary: destination(weight, canary),
            stable: destination(max.saturating_sub(others), &status.stable_rs),
            additional,
            verified: false,
        });
    }

    fn recorded_weight(&self) -> Option<i32> {
        let weights = self.rollout.status.canary.weights.as_ref()?;
        Some(weights.canary.weight)
    }

    /// Whether an update with `dynamicStableScale` was ended by the stable version, whose Pods have yet to start
    /// (`IsDynamicallyRollingBackToStable`).
    fn is_rolling_back(&self) -> bool {
        let status = &self.rollout.status;
        let weights = status.canary.weights.as_ref();
        self.release >= since::ROLLBACK_WAITS
            && self.is_dynamic()
            && status.is_promoted()
            && weights.is_some_and(|it| it.canary.pod_template_hash != status.current_pod_hash)
            && self.stable.available < self.rollout.replicas()
    }

    /// Returns the last `setWeight` before a step; 0 without one.
    fn weight_of(&self, step: usize) -> i32 {
        let before = self.steps().iter().take(step);
        let weight = before.rev().find_map(|step| step.set_weight);
        weight.unwrap_or(0)
    }

    /// Returns the weight during an abort (`calculateDesiredWeightOnAbortOrStableRollback`).
    fn weight_of_abort(&self) -> i32 {
        let (max, replicas) = (self.rollout.max_traffic_weight(), self.rollout.replicas());
        if !self.is_dynamic() || replicas == 0 {
            return 0;
        }
        let of_stable = part(max, self.stable.available, replicas);
        let expected = max.saturating_sub(of_stable).max(0);
        let recorded = self.recorded_weight();
        if self.release < since::STEPWISE_ABORT {
            return recorded.map_or(expected, |recorded| expected.min(recorded));
        }
        let desired = self.desired_canary_weight();
        match recorded {
            None => expected.max(desired),
            Some(recorded) if desired <= 0 => expected.min(recorded),
            Some(recorded) if of_stable < max.saturating_sub(desired) => recorded,
            Some(recorded) => desired.min(recorded),
        }
    }

    /// Returns the Services of the running experiment's templates that get traffic, named as the controller names them.
    fn additional(&self) -> Vec<WeightDestination> {
        let running = self
            .index()
            .filter(|_| self.experiment == Experiment::Running);
        let Some(index) = running else {
            return Vec::new();
        };
        let name = &self.rollout.metadata.name;
        let hash = &self.rollout.status.current_pod_hash;
        let revision = self.rollout.revision().unwrap_or(2);
        let same = self.experiments.iter().filter(|it| **it == index);
        let suffix = match same.count().saturating_sub(1) {
            0 => String::new(),
            earlier => format!("-{earlier}"),
        };
        let templates = self.step_node(index).get("experiment.templates").items();
        let weighted = templates.into_iter().filter_map(|template| {
            let template_name = template.get("name").value.as_str()?;
            let service = template.get("service.name").value.as_str();
            let generated = || format!("{name}-{hash}-{revision}-{index}{suffix}-{template_name}");
            Some(WeightDestination {
                weight: template.get("weight").int()?,
                service_name: service.map_or_else(generated, str::to_owned),
                pod_template_hash: template_name.to_owned(),
            })
        });
        weighted.collect()
    }
}

/// The rest of a reconcile (`reconcileCanaryReplicaSets`, `syncRolloutStatusCanary`), and what happens outside of the controller.
impl Update<'_> {
    /// Scales the versions, and ends the current step or the update. `before` is the state at the start of the reconcile.
    fn scale_and_complete(&mut self, before: &Self) {
        if self.rollout.spec.paused {
            return;
        }
        if self.rollout.status.is_promoted() {
            self.stable.wanted = self.rollout.replicas();
            return;
        }
        self.scale(before);
        let steps = self.steps().len();
        let is_last = before.index().is_none_or(|index| index >= steps);
        let status = &self.rollout.status;
        let is_aborted = status.abort;
        let is_full = status.promote_full || self.skips_steps;
        if is_full {
            self.set_index(steps);
        }
        let (available, replicas) = (before.canary.available, self.rollout.replicas());
        let is_available = available == replicas
            || available > replicas && self.release >= since::SURPLUS_PROMOTED
            || self.suffice(before.canary, replicas);
        if !is_aborted && is_available && (is_full || is_last) {
            self.promote();
        } else if is_aborted {
            self.set_index(0);
        } else if let Some(index) = self.index().filter(|_| !is_full)
            && self.is_complete(before)
        {
            self.set_index(index + 1);
        }
    }

    fn scale(&mut self, before: &Self) {
        // The stable Pods follow the weights of the reconcile before.
        let (_, stable) = self.wanted(before.rollout.status.canary.weights.as_ref());
        if self.stable.wanted != stable {
            self.stable.wanted = stable;
            return;
        }
        let weights = self.rollout.status.canary.weights.as_ref();
        let canary = match (self.delays_scale_down(), self.is_abort_delay_over) {
            (true, true) => 0,
            (true, false) => self.canary.wanted,
            (false, _) => self.wanted(weights).0,
        };
        if self.canary.wanted != canary {
            self.canary.wanted = canary;
            return;
        }
        let current = &self.rollout.status.current_pod_hash;
        let weights = before.rollout.status.canary.weights.as_ref();
        if weights.is_none_or(|weights| weights.canary.pod_template_hash == *current) {
            self.replaced.wanted = 0;
        }
    }

    /// Whether the current step has ended (`completedCurrentCanaryStep`). The controller does not see yet how it has just scaled.
    fn is_complete(&self, before: &Self) -> bool {
        let Some(step) = self.rollout.current_step() else {
            return false;
        };
        match step {
            step if step.pause.is_some() => self.is_resumed,
            step if step.set_canary_scale.is_some() || step.set_weight.is_some() => {
                before.is_scaled(self.rollout.status.canary.weights.as_ref())
            }
            step if step.experiment.is_some() => self.experiment == Experiment::Successful,
            step if step.analysis.is_some() => self.is_resumed,
            step if step.set_header_route.is_some() || step.set_mirror_route.is_some() => true,
            step => step.plugin.is_some() && self.is_resumed,
        }
    }

    fn set_index(&mut self, index: usize) {
        if self.index() != Some(index) && !self.steps().is_empty() {
            self.rollout.status.current_step_index = index.try_into().ok();
            self.is_resumed = false;
            self.experiment = Experiment::Pending;
        }
    }

    fn promote(&mut self) {
        self.set_index(self.steps().len());
        let is_ping_pong = self.rollout.is_ping_pong();
        let status = &mut self.rollout.status;
        status.promote_full = false;
        status.stable_rs.clone_from(&status.current_pod_hash);
        if is_ping_pong {
            let is_ping = status.canary.stable_ping_pong == "ping";
            let stable = if is_ping { "pong" } else { "ping" };
            stable.clone_into(&mut status.canary.stable_ping_pong);
        }
        self.stable = self.canary;
        self.again = "";
    }

    /// Makes all Pods available. Returns whether there was one to wait for.
    fn pods_start(&mut self) -> bool {
        let mut has_waited = false;
        for pods in [&mut self.canary, &mut self.stable, &mut self.replaced] {
            has_waited |= pods.available != pods.wanted;
            pods.available = pods.wanted;
        }
        self.rollout.status.updated_replicas = self.canary.wanted;
        has_waited
    }

    /// Ends what the controller waits for. Returns `false` if it waits for nothing.
    fn waits_no_longer(&mut self) -> bool {
        if self.rollout.status.abort {
            let is_delayed = self.delays_scale_down() && !self.is_abort_delay_over;
            if is_delayed && self.stable.available >= self.rollout.replicas() {
                self.is_abort_delay_over = true;
                return true;
            }
            self.rollout.status.abort = !self.is_retried;
            self.again = "retry: ";
            return std::mem::take(&mut self.is_retried);
        }
        let step = self.rollout.current_step();
        let Some(step) = step.filter(|_| !self.rollout.spec.paused) else {
            return false;
        };
        if step.pause.is_some() || step.analysis.is_some() || step.plugin.is_some() {
            return !std::mem::replace(&mut self.is_resumed, true);
        }
        if step.experiment.is_none() {
            return false;
        }
        self.experiment = match self.experiment {
            Experiment::Pending => {
                self.experiments.extend(self.index());
                Experiment::Running
            }
            Experiment::Running => Experiment::Successful,
            Experiment::Successful => return false,
        };
        true
    }

    fn happens(&mut self, event: Event) {
        let status = &mut self.rollout.status;
        match event {
            Event::Abort => status.abort = true,
            Event::Retry => {
                status.abort = true;
                self.is_retried = true;
            }
            Event::PromoteFull => status.promote_full = true,
            Event::NewVersion => {
                NEWER.clone_into(&mut status.current_pod_hash);
                self.replace_canary("new version: ", 0);
            }
            Event::StableVersion => {
                status.current_pod_hash.clone_from(&status.stable_rs);
                self.replace_canary("rollback: ", self.steps().len());
            }
        }
    }

    /// Continues with another version at a step.
    fn replace_canary(&mut self, again: &'static str, index: usize) {
        self.replaced = std::mem::take(&mut self.canary);
        self.next_revision(again);
        self.set_index(index);
        self.is_resumed = false;
        self.experiment = Experiment::Pending;
        self.experiments.clear();
    }

    fn next_revision(&mut self, again: &'static str) {
        self.again = again;
        let revision = self.rollout.revision().unwrap_or(2).saturating_add(1);
        set_revision(&mut self.rollout, revision);
    }
}

impl Pass {
    /// Whether the update has ended, by a promotion or an abort.
    pub(super) fn is_end(&self) -> bool {
        let status = &self.rollout.status;
        status.is_promoted() || status.abort
    }
}

impl Update<'_> {
    pub(super) fn steps(&self) -> &[CanaryStep] {
        self.rollout.steps()
    }

    /// Returns `Err` if the Rollout has no step with this index.
    pub(super) fn require_step(&self, index: usize) -> anyhow::Result<()> {
        match self.steps().len() {
            steps if index < steps => Ok(()),
            0 => misuse!("the Rollout has no steps"),
            steps => misuse!("the Rollout has no step {index}: use 0 to {}", steps - 1),
        }
    }

    /// Returns the index of the current step; `None` without steps.
    fn index(&self) -> Option<usize> {
        let index = self.rollout.status.step_index();
        index.filter(|_| !self.steps().is_empty())
    }

    fn is_dynamic(&self) -> bool {
        let canary = self.rollout.canary();
        canary.is_some_and(|it| it.dynamic_stable_scale)
    }

    fn canary_node(&self) -> Node<'_> {
        self.api.get("spec.strategy.canary")
    }

    fn step_node(&self, index: usize) -> Node<'_> {
        self.canary_node().get("steps").item(index)
    }
}

/// Whether an update of a Rollout has started.
pub(super) fn is_under_way(rollout: &Rollout) -> bool {
    let status = &rollout.status;
    status.is_updating() && !status.current_pod_hash.is_empty()
}

/// Returns the Rollout of the next call: as it is during an update, or with a new version if it is at rest.
pub(super) fn of_next_call(subject: &Subject) -> Rollout {
    let mut rollout = subject.rollout.clone();
    if !is_under_way(&rollout) {
        start(&mut rollout);
        rollout.status.current_step_index = None;
        rollout.status.updated_replicas = rollout.status.updated_replicas.max(1);
    }
    with_zeros_of_gob(&mut rollout);
    rollout
}

/// Applies a new version, or returns an update to its start.
fn start(rollout: &mut Rollout) {
    let steps = rollout.steps().len();
    let status = &mut rollout.status;
    if status.stable_rs.is_empty() {
        STABLE.clone_into(&mut status.stable_rs);
        // The controller swaps ping and pong in the first deployment too. It takes the empty status for pong.
        "ping".clone_into(&mut status.canary.stable_ping_pong);
    }
    if status.current_pod_hash.is_empty() || status.is_promoted() {
        CANARY.clone_into(&mut status.current_pod_hash);
    }
    status.current_step_index = (steps > 0).then_some(0);
    status.abort = false;
    status.promote_full = false;
    status.canary.weights = None;
    // The first revision has no canary.
    let revision = rollout.revision().unwrap_or(2).max(2);
    set_revision(rollout, revision);
    with_zeros_of_gob(rollout);
}

fn set_revision(rollout: &mut Rollout, revision: u64) {
    let annotations = &mut rollout.metadata.annotations;
    annotations.insert(REVISION_ANNOTATION.to_owned(), revision.to_string());
}

/// Removes what Go's gob drops, so that a router never receives it: pointers to zero.
fn with_zeros_of_gob(rollout: &mut Rollout) {
    for step in rollout.steps_mut() {
        if let Some(route) = &mut step.set_mirror_route {
            route.percentage = route.percentage.filter(|percentage| *percentage != 0);
        }
    }
}

/// Returns `factor` * `of` / `whole` as the controller computes it: without a fraction.
fn part(factor: i32, of: i32, whole: i32) -> i32 {
    let product = i64::from(factor) * i64::from(of);
    let part = product.checked_div(i64::from(whole));
    part.and_then(|part| i32::try_from(part).ok()).unwrap_or(0)
}

/// Describes a step: `setWeight 25`, `pause 5m`, `setHeaderRoute hdr`.
fn describe(step: &Value) -> String {
    let parts = step.as_object().into_iter().flatten().map(|(key, value)| {
        let detail = match value {
            Value::Object(fields) => {
                let mut keys = ["name", "duration", "weight", "replicas"].iter();
                keys.find_map(|key| fields.get(*key))
            }
            other => Some(other),
        };
        match detail {
            Some(Value::String(text)) => format!("{key} {text}"),
            Some(Value::Null) | None => key.clone(),
            Some(other) => format!("{key} {other}"),
        }
    });
    parts.collect::<Vec<_>>().join(", ")
}
