//! What the plugin does between the calls of the controller: it repairs drift, removes what Rollouts that are gone have left,
//! and ends the holds of promotions.
//!
//! Everything ends with the session: another controller may be the leader afterwards.

pub(crate) mod garbage;
pub(crate) mod guard;
pub(crate) mod leadership;
pub(crate) mod repair;
pub(crate) mod reporter;
pub(crate) mod watched;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use route_store::Store;

use self::garbage::GarbageCollector;
use self::guard::PromotionGuard;
use self::repair::Repairer;
use self::watched::Watched;
use crate::report::Observer;
use crate::router::{Fence, GlooRouter};

/// What is done between the calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Whether drift is repaired.
    pub(crate) repair: bool,
    /// How long after the deletion of its Rollout a table is restored.
    pub(crate) collect_after: Duration,
}

/// Does what is to be done between the calls. Does not end.
pub(crate) async fn run<S: Store, W: Watched, F: Fence>(
    settings: Settings,
    router: &Arc<GlooRouter<S>>,
    watched: Arc<W>,
    fence: F,
    observer: Arc<dyn Observer>,
) {
    let fence = Arc::new(fence);
    let collector = GarbageCollector {
        router: Arc::clone(router),
        watched: Arc::clone(&watched),
        fence: Arc::clone(&fence),
        observer: Arc::clone(&observer),
        after: settings.collect_after,
    };
    let guard = PromotionGuard {
        router: Arc::clone(router),
        watched: Arc::clone(&watched),
        fence: Arc::clone(&fence),
    };
    let always = join(collector.run(), guard.run());
    let repairer = Repairer {
        router: Arc::clone(router),
        watched,
        fence,
        observer,
    };
    if settings.repair {
        join(always, repairer.run()).await;
    } else {
        always.await;
    }
}

#[cfg(test)]
mod tests;
