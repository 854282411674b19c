//! Installations as an administrator puts them together: kustomizations, and Argo Rollouts with the plugin.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Result, ensure};
use kube::api::DynamicObject;

use crate::{Release, manifest, program};

const COMPONENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kustomize");

/// The objects of a release's own installation with the component `variant` of `deploy/kustomize`.
///
/// Words of the component are filled in, as for a release of the plugin.
///
/// # Errors
/// Kustomize refuses.
pub fn render(
    release: Release,
    variant: &str,
    fill_in: &[(&str, &str)],
) -> Result<Vec<DynamicObject>> {
    let directory = tempfile::tempdir()?;
    let root = directory.path();
    symlink(release.manifests()?, root.join("argo-rollouts"))?;
    for component in fs::read_dir(COMPONENTS)? {
        let component = component?;
        let copy = root.join("plugin").join(component.file_name());
        copy_filled_in(&component.path(), &copy, fill_in)?;
    }
    let kustomization = format!(
        "namespace: argo-rollouts\nresources: [argo-rollouts/cluster-install]\ncomponents: [plugin/{variant}]\n"
    );
    fs::write(root.join("kustomization.yaml"), kustomization)?;
    build(root)
}

/// The objects of a directory with a kustomization.
///
/// # Errors
/// Kustomize refuses.
pub fn build(root: &Path) -> Result<Vec<DynamicObject>> {
    let output = program("kustomize")?.arg("build").arg(root).output()?;
    ensure!(
        output.status.success(),
        "kustomize: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    manifest::parse(str::from_utf8(&output.stdout)?)
}

fn copy_filled_in(from: &Path, to: &Path, fill_in: &[(&str, &str)]) -> Result<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        let mut text = fs::read_to_string(file.path())?;
        for (word, value) in fill_in {
            text = text.replace(word, value);
        }
        fs::write(to.join(file.file_name()), text)?;
    }
    Ok(())
}
