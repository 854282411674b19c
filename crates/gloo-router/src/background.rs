//! Work outside of the controller's calls: repairs of drift, garbage collection after deleted Rollouts, releases of held
//! promotions, and reports of weights that do not come into force.
//!
//! All of it ends with the session, since another controller may be the leader afterwards.

mod garbage;
mod guard;
mod leadership;
mod monitor;
mod repair;

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join3};
use gloo_types::{ObjectKey, RouteTableDoc};
use rollouts_rpc::error_chain;
use route_store::{CachedRouteStore, Change, Controller, FRESH, Store};
use tokio::sync::broadcast::Receiver;

use self::garbage::GarbageCollector;
use self::guard::PromotionGuard;
use self::leadership::LeaseFence;
use self::monitor::Monitor;
use self::repair::Repairer;
use crate::collect::Marked;
use crate::report::About;
use crate::router::{Fence, GlooRouter};

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

/// Watches the cluster, and does everything that is to be done between the calls, until it is dropped. It writes only while
/// `controller` holds its Lease.
pub async fn between_calls(
    router: Arc<GlooRouter<CachedRouteStore>>,
    settings: Settings,
    controller: Controller,
) {
    let store = Arc::clone(router.store());
    let _stop_watches = StopWatchesOnDrop(Arc::clone(&store));
    let leases = Arc::clone(&store.live().local);
    let fence = LeaseFence::new(leases, controller, settings.request_timeout);
    let mut fence = fence.with_observer(Arc::clone(router.observer()));
    let work = async {
        fence
            .read_holder(router.background().instance().await)
            .await;
        let fence = Arc::new(fence);
        let tasks = run(settings, &router, Arc::clone(&store), Arc::clone(&fence));
        join(tasks, router.check_deferred(&*fence)).await;
    };
    join3(store.run(), router.maintain(), work).await;
}

/// Stops the watches of a store when it is dropped.
struct StopWatchesOnDrop(Arc<CachedRouteStore>);

impl Drop for StopWatchesOnDrop {
    fn drop(&mut self) {
        self.0.follow_nothing();
    }
}

/// Runs the work of the tasks of this module. Does not end.
pub(crate) async fn run<S: Store, W: Watched, F: Fence>(
    settings: Settings,
    router: &Arc<GlooRouter<S>>,
    watched: Arc<W>,
    fence: Arc<F>,
) {
    let collector = GarbageCollector {
        router: Arc::clone(router),
        watched: Arc::clone(&watched),
        fence: Arc::clone(&fence),
        after: settings.collect_after,
    };
    let guard = PromotionGuard {
        router: Arc::clone(router),
        watched: Arc::clone(&watched),
        fence: Arc::clone(&fence),
    };
    let monitor = Monitor {
        router: Arc::clone(router),
        watched: Arc::clone(&watched),
    };
    let always = join3(collector.run(), guard.run(), monitor.run());
    let repairer = Repairer {
        router: Arc::clone(router),
        watched,
        fence,
    };
    if settings.repair {
        join(always, repairer.run()).await;
    } else {
        always.await;
    }
}

/// The watched tables and Rollouts, as the background work needs them.
pub(crate) trait Watched: Send + Sync + 'static {
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
    fn marked(&self) -> Option<Vec<Marked>>;

    /// Returns the tables whose marks cannot be read, with the reason in one line.
    fn unreadable(&self) -> Vec<(About, String)>;

    /// Whether a Rollout uses this plugin; `None` if it does not exist.
    fn uses_plugin(&self, rollout: &ObjectKey) -> Option<bool>;

    /// Whether a Rollout that uses this plugin does not select this table.
    fn deselects(&self, rollout: &ObjectKey, table: &ObjectKey) -> bool;

    /// Returns the number of Rollouts.
    fn rollouts(&self) -> usize;
}

impl Watched for CachedRouteStore {
    fn table(&self, table: &ObjectKey) -> Option<RouteTableDoc> {
        self.tables().get(table)?.document().ok()
    }

    fn version(&self, table: &ObjectKey) -> Option<String> {
        Some(self.tables().get(table)?.version.to_string())
    }

    fn unseen(&self, table: &ObjectKey) -> Option<String> {
        let known = self.tables().check(Some(&table.namespace), FRESH);
        let why = known.err()?;
        Some(format!(
            "RouteTable {table} is not watched: {}",
            error_chain(&why)
        ))
    }

    fn table_changes(&self) -> Receiver<Change> {
        self.tables().subscribe()
    }

    fn policy_changes(&self) -> Receiver<Change> {
        self.mirror_policies().subscribe()
    }

    fn rollout_changes(&self) -> Receiver<Change> {
        Self::rollouts(self).subscribe()
    }

    fn marked(&self) -> Option<Vec<Marked>> {
        let tables = self.tables().checked(FRESH).ok()?.into_iter();
        Self::rollouts(self).check(None, FRESH).ok()?;
        let is_known = |rollout: &&ObjectKey| {
            let rollouts = Self::rollouts(self);
            is_whole(rollout) && rollouts.check(Some(&rollout.namespace), FRESH).is_ok()
        };
        let marked = tables.map(|table| Marked {
            table: table.key.clone(),
            rollouts: table.owners.iter().filter(is_known).cloned().collect(),
        });
        Some(marked.filter(|it| !it.rollouts.is_empty()).collect())
    }

    fn unreadable(&self) -> Vec<(About, String)> {
        let tables = self.tables().all().into_iter();
        let unreadable = tables.filter_map(|table| {
            let reason = table.unreadable.as_deref()?.to_owned();
            let about = About {
                key: table.key.clone(),
                uid: table.uid.as_ref().to_owned(),
            };
            Some((about, reason))
        });
        unreadable.collect()
    }

    fn uses_plugin(&self, rollout: &ObjectKey) -> Option<bool> {
        let cached = Self::rollouts(self).get(rollout)?;
        Some(cached.plugin.is_some())
    }

    fn deselects(&self, rollout: &ObjectKey, table: &ObjectKey) -> bool {
        let (cached, table) = (Self::rollouts(self).get(rollout), self.tables().get(table));
        let plugin = cached.as_ref().and_then(|it| it.plugin.as_ref());
        let selector = plugin.and_then(|plugin| plugin.selector.as_ref());
        let (Some(selector), Some(table)) = (selector, table) else {
            return false;
        };
        !selector.matches(&table.key, &table.labels)
    }

    fn rollouts(&self) -> usize {
        Self::rollouts(self).status().objects
    }
}

/// Whether a mark contains the full name of a Rollout of this cluster. A label has a digest in place of a name that is too
/// long, and marks of another workload cluster end with `@` and the name of that cluster.
fn is_whole(mark: &ObjectKey) -> bool {
    let is_digest = |name: &str| {
        let digest = name
            .strip_prefix('x')
            .and_then(|name| name.rsplit_once('-'));
        digest.is_some_and(|(_, it)| {
            it.len() == 16 && it.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    let is_plain = |name: &str| !name.contains('@') && !is_digest(name);
    is_plain(&mark.namespace) && is_plain(&mark.name)
}

#[cfg(test)]
mod tests;
