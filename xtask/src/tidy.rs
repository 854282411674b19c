//! `cargo xtask tidy`: every sentence of the documents that a machine can check, checked.
//!
//! Each check is a plain function from text to violations, so each has a test that plants one.

mod alone;
mod arrows;
mod code_map;
mod links;
mod manifests;
mod messages;
mod sources;
mod test_tables;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use xshell::{Shell, cmd};

use crate::{
    report::{Report, say},
    toolchain,
};

/// The components of the toolchain that the checks run.
pub(crate) const LINTERS: &[&str] = &["rustfmt", "clippy"];

/// Runs all checks and fails when one found something.
///
/// # Errors
/// When a check fails or a tool it needs cannot run.
pub(crate) fn run(sh: &Shell) -> anyhow::Result<()> {
    toolchain::pin(sh, LINTERS)?;
    let mut report = Report::default();
    steps(sh, &mut report);
    report.finish("tidy")
}

/// Adds the checks to `report`, one step each.
pub(crate) fn steps(sh: &Shell, report: &mut Report) {
    report.step("tidy: formatting", || {
        cmd!(sh, "cargo fmt --all --check").quiet().run()?;
        let fuzz = cmd!(sh, "cargo fmt --manifest-path fuzz/Cargo.toml --check");
        Ok(fuzz.quiet().run()?)
    });
    report.step("tidy: crate edges", || refuse(arrows::check(sh)?));
    report.step("tidy: sources", || {
        refuse(sources::check(&files(sh, ".rs")?))
    });
    report.step("tidy: manifests", || {
        refuse(manifests::check(&files(sh, "Cargo.toml")?))
    });
    report.step("tidy: code map", || refuse(code_map::check(sh)?));
    documents(sh, report);
    report.step("tidy: each crate builds alone", || {
        refuse(alone::check(sh)?)
    });
    report.step("tidy: clippy", || {
        let clippy = cmd!(
            sh,
            "cargo clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings"
        );
        Ok(clippy.quiet().run()?)
    });
    report.step("tidy: docs build without warnings", || {
        let doc = cmd!(
            sh,
            "cargo doc --quiet --locked --workspace --all-features --no-deps"
        );
        Ok(doc.env("RUSTDOCFLAGS", "-D warnings").quiet().run()?)
    });
}

/// Adds the checks of what the documents link to, quote and name.
pub(crate) fn documents(sh: &Shell, report: &mut Report) {
    report.step("tidy: links", || refuse(links::check(sh)?));
    report.step("tidy: messages that the docs quote", || {
        refuse(messages::check(sh)?)
    });
    report.step("tidy: tests that the docs name", || {
        refuse(test_tables::check(sh)?)
    });
}

/// A tracked file: its path from the repository root and its text.
struct SourceFile {
    path: PathBuf,
    text: String,
}

/// What a check found, and where.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    place: String,
    what: String,
}

impl Violation {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            what: what.into(),
        }
    }
}

fn refuse(violations: Vec<Violation>) -> anyhow::Result<()> {
    for violation in &violations {
        say(&format!("    {}: {}", violation.place, violation.what));
    }
    match violations.len() {
        0 => Ok(()),
        n => bail!("{n} found"),
    }
}

/// The files git knows or would add, whose path ends with `suffix`.
fn files(sh: &Shell, suffix: &str) -> anyhow::Result<Vec<SourceFile>> {
    let listed = cmd!(sh, "git ls-files --cached --others --exclude-standard")
        .quiet()
        .read()?;
    let paths = listed
        .lines()
        .filter(|path| path.ends_with(suffix) && sh.path_exists(path));
    let found: Vec<SourceFile> = paths
        .map(|path| {
            let text = sh
                .read_file(path)
                .with_context(|| format!("cannot read {path}"))?;
            Ok(SourceFile {
                path: Path::new(path).to_owned(),
                text,
            })
        })
        .collect::<anyhow::Result<_>>()?;
    if found.is_empty() {
        bail!("no file ends with {suffix}: is this a git checkout?");
    }
    Ok(found)
}
