//! Each crate builds by itself, with its default features and without what only tests depend on.
//!
//! In a build of the whole workspace a feature that one crate forgot to ask for is on because another asks for it.
//! The plugin is left out: the binary that ships is built in no other way.

use anyhow::bail;
use xshell::{Shell, cmd};

use super::Violation;
use crate::plugin::PLUGIN;

pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<Violation>> {
    let listed = cmd!(
        sh,
        "cargo tree --locked --workspace --depth 0 --prefix none"
    )
    .quiet();
    let listed = listed.read()?;
    let crates = names(&listed);
    if crates.is_empty() {
        bail!("cargo lists no crate below `crates`");
    }
    let mut violations = Vec::new();
    for name in crates {
        let built = cmd!(sh, "cargo check --locked --quiet --package {name}")
            .quiet()
            .run();
        if built.is_err() {
            violations.push(Violation::new(
                name,
                "does not build with its default features",
            ));
        }
    }
    Ok(violations)
}

/// The packages below `crates`, of lines such as `gob v0.1.0 (/somewhere/crates/gob)`.
fn names(listed: &str) -> Vec<&str> {
    let ours = listed.lines().filter(|line| line.contains("/crates/"));
    let names = ours.filter_map(|line| line.split(' ').next());
    names.filter(|name| *name != PLUGIN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_told_from_tests_and_tools() {
        let listed = "gob v0.1.0 (/r/crates/gob)\n\nstore v0.1.0 (/r/crates/store)\n\
            rollouts-plugin-trafficrouter-glooplatform v0.1.0 (/r/crates/plugin-bin)\nxtask v0.1.0 (/r/xtask)\n";
        assert_eq!(names(listed), ["gob", "store"]);
    }
}
