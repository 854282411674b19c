//! The calls that the controller makes to a router during an update, pass by pass, and the router that answers them on a copy
//! of the tables.
//!
//! A pass is the traffic part of one reconcile. Its calls and their order are those of the controller's
//! `rollout/trafficrouting.go`.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gloo_router::report::{Observer, Report, unmatched};
use gloo_router::{GlooRouter, Policy};
use gloo_types::{ObjectKey, ServicePort};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, RouterError, TrafficRouter, WeightDestination, error_chain,
    rollout::{REVISION_ANNOTATION, SetHeaderRoute, SetMirrorRoute},
};
use route_planner::PluginConfig;
use route_store::{Freshness, MemoryRouteStore, RouteStore as _, ServiceReader as _};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::world::Subject;

/// Placeholder for the hash of Pods that do not exist yet.
const CANARY: &str = "canary";
const STABLE: &str = "stable";

/// The calls of one reconcile, and the Rollout at that time.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    /// The stage of the update, for people.
    pub(super) at: String,
    pub(super) rollout: Rollout,
    pub(super) calls: Vec<Call>,
}

/// A call of the controller.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    RemoveManagedRoutes,
    SetHeaderRoute(SetHeaderRoute),
    SetMirrorRoute(SetMirrorRoute),
    SetWeight(i32, Vec<WeightDestination>),
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveManagedRoutes => f.write_str("RemoveManagedRoutes"),
            Self::SetHeaderRoute(route) => write!(f, "SetHeaderRoute {}", route.name),
            Self::SetMirrorRoute(route) => write!(f, "SetMirrorRoute {}", route.name),
            Self::SetWeight(weight, additional) => {
                write!(f, "SetWeight {weight}")?;
                for destination in additional {
                    write!(f, " {}={}", destination.service_name, destination.weight)?;
                }
                Ok(())
            }
        }
    }
}

impl Call {
    /// Makes the call for `rollout`, and the calls that the controller makes with it.
    pub(super) async fn make(
        &self,
        router: &impl TrafficRouter,
        rollout: &Rollout,
    ) -> Result<(), RouterError> {
        match self {
            Self::RemoveManagedRoutes => router.remove_managed_routes(rollout).await,
            Self::SetHeaderRoute(route) => router.set_header_route(rollout, route).await,
            Self::SetMirrorRoute(route) => router.set_mirror_route(rollout, route).await,
            Self::SetWeight(weight, additional) => {
                let hashes = PodHashes {
                    canary: rollout.status.current_pod_hash.clone(),
                    stable: rollout.status.stable_rs.clone(),
                };
                let desired = DesiredWeight {
                    value: *weight,
                    max: rollout.max_traffic_weight(),
                };
                router.update_hash(rollout, &hashes, additional).await?;
                router.set_weight(rollout, desired, additional).await?;
                // It ends a pass. Its answer depends on Gloo and is ignored.
                router.verify_weight(rollout, desired, additional).await?;
                Ok(())
            }
        }
    }
}

/// An update of a Rollout.
#[derive(Clone, Debug)]
pub(super) struct Update<'a> {
    api: &'a Value,
    /// The Rollout during the update.
    rollout: Rollout,
    /// Whether the update has already started, so that the tables may be split.
    is_under_way: bool,
}

impl<'a> Update<'a> {
    /// Takes the running update of a Rollout, or starts one.
    pub(super) fn new(subject: &'a Subject) -> Self {
        let mut rollout = subject.rollout.clone();
        let status = &mut rollout.status;
        let is_under_way = status.is_updating() && !status.current_pod_hash.is_empty();
        if status.stable_rs.is_empty() {
            status.stable_rs = STABLE.to_owned();
            // The first deployment swaps the Services too, starting from an empty status, which counts as pong.
            status.canary.stable_ping_pong = "ping".to_owned();
        }
        if status.current_pod_hash.is_empty() || status.current_pod_hash == status.stable_rs {
            status.current_pod_hash = CANARY.to_owned();
            status.current_step_index = None;
        }
        status.abort = false;
        status.promote_full = false;
        status.updated_replicas = status.updated_replicas.max(1);
        // The first revision has no canary.
        if rollout.revision().is_none_or(|revision| revision < 2) {
            let revision = REVISION_ANNOTATION.to_owned();
            rollout
                .metadata
                .annotations
                .insert(revision, "2".to_owned());
        }
        for step in rollout.steps_mut() {
            // Go's gob drops a pointer to zero, so a router never receives it.
            if let Some(route) = &mut step.set_mirror_route {
                route.percentage = route.percentage.filter(|percentage| *percentage != 0);
            }
        }
        Self {
            api: &subject.api,
            rollout,
            is_under_way,
        }
    }

