//! The sources of the ApplicationSet generator with a real API server: its replies before it has listed all objects, while
//! they change, and while the API server is down.

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{Cluster, Generator, apply, appset_kustomization, delete, eventually, parse};
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

const CONFIG: &str = "glooRoutes: {namespaces: [shop]}\n";
const TOKEN: &str = "t";

const ACCOUNT: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: generator, namespace: shop}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: generator, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: generator}
subjects: [{kind: ServiceAccount, name: generator, namespace: shop}]
";

/// A generator with the permissions of a service account in namespace shop.
struct Installed(Generator);

impl Installed {
    async fn start(cluster: &Cluster) -> Result<Self> {
        cluster.create_namespace("shop").await?;
        apply(cluster.client(), &parse(ACCOUNT)?).await?;
        let kubeconfig = cluster
            .service_account_kubeconfig("shop", "generator")
            .await?;
        let generator = Generator::start_with(CONFIG, TOKEN, &kubeconfig).await?;
        Ok(Self(generator))
    }

    /// Returns the keys of all routes, or the status and the message of an error.
    async fn routes(&self) -> Result<String> {
        let parameters = json!({ "routeTableSelector": { "labels": { "app": "shop" } } });
        let reply = self.0.ask("", TOKEN, &parameters).await?;
        let body: Value = serde_json::from_str(&reply.body)?;
        let Some(sets) = body.pointer("/output/parameters").and_then(Value::as_array) else {
            let message = body.get("message").and_then(Value::as_str);
            return Ok(format!(
                "{} {}",
                reply.status,
                message.context("neither sets nor a message")?
            ));
        };
        let keys = sets.iter().map(|set| set.pointer("/gloo/key"));
        let keys = keys.map(|key| key.and_then(Value::as_str).unwrap_or_default());
        Ok(keys.collect::<Vec<_>>().join(" "))
    }

    /// Waits until [`Installed::routes`] contains this text.
    async fn wait_for_routes(&self, expected: &str) -> Result<()> {
        eventually("the routes are as expected", async || {
            let routes = self.routes().await?;
            ensure!(routes.contains(expected), "{routes} is not {expected}");
            Ok(())
        })
        .await
    }

    async fn is_ready(&self) -> Result<bool> {
        Ok(self.0.get("/readyz").await?.status == 200)
    }
}

/// Grants the generator these verbs on RouteTables, and no others.
async fn grant(cluster: &Cluster, verbs: &[&str]) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": { "name": "generator", "namespace": "shop" },
        "rules": [{ "apiGroups": ["networking.gloo.solo.io"], "resources": ["routetables"], "verbs": verbs }],
    });
    apply(cluster.client(), &[serde_json::from_value(role)?]).await
}

