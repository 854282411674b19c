//! `cargo xtask tidy`: checks every sentence of the documents that a machine can check.
//!
//! Each check is a plain function from text to violations, and has a test that plants a violation.

mod circles;
mod links;
mod manifests;
mod map;
mod messages;
mod pure;
mod sources;
mod test_tables;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use xshell::{Shell, cmd};

pub(crate) use self::map::draw;
use crate::{
    plugin::PLUGIN,
    report::{Report, say},
    toolchain,
    workspace::Workspace,
};

/// Components of the toolchain that the checks need.
pub(crate) const LINTERS: &[&str] = &["rustfmt", "clippy"];

/// Runs all checks.
///
/// # Errors
/// Returns `Err` if a check fails or a tool it needs cannot run.
pub(crate) fn run(sh: &Shell) -> anyhow::Result<()> {
    toolchain::pin(sh, LINTERS)?;
    let mut report = Report::default();
    steps(sh, &mut report);
    report.finish("tidy")
}

/// Adds all checks to `report`, one step each.
pub(crate) fn steps(sh: &Shell, report: &mut Report) {
    texts(sh, report);
    report.step("tidy: pure crates", || {
        let workspace = Workspace::read(sh)?;
        pure::check(sh, &map::pure(sh, &workspace)?)
    });
    report.step("tidy: each crate builds alone", || alone(sh));
    report.step("tidy: clippy", || clippy(sh));
    report.step("tidy: docs build without warnings", || {
        let doc = cmd!(
            sh,
            "cargo doc --quiet --locked --workspace --all-features --no-deps"
        );
        Ok(doc.env("RUSTDOCFLAGS", "-D warnings").quiet().run()?)
    });
}

/// Adds the checks that compile nothing.
pub(crate) fn texts(sh: &Shell, report: &mut Report) {
    report.step("tidy: formatting", || {
        cmd!(sh, "cargo fmt --all --check").quiet().run()?;
        let fuzz = cmd!(sh, "cargo fmt --manifest-path fuzz/Cargo.toml --check");
        Ok(fuzz.quiet().run()?)
    });
    report.step("tidy: sources", || {
        refuse(sources::check(&files(sh, ".rs")?))
    });
    report.step("tidy: circles between modules", || {
        refuse(circles::check(&files(sh, ".rs")?))
    });
    report.step("tidy: manifests", || {
        refuse(manifests::check(&files(sh, "Cargo.toml")?))
    });
    report.step("tidy: picture and code map", || {
        refuse(map::check(sh, &Workspace::read(sh)?)?)
    });
    documents(sh, report);
}

/// Runs clippy on everything; a warning is an error.
///
/// # Errors
/// Returns `Err` if clippy has a complaint.
pub(crate) fn clippy(sh: &Shell) -> anyhow::Result<()> {
    let clippy = cmd!(
        sh,
        "cargo clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings"
    );
    Ok(clippy.quiet().run()?)
}

/// Each crate builds by itself, with its default features and without what only tests depend on.
///
/// In a build of the whole workspace a feature that one crate forgot to ask for is on because another crate asks for it. The
/// plugin is left out: the binary that ships is built in no other way.
fn alone(sh: &Shell) -> anyhow::Result<()> {
    let packages = Workspace::read(sh)?.packages.into_iter();
    let crates = packages.filter(|it| it.folder.starts_with("crates/") && it.name != PLUGIN);
    let check = |name: &str| {
        cmd!(sh, "cargo check --locked --quiet --package {name}")
            .quiet()
            .run()
    };
    let failed = crates.filter(|package| check(&package.name).is_err());
    let what = "does not build with its default features";
    refuse(
        failed
            .map(|package| Violation::new(package.name, what))
            .collect(),
    )
}

/// Adds the checks of links, quoted messages and named tests.
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

/// A finding of a check, with its place.
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

/// Files whose path ends with `suffix`, without those that git ignores.
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
