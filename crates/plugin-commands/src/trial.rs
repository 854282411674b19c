//! The plugin's router over tables in memory, which answers the calls of an update.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gloo_router::report::{Observer, Report, unmatched};
use gloo_router::{GlooRouter, Policy};
use gloo_types::{MirrorPolicy, ObjectKey, Resource as _, RouteTable, ServicePort};
use rollouts_rpc::{Rollout, error_chain};
use route_planner::PluginConfig;
use route_store::{Freshness, MemoryRouteStore, RolloutReader as _, RouteStore as _, StoreError};
use serde_json::Value;
use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::Registry;

use super::call::Call;
use super::controller::ControllerRelease;
use super::world::{Loaded, Source, Subject};

/// Says which entries of a plugin block select no table, or no route of its tables.
pub(super) async fn unmatched_entries(
    config: &PluginConfig,
    store: &MemoryRouteStore,
) -> Option<String> {
    let selection = store.select(config.route_tables(), Freshness::Live).await;
    // Tables that cannot be read may have the routes.
    let tables = selection.complete().ok()?;
    let entries = config.unmatched(&tables);
    (!entries.is_empty()).then(|| unmatched(&entries))
}

/// The tables and policies, by kind and name.
pub(super) type Objects = BTreeMap<(&'static str, ObjectKey), Value>;

/// A Rollout, and the plugin's router over its tables in memory.
pub(super) struct Trial {
    pub(super) subject: Subject,
    pub(super) store: Arc<MemoryRouteStore>,
    policy: Policy,
    router: GlooRouter<MemoryRouteStore>,
    heard: Arc<Heard>,
}

/// The outcome of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Warnings of the router, as in the controller's log.
    pub(super) warnings: Vec<String>,
    /// Why the call was refused.
    pub(super) error: Option<String>,
    /// Why a call about managed routes failed. The plugin does not return that to the controller: SetWeight of the same reconcile
    /// tries the call again and returns the error.
    pub(super) deferred: Option<String>,
}

/// What the router says during a call beside its answer: in its log, and in its reports.
#[derive(Default)]
struct Heard(Mutex<Outcome>);

impl Heard {
    fn lock(&self) -> MutexGuard<'_, Outcome> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Heard {
    fn observe(&self, report: &Report) {
        if let Report::ManagedRoutesFailed { error, .. } = report {
            self.lock().deferred = Some(error.clone());
        }
    }
}

impl Trial {
    /// Loads the named Rollout, or the only one, and its tables; see [`Source::load`]. Returns the release of the controller, too.
    pub(super) async fn load(
        source: &Source,
        name: Option<&str>,
        named: Option<ControllerRelease>,
    ) -> anyhow::Result<(Self, Option<ControllerRelease>)> {
        let Loaded {
            subject,
            store,
            release,
        } = source.load(name, named).await?;
        Ok((Self::new(store, source.policy(), subject), release))
    }

    pub(super) fn new(store: Arc<MemoryRouteStore>, policy: Policy, subject: Subject) -> Self {
        let heard = Arc::<Heard>::default();
        let observer = Arc::clone(&heard) as Arc<dyn Observer>;
        Self {
            subject,
            router: GlooRouter::new(Arc::clone(&store), policy.clone()).with_observer(observer),
            store,
            policy,
            heard,
        }
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Says which entries of the Rollout's plugin block select no route. The router reports a block that cannot be read.
    pub(super) async fn unmatched(&self) -> Option<String> {
        let config = self.subject.config(&self.policy).ok()?;
        unmatched_entries(&config, &self.store).await
    }

    /// Returns the tables and policies, without the version that the store sets.
    pub(super) async fn objects(&self) -> Result<Objects, StoreError> {
        let tables = self.store.tables()?.into_iter();
        let tables = tables.map(|it| ((RouteTable::KIND, it.key().clone()), it.into_raw()));
        let policies = self.store.policies().await?.into_iter();
        let policies = policies.map(|it| ((MirrorPolicy::KIND, it.key().clone()), it.into_raw()));
        let objects = tables.chain(policies).map(|(id, mut object)| {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.shift_remove("resourceVersion");
            }
            (id, object)
        });
        Ok(objects.collect())
    }

    pub(super) async fn call(&self, rollout: &Rollout, call: &Call) -> Outcome {
        if let Call::SetWeight(_, additional) = call {
            for destination in additional {
                self.start_experiment(&destination.service_name).await;
            }
        }
        let log = Log(Arc::clone(&self.heard)).with_filter(LevelFilter::WARN);
        let listening = tracing::subscriber::set_default(Registry::default().with(log));
        let made = call.make(&self.router, rollout).await;
        drop(listening);
        let mut outcome = mem::take(&mut *self.heard.lock());
        outcome.warnings.dedup();
        outcome.error = made.err().map(|error| error_chain(error.as_error()));
        outcome
    }

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

/// Listens to the log of the current thread. Commands have only one.
struct Log(Arc<Heard>);

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (mut table, mut message) = (String::new(), String::new());
        event.record(&mut |field: &Field, value: &dyn fmt::Debug| {
            let text = format!("{value:?}");
            match field.name() {
                "message" => message = text,
                "route_table" => table = format!("RouteTable {text}: "),
                _ => {}
            }
        });
        self.0.lock().warnings.push(table + &message);
    }
}
