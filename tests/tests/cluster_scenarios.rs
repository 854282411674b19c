//! The scenarios of `crates/gloo-router/tests/scenarios`, with a real API server and the permissions of the plugin.
//!
//! They run one at a time, because all use the same namespaces.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{Cluster, Suite, apply, bind_reader, eventually};
use gloo_types::{MirrorPolicy, ObjectKey, Resource, RouteTable, crd};
use k8s_openapi::api::rbac::v1::Subject;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use plugin_scenarios::{Place, needs_a_newer_gloo, play, scenarios};
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

/// Installs the definition of RouteTable, and waits until the API server uses it.
async fn define(cluster: &Cluster, is_newer: bool) -> Result<()> {
    let definition = match is_newer {
        true => crd::tolerant(crd::route_table()),
        false => crd::route_table(),
    };
    apply(cluster.client(), &[serde_json::from_value(definition)?]).await?;
    let route = json!({"directResponse": {"status": 200}, "futureField": 1});
    let probe = DynamicObject::new("probe", &resource::<RouteTable>())
        .data(json!({"spec": {"http": [route]}}));
    let tables: Api<DynamicObject> = Api::namespaced_with(
        cluster.client().clone(),
        "default",
        &resource::<RouteTable>(),
    );
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("the definition is used", async || {
        let created = tables.create(&dry_run, &probe).await?;
        let field = created.data.pointer("/spec/http/0/futureField");
        ensure!(field.is_some() == is_newer, "{}", created.data);
        Ok(())
    })
    .await
}

/// Plays scenarios with the definition of a newer Gloo.
async fn play_with_a_newer_gloo(
    cluster: &Cluster,
    serial: &Mutex<()>,
    scenarios: Vec<(String, String)>,
) -> Result<()> {
    let _serial = serial.lock().await;
    define(cluster, true).await?;
    // Another lock, because this one is held.
    let free = Mutex::new(());
    for (name, text) in scenarios {
        let played = play_in(cluster, cluster.controller_client().await?, &free, &text).await;
        played.context(name)?;
    }
    define(cluster, false).await
}

fn main() -> Result<ExitCode> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/gloo-router/tests/scenarios");
    let serial = Arc::new(Mutex::new(()));
    Suite::run(None, |suite| {
        let mut trials = Vec::new();
        let mut of_a_newer_gloo = Vec::new();
        for (name, text) in scenarios(&folder)? {
            if needs_a_newer_gloo(&text)? {
                of_a_newer_gloo.push((name, text));
                continue;
            }
            let serial = Arc::clone(&serial);
            trials.push(suite.trial(&name, async move |cluster| {
                play_in(cluster, cluster.controller_client().await?, &serial, &text).await
            }));
        }
        let newer = Arc::clone(&serial);
        trials.push(suite.trial("a_newer_gloo", async move |cluster| {
            play_with_a_newer_gloo(cluster, &newer, of_a_newer_gloo).await
        }));
        trials.push(suite.trial(
            "an_error_names_the_missing_permission_to_patch",
            async move |cluster| {
                an_error_names_the_missing_permission_to_patch(cluster, &serial).await
            },
        ));
        Ok(trials)
    })
}
