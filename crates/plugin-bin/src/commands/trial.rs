//! The router at work on a copy of the tables: what it would write, and what it would say.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollouts_rpc::{Rollout, error_chain};
use route_store::MemoryRouteStore;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::passes::Call;
use crate::{GlooRouter, Policy};

/// The router that serves the controller, over tables in memory.
pub(super) struct Trial {
    router: GlooRouter<MemoryRouteStore>,
    remarks: Remarks,
}

/// What came of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// What the router warns of, as the controller's log would show.
    pub(super) warnings: Vec<String>,
    /// Why it refused.
    pub(super) error: Option<String>,
}

impl Trial {
    pub(super) fn new(store: &Arc<MemoryRouteStore>, policy: Policy) -> Self {
        Self {
            router: GlooRouter::new(Arc::clone(store), policy),
            remarks: Remarks::default(),
        }
    }

    pub(super) async fn call(&self, rollout: &Rollout, call: &Call) -> Outcome {
        let listening = tracing::subscriber::set_default(self.remarks.clone());
        let made = call.make(&self.router, rollout).await;
        drop(listening);
        let mut warnings = mem::take(&mut *self.remarks.lines());
        warnings.dedup();
        Outcome {
            warnings,
            error: made.err().map(|error| error_chain(error.as_error())),
        }
    }
}

/// Collects the messages of warnings. It works on the thread it was set on: commands have one only.
#[derive(Clone, Default)]
struct Remarks(Arc<Mutex<Vec<String>>>);

impl Remarks {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Remarks {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.is_event()
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut remark = Remark::default();
        event.record(&mut remark);
        let Remark { table, message } = remark;
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
struct Remark {
    table: String,
    message: String,
}

impl Visit for Remark {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "route_table" => self.table = format!("{value:?}"),
            _ => {}
        }
    }
}
