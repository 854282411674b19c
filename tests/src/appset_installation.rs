//! An installation of the generator, as the API server has it: what its objects say of one another, of the program, and to
//! Argo CD.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use http::Uri;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, PodTemplateSpec, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tempfile::TempDir;

use crate::install::{build, copy_filled_in};
use crate::{Generator, manifest, program};

/// What Argo CD knows of a plugin generator by the ConfigMap that `configMapRef` names.
pub struct PluginConfig {
    /// Of the `baseUrl`.
    pub scheme: String,
    /// `name.namespace.svc`.
    host: String,
    port: i32,
    /// What is in front of the path of a call.
    pub path: String,
    /// What it sends.
    pub token: String,
}

impl PluginConfig {
    /// Follows the ConfigMap `name` to the Secret.
    ///
    /// # Errors
    /// Argo CD could not.
    pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<Self> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let data = maps.get(name).await?.data.unwrap_or_default();
        let value = |key: &str| data.get(key).with_context(|| format!("no {key}"));
        let (url, token) = (value("baseUrl")?, value("token")?);

        let (name, key) = token
            .strip_prefix('$')
            .and_then(|reference| reference.split_once(':'))
            .context("no reference to a Secret of its own")?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let secret = secrets.get(name).await?.data.unwrap_or_default();
        let token = secret.get(key).context("the Secret has no such key")?;

        let url: Uri = url.parse()?;
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
pub struct Installed {
    pods: Api<Pod>,
    template: PodTemplateSpec,
    service: Service,
    policy: NetworkPolicy,
    budget: PodDisruptionBudget,
}

impl Installed {
    /// Reads those that are called `name`.
    ///
    /// # Errors
    /// One is not there.
    pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<Self> {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), namespace);
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
        Ok(Self {
            pods: Api::namespaced(client.clone(), namespace),
            template: deployments.get(name).await?.spec.template,
            service: services.get(name).await?,
            policy: policies.get(name).await?,
            budget: budgets.get(name).await?,
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

    /// Lets the API server judge the Pods as the namespace's Pod Security Standard says.
    ///
    /// # Errors
    /// It would refuse them, or they may write their image.
    pub async fn may_run(&self) -> Result<()> {
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
        self.pods.create(&trial, &pod).await?;
        let security = self.container()?.security_context.as_ref();
        let read_only = security.and_then(|security| security.read_only_root_filesystem);
        ensure!(read_only == Some(true), "the container may write its image");
        Ok(())
    }

    /// What selects Pods selects these, and every port that is named is one of theirs.
    ///
    /// # Errors
    /// It is not so.
    pub fn fits_together(&self) -> Result<()> {
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

    /// The probes ask what the program answers.
    ///
    /// # Errors
    /// It is not so.
    pub async fn probes_succeed(&self, generator: &Generator) -> Result<()> {
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
    ///
    /// # Errors
    /// It is not so.
    pub fn serves(&self, plugin: &PluginConfig) -> Result<()> {
        let namespace = self.service.namespace().unwrap_or_default();
        let host = format!("{}.{namespace}.svc", self.service.name_any());
        ensure!(plugin.host == host, "{} is not {host}", plugin.host);
        let help = Generator::help()?;
        let service = self.service.spec.as_ref();
        let mut ports = service
            .and_then(|it| it.ports.as_ref())
            .into_iter()
            .flatten();
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

const PAGE: &str = include_str!("../../docs/appset-install.md");
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/appset-generator");
/// A release of the chart, in a namespace.
const RELEASE: [&str; 3] = ["gloo-appset-generator", "--namespace", "argocd"];

/// The objects of the kustomization that the documentation has, with these components of the generator's.
///
/// # Errors
/// Kustomize refuses.
pub fn appset_kustomization(components: &[&str]) -> Result<Vec<DynamicObject>> {
    let directory = release()?;
    let root = directory.path();
    let manifests = root.join("gloo-appset");
    fs::rename(root.join("kustomize"), &manifests)?;
    fs::copy(manifests.join("config.yaml"), root.join("config.yaml"))?;

    let (_, page) = PAGE
        .split_once("`generator/kustomization.yaml`:\n\n```yaml\n")
        .context("the page has no kustomization")?;
    let (text, _) = page.split_once("```").context("it has no end")?;
    let none = "components: []";
    ensure!(text.contains(none), "it has no components to replace");
    let components: Vec<_> = components
        .iter()
        .map(|component| format!("gloo-appset/{component}"))
        .collect();
    let text = text.replace(none, &format!("components: [{}]", components.join(", ")));
    fs::write(root.join("kustomization.yaml"), text)?;
    build(root)
}

/// The objects of the chart with these values. Helm has nothing to say against it.
///
/// # Errors
/// Helm refuses, or finds fault.
pub fn appset_chart(values: &Value) -> Result<Vec<DynamicObject>> {
    let directory = release()?;
    let chart = directory.path().join("chart");
    let file = directory.path().join("values.json");
    fs::write(&file, values.to_string())?;
    let helm = |command: &mut Command| {
        let output = command.arg(&chart).arg("--values").arg(&file).output()?;
        ensure!(
            output.status.success(),
            "helm: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(output.stdout)
    };
    helm(program("helm")?.args(["lint", "--strict"]))?;
    let rendered = helm(program("helm")?.arg("template").args(RELEASE))?;
    manifest::parse(str::from_utf8(&rendered)?)
}

/// A directory with the manifests as a release has them.
fn release() -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    copy_filled_in(
        Path::new(MANIFESTS),
        directory.path(),
        &[("VERSION", "1.2.3")],
    )?;
    Ok(directory)
}
