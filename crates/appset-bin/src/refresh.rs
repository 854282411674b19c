//! Push refresh: annotates an ApplicationSet when its answer has changed, so that Argo CD requests it again.
//!
//! The ApplicationSet controller requests parameters once in `requeueAfterSeconds`, and immediately if a set has the annotation
//! `argocd.argoproj.io/application-set-refresh`, which it removes after a successful reconciliation
//! (`applicationset/controllers/applicationset_controller.go`). If an object or the configuration has changed, a round computes
//! the recorded answers again, and annotates the sets whose answers differ.
//!
//! Each replica records its own answers. The value of the annotation is a hash of the new answers. So two replicas that see the
//! same change write the same annotation, and the next change writes a different one.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use appset_generator::{Config, Failure, Refresh};
use futures::FutureExt as _;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use route_store::{ClientError, KubeRouteStore};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::ledger::{Due, Outcome};
use crate::service::Service;

const ANNOTATION: &str = "argocd.argoproj.io/application-set-refresh";
/// The interval at which a configuration without `refresh` is checked again.
const OFF: Duration = Duration::from_secs(5);
/// The timeout of one request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs rounds until the task is dropped.
pub(crate) async fn run(service: Arc<Service>) {
    let mut sets: Option<ApplicationSets> = None;
    let mut seen: Option<Arc<Config>> = None;
    let mut is_open = false;
    loop {
        let config = service.sources.config.current();
        let Some(refresh) = config.refresh() else {
            sleep(OFF).await;
            continue;
        };
        sleep(refresh.interval).await;
        let is_same = seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &config));
        let has_changed = service.sources.objects.have_changed() || !is_same;
        sets.take_if(|it| it.refresh != *refresh);
        let sets = sets.get_or_insert_with(|| ApplicationSets::new(refresh.clone()));
        let round = round(&service, sets, has_changed || is_open);
        let ended = AssertUnwindSafe(round).catch_unwind().await;
        is_open = ended.unwrap_or_else(|_panic| {
            tracing::error!("the comparison of answers panicked: report this as a bug");
            false
        });
        seen = Some(config);
    }
}

/// Compares `all` answers, or those that were not compared yet, and annotates the sets whose answers differ.
///
/// Returns whether the next round must compare all answers even if no object changes.
async fn round(service: &Arc<Service>, sets: &ApplicationSets, all: bool) -> bool {
    let calls = service.ledger().calls(all, Instant::now());
    let mut is_open = false;
    for call in calls {
        match service.answer_again(&call).await {
            Ok(hash) => service.ledger().would_answer(&call, hash),
            // The objects may become known again without a change event, and a busy replica idle.
            Err(Failure::NotReady(_) | Failure::Deadline(..)) => is_open = true,
            // After an error Argo CD would keep the Applications, so there is no need for a request.
            Err(_) => {}
        }
    }
    let (due, is_more_due) = service.ledger().due(Instant::now());
    for set in due {
        let outcome = sets.annotate(&set).await;
        service.metrics.refreshed(outcome);
        let (pause, now) = (sets.refresh.interval, Instant::now());
        service.ledger().settle(&set, outcome, pause, now);
        is_open |= outcome == Outcome::Failed;
    }
    is_open || is_more_due
}

/// The ApplicationSets that may be annotated.
struct ApplicationSets {
    refresh: Refresh,
    store: KubeRouteStore,
}

impl ApplicationSets {
    /// Makes the value without connecting to the API server.
    fn new(refresh: Refresh) -> Self {
        let kubeconfig = refresh.access.kubeconfig.as_ref().map(PathBuf::from);
        let store = crate::store(kubeconfig, refresh.access.context.clone(), REQUEST_TIMEOUT);
        Self { refresh, store }
    }

    /// Annotates the sets with one name in all namespaces.
    async fn annotate(&self, due: &Due) -> Outcome {
        let mut outcome = Outcome::Unknown;
        for namespace in &self.refresh.namespaces {
            match self.patch(namespace, due).await {
                Ok(true) if outcome == Outcome::Unknown => outcome = Outcome::Requested,
                Ok(_) => {}
                Err(error) => {
                    let problem = format!("{error:#}");
                    let set = &due.application_set;
                    tracing::warn!(namespace, set, problem, "cannot annotate an ApplicationSet");
                    outcome = Outcome::Failed;
                }
            }
        }
        outcome
    }

    /// Annotates the set in `namespace`. Returns whether it exists.
    async fn patch(&self, namespace: &str, due: &Due) -> anyhow::Result<bool> {
        let kind = GroupVersionKind::gvk("argoproj.io", "v1alpha1", "ApplicationSet");
        let resource = ApiResource::from_gvk_with_plural(&kind, "applicationsets");
        let patch = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION: due.value}}}));
        let (set, params) = (due.application_set.as_str(), PatchParams::default());
        let patched: anyhow::Result<bool> = async {
            let client = self.store.client().await?.clone();
            let sets: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
            match sets.patch_metadata(set, &params, &patch).await {
                Ok(_) => Ok(true),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
                Err(error) => Err(ClientError::from(error).into()),
            }
        }
        .await;
        patched.with_context(|| format!("cannot patch ApplicationSet {namespace}/{set}"))
    }
}
