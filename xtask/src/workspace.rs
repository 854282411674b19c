//! The packages of this repository from `cargo metadata`: their folders, and the dependencies between them. And the target directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;
use xshell::{Shell, cmd};

/// The packages of the repository, by folder.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) packages: Vec<Package>,
}

/// A package of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// From the repository's root, such as `crates/gob`.
    pub(crate) folder: String,
    /// Whether it may be published to a registry.
    pub(crate) is_published: bool,
    /// Folders of the repository's packages that it depends on, including optional dependencies.
    pub(crate) uses: BTreeSet<String>,
    /// Folders of those that only its tests and examples depend on.
    pub(crate) tests_use: BTreeSet<String>,
}

/// The target directory of cargo.
pub(crate) fn target_dir(sh: &Shell) -> PathBuf {
    let dir = sh
        .var_os("CARGO_TARGET_DIR")
        .map_or_else(|| "target".into(), PathBuf::from);
    sh.current_dir().join(dir)
}

impl Package {
    /// Whether its tests need more than cargo: a cluster, an Envoy, Go.
    pub(crate) fn needs_more_than_cargo(&self) -> bool {
        self.folder == "tests"
    }
}

impl Workspace {
    /// Runs `cargo metadata`.
    ///
    /// # Errors
    /// Returns `Err` if cargo fails, for example because a manifest is invalid.
    pub(crate) fn read(sh: &Shell) -> anyhow::Result<Self> {
        let metadata = cmd!(sh, "cargo metadata --locked --format-version 1 --no-deps");
        let metadata = metadata.quiet().ignore_stderr().read()?;
        Self::parse(&serde_json::from_str(&metadata)?)
            .context("cargo metadata does not have the expected form")
    }

    fn parse(metadata: &Value) -> Option<Self> {
        let root = Path::new(metadata["workspace_root"].as_str()?);
        let below = |path: &Path| Some(path.strip_prefix(root).ok()?.to_str()?.to_owned());
        let mut packages = Vec::new();
        for package in metadata["packages"].as_array()? {
            let manifest = Path::new(package["manifest_path"].as_str()?);
            let folder = below(manifest.parent()?)?;
            let used = |for_tests: bool| {
                let all = package["dependencies"].as_array().into_iter().flatten();
                let kind = all.filter(|it| (it["kind"] == "dev") == for_tests);
                let folders = kind.filter_map(|it| below(Path::new(it["path"].as_str()?)));
                folders.filter(|it| *it != folder).collect::<BTreeSet<_>>()
            };
            let uses = used(false);
            packages.push(Package {
                name: package["name"].as_str()?.to_owned(),
                // `publish = false` is an empty list of registries.
                is_published: package["publish"] != Value::Array(Vec::new()),
                tests_use: used(true).difference(&uses).cloned().collect(),
                uses,
                folder,
            });
        }
        packages.sort_by(|a, b| a.folder.cmp(&b.folder));
        Some(Self { packages })
    }

    /// The package in a folder.
    pub(crate) fn in_folder(&self, folder: &str) -> Option<&Package> {
        self.packages.iter().find(|it| it.folder == folder)
    }

    /// The package that a file belongs to: the one in the nearest folder above it.
    pub(crate) fn owner(&self, file: &Path) -> Option<&Package> {
        let owners = self
            .packages
            .iter()
            .filter(|it| file.starts_with(&it.folder));
        owners.max_by_key(|it| it.folder.len())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// `a` depends on `b` and on a package from crates.io, and the tests of `b` on `c`.
    pub(crate) fn workspace() -> Workspace {
        let package = |name: &str, dependencies: Value| json!({"name": name, "manifest_path": format!("/r/crates/{name}/Cargo.toml"), "dependencies": dependencies});
        let path = |name: &str, kind: Value| json!({"name": name, "kind": kind, "path": format!("/r/crates/{name}")});
        let serde = json!({"name": "serde", "kind": null});
        let metadata = json!({
            "workspace_root": "/r",
            "packages": [
                package("b", json!([path("c", json!("dev")), path("b", json!("dev"))])),
                package("a", json!([path("b", Value::Null), path("b", json!("dev")), serde])),
                package("c", json!([])),
            ],
        });
        Workspace::parse(&metadata).unwrap()
    }

    #[test]
    fn packages_name_their_dependencies_by_folder() {
        let workspace = workspace();
        let folders = ["crates/a", "crates/b", "crates/c"];
        let found = folders.map(|folder| {
            let package = workspace.in_folder(folder).unwrap();
            let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
            [list(&package.uses), list(&package.tests_use)]
        });
        assert_eq!(found, [["crates/b", ""], ["", "crates/c"], ["", ""]]);
    }

    #[test]
    fn a_file_belongs_to_the_nearest_package() {
        let owner = |file: &str| workspace().owner(Path::new(file)).map(|it| it.name.clone());
        assert_eq!(owner("crates/b/src/lib.rs").as_deref(), Some("b"));
        assert_eq!(owner("crates/bb/src/lib.rs"), None);
        assert_eq!(owner("README.md"), None);
    }
}