    /// Returns the Rollout during the update.
    pub(super) const fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    /// Returns the passes of a whole update. With `abort_at`, the update is aborted after that step.
    pub(super) fn passes(&self, abort_at: Option<usize>) -> Vec<Pass> {
        let mut before = self.rollout.clone();
        if self.is_under_way {
            before.status.abort = true;
        } else {
            before.status.current_pod_hash = before.status.stable_rs.clone();
        }
        let mut passes = vec![self.ending("at rest", before)];
        passes.push(self.ending("new version", self.at(0)));
        let steps = self.steps();
        for index in 0..steps {
            passes.extend(self.step(index));
            if abort_at == Some(index) {
                let mut aborted = self.at(0);
                aborted.status.abort = true;
                aborted.status.updated_replicas = 0;
                passes.push(self.ending("aborted", aborted));
                return passes;
            }
        }
        if steps > 0 {
            let max = self.rollout.max_traffic_weight();
            passes.push(Pass {
                at: "steps done".to_owned(),
                rollout: self.at(steps),
                calls: vec![Call::SetWeight(max, Vec::new())],
            });
        }
        let mut promoted = self.at(steps);
        let status = &mut promoted.status;
        status.stable_rs = status.current_pod_hash.clone();
        let stable = if status.canary.stable_ping_pong == "ping" {
            "pong"
        } else {
            "ping"
        };
        status.canary.stable_ping_pong = stable.to_owned();
        passes.push(self.ending("promoted", promoted));
        passes
    }

    /// Returns the number of steps.
    pub(super) fn steps(&self) -> usize {
        self.rollout.steps().len()
    }

    /// Returns the passes while a step is current: one, or one during an experiment and one after it.
    pub(super) fn step(&self, index: usize) -> Vec<Pass> {
        let rollout = self.at(index);
        let steps = rollout.steps();
        let Some(step) = steps.get(index) else {
            return Vec::new();
        };
        let so_far = steps.iter().take(index + 1);
        let mut weights = so_far.rev().filter_map(|step| step.set_weight);
        let weight = weights.next().unwrap_or(0);
        let mut calls = Vec::new();
        calls.extend(step.set_header_route.clone().map(Call::SetHeaderRoute));
        calls.extend(step.set_mirror_route.clone().map(Call::SetMirrorRoute));
        let api = self.api_step(index);
        let at = format!("{index} {}", describe(api));
        let experiment = self.experiment(index, api);
        let mut passes = Vec::new();
        if !experiment.is_empty() {
            let mut calls = calls.clone();
            calls.push(Call::SetWeight(weight, experiment));
            passes.push(Pass {
                at: format!("{at} runs"),
                rollout: rollout.clone(),
                calls,
            });
        }
        calls.push(Call::SetWeight(weight, Vec::new()));
        passes.push(Pass { at, rollout, calls });
        passes
    }

    fn ending(&self, at: &str, rollout: Rollout) -> Pass {
        Pass {
            at: at.to_owned(),
            rollout,
            calls: vec![Call::RemoveManagedRoutes, Call::SetWeight(0, Vec::new())],
        }
    }

    /// Returns the Rollout at a step.
    fn at(&self, step: usize) -> Rollout {
        let mut rollout = self.rollout.clone();
        rollout.status.current_step_index = step.try_into().ok();
        rollout
    }

    fn api_step(&self, index: usize) -> &'a Value {
        let steps = self.api.pointer("/spec/strategy/canary/steps");
        steps
            .and_then(|steps| steps.get(index))
            .unwrap_or(&Value::Null)
    }

    /// Returns the Services of an experiment's templates that get traffic, named as the controller names them.
    fn experiment(&self, index: usize, step: &Value) -> Vec<WeightDestination> {
        let name = &self.rollout.metadata.name;
        let hash = &self.rollout.status.current_pod_hash;
        let revision = self.rollout.revision().unwrap_or(2);
        let templates = step.pointer("/experiment/templates");
        let templates = templates.and_then(Value::as_array).into_iter().flatten();
        let weighted = templates.filter_map(|template| {
            let weight = template.get("weight")?.as_i64()?.try_into().ok()?;
            let template_name = template.get("name")?.as_str()?;
            let service = template.pointer("/service/name").and_then(Value::as_str);
            let generated = || format!("{name}-{hash}-{revision}-{index}-{template_name}");
            Some(WeightDestination {
                weight,
                service_name: service.map_or_else(generated, str::to_owned),
                pod_template_hash: template_name.to_owned(),
            })
        });
        weighted.collect()
    }
}

