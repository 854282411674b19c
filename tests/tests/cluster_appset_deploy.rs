//! What `deploy/appset-generator` has for an administrator: applied to a real API server, run as the Deployment that is then
//! there says, and asked as Argo CD would by the ConfigMap and the Secret.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use e2e_tests::{Cluster, Generator, apply, build};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, PodTemplateSpec, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

const KUSTOMIZE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/appset-generator/kustomize"
);
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
        apply(cluster.client(), &build(Path::new(KUSTOMIZE))?).await?;
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

/// What Argo CD knows of a plugin generator by the ConfigMap that `configMapRef` names.
struct Plugin {
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
        ensure!(url.scheme_str() == Some("http"), "{url}");
        Ok(Self {
            host: url.host().context("no host")?.to_owned(),
            port: url.port_u16().unwrap_or(80).into(),
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
