//! The manifests of the generator, as an administrator renders them: with kustomize, or with Helm.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;
use serde_json::Value;
use tempfile::TempDir;

use crate::kustomize::{build, copy_filled_in};
use crate::{manifest, program};

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
