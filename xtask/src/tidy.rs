//! `cargo xtask tidy`: checks what the documents promise, as far as a machine can.
//!
//! Lints and cargo-deny come first: a check stands here only if no tool has it. Each check is a plain function from text to
//! violations, one line of text each, and has a test that plants violations.

mod circles;
mod links;
mod listings;
mod map;
mod messages;
mod sources;
mod test_tables;

use anyhow::{bail, ensure};
use xshell::{Shell, cmd};

pub(crate) use self::{listings::copy, map::draw};
use crate::{
    go::GENERATOR,
    report::{Report, say},
    toolchain,
    workspace::{Package, Workspace},
};

/// Components of the toolchain that the checks need.
pub(crate) const LINTERS: &[&str] = &["rustfmt", "clippy"];

/// Flags of clippy for pure crates. `forbid` makes an `allow` in the source an error.
const PURE: [&str; 3] = [
    "--deny=warnings",
    "--forbid=clippy::disallowed_methods",
    "--forbid=clippy::disallowed_types",
];

/// The target of pure crates.
pub(crate) const PURE_TARGET: &str = "wasm32-unknown-unknown";

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
    report.step("tidy: pure crates", || pure(sh, &map::pure(sh)?));
    report.step("tidy: each crate builds alone", || refuse(alone(sh)?));
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
    report.step("tidy: sources and manifests", || {
        refuse(sources::check(&files(sh, &[".rs", "Cargo.toml"])?))
    });
    report.step("tidy: circles between modules", || {
        refuse(circles::check(&files(sh, &[".rs"])?))
    });
    report.step("tidy: picture and code map", || refuse(map::check(sh)?));
    documents(sh, report);
}

/// Adds the checks of links, quoted messages and named tests.
pub(crate) fn documents(sh: &Shell, report: &mut Report) {
    report.step("tidy: links", || refuse(links::check(sh)?));
    report.step("tidy: programs in the docs", || {
        refuse(listings::check(sh)?)
    });
    report.step("tidy: messages that the docs quote", || {
        refuse(messages::check(sh)?)
    });
    report.step("tidy: tests that the docs name", || {
        refuse(test_tables::check(sh)?)
    });
}

/// Runs clippy on everything; a warning is an error.
///
/// # Errors
/// Returns `Err` if clippy reports a problem.
pub(crate) fn clippy(sh: &Shell) -> anyhow::Result<()> {
    // `--all-targets` leaves out the files of `tests/tests`, because `test = false` keeps them out of `cargo test`.
    for targets in ["--all-targets", "--test=*"] {
        let clippy = cmd!(
            sh,
            "cargo clippy --quiet --locked --workspace {targets} --all-features -- -D warnings"
        );
        clippy.quiet().run()?;
    }
    Ok(())
}

/// Checks the libraries of the pure packages with lints that `[workspace.lints.clippy]` allows for all others.
///
/// The target has no operating system, so a build shows that no dependency needs sockets, threads or C. Files and clocks of `std`
/// build for it too and fail only when they are called; clippy finds these calls.
fn pure(sh: &Shell, packages: &[String]) -> anyhow::Result<()> {
    let target = PURE_TARGET;
    toolchain::add_target(sh, target)?;
    let packages = packages.iter().flat_map(|name| ["--package", name]);
    let clippy = cmd!(sh, "cargo clippy --quiet --locked --lib --target {target}");
    Ok(clippy.args(packages).arg("--").args(PURE).quiet().run()?)
}

/// Builds each crate that others build by itself: without features and without its dev-dependencies.
///
/// In a build of the whole workspace, a feature that one crate forgot to enable is on because another crate enables it. The
/// plugin is left out: its release build is such a build already. So are the crates that are not published, except the
/// generator: they are built as its dependencies, or for tests only.
fn alone(sh: &Shell) -> anyhow::Result<Vec<String>> {
    let packages = Workspace::read(sh)?.packages.into_iter();
    let is_built_alone = |it: &Package| it.is_published || it.name == GENERATOR;
    let crates = packages.filter(|it| it.folder.starts_with("crates/") && is_built_alone(it));
    let fails = |name: &str| {
        let check = cmd!(
            sh,
            "cargo check --locked --quiet --no-default-features --package {name}"
        );
        check.quiet().run().is_err()
    };
    let failed = crates.filter(|package| fails(&package.name));
    let failed = failed.map(|package| format!("{} does not build alone", package.name));
    Ok(failed.collect())
}

/// Prints the violations, and fails if there are any.
fn refuse(violations: Vec<String>) -> anyhow::Result<()> {
    for violation in &violations {
        say(&format!("    {violation}"));
    }
    match violations.len() {
        0 => Ok(()),
        n => bail!("{n} found"),
    }
}

/// A file of the repository.
struct SourceFile {
    /// From the repository's root.
    path: String,
    text: String,
}

/// The paths of all files, without those that git ignores.
fn tracked(sh: &Shell) -> anyhow::Result<Vec<String>> {
    let listed = cmd!(sh, "git ls-files --cached --others --exclude-standard");
    let listed = listed.quiet().read()?;
    let paths = listed.lines().filter(|path| sh.path_exists(path));
    Ok(paths.map(str::to_owned).collect())
}

/// The files whose path ends with one of these texts.
fn files(sh: &Shell, suffixes: &[&str]) -> anyhow::Result<Vec<SourceFile>> {
    let mut paths = tracked(sh)?;
    paths.retain(|path| suffixes.iter().any(|suffix| path.ends_with(suffix)));
    ensure!(
        !paths.is_empty(),
        "no file ends with {suffixes:?}: is this a git checkout?"
    );
    let read = |path: String| {
        let text = sh.read_file(&path)?;
        Ok(SourceFile { path, text })
    };
    paths.into_iter().map(read).collect()
}

/// The texts in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn file(path: &str, text: &str) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Checks what clippy says about a pure library. Clippy itself warns of unknown names in `clippy.toml`.
    #[track_caller]
    fn check_pure(text: &str, expect: &[&str]) {
        let sh = Shell::new().unwrap();
        let directory = sh.create_temp_dir().unwrap();
        sh.change_dir(directory.path());
        let manifest = "[package]\nname = \"planted\"\nedition = \"2024\"\n[workspace]\n";
        sh.write_file("Cargo.toml", manifest).unwrap();
        sh.write_file("src/lib.rs", text).unwrap();
        let clippy = cmd!(sh, "cargo clippy --quiet --offline -- {PURE...}");
        let clippy = clippy.env(
            "CLIPPY_CONF_DIR",
            concat!(env!("CARGO_MANIFEST_DIR"), "/.."),
        );
        let clippy = clippy.env_remove("CARGO_TARGET_DIR");
        let said = clippy.quiet().ignore_status().output().unwrap().stderr;
        let said = String::from_utf8(said).unwrap();
        assert_eq!(said.is_empty(), expect.is_empty(), "{said}");
        assert!(expect.iter().all(|it| said.contains(it)), "{said}");
    }

    #[test]
    fn planted_calls_in_a_pure_crate() {
        check_pure("//! x\npub fn one() -> u8 { 1 }\n", &[]);
        check_pure(
            "//! x\npub fn f() {\n    drop(std::env::var(\"HOME\"));\n    let _: Option<std::time::SystemTime> = None;\n}\n",
            &["method `std::env::var`", "type `std::time::SystemTime`"],
        );
        let allow = "#![allow(clippy::disallowed_methods)]";
        check_pure(
            &format!("//! x\n{allow}\npub fn f() {{ drop(std::env::var(\"HOME\")) }}\n"),
            &["E0453"],
        );
    }
}
