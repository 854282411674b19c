//! Asks for RouteTables: those of a namespace once in a while, however many calls want them.

use std::sync::Arc;
use std::time::Duration;

use appset_generator::Failure;
use gloo_types::{RouteTable, RouteTableDoc};
use moka::future::Cache;
use prometheus_client::metrics::counter::Counter;
use route_store::{DirRouteStore, KubeAccess, KubeRouteStore, StoreError};

use crate::Flags;

/// How long an answer counts.
const TTL: Duration = Duration::from_secs(15);
/// Most namespaces that are remembered. Their tables may be large.
const CAPACITY: u64 = 100;

/// The RouteTables, and what they were a moment ago.
pub(crate) struct Tables {
    store: Store,
    cache: Cache<String, Vec<Arc<RouteTableDoc>>>,
    queries: Counter,
}

enum Store {
    Kube(KubeRouteStore),
    /// Read anew on every call.
    Dir(DirRouteStore),
}

impl Tables {
    /// Connects to nothing yet. `queries` counts what is looked up.
    pub(crate) fn new(flags: &Flags, queries: Counter) -> Self {
        let store = match &flags.objects_dir {
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

    /// All tables of `namespaces`.
    pub(crate) async fn all(
        &self,
        namespaces: &[String],
    ) -> Result<Vec<Arc<RouteTableDoc>>, Failure> {
        let failed = |error: StoreError| {
            Failure::Upstream(format!("RouteTables: {:#}", anyhow::Error::from(error)))
        };
        let store = match &self.store {
            Store::Kube(store) => store,
            Store::Dir(store) => {
                let mut tables = store.objects::<RouteTable>().await.map_err(failed)?;
                tables.retain(|table| namespaces.contains(&table.key().namespace));
                return Ok(tables.into_iter().map(Arc::new).collect());
            }
        };
        let mut all = Vec::new();
        for namespace in namespaces {
            let ask = async {
                self.queries.inc();
                let tables = store.tables(Some(namespace)).await.map_err(failed)?;
                Ok::<_, Failure>(tables.into_iter().map(Arc::new).collect::<Vec<_>>())
            };
            let tables = self.cache.try_get_with_by_ref(namespace, ask).await;
            all.extend(tables.map_err(|failure| failure.as_ref().clone())?);
        }
        Ok(all)
    }
}