/// Describes a step: `setWeight 25`, `pause 5m`, `setHeaderRoute hdr`.
fn describe(step: &Value) -> String {
    let parts = step.as_object().into_iter().flatten().map(|(key, value)| {
        let detail = match value {
            Value::Object(_) => ["name", "duration", "weight", "replicas"]
                .into_iter()
                .find_map(|key| value.get(key)),
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

/// Says which entries of a plugin block select no route of its tables.
pub(super) async fn unmatched_entries(
    config: &PluginConfig,
    store: &MemoryRouteStore,
) -> Option<String> {
    let selection = store.select(config.route_tables(), Freshness::Live).await;
    // Tables that cannot be read may have the routes.
    let tables = selection.complete().ok()?;
    let entries = config.routes().unmatched(&tables);
    (!entries.is_empty()).then(|| unmatched(&entries))
}

/// The plugin's router over tables in memory.
pub(super) struct Trial<'a> {
    subject: &'a Subject,
    store: Arc<MemoryRouteStore>,
    router: GlooRouter<MemoryRouteStore>,
    warnings: Warnings,
    deferred: Arc<DeferredError>,
}

/// The last error of a call about managed routes, which the plugin does not return to the controller: SetWeight of the same
/// reconcile tries the call again and returns the error.
#[derive(Default)]
struct DeferredError(Mutex<Option<String>>);

impl DeferredError {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for DeferredError {
    fn observe(&self, report: &Report) {
        if let Report::ManagedRoutesFailed { error, .. } = report {
            *self.lock() = Some(error.clone());
        }
    }
}

/// The outcome of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Warnings of the router, as in the controller's log.
    pub(super) warnings: Vec<String>,
    /// Why the call was refused.
    pub(super) error: Option<String>,
    /// Why a call about managed routes failed, which SetWeight of the same reconcile returns as its error.
    pub(super) deferred: Option<String>,
}

impl<'a> Trial<'a> {
    pub(super) fn new(store: &Arc<MemoryRouteStore>, policy: Policy, subject: &'a Subject) -> Self {
        let deferred = Arc::<DeferredError>::default();
        let observer = Arc::clone(&deferred) as Arc<dyn Observer>;
        Self {
            subject,
            store: Arc::clone(store),
            router: GlooRouter::new(Arc::clone(store), policy).with_observer(observer),
            warnings: Warnings::default(),
            deferred,
        }
    }

    pub(super) async fn call(&self, rollout: &Rollout, call: &Call) -> Outcome {
        if let Call::SetWeight(_, additional) = call {
            for destination in additional {
                self.start_experiment(&destination.service_name).await;
            }
        }
        let listening = tracing::subscriber::set_default(self.warnings.clone());
        let made = call.make(&self.router, rollout).await;
        drop(listening);
        let mut warnings = mem::take(&mut *self.warnings.lines());
        warnings.dedup();
        Outcome {
            warnings,
            error: made.err().map(|error| error_chain(error.as_error())),
            deferred: self.deferred.lock().take(),
        }
    }
}

impl Trial<'_> {
    /// Creates the Service of an experiment as the controller does, unless the files have it. Without the stable Service,
    /// nothing tells which of several ports is the right one: then there is no Service, and the router says what it assumes.
    async fn start_experiment(&self, name: &str) {
        let key = ObjectKey::new(&self.subject.key.namespace, name);
        let is_known = async |key: &ObjectKey| {
            let ports = self.store.service_ports(key).await;
            ports.is_ok_and(|ports| ports.is_some())
        };
        let has_stable = match self.subject.stable_service() {
            Some(stable) => is_known(&stable).await,
            None => false,
        };
        if let Some(service) = self.subject.service_of_experiment(name)
            && (has_stable || ServicePort::all(&service).len() == 1)
            && !is_known(&key).await
        {
            // Without a name, the controller has created no Service, and the plugin reports it.
            let _ = self.store.put_service(service);
        }
    }
}

/// Collects the messages of warnings on the current thread. Commands have only one.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.is_event()
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut record = Record::default();
        event.record(&mut record);
        let Record { table, message } = record;
        self.lines().push(if table.is_empty() {
            message
        } else {
            format!("RouteTable {table}: {message}")
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Record {
    table: String,
    message: String,
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "route_table" => self.table = format!("{value:?}"),
            _ => {}
        }
    }
}
