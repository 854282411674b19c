//! What `deploy/appset-generator` has for an administrator: applied to a real API server, run as the Deployment that is then
//! there says, and asked as Argo CD would by the ConfigMap and the Secret.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use e2e_tests::{Cluster, Generator, apply, appset_chart, appset_kustomization, eventually, parse};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, PodTemplateSpec, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};

const NAMESPACE: &str = "argocd";
const NAME: &str = "gloo-appset-generator";

/// Runs a test in a cluster with an empty namespace for Argo CD.
async fn in_cluster(test: impl AsyncFnOnce(&Cluster) -> Result<()>) -> Result<()> {
    let cluster = Cluster::start_empty().await?;
    // So that the API server's own admission judges the Pods.
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    });
    apply(cluster.client(), &[serde_json::from_value(namespace)?]).await?;
    if let Err(error) = test(&cluster).await {
        bail!("{error:#}\n{}", cluster.logs());
    }
    cluster.stop().await
}

/// The Secret with tokens, each a name and a text.
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
        let too_early = cluster.start_deployed_generator(NAMESPACE, NAME).await;
        let error = too_early.err().context("it runs without a token")?;
        ensure!(error.to_string().contains("volume tokens"), "{error:#}");
        create_tokens(cluster, &[("token", "s3cret")]).await?;

        let installed = Installed::read(cluster.client()).await?;
        installed.may_run(cluster.client()).await?;
        installed.fits_together()?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        installed.probes_succeed(&generator).await?;
        let plugin = Plugin::read(cluster.client(), NAME).await?;
        installed.serves(&plugin, &Generator::help()?)?;
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
async fn a_source_of_the_cluster_needs_each_of_its_rights() -> Result<()> {
    in_cluster(async |cluster| {
        let client = cluster.client();
        cluster.create_namespace("shop").await?;
        cluster.install_with_gloo(Vec::new()).await?;
        let values = json!({
            "config": "glooRoutes: {namespaces: [shop]}",
            "kubernetes": { "namespaces": ["shop"] },
        });
        let chart = appset_chart(&values)?;
        apply(client, &chart).await?;
        apply(client, &parse(TABLE)?).await?;
        create_tokens(cluster, &[("token", "s3cret")]).await?;
        let plugin = Plugin::read(client, NAME).await?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        let parameters = json!({ "routeTableSelector": { "name": "web" } });
        eventually("the tables are known", async || {
            let routes = generator.ask(&plugin.path, &plugin.token, &parameters);
            routes.await?.check(200, r#""routeTable":{"#)
        })
        .await?;
        generator.look_at("/readyz").await?.check(200, "ok")?;

        cannot(cluster, &chart, "list").await?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        let missing = r#"cannot list resource "routetables" in API group"#;
        eventually(missing, async || {
            generator.look_at("/readyz").await?.check(503, missing)
        })
        .await?;
        let routes = generator.ask(&plugin.path, &plugin.token, &parameters);
        routes
            .await?
            .check(503, "RouteTables in namespace shop are not known")?;

        // It would learn of no change.
        cannot(cluster, &chart, "watch").await?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        let missing = r#"cannot watch resource \"routetables\" in API group"#;
        eventually(missing, async || {
            let log = generator.log_tail();
            ensure!(log.contains(missing), "{log}");
            Ok(())
        })
        .await?;

        // The role is there and bound, but the container has no token of the account.
        let nowhere = json!({ "config": "glooRoutes: {namespaces: [shop]}" });
        apply(client, &appset_chart(&nowhere)?).await?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        eventually("it is not ready, and says why", async || {
            generator
                .look_at("/readyz")
                .await?
                .check(503, "no usable cluster configuration")
        })
        .await
    })
    .await
}

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

/// Takes a verb out of every rule, and waits until the API server has heard of it, by a watch.
async fn cannot(cluster: &Cluster, objects: &[DynamicObject], verb: &str) -> Result<()> {
    apply(cluster.client(), &without(objects, verb)?).await?;
    let account = format!("system:serviceaccount:{NAMESPACE}:{NAME}");
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client_as(&account).await?);
    let question = serde_json::from_value(json!({ "spec": { "resourceAttributes": {
        "group": "networking.gloo.solo.io",
        "resource": "routetables",
        "namespace": "shop",
        "verb": verb,
    }}}))?;
    eventually("the right is gone", async || {
        let review = reviews.create(&PostParams::default(), &question).await?;
        let status = review.status.context("no answer")?;
        ensure!(!status.allowed, "it is there: {:?}", status.reason);
        Ok(())
    })
    .await
}

