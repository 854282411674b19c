//! The scenarios of `crates/gloo-router/tests/scenarios`, with a real API server and the permissions of the plugin.
//!
//! They run one at a time, because all use the same namespaces.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e_tests::{Cluster, Suite, apply, bind_reader};
use gloo_types::{MirrorPolicy, ObjectKey, Resource, RouteTable};
use k8s_openapi::api::rbac::v1::Subject;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use plugin_scenarios::{Place, play, scenarios};
use route_store::KubeRouteStore;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// Far longer than any request takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The errors of a plugin that has all permissions except for `patch`.
const NOT_ALLOWED_TO_PATCH: &str = "
tables:
  shop/shop: {http: [{name: r, forwardTo: {destinations: [reviews]}}]}
calls:
- {setWeight: 0, restored: true, writes: 0}
- {setWeight: 25, error: 'not allowed to patch RouteTable shop/shop: grant it on routetables.networking.gloo.solo.io'}
- {setWeight: 25, error: 'is forbidden: User \"reader\" cannot patch'}
";

/// An API server, in which the plugin has the permissions of `plugin`.
struct ApiServer {
    owner: Client,
    plugin: Client,
}

impl ApiServer {
    /// Deletes the objects of earlier scenarios.
    async fn clear(&self) -> Result<()> {
        let services = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Service"));
        for resource in [
            resource::<RouteTable>(),
            resource::<MirrorPolicy>(),
            services,
        ] {
            let all_namespaces = Api::<DynamicObject>::all_with(self.owner.clone(), &resource);
            for object in all_namespaces.list(&ListParams::default()).await? {
                let namespace = object.namespace().unwrap_or_default();
                // The Service of the API server.
                if namespace == "default" {
                    continue;
                }
                let objects: Api<DynamicObject> =
                    Api::namespaced_with(self.owner.clone(), &namespace, &resource);
                objects
                    .delete(&object.name_any(), &DeleteParams::default())
                    .await?;
            }
        }
        Ok(())
    }

    fn tables(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.owner.clone(), namespace, &resource::<RouteTable>())
    }
}

impl Place for ApiServer {
    type Store = KubeRouteStore;

    fn store(&self) -> KubeRouteStore {
        KubeRouteStore::with_client(self.plugin.clone(), TIMEOUT)
    }

    async fn create(&self, object: Value) -> Result<()> {
        let object: DynamicObject = serde_json::from_value(object)?;
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": object.namespace()},
        });
        apply(&self.owner, &[serde_json::from_value(namespace)?, object]).await
    }

    async fn set_status(&self, table: &ObjectKey, status: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.tables(&table.namespace)
            .patch_status(&table.name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn delete(&self, table: &ObjectKey) -> Result<()> {
        self.tables(&table.namespace)
            .delete(&table.name, &DeleteParams::default())
            .await?;
        Ok(())
    }
}

fn resource<R: Resource>() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(R::GROUP, R::VERSION, R::KIND))
}

async fn play_in(cluster: &Cluster, plugin: Client, serial: &Mutex<()>, text: &str) -> Result<()> {
    let place = ApiServer {
        owner: cluster.client().clone(),
        plugin,
    };
    let _serial = serial.lock().await;
    place
        .clear()
        .await
        .context("cannot delete earlier objects")?;
    play(text, &place).await
}

async fn an_error_names_the_missing_permission_to_patch(
    cluster: &Cluster,
    serial: &Mutex<()>,
) -> Result<()> {
    let user = Subject {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: "User".to_owned(),
        name: "reader".to_owned(),
        ..Subject::default()
    };
    bind_reader(cluster.client(), user).await?;
    let reader = cluster.client_as("reader").await?;
    play_in(cluster, reader, serial, NOT_ALLOWED_TO_PATCH).await
}

fn main() -> Result<ExitCode> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/gloo-router/tests/scenarios");
    let serial = Arc::new(Mutex::new(()));
    Suite::run(None, |suite| {
        let mut trials = Vec::new();
        for (name, text) in scenarios(&folder)? {
            let serial = Arc::clone(&serial);
            trials.push(suite.trial(&name, async move |cluster| {
                play_in(cluster, cluster.controller_client().await?, &serial, &text).await
            }));
        }
        trials.push(suite.trial(
            "an_error_names_the_missing_permission_to_patch",
            async move |cluster| {
                an_error_names_the_missing_permission_to_patch(cluster, &serial).await
            },
        ));
        Ok(trials)
    })
}
