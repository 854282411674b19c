//! An installation of the generator in the API server: checks that its objects fit together, the program, and Argo CD.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use http::Uri;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, PodTemplateSpec, Secret, Service};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tempfile::TempDir;

use crate::install::{build, copy_filled_in};
use crate::{Generator, manifest, program};

/// Argo CD's configuration of a plugin generator, from the ConfigMap of `configMapRef`.
pub struct PluginConfig {
    /// Scheme of the `baseUrl`.
    pub scheme: String,
    /// Host of the `baseUrl`: `name.namespace.svc`.
    host: String,
    port: i32,
    /// Path of the `baseUrl`, the prefix of a call's path.
    pub path: String,
    /// The token of the calls.
    pub token: String,
}

impl PluginConfig {
    /// Reads the ConfigMap `name` and the Secret that it refers to.
    ///
    /// # Errors
    /// Returns `Err` if Argo CD could not follow it.
    pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<Self> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let data = maps.get(name).await?.data.unwrap_or_default();
        let value = |key: &str| data.get(key).with_context(|| format!("no {key}"));
        let (url, token) = (value("baseUrl")?, value("token")?);

        let (name, key) = token
            .strip_prefix('$')
            .and_then(|reference| reference.split_once(':'))
            .context("no reference to a separate Secret")?;
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

/// The objects of an installation in the API server.
pub struct Installed {
    pods: Api<Pod>,
    template: PodTemplateSpec,
    service: Service,
    policy: NetworkPolicy,
    budget: PodDisruptionBudget,
}

impl Installed {
    /// Reads the objects with the name `name`.
    ///
    /// # Errors
    /// Returns `Err` if an object does not exist.
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

    /// Returns the number of a named port of the container.
    fn port(&self, named: &IntOrString) -> Result<i32> {
        let IntOrString::String(name) = named else {
            bail!("{named:?} is not a name");
        };
        let ports = self.container()?.ports.iter().flatten();
        let mut ports = ports.filter(|port| port.name.as_ref() == Some(name));
        let port = ports.next().with_context(|| format!("no port {name}"))?;
        Ok(port.container_port)
    }

    /// Returns the template of the Pods.
    #[must_use]
    pub fn template(&self) -> &PodTemplateSpec {
        &self.template
    }

    /// Returns the peers that may send requests to a named port.
    #[must_use]
    pub fn peers(&self, port: &str) -> Vec<NetworkPolicyPeer> {
        let named = IntOrString::String(port.to_owned());
        let rules = self
            .policy
            .spec
            .iter()
            .flat_map(|it| it.ingress.iter().flatten());
        let rules = rules.filter(|rule| {
            rule.ports
                .iter()
                .flatten()
                .any(|it| it.port.as_ref() == Some(&named))
        });
        rules
            .flat_map(|rule| rule.from.iter().flatten().cloned())
            .collect()
    }

    /// Checks by a dry run that the API server admits the Pods under the namespace's Pod Security Standard.
    ///
    /// # Errors
    /// Returns `Err` if it rejects them, or the container's root filesystem is writable.
    pub async fn pods_are_admitted(&self) -> Result<()> {
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
        ensure!(
            read_only == Some(true),
            "the container's root filesystem is writable"
        );
        Ok(())
    }

    /// Checks that all selectors match the Pods, and that all named ports are ports of the container.
    ///
    /// # Errors
    /// Returns `Err` if that is not so.
    pub fn selectors_and_ports_match(&self) -> Result<()> {
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

    /// Checks that the program answers the probes.
    ///
    /// # Errors
    /// Returns `Err` if that is not so.
    pub async fn probes_succeed(&self, generator: &Generator) -> Result<()> {
        let container = self.container()?;
        for probe in [&container.liveness_probe, &container.readiness_probe] {
            let probe = probe.as_ref().and_then(|probe| probe.http_get.as_ref());
            let probe = probe.context("a probe is missing")?;
            ensure!(self.port(&probe.port)? == self.port(&IntOrString::String("ops".to_owned()))?);
            let path = probe.path.as_deref().context("no path")?;
            generator.get(path).await?.check(200, "ok")?;
        }
        Ok(())
    }

    /// Checks that Argo CD's URL leads to the Service, and its port to the program's default port.
    ///
    /// # Errors
    /// Returns `Err` if that is not so.
    pub fn is_reached_by(&self, plugin: &PluginConfig) -> Result<()> {
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
            let expected = format!(":{port}]");
            ensure!(default.starts_with(&expected), "{flag} is not {expected}");
        }
        Ok(())
    }
}

const PAGE: &str = include_str!("../../docs/appset-install.md");
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/appset-generator");
/// Name and namespace of the chart's release.
const RELEASE: [&str; 3] = ["gloo-appset-generator", "--namespace", "argocd"];

/// Renders the kustomization of the documentation with these components of the generator.
///
/// # Errors
/// Returns `Err` if kustomize fails.
pub fn appset_kustomization(components: &[&str]) -> Result<Vec<DynamicObject>> {
    appset_kustomization_in("argocd", components)
}

/// As [`appset_kustomization`], in a namespace, which is set in the two places that the documentation names.
///
/// # Errors
/// Returns `Err` if kustomize fails.
pub fn appset_kustomization_in(namespace: &str, components: &[&str]) -> Result<Vec<DynamicObject>> {
    let directory = release()?;
    let root = directory.path();
    let manifests = root.join("gloo-appset");
    fs::rename(root.join("kustomize"), &manifests)?;
    fs::copy(manifests.join("config.yaml"), root.join("config.yaml"))?;

    let (_, page) = PAGE
        .split_once("`generator/kustomization.yaml`:\n\n```yaml\n")
        .context("the page has no kustomization")?;
    let (text, _) = page
        .split_once("```")
        .context("the kustomization has no end")?;
    let none = "components: []";
    ensure!(
        text.contains(none),
        "the kustomization has no empty list of components"
    );
    let components: Vec<_> = components
        .iter()
        .map(|component| format!("gloo-appset/{component}"))
        .collect();
    let text = text.replace(none, &format!("components: [{}]", components.join(", ")));
    let text = text.replace("namespace: argocd\n", &format!("namespace: {namespace}\n"));
    fs::write(root.join("kustomization.yaml"), text)?;
    let of_argo_cd = manifests.join("argo-cd.yaml");
    let url = fs::read_to_string(&of_argo_cd)?;
    let url = url.replace(".argocd.svc", &format!(".{namespace}.svc"));
    fs::write(of_argo_cd, url)?;
    build(root)
}

/// Lints the chart with these values, and renders it.
///
/// # Errors
/// Returns `Err` if Helm fails, or its linter reports a problem.
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

/// Returns a directory with the manifests of a release.
fn release() -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    copy_filled_in(
        Path::new(MANIFESTS),
        directory.path(),
        &[("VERSION", "1.2.3")],
    )?;
    Ok(directory)
}