/// The objects with one verb less in every rule.
fn without(objects: &[DynamicObject], verb: &str) -> Result<Vec<DynamicObject>> {
    let mut objects = objects.to_vec();
    let role = objects.iter_mut().find(|object| {
        let kind = object.types.as_ref().map(|types| types.kind.as_str());
        kind == Some("ClusterRole")
    });
    let rules = role.and_then(|role| role.data.get_mut("rules")?.as_array_mut());
    for rule in rules.context("no rules")? {
        let verbs = rule.get_mut("verbs").and_then(Value::as_array_mut);
        verbs.context("no verbs")?.retain(|other| other != verb);
    }
    Ok(objects)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_value_of_the_chart_makes_objects_that_are_accepted() -> Result<()> {
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
            "kubernetes": { "namespaces": ["*"] },
            "tls": { "secret": "certificate" },
            "serviceMonitor": { "enabled": true, "labels": { "release": "prometheus" } },
            "extraArgs": ["--log-level=debug"],
            "env": [{ "name": "NO_PROXY", "value": ".svc" }],
            "podAnnotations": { "example.com/a": "b" },
            "nodeSelector": { "kubernetes.io/os": "linux" },
            "tolerations": [{ "operator": "Exists" }],
            "affinity": { "nodeAffinity": {} },
        }))?;
        // The definition is that of Prometheus' operator, which is not here.
        let total = objects.len();
        objects.retain(|it| it.types.as_ref().is_some_and(|it| it.kind != "ServiceMonitor"));
        ensure!(objects.len() + 1 == total, "no ServiceMonitor");
        apply(cluster.client(), &objects).await?;
        let installed = Installed::read(cluster.client()).await?;
        installed.may_run(cluster.client()).await?;
        installed.fits_together()?;
        let plugin = Plugin::read(cluster.client(), NAME).await?;
        ensure!(plugin.scheme == "https" && plugin.token == "s3cret", "{}", plugin.scheme);
        installed.serves(&plugin, &Generator::help()?)?;
        let generator = cluster.start_deployed_generator(NAMESPACE, NAME).await?;
        installed.probes_succeed(&generator).await
    })
    .await
}

/// An administrator has the choice, and both are the same: `kubectl create rolebinding` makes what the chart has for a
/// namespace.
#[test]
fn the_chart_is_the_kustomization() -> Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": { "name": NAME, "namespace": "shop", "labels": { "app.kubernetes.io/name": NAME } },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME },
        "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE }],
    });
    let without = appset_kustomization(&[])?;
    let mut with = appset_kustomization(&["kubernetes"])?;
    with.push(serde_json::from_value(binding)?);
    for (values, kustomization) in [
        (json!({}), without),
        (json!({ "kubernetes": { "namespaces": ["shop"] } }), with),
    ] {
        let chart = by_name(appset_chart(&values)?)?;
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
                "{name}: {object:#} is not {other:#?}"
            );
        }
    }
    Ok(())
}

/// Objects by kind and name, without the labels that only Helm has.
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

/// What Argo CD knows of a plugin generator by the ConfigMap that `configMapRef` names.
struct Plugin {
    scheme: String,
    /// Of the `baseUrl`: `name.namespace.svc`.
    host: String,
    port: i32,
    path: String,
    token: String,
}

impl Plugin {
    async fn read(client: &Client, config_map: &str) -> Result<Self> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let data = maps.get(config_map).await?.data.unwrap_or_default();
        let value = |key: &str| data.get(key).with_context(|| format!("no {key}"));
        let (url, token) = (value("baseUrl")?, value("token")?);

        let (name, key) = token
            .strip_prefix('$')
            .and_then(|reference| reference.split_once(':'))
            .context("no reference to a Secret of its own")?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let secret = secrets.get(name).await?.data.unwrap_or_default();
        let token = secret.get(key).context("the Secret has no such key")?;

        let url: http::Uri = url.parse()?;
        let scheme = url.scheme_str().context("no scheme")?;
        Ok(Self {
            scheme: scheme.to_owned(),
            host: url.host().context("no host")?.to_owned(),
            port: url
                .port_u16()
                .map_or(if scheme == "https" { 443 } else { 80 }, i32::from),
            path: url.path().trim_end_matches('/').to_owned(),
            token: String::from_utf8(token.0.clone())?,
        })
    }
}

/// The objects of an installation, as the API server has them.
struct Installed {
    template: PodTemplateSpec,
    service: Service,
    policy: NetworkPolicy,
    budget: PodDisruptionBudget,
}