/// A table with one route.
fn table(name: &str, route: &str) -> String {
    format!(
        "
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata: {{name: {name}, namespace: shop, labels: {{app: shop}}}}
spec:
  hosts: [shop.example.com]
  http:
  - name: {route}
    forwardTo: {{destinations: [{{ref: {{name: stable}}}}]}}
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_has_all_objects_or_is_an_error() -> Result<()> {
    let cluster = Cluster::start_empty().await?;
    let test = async |cluster: &mut Cluster| {
        let installed = Installed::start(cluster).await?;
        let outcome = check_replies(cluster, &installed).await;
        outcome.with_context(|| installed.0.log_tail())
    };
    cluster.run(test).await
}

async fn check_replies(cluster: &mut Cluster, installed: &Installed) -> Result<()> {
    // First without permissions, then without the CRD, then without permission to watch.
    let not_allowed_to = |verb: &str| {
        format!(
            "503 RouteTables in namespace shop are not known: not allowed to {verb} routetables in namespace shop: grant it on routetables.networking.gloo.solo.io"
        )
    };
    installed.wait_for_routes(&not_allowed_to("list")).await?;
    grant(cluster, &["list"]).await?;
    installed.wait_for_routes("503 RouteTables in namespace shop are not known: the API server has no routetables.networking.gloo.solo.io/v2: install its CustomResourceDefinition").await?;
    cluster.install_with_gloo(Vec::new()).await?;
    apply(cluster.client(), &parse(&table("web", "a"))?).await?;
    installed.wait_for_routes(&not_allowed_to("watch")).await?;
    ensure!(
        !installed.is_ready().await?,
        "the generator is ready without permission to watch"
    );

    grant(cluster, &["list", "watch"]).await?;
    installed.wait_for_routes("in-cluster/shop/web/a").await?;
    ensure!(installed.is_ready().await?, "it is not ready");
    let metrics = installed.0.get("/metrics").await?;
    let labels = r#"{cluster="in-cluster",kind="RouteTable",namespace="shop"}"#;
    for metric in ["gloo_appset_watch_synced", "gloo_appset_watch_objects"] {
        metrics.check(200, &format!("{metric}{labels} 1\n"))?;
    }

    // The generator watches changes.
    let api = parse(&table("api", "v1"))?;
    apply(cluster.client(), &api).await?;
    installed
        .wait_for_routes("in-cluster/shop/api/v1 in-cluster/shop/web/a")
        .await?;
    apply(cluster.client(), &parse(&table("api", "v2"))?).await?;
    let both = "in-cluster/shop/api/v2 in-cluster/shop/web/a";
    installed.wait_for_routes(both).await?;

    // While the API server is down, changes cannot arrive. A reply has the old objects or is an error until the generator has
    // listed them again.
    cluster.stop_api_server();
    ensure!(installed.routes().await? == both);
    let other = eventually("the generator has new objects", async || {
        let routes = installed.routes().await?;
        let old = routes == both || routes.starts_with("503 ");
        ensure!(!old, "{routes}");
        Ok(routes)
    });
    let restart = async {
        cluster.start_api_server().await?;
        delete(cluster.client(), &api).await
    };
    let (other, restart) = tokio::join!(other, restart);
    restart?;
    let other = other?;
    ensure!(other == "in-cluster/shop/web/a", "{other}");
    Ok(())
}

const WORKSPACES: &str = "
apiVersion: admin.gloo.solo.io/v2
kind: Workspace
metadata: {name: web, namespace: gloo-mesh}
spec:
  workloadClusters:
  - {selector: {tier: edge}, namespaces: [{name: shop}]}
---
apiVersion: admin.gloo.solo.io/v2
kind: KubernetesCluster
metadata: {name: east, namespace: gloo-mesh, labels: {tier: edge}}
---
apiVersion: admin.gloo.solo.io/v2
kind: KubernetesCluster
metadata: {name: west, namespace: gloo-mesh, labels: {tier: core}}
";

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_and_clusters_are_watched() -> Result<()> {
    let cluster = Cluster::start_empty().await?;
    cluster
        .run(async |cluster| watch_workspaces(cluster).await)
        .await
}

async fn watch_workspaces(cluster: &Cluster) -> Result<()> {
    let crds = [
        gloo_types::crd::workspace(),
        gloo_types::crd::kubernetes_cluster(),
    ];
    let crds = crds.map(serde_json::from_value);
    let crds = crds.into_iter().collect::<Result<_, _>>()?;
    cluster.install_with_gloo(crds).await?;
    cluster.create_namespace("gloo-mesh").await?;
    apply(cluster.client(), &parse(WORKSPACES)?).await?;
    let generator =
        Generator::start_with("glooWorkspaces: {}", TOKEN, cluster.kubeconfig()).await?;
    let clusters = async |expected: &[&str]| {
        eventually("the clusters are as expected", async || {
            let reply = generator.ask("", TOKEN, &json!({})).await?;
            let body: Value = serde_json::from_str(&reply.body)?;
            let sets = body.pointer("/output/parameters").and_then(Value::as_array);
            let sets = sets.with_context(|| reply.body.clone())?.iter();
            let found: Vec<_> = sets
                .filter_map(|set| set.pointer("/gloo/cluster"))
                .collect();
            ensure!(found == expected, "{found:?}");
            Ok(())
        })
        .await
    };
    clusters(&["east"]).await?;
    apply(
        cluster.client(),
        &parse(&WORKSPACES.replace("core", "edge"))?,
    )
    .await?;
    clusters(&["east", "west"]).await
}

/// Returns the accounts, roles and bindings of the kustomization with its options for namespaces and refreshes.
fn permissions() -> Result<Vec<DynamicObject>> {
    const KINDS: [&str; 5] = [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    ];
    let mut objects = appset_kustomization(&["kubernetes", "namespaces", "refresh"])?;
    let is_permission = |it: &DynamicObject| {
        it.types
            .as_ref()
            .is_some_and(|it| KINDS.contains(&it.kind.as_str()))
    };
    objects.retain(is_permission);
    Ok(objects)
}

/// Returns a binding like that of `kubectl create rolebinding`.
fn binding(namespace: &str) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": { "name": NAME, "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME },
        "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": "argocd" }],
    }))?)
}

const NAME: &str = "gloo-appset-generator";

/// The CustomResourceDefinition of Argo CD without its schema.
const APPLICATION_SETS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: applicationsets.argoproj.io}
spec:
  group: argoproj.io
  scope: Namespaced
  names: {kind: ApplicationSet, listKind: ApplicationSetList, plural: applicationsets, singular: applicationset}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// The ApplicationSet that [`Generator::ask`] names.
