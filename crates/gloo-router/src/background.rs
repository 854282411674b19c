//! Work outside of the controller's calls: repairs of drift, garbage collection after deleted Rollouts, releases of held
//! promotions, and reports of weights that do not come into force.
//!
//! All of it ends with the session, since another controller may be the leader afterwards.

#[cfg(feature = "kube")]
mod cached;
mod garbage;
mod guard;
mod leadership;
mod monitor;
mod repair;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{join, join3, join4};
use gloo_types::{ObjectKey, RouteTableDoc};
use route_store::{Change, ChangeKind, Controller, LeaseReader, Store};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::sleep;
use tracing::error;

use self::garbage::GarbageCollector;
use self::guard::PromotionGuard;
use self::leadership::LeaseFence;
use self::monitor::Monitor;
use self::repair::Repairer;
use crate::report::About;
use crate::router::{Fence, GlooRouter, LONGEST_RETRY, RETRY};

pub use crate::collect::Part;

/// Settings of the background work.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether drift is repaired.
    pub repair: bool,
    /// How long after the deletion of its Rollout a table is restored.
    pub collect_after: Duration,
    /// The longest time that a write takes.
    pub request_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            repair: true,
            collect_after: Duration::from_secs(30),
            request_timeout: Duration::from_secs(3),
        }
    }
}

/// Watches the cluster, and does everything that is to be done between the calls, until it is dropped. It writes only while
/// `controller` holds its Lease.
pub async fn between_calls<S: Store + Watched + LeaseReader>(
    router: Arc<GlooRouter<S>>,
    settings: Settings,
    controller: Controller,
) {
    let store = router.store();
    let (leases, observer) = (Arc::clone(store), Arc::clone(router.observer()));
    let mut fence = LeaseFence::new(leases, controller, settings.request_timeout, observer);
    let work = Box::pin(async {
        fence.set_instance(router.background().instance().await);
        let fence = Arc::new(fence);
        let work = run(settings, &router, Arc::clone(store), Arc::clone(&fence));
        join(fence.learn_holder(), work).await;
    });
    join3(
        going_on("the watch", || Watched::run(&**store)),
        forget_deleted(&router, &**store),
        work,
    )
    .await;
}

/// Forgets Rollouts when they are deleted. Returns only if the cache ends.
pub(crate) async fn forget_deleted<S: Store>(router: &GlooRouter<S>, watched: &impl Watched) {
    let mut changes = watched.rollout_changes();
    loop {
        match changes.recv().await {
            Ok(Change {
                key,
                uid,
                kind: ChangeKind::Deleted,
            }) => router.forget(&key, &uid),
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => {
                router.forget_unless(|rollout| watched.presence(rollout) != Presence::Absent);
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Runs the work of the tasks of this module. Does not end.
pub(crate) async fn run<S: Store, W: Watched, F: Fence>(
    settings: Settings,
    router: &Arc<GlooRouter<S>>,
    watched: Arc<W>,
    fence: Arc<F>,
) {
    let collector = || GarbageCollector {
        router: Arc::clone(router),
        watched: Arc::clone(&watched),
        fence: Arc::clone(&fence),
        after: settings.collect_after,
    };
    let guard = || PromotionGuard {
        router: Arc::clone(router),
        watched: Arc::clone(&watched),
        fence: Arc::clone(&fence),
    };
    let monitor = || Monitor {
        router: Arc::clone(router),
        watched: Arc::clone(&watched),
    };
    let deferred = async || {
        let marks = watched.first_marks().await;
        router.restore_deferred(&marks, &*fence).await;
    };
    let always = join4(
        going_on("garbage collection", || collector().run()),
        going_on("the promotion guard", || guard().run()),
        going_on("the monitor", || monitor().run()),
        going_on("the restore of deferred Rollouts", deferred),
    );
    let repairer = || Repairer {
        router: Arc::clone(router),
        watched: Arc::clone(&watched),
        fence: Arc::clone(&fence),
    };
    if settings.repair {
        join(always, going_on("repairs", || repairer().run())).await;
    } else {
        router
            .background()
            .standing()
            .begin_resuming(BTreeSet::new());
        always.await;
    }
}

/// Runs a task, and begins it again if it panics: a bug that one object brings out must not end the work for all others.
async fn going_on<F: Future<Output = ()>>(name: &str, task: impl Fn() -> F) {
    let mut pause = RETRY;
    // On the heap: the stack would have a copy of the state of all tasks.
    while AssertUnwindSafe(Box::pin(task()))
        .catch_unwind()
        .await
        .is_err()
    {
        error!("{name} panicked and begins again: report this as a bug");
        sleep(pause).await;
        pause = LONGEST_RETRY.min(pause * 2);
    }
}

/// What is known of a Rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is not known whether it exists: it is not watched, or what is known of it may be stale.
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists.
    Exists {
        /// Whether it uses this plugin.
        uses_plugin: bool,
    },
}

/// The watched tables and Rollouts, as the work between the calls needs them.
pub trait Watched: Send + Sync + 'static {
    /// Watches the cluster until it is dropped. It never returns.
    fn run(&self) -> impl Future<Output = ()> + Send;

    /// Waits until all tables that are watched were read once, and returns the Rollouts with marks in them.
    fn first_marks(&self) -> impl Future<Output = BTreeSet<ObjectKey>> + Send;

    /// Returns the last known version of a table.
    fn table(&self, table: &ObjectKey) -> Option<RouteTableDoc>;

    /// Returns the version of a table, to detect a change without reading it.
    fn version(&self, table: &ObjectKey) -> Option<String>;

    /// Returns why changes of a table are not seen; `None` if they are.
    fn unseen(&self, table: &ObjectKey) -> Option<String>;

    /// Subscribes to changes of tables.
    fn table_changes(&self) -> Receiver<Change>;

    /// Subscribes to changes of MirrorPolicies.
    fn policy_changes(&self) -> Receiver<Change>;

    /// Subscribes to changes of Rollouts.
    fn rollout_changes(&self) -> Receiver<Change>;

    /// Returns the tables with marks of Rollouts of this cluster; `None` unless all tables and Rollouts that are watched are
    /// known. Rollouts of other namespaces are left out.
    fn marked(&self) -> Option<BTreeSet<Part>>;

    /// Returns the tables whose marks cannot be read, with the reason in one line.
    fn unreadable(&self) -> Vec<(About, String)>;

    /// Returns whether a Rollout exists and uses this plugin.
    fn presence(&self, rollout: &ObjectKey) -> Presence;

    /// Whether a Rollout that uses this plugin does not select this table.
    fn deselects(&self, rollout: &ObjectKey, table: &ObjectKey) -> bool;

    /// Returns the number of Rollouts.
    fn rollouts(&self) -> usize;
}

#[cfg(test)]
mod tests;
