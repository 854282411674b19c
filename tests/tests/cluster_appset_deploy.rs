//! The manifests of `deploy/appset-generator`, applied to a real API server. The generator runs with the settings of its
//! Deployment, and the tests call it like Argo CD, with the URL of the ConfigMap and the token of the Secret.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{
    Cluster, Installed, PluginConfig, Release, apply, appset_chart, appset_kustomization,
    appset_kustomization_in, eventually, parse,
};
use gloo_types::crd;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};

const NAMESPACE: &str = "argocd";
const NAME: &str = "gloo-appset-generator";

/// Runs a test in a cluster with an empty namespace for Argo CD.
async fn in_cluster(test: impl AsyncFnOnce(&Cluster) -> Result<()>) -> Result<()> {
    let cluster = Cluster::start_empty().await?;
    // The API server's Pod Security admission checks the Pods.
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    });
    apply(cluster.client(), &[serde_json::from_value(namespace)?]).await?;
    cluster.run(async |cluster| test(cluster).await).await
}

/// Creates the Secret with tokens, each a key and a token.
async fn create_tokens(cluster: &Cluster, tokens: &[(&str, &str)]) -> Result<()> {
    let tokens = BTreeMap::from_iter(tokens.iter().copied());
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": NAME, "namespace": NAMESPACE },
        "stringData": tokens,
    });
    apply(cluster.client(), &[serde_json::from_value(secret)?]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_simplest_installation_answers_argo_cd() -> Result<()> {
    in_cluster(async |cluster| {
        apply(cluster.client(), &appset_kustomization(&[])?).await?;
        let without_secret = cluster.start_deployed_generator(NAMESPACE, NAME).await;
        let error = without_secret.err().context("it runs without a token")?;
        ensure!(error.to_string().contains("volume tokens"), "{error:#}");
        create_tokens(cluster, &[("token", "s3cret")]).await?;

        let installed = Installed::read(cluster.client(), NAMESPACE, NAME).await?;
        installed.pods_are_admitted().await?;
        installed.selectors_and_ports_match()?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        installed.probes_succeed(&generator).await?;
        let plugin = PluginConfig::read(cluster.client(), NAMESPACE, NAME).await?;
        installed.is_reached_by(&plugin)?;
        let parameters = json!({ "source": "hello", "team": "shop" });
        let hello = generator
            .ask(&plugin.path, &plugin.token, &parameters)
            .await?;
        hello.check(
            200,
            r#"{"input":{"team":"shop"},"key1":"val1","key2":"val2"}"#,
        )?;
        let refused = generator.ask(&plugin.path, "guess", &parameters).await?;
        refused.check(403, "forbidden")
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_names_each_missing_permission() -> Result<()> {
    in_cluster(async |cluster| {
        let client = cluster.client();
        cluster.create_namespace("shop").await?;
        let mut kinds = Release::V1_9.objects("crds")?;
        for crd in [crd::workspace(), crd::kubernetes_cluster()] {
            kinds.push(serde_json::from_value(crd)?);
        }
        cluster.install_with_gloo(kinds).await?;
        let values = json!({ "config": SOURCES, "kubernetes": { "namespaces": ["shop"] } });
        let chart = appset_chart(&values)?;
        apply(client, &chart).await?;
        apply(client, &parse(TABLE)?).await?;
        create_tokens(cluster, &[("token", "s3cret")]).await?;
        let plugin = PluginConfig::read(client, NAMESPACE, NAME).await?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        let parameters =
            json!({ "source": "gloo-routes", "routeTableSelector": { "name": "web" } });
        eventually("the tables are known", async || {
            let routes = generator.ask(&plugin.path, &plugin.token, &parameters);
            routes.await?.check(200, r#""routeTable":{"#)
        })
        .await?;
        eventually("the other kinds are known", async || {
            generator.get("/readyz").await?.check(200, "ok")
        })
        .await?;

        for reduced in ReducedRole::all(&chart)? {
            reduced.apply(cluster).await?;
            let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
            let missing = format!(r#"cannot {} resource "{}""#, reduced.verb, reduced.resource);
            eventually(&missing, async || {
                generator.get("/readyz").await?.check(503, &missing)
            })
            .await?;
        }

        // The role exists and is bound, but the container has no token of the account.
        apply(client, &chart).await?;
        apply(client, &appset_chart(&json!({ "config": SOURCES }))?).await?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        eventually("readiness names the reason", async || {
            generator
                .get("/readyz")
                .await?
                .check(503, "no cluster is configured")
        })
        .await
    })
    .await
}

const SOURCES: &str = "
glooRoutes: {namespaces: [shop]}
rollouts: {namespaces: [shop]}
glooWorkspaces: {namespace: shop}
";

const TABLE: &str = "
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata: {name: web, namespace: shop}
spec:
  hosts: [shop.example.com]
  http:
  - name: demo
    forwardTo: {destinations: [{ref: {name: stable}}]}
";

/// The role of the generator without one verb of one rule.
struct ReducedRole {
    role: DynamicObject,
    verb: String,
    group: String,
    /// The first resource of the rule.
    resource: String,
}

impl ReducedRole {
    /// Returns a reduced role for each verb of each rule of the ClusterRole in `objects`.
    fn all(objects: &[DynamicObject]) -> Result<Vec<Self>> {
        let is_role =
            |it: &&DynamicObject| it.types.as_ref().is_some_and(|it| it.kind == "ClusterRole");
        let role = objects.iter().find(is_role).context("no role")?;
        let rules = role.data.get("rules").context("no rules")?;
        let rules: Vec<PolicyRule> = serde_json::from_value(rules.clone())?;
        let mut all = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            for verb in &rule.verbs {
                let first = |names: &Option<Vec<String>>| names.as_ref()?.first().cloned();
                let others = rule.verbs.iter().filter(|other| *other != verb);
                let mut rest = rules.clone();
                rest.remove(index);
                rest.push(PolicyRule {
                    verbs: others.cloned().collect(),
                    ..rule.clone()
                });
                let mut role = role.clone();
                role.data = json!({ "rules": rest });
                all.push(Self {
                    role,
                    verb: verb.clone(),
                    group: first(&rule.api_groups).context("no group")?,
                    resource: first(&rule.resources).context("no resource")?,
                });
            }
        }
        ensure!(!all.is_empty(), "the role grants nothing");
        Ok(all)
    }

    /// Applies the role, and waits until the API server enforces it, since its authorizer watches roles.
    async fn apply(&self, cluster: &Cluster) -> Result<()> {
        apply(cluster.client(), std::slice::from_ref(&self.role)).await?;
        let account = format!("system:serviceaccount:{NAMESPACE}:{NAME}");
        let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client_as(&account).await?);
        let Self {
            verb,
            group,
            resource,
            ..
        } = self;
        let question = serde_json::from_value(json!({ "spec": { "resourceAttributes": {
            "verb": verb, "group": group, "resource": resource, "namespace": "shop",
        }}}))?;
        eventually("the permission is revoked", async || {
            let review = reviews.create(&PostParams::default(), &question).await?;
            let status = review.status.context("no answer")?;
            ensure!(!status.allowed, "it is granted: {:?}", status.reason);
            Ok(())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_accepts_the_chart_with_every_value() -> Result<()> {
    in_cluster(async |cluster| {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed([format!("{NAME}.{NAMESPACE}.svc")])?;
        let secret = |name: &str, of: &str, data: Value| {
            serde_json::from_value(json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": { "name": name, "namespace": NAMESPACE },
                "type": format!("kubernetes.io/{of}"),
                "stringData": data,
            }))
        };
        let pair = json!({ "tls.crt": cert.pem(), "tls.key": signing_key.serialize_pem() });
        let login = json!({ ".dockerconfigjson": "{}" });
        let secrets = [
            secret("certificate", "tls", pair)?,
            secret("logins", "dockerconfigjson", login)?,
        ];
        apply(cluster.client(), &secrets).await?;
        create_tokens(cluster, &[("team-a", "s3cret")]).await?;
        let mut objects = appset_chart(&json!({
            "image": { "repository": "registry.example.com/generator", "tag": "2", "pullPolicy": "Always" },
            "imagePullSecrets": [{ "name": "registry" }],
            "replicas": 3,
            "config": "static: {hello: {sets: [{key1: val1}]}}",
            "tokens": { "secret": NAME, "key": "team-a" },
            "registries": { "secret": "logins" },
            "kubernetes": { "namespaces": ["*"], "watchNamespaces": true },
            "refresh": { "namespaces": [NAMESPACE] },
            "tls": { "secret": "certificate" },
            "serviceMonitor": { "enabled": true, "labels": { "release": "prometheus" } },
            "deadline": 60,
            "shutdownDelay": 6,
            "podSecurityContext": { "runAsUser": 1000, "runAsGroup": null },
            "networkPolicy": { "from": [{ "podSelector": { "matchLabels": { "app": "argo-cd" } } }], "metricsFrom": [{ "podSelector": { "matchLabels": { "app": "prometheus" } } }] },
            "prometheusRule": { "enabled": true, "labels": { "release": "prometheus" } },
            "dashboard": { "enabled": true },
            "envFrom": [{ "secretRef": { "name": "logins", "optional": true } }],
            "extraVolumes": [{ "name": "pull", "secret": { "secretName": "logins" } }],
            "extraVolumeMounts": [{ "name": "pull", "mountPath": "/pull", "readOnly": true }],
            "caBundle": { "configMap": "authorities", "key": "bundle.pem" },
            "extraArgs": ["--log-level=debug"],
            "env": [{ "name": "NO_PROXY", "value": ".svc" }],
            "podAnnotations": { "example.com/a": "b" },
            "nodeSelector": { "kubernetes.io/os": "linux" },
            "tolerations": [{ "operator": "Exists" }],
            "affinity": { "nodeAffinity": {} },
        }))?;
        // The CRDs of Prometheus Operator are not installed.
        let total = objects.len();
        let of_operator = ["ServiceMonitor", "PrometheusRule"];
        objects.retain(|it| it.types.as_ref().is_some_and(|it| !of_operator.contains(&it.kind.as_str())));
        ensure!(objects.len() + 2 == total, "no ServiceMonitor or PrometheusRule");
        let authorities = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "authorities", "namespace": NAMESPACE },
            "data": { "bundle.pem": cert.pem() },
        });
        apply(cluster.client(), &[serde_json::from_value(authorities)?]).await?;
        apply(cluster.client(), &objects).await?;
        let installed = Installed::read(cluster.client(), NAMESPACE, NAME).await?;
        installed.pods_are_admitted().await?;
        installed.selectors_and_ports_match()?;
        let pod = installed.template().spec.as_ref().context("no Pod")?;
        // The two times, and a reserve of 10 s.
        ensure!(pod.termination_grace_period_seconds == Some(76));
        let user = pod.security_context.clone().unwrap_or_default();
        ensure!((user.run_as_user, user.run_as_group, user.run_as_non_root) == (Some(1000), None, Some(true)));
        let callers = serde_json::to_value(installed.peers("api"))?;
        ensure!(callers == json!([{ "podSelector": { "matchLabels": { "app": "argo-cd" } } }]), "{callers}");
        let plugin = PluginConfig::read(cluster.client(), NAMESPACE, NAME).await?;
        ensure!(plugin.scheme == "https" && plugin.token == "s3cret", "{}", plugin.scheme);
        installed.is_reached_by(&plugin)?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        installed.probes_succeed(&generator).await
    })
    .await
}

/// The kustomization has no RoleBinding for a namespace: the documentation creates it with `kubectl create rolebinding`.
#[test]
fn chart_and_kustomization_render_equal_objects() -> Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": { "name": NAME, "namespace": "shop", "labels": { "app.kubernetes.io/name": NAME } },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME },
        "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE }],
    });
    let image = json!({ "repository": "registry.example.com/gloo-appset-generator" });
    let kubernetes = json!({ "namespaces": ["shop"] });
    let all = json!({ "namespaces": ["shop"], "watchNamespaces": true });
    for (components, values) in [
        (&[][..], json!({ "image": image })),
        (
            &["kubernetes"],
            json!({ "image": image, "kubernetes": kubernetes }),
        ),
        (
            &["kubernetes", "namespaces", "refresh"],
            json!({ "image": image, "kubernetes": all, "refresh": { "namespaces": [NAMESPACE] } }),
        ),
    ] {
        let chart = by_name(appset_chart(&values)?)?;
        let mut kustomization = appset_kustomization(components)?;
        if !components.is_empty() {
            kustomization.push(serde_json::from_value(binding.clone())?);
        }
        let kustomization = by_name(kustomization)?;
        ensure!(
            chart.keys().eq(kustomization.keys()),
            "{:?}, {:?}",
            chart.keys(),
            kustomization.keys()
        );
        for (name, object) in &chart {
            let other = kustomization.get(name);
            ensure!(
                Some(object) == other,
                "{name}: {object:#} differs from {other:#?}"
            );
        }
    }
    Ok(())
}

