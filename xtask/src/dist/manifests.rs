//! The manifests of a release: what the README tells an administrator to apply, and definitions to try it without Gloo.

use anyhow::Context as _;
use xshell::{Shell, cmd};

use super::archive::File;

/// The files of the archive.
///
/// # Errors
/// When the README does not have them, or the definitions cannot be generated.
pub(super) fn files(sh: &Shell) -> anyhow::Result<Vec<File>> {
    let readme = sh.read_file("README.md")?;
    let of_readme = |name, kind| {
        let text = manifest(&readme, kind)?.to_owned();
        anyhow::Ok(File { name, text })
    };
    let crds = cmd!(
        sh,
        "cargo run --quiet --locked --package gloo-types --features crd --example crds"
    )
    .read()?;
    Ok(vec![
        of_readme("config-map.yaml", "ConfigMap")?,
        File {
            name: "crds.yaml",
            text: crds + "\n",
        },
        of_readme("rbac.yaml", "ClusterRole")?,
        of_readme("rollout.yaml", "Rollout")?,
    ])
}

/// The first block of YAML in `page` with an object of this kind.
fn manifest<'p>(page: &'p str, kind: &str) -> anyhow::Result<&'p str> {
    let line = format!("kind: {kind}");
    let blocks = page.split("```yaml\n").skip(1);
    blocks
        .filter_map(|block| Some(block.split_once("```")?.0))
        .find(|block| block.lines().any(|it| it == line))
        .with_context(|| format!("the README has no {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_the_block_with_its_kind() {
        let page = "a\n```yaml\nkind: A\n```\nb\n```yaml\nkind: B\n---\nkind: C\n```\n";
        assert_eq!(manifest(page, "A").unwrap(), "kind: A\n");
        assert_eq!(manifest(page, "C").unwrap(), "kind: B\n---\nkind: C\n");
        assert!(manifest(page, "D").is_err());
    }
}
