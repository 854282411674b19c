//! Asks for RouteTables: each selection once in a while, however many calls want it.

use std::sync::Arc;
use std::time::Duration;

use appset_generator::Failure;
use gloo_types::{RouteTableDoc, RouteTableSelector};
use moka::future::Cache;
use prometheus_client::metrics::counter::Counter;
use route_store::{DirRouteStore, KubeAccess, KubeRouteStore, RouteStore as _};

use crate::Flags;

/// How long an answer counts.
const TTL: Duration = Duration::from_secs(15);
/// Most selections that are remembered. Their tables may be large.
const CAPACITY: u64 = 100;

/// The RouteTables, and what they were a moment ago.
pub(crate) struct Tables {
    store: Store,
    cache: Cache<RouteTableSelector, Arc<Vec<RouteTableDoc>>>,
    queries: Counter,
}

enum Store {
    Kube(KubeRouteStore),
    Dir(DirRouteStore),
}

impl Tables {
    /// Connects to nothing yet. `queries` counts what is looked up.
    pub(crate) fn new(flags: &Flags, queries: Counter) -> Self {
        let store = match &flags.route_tables_dir {
            Some(dir) => Store::Dir(DirRouteStore::new(dir)),
            None => Store::Kube(KubeRouteStore::new(KubeAccess {
                kubeconfig: flags.kubeconfig.clone(),
                context: flags.context.clone(),
                request_timeout: flags.deadline,
            })),
        };
        Self {
            store,
            cache: Cache::builder()
                .time_to_live(TTL)
                .max_capacity(CAPACITY)
                .build(),
            queries,
        }
    }

    /// The tables that are selected. All of those selected by name have to be there: an answer without one of them would
    /// delete its Applications.
    pub(crate) async fn select(
        &self,
        selector: &RouteTableSelector,
    ) -> Result<Arc<Vec<RouteTableDoc>>, Failure> {
        let ask = async {
            self.queries.inc();
            let found = match &self.store {
                Store::Kube(store) => store.select(selector).await,
                Store::Dir(store) => store.select(selector).await,
            };
            found.map(Arc::new).map_err(|error| {
                let error = anyhow::Error::from(error);
                Failure::Upstream(format!("RouteTables with {selector}: {error:#}"))
            })
        };
        let tables = self.cache.try_get_with_by_ref(selector, ask).await;
        tables.map_err(|failure| failure.as_ref().clone())
    }
}