/// A part that stays in the namespace `argocd` would give its rights to another account.
#[test]
fn the_kustomization_moves_to_another_namespace() -> Result<()> {
    let objects = appset_kustomization_in("gitops", &["kubernetes", "namespaces", "refresh"])?;
    let mut bound = 0;
    for object in objects {
        let value = serde_json::to_value(&object)?;
        let kind = object.types.context("no kind")?.kind;
        let namespace = object.metadata.namespace.as_deref();
        let expected = (!kind.starts_with("ClusterRole")).then_some("gitops");
        ensure!(namespace == expected, "{kind} in {namespace:?}");
        let subjects = value.get("subjects").and_then(Value::as_array);
        for subject in subjects.into_iter().flatten() {
            bound += 1;
            ensure!(subject["namespace"] == "gitops", "{kind}: {subject}");
        }
        let url = value.pointer("/data/baseUrl").and_then(Value::as_str);
        ensure!(
            url.is_none_or(|url| url == "http://gloo-appset-generator.gitops.svc"),
            "{url:?}"
        );
    }
    ensure!(bound == 2, "{bound} accounts are bound");
    Ok(())
}

/// Returns the objects by kind and name, without the labels that only Helm sets.
fn by_name(objects: Vec<DynamicObject>) -> Result<BTreeMap<String, Value>> {
    let named = objects.into_iter().map(|object| {
        let mut value = serde_json::to_value(&object)?;
        remove_labels_of_helm(&mut value);
        let kind = object.types.context("no kind")?.kind;
        let name = object.metadata.name.context("no name")?;
        Ok((format!("{kind} {name}"), value))
    });
    named.collect()
}

fn remove_labels_of_helm(value: &mut Value) {
    const OF_HELM: [&str; 4] = [
        "app.kubernetes.io/instance",
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/version",
        "helm.sh/chart",
    ];
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !OF_HELM.contains(&key.as_str()));
            fields.values_mut().for_each(remove_labels_of_helm);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_labels_of_helm),
        _ => {}
    }
}
