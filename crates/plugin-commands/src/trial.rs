//! The plugin's router over tables in memory, which answers the calls of an update.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gloo_router::report::{Observer, Report, unmatched};
use gloo_router::{GlooRouter, Policy};
use gloo_types::{MirrorPolicy, ObjectKey, Resource as _, RouteTable, RouteTableDoc, ServicePort};
use rollouts_rpc::{Rollout, error_chain};
use route_planner::PluginConfig;
use route_store::{
    Freshness, MemoryRouteStore, PolicyStore as _, RouteStore as _, ServiceReader as _, StoreError,
};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::call::Call;
use super::world::Subject;

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

/// The tables and policies, by kind and name.
pub(super) type Objects = BTreeMap<(&'static str, ObjectKey), Value>;

/// Returns the tables, each changed by `view`, and the policies, without the version that the store sets.
pub(super) async fn objects(
    store: &MemoryRouteStore,
    view: impl Fn(RouteTableDoc) -> RouteTableDoc,
) -> Result<Objects, StoreError> {
    let tables = store.tables()?.into_iter().map(view);
    let tables = tables.map(|it| ((RouteTable::KIND, it.key().clone()), it.into_raw()));
    let policies = store.policies().await?.into_iter();
    let policies = policies.map(|it| ((MirrorPolicy::KIND, it.key().clone()), it.into_raw()));
    let objects = tables.chain(policies).map(|(id, mut object)| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove("resourceVersion");
        }
        (id, object)
    });
    Ok(objects.collect())
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

    /// Returns the Rollout as its owner wrote it.
    pub(super) const fn rollout(&self) -> &'a Rollout {
        &self.subject.rollout
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
