//! An installation of Argo Rollouts with the plugin, as an administrator puts it together.

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
    copy_filled_in(Path::new(COMPONENTS), &root.join("plugin"), fill_in)?;
    let kustomization = format!(
        "namespace: argo-rollouts\nresources: [argo-rollouts/cluster-install]\ncomponents: [plugin/{variant}]\n"
    );
    fs::write(root.join("kustomization.yaml"), kustomization)?;
    build(root)
}

/// The objects of a directory with a kustomization.
pub(crate) fn build(root: &Path) -> Result<Vec<DynamicObject>> {
    let output = program("kustomize")?.arg("build").arg(root).output()?;
    ensure!(
        output.status.success(),
        "kustomize: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    manifest::parse(str::from_utf8(&output.stdout)?)
}

/// Copies a directory of manifests, with words filled in as for a release.
pub(crate) fn copy_filled_in(from: &Path, to: &Path, fill_in: &[(&str, &str)]) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_filled_in(&from, &to, fill_in)?;
            continue;
        }
        let mut text = fs::read_to_string(from)?;
        for (word, value) in fill_in {
            text = text.replace(word, value);
        }
        fs::write(to, text)?;
    }
    Ok(())
}
