//! The released controllers, and the manifests that each release comes with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;

use crate::manifest;

/// A release of the Rollouts controller.
#[derive(Clone, Copy, Debug)]
pub enum Release {
    /// The first with plugins for traffic routing.
    V1_5,
    /// What most clusters run.
    V1_9,
    /// The first in which plugins may have mirror steps and ping-pong.
    V1_10,
}

impl Release {
    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::V1_5 => "1.5.1",
            Self::V1_9 => "1.9.1",
            Self::V1_10 => "1.10.1",
        }
    }

    /// What pins it, within `go/rollouts`.
    fn go_mod(self) -> String {
        match self {
            Self::V1_9 => "go.mod".to_owned(),
            Self::V1_5 | Self::V1_10 => format!("versions/{}.mod", self.version()),
        }
    }

    /// The directory of its manifests, where Go keeps the module.
    pub(crate) fn manifests(self) -> Result<PathBuf> {
        let output = Command::new("go")
            .args(["list", "-m", "-f", "{{.Dir}}"])
            .arg(format!("-modfile={}", self.go_mod()))
            .arg("github.com/argoproj/argo-rollouts")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("go/rollouts"))
            .output()
            .context("cannot run go")?;
        ensure!(
            output.status.success(),
            "go list: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let module = Path::new(str::from_utf8(&output.stdout)?.trim());
        Ok(module.join("manifests"))
    }

    /// The objects in a folder of its manifests.
    pub fn objects(self, folder: &str) -> Result<Vec<DynamicObject>> {
        let mut objects = Vec::new();
        for entry in fs::read_dir(self.manifests()?.join(folder))? {
            let path = entry?.path();
            if !path.ends_with("kustomization.yaml") {
                objects.extend(manifest::parse(&fs::read_to_string(path)?)?);
            }
        }
        Ok(objects)
    }
}