impl Installed {
    async fn read(client: &Client) -> Result<Self> {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), NAMESPACE);
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NAMESPACE);
        Ok(Self {
            template: deployments.get(NAME).await?.spec.template,
            service: services.get(NAME).await?,
            policy: policies.get(NAME).await?,
            budget: budgets.get(NAME).await?,
        })
    }

    fn container(&self) -> Result<&Container> {
        let pod = self.template.spec.as_ref();
        let containers = pod.map(|pod| pod.containers.as_slice());
        containers.and_then(<[_]>::first).context("no container")
    }

    /// The number of a port of the container.
    fn port(&self, named: &IntOrString) -> Result<i32> {
        let IntOrString::String(name) = named else {
            bail!("{named:?} is no name");
        };
        let ports = self.container()?.ports.iter().flatten();
        let mut ports = ports.filter(|port| port.name.as_ref() == Some(name));
        let port = ports.next().with_context(|| format!("no port {name}"))?;
        Ok(port.container_port)
    }

    /// The namespace admits only what the strictest of the Pod Security Standards does.
    async fn may_run(&self, client: &Client) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let mut pod = Pod {
            metadata: self.template.metadata.clone().unwrap_or_default(),
            spec: self.template.spec.clone(),
            ..Pod::default()
        };
        pod.metadata.name = Some("trial".to_owned());
        let trial = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        pods.create(&trial, &pod).await?;
        let security = self.container()?.security_context.as_ref();
        let read_only = security.and_then(|security| security.read_only_root_filesystem);
        ensure!(read_only == Some(true), "the container may write its image");
        Ok(())
    }

    /// What selects Pods selects these, and every port that is named is one of theirs.
    fn fits_together(&self) -> Result<()> {
        let labels = self.template.metadata.as_ref();
        let labels = labels.and_then(|metadata| metadata.labels.as_ref());
        let labels = labels.context("no labels")?;
        let service = self.service.spec.as_ref().context("no Service")?;
        let policy = self.policy.spec.as_ref().context("no policy")?;
        let budget = self.budget.spec.as_ref().context("no budget")?;
        for selector in [
            service.selector.as_ref(),
            policy
                .pod_selector
                .as_ref()
                .and_then(|it| it.match_labels.as_ref()),
            budget
                .selector
                .as_ref()
                .and_then(|it| it.match_labels.as_ref()),
        ] {
            let selector = selector.filter(|it| !it.is_empty());
            let mut wanted = selector.context("it selects every Pod")?.iter();
            ensure!(
                wanted.all(|(key, value)| labels.get(key) == Some(value)),
                "{selector:?} does not select {labels:?}"
            );
        }
        let served = service.ports.iter().flatten();
        let served = served.filter_map(|port| port.target_port.as_ref());
        let admitted = policy.ingress.iter().flatten();
        let admitted = admitted.flat_map(|rule| rule.ports.iter().flatten());
        let admitted = admitted.filter_map(|port| port.port.as_ref());
        for port in served.chain(admitted) {
            self.port(port)?;
        }
        Ok(())
    }

    async fn probes_succeed(&self, generator: &Generator) -> Result<()> {
        let container = self.container()?;
        for probe in [&container.liveness_probe, &container.readiness_probe] {
            let probe = probe.as_ref().and_then(|probe| probe.http_get.as_ref());
            let probe = probe.context("a probe is missing")?;
            ensure!(self.port(&probe.port)? == self.port(&IntOrString::String("ops".to_owned()))?);
            let path = probe.path.as_deref().context("no path")?;
            generator.look_at(path).await?.check(200, "ok")?;
        }
        Ok(())
    }

    /// Argo CD finds the Service, and behind it the port that the program listens on by default.
    fn serves(&self, plugin: &Plugin, help: &str) -> Result<()> {
        ensure!(
            plugin.host == format!("{NAME}.{NAMESPACE}.svc"),
            "{}",
            plugin.host
        );
        let ports = self
            .service
            .spec
            .as_ref()
            .and_then(|spec| spec.ports.as_ref());
        let mut ports = ports.into_iter().flatten();
        let port = ports
            .find(|port| port.port == plugin.port)
            .context("no such port")?;
        let api = self.port(port.target_port.as_ref().context("no target")?)?;
        let ops = self.port(&IntOrString::String("ops".to_owned()))?;
        for (flag, port) in [("--listen", api), ("--ops-listen", ops)] {
            let (_, of_flag) = help
                .split_once(&format!("{flag} "))
                .context("no such flag")?;
            let (_, default) = of_flag.split_once("[default: ").context("no default")?;
            let expected = format!("0.0.0.0:{port}]");
            ensure!(default.starts_with(&expected), "{flag} is not {expected}");
        }
        Ok(())
    }
}
