//! `cargo xtask check`: checks and tests a change before its commit.

use std::path::PathBuf;

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::{
    report::{Report, say},
    tidy, toolchain,
    workspace::Workspace,
};

/// Flags of `cargo xtask check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The revision that your change started from. The command tests the crates that differ from it.
    #[arg(long, value_name = "REV", default_value = "origin/main")]
    base: String,
    /// Check formatting, sources and documents only, which compiles nothing.
    #[arg(long)]
    texts: bool,
}

/// Checks formatting, sources and documents, runs clippy, and tests the crates that changed.
///
/// # Errors
/// Returns `Err` if the pinned toolchain cannot be installed, the base is unknown to git, or a check fails.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    toolchain::pin(sh, tidy::LINTERS)?;
    let mut report = Report::default();
    tidy::texts(sh, &mut report);
    if args.texts {
        return report.finish("check");
    }
    let workspace = Workspace::read(sh)?;
    let changed = changed_crates(&workspace, &changed_files(sh, &args.base)?);
    report.step("check: clippy", || tidy::clippy(sh));
    if changed.is_empty() {
        say("no crate changed: no test to run");
    }
    for name in &changed {
        // One by one, so that dependencies have the same features as in `cargo test --all-features -p NAME`.
        let tests = cmd!(
            sh,
            "cargo test --locked --quiet --all-features --package {name}"
        );
        report.step(&format!("check: tests of {name}"), || Ok(tests.run()?));
    }
    report.finish("check")
}

/// Files that differ from the merge base with `base`, and untracked files.
fn changed_files(sh: &Shell, base: &str) -> anyhow::Result<Vec<PathBuf>> {
    let start = cmd!(sh, "git merge-base {base} HEAD")
        .quiet()
        .ignore_stderr();
    let start = start
        .read()
        .with_context(|| format!("git does not know {base}: name another revision with --base"))?;
    let differ = cmd!(sh, "git diff --name-only {start}").quiet().read()?;
    let new = cmd!(sh, "git ls-files --others --exclude-standard");
    let new = new.quiet().read()?;
    Ok(differ
        .lines()
        .chain(new.lines())
        .map(PathBuf::from)
        .collect())
}

/// The packages of the files, except those whose tests need more than cargo.
fn changed_crates(workspace: &Workspace, files: &[PathBuf]) -> Vec<String> {
    let mut names: Vec<String> = files
        .iter()
        .filter_map(|file| workspace.owner(file))
        .filter(|package| !package.needs_more_than_cargo())
        .map(|package| package.name.clone())
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::tests::workspace;

    #[track_caller]
    fn check(files: &[&str], expect: &[&str]) {
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        assert_eq!(changed_crates(&workspace(), &files), expect);
    }

    #[test]
    fn each_changed_crate_is_tested_once() {
        check(
            &[
                "crates/b/src/lib.rs",
                "crates/a/Cargo.toml",
                "crates/b/README.md",
            ],
            &["a", "b"],
        );
        check(&["docs/README.md", "Cargo.lock"], &[]);
    }
}