const APPLICATION_SET: &str = "
apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: any, namespace: argocd}
";

/// A namespace with these labels.
fn namespace(name: &str, labels: &Value) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels },
    }))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn labelled_namespaces_are_watched_and_application_sets_are_refreshed() -> Result<()> {
    let cluster = Cluster::start_empty().await?;
    cluster
        .run(async |cluster| watch_labelled_namespaces(cluster).await)
        .await
}

async fn watch_labelled_namespaces(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    cluster.install_with_gloo(parse(APPLICATION_SETS)?).await?;
    for name in ["argocd", "cart", "shop"] {
        cluster.create_namespace(name).await?;
    }
    apply(client, &permissions()?).await?;
    apply(client, &[binding("shop")?]).await?;
    apply(client, &parse(&table("web", "a"))?).await?;
    let cart = table("basket", "a").replace("namespace: shop", "namespace: cart");
    apply(client, &parse(&cart)?).await?;
    apply(client, &parse(APPLICATION_SET)?).await?;
    let kubeconfig = cluster.service_account_kubeconfig("argocd", NAME).await?;
    let config = format!(
        "
glooRoutes: {{namespaceSelector: {{labels: {{team: shop}}}}}}
refresh: {{namespaces: [argocd], interval: 1s, kubeconfig: {}}}
",
        kubeconfig.display()
    );
    let generator = Generator::start_with(&config, TOKEN, &kubeconfig).await?;
    let installed = Installed(generator);
    let outcome = change_namespaces_and_tables(cluster, &installed).await;
    outcome.with_context(|| installed.0.log_tail())
}

async fn change_namespaces_and_tables(cluster: &Cluster, installed: &Installed) -> Result<()> {
    let client = cluster.client();
    installed
        .wait_for_routes("409 source gloo-routes found nothing")
        .await?;
    let team = json!({"team": "shop"});
    apply(client, &[namespace("shop", &team)?]).await?;
    installed.wait_for_routes("in-cluster/shop/web/a").await?;
    ensure!(installed.is_ready().await?, "it is not ready");

    // A newly selected namespace is in the reply, or the reply is an error.
    apply(client, &[namespace("cart", &team)?]).await?;
    installed
        .wait_for_routes("503 RouteTables in namespace cart are not known: not allowed to list")
        .await?;
    apply(client, &[binding("cart")?]).await?;
    let both = "in-cluster/cart/basket/a in-cluster/shop/web/a";
    installed.wait_for_routes(both).await?;

    // A change of the parameter sets triggers one refresh in Argo CD.
    apply(client, &parse(&table("web", "b"))?).await?;
    let first = annotated(cluster, None).await?;
    installed
        .wait_for_routes("in-cluster/cart/basket/a in-cluster/shop/web/b")
        .await?;
    let other = table("other", "a").replace("app: shop", "app: other");
    apply(client, &parse(&other)?).await?;
    apply(client, &parse(&table("web", "c"))?).await?;
    annotated(cluster, Some(&first)).await?;
    installed
        .wait_for_routes("in-cluster/cart/basket/a in-cluster/shop/web/c")
        .await?;
    // The namespace no longer has the label.
    apply(client, &[namespace("cart", &json!({}))?]).await?;
    installed.wait_for_routes("in-cluster/shop/web/c").await?;
    let metrics = installed.0.get("/metrics").await?;
    metrics.check(200, r#"gloo_appset_refreshes_total{outcome="requested"} "#)?;
    let failed = metrics.body.contains(r#"outcome="failed""#);
    ensure!(!failed, "{}", metrics.body);
    Ok(())
}

/// Waits until the ApplicationSet has the refresh annotation with another value than `before`, and returns it.
async fn annotated(cluster: &Cluster, before: Option<&str>) -> Result<String> {
    const ANNOTATION: &str = "argocd.argoproj.io/application-set-refresh";
    let resource = ApiResource {
        group: "argoproj.io".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "argoproj.io/v1alpha1".to_owned(),
        kind: "ApplicationSet".to_owned(),
        plural: "applicationsets".to_owned(),
    };
    let sets: Api<DynamicObject> =
        Api::namespaced_with(cluster.client().clone(), "argocd", &resource);
    eventually("the ApplicationSet is annotated", async || {
        let annotations = sets.get("any").await?.metadata.annotations;
        let value = annotations.and_then(|mut it| it.remove(ANNOTATION));
        let value = value.context("no annotation")?;
        ensure!(Some(value.as_str()) != before, "still {value}");
        Ok(value)
    })
    .await
}
