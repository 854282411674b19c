//! What a command needs on the machine: the exact Rust toolchain, its targets, and tools that are written in Rust.
//!
//! The workspace builds with every stable Rust from `rust-version` on. Formatting, lints and the bytes of a release depend on
//! the exact version, so the commands that check or build these use [`PINNED`]. rustup installs what is missing, even if
//! `RUSTUP_AUTO_INSTALL=0` is set.

use std::env;
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, ensure};
use xshell::{Shell, cmd};

use crate::{report::say, wheels, workspace::target_dir};

/// The exact version: the oldest that the workspace supports, so that a test run proves this too.
const PINNED: &str = env!("CARGO_PKG_RUST_VERSION");

/// Installs the pinned toolchain with these `components`, and uses it for each later cargo of this shell.
///
/// # Errors
/// Returns `Err` if something is missing and rustup cannot install it.
pub(crate) fn pin(sh: &Shell, components: &[&'static str]) -> anyhow::Result<()> {
    // rustup's automatic installation prints nothing while it downloads, and installs more than the minimal profile.
    sh.set_var("RUSTUP_AUTO_INSTALL", "0");
    // The version may be installed under another name, such as `stable`.
    if !Part::Compiler.is_there(sh) {
        sh.set_var("RUSTUP_TOOLCHAIN", PINNED);
    }
    Part::Compiler.provide(sh)?;
    let mut components = components.iter().copied().map(Part::Component);
    components.try_for_each(|component| component.provide(sh))
}

/// Installs `target` for the current toolchain if it is missing.
///
/// # Errors
/// As [`pin`].
pub(crate) fn add_target(sh: &Shell, target: &str) -> anyhow::Result<()> {
    Part::Target(target).provide(sh)
}

/// A part of the toolchain that rustup can install.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// rustc and cargo, of the pinned version.
    Compiler,
    Component(&'a str),
    Target(&'a str),
}

impl Part<'_> {
    fn provide(self, sh: &Shell) -> anyhow::Result<()> {
        if self.is_there(sh) {
            return Ok(());
        }
        let arguments: &[&str] = match &self {
            Self::Compiler => &["toolchain", "install", "--profile=minimal", PINNED],
            Self::Component(name) => &["component", "add", name],
            Self::Target(name) => &["target", "add", name],
        };
        cmd!(sh, "rustup {arguments...}").run().with_context(|| {
            format!("{self} is missing; rustup (https://rustup.rs) installs it")
        })?;
        ensure!(
            self.is_there(sh),
            "{self} is installed but not in use: put rustup's directory, ~/.cargo/bin, first in PATH"
        );
        Ok(())
    }

    /// Runs the programs themselves, because Rust may be installed without rustup.
    fn is_there(self, sh: &Shell) -> bool {
        let prints = |command: xshell::Cmd<'_>| command.quiet().ignore_stderr().read().ok();
        match self {
            Self::Compiler => prints(cmd!(sh, "rustc --version"))
                .is_some_and(|version| version.split(' ').nth(1) == Some(PINNED)),
            Self::Component(name) => {
                let subcommand = if name == "rustfmt" { "fmt" } else { name };
                prints(cmd!(sh, "cargo {subcommand} --version")).is_some()
            }
            Self::Target(name) => prints(cmd!(sh, "rustc --print target-libdir --target {name}"))
                .is_some_and(|directory| sh.path_exists(directory)),
        }
    }
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compiler => write!(f, "Rust {PINNED}"),
            Self::Component(name) => write!(f, "the component {name} of the Rust toolchain"),
            Self::Target(name) => write!(f, "the target {name} of the Rust toolchain"),
        }
    }
}

/// Returns the path of the tool `name` in `target/tools`. If it is missing, pip installs it from a wheel. Without pip or a wheel
/// for this machine, `cargo install` builds it with `flags`, which takes one to three minutes.
///
/// The build is not optimised, because the tools run for seconds. They do not influence what is shipped.
///
/// # Errors
/// Returns `Err` if the tool can be neither installed nor built.
pub(crate) fn tool(
    sh: &Shell,
    name: &str,
    version: &str,
    flags: &[&str],
) -> anyhow::Result<PathBuf> {
    let root = target_dir(sh).join(format!("tools/{name}-{version}"));
    let program = root.join("bin").join(name);
    if !sh.path_exists(&program) && wheels::has_pip(sh) {
        match wheels::install(sh, name, version, &format!("bin/{name}")) {
            Ok(program) if sh.path_exists(&program) => return Ok(program),
            Ok(_) => say(&format!(
                "    the wheel of {name} has no program; cargo builds it"
            )),
            Err(error) => say(&format!("    {error}; cargo builds {name}")),
        }
    }
    if !sh.path_exists(&program) {
        cmd!(
            sh,
            "cargo install {name} --quiet --locked --debug --version ={version} --root {root} {flags...}"
        )
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .run()?;
    }
    Ok(program)
}

/// Variables of the package xtask.
const PREFIXES: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// The cargo that runs this program. It may belong to another toolchain than the pinned one.
const CARGO: &str = "CARGO";

/// Starts this program again without the variables that `cargo run` sets for the package xtask. Returns if none of them is set.
///
/// The build script of ring reads these variables. With them, cargo would rebuild ring and its dependents after each change
/// between a cargo that runs from here and one that runs by hand.
///
/// # Errors
/// Returns `Err` if the program cannot be started.
pub(crate) fn without_own_variables() -> anyhow::Result<()> {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let own =
        |name: &String| name == CARGO || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let mut own = names.filter(own).peekable();
    if own.peek().is_none() {
        return Ok(());
    }
    let mut command = Command::new(env::current_exe()?);
    for name in own {
        command.env_remove(name);
    }
    Err(command.args(env::args_os().skip(1)).exec().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUSL: &str = "x86_64-unknown-linux-musl";

    /// Fakes of rustup and its proxies. `$ROOT` has a file for each installed part; the file of a toolchain contains its version.
    const RUSTC: &str = r#"toolchain="$ROOT/$RUSTUP_TOOLCHAIN"
[ -e "$toolchain" ] || exit 1
case $1 in
  --version) echo "rustc $(cat "$toolchain") (0123456789 2026-01-01)" ;;
  --print) echo "$ROOT/$4" ;;
esac"#;
    const CARGO: &str = r#"[ -e "$ROOT/$1" ] && echo 1.0.0"#;
    const RUSTUP: &str = r#"echo "$*" >> "$ROOT/log"
case $* in
  toolchain*) echo "$4" > "$ROOT/$4" ;;
  *rustfmt) touch "$ROOT/fmt" ;;
  *) touch "$ROOT/$3" ;;
esac"#;

    /// `expect` has the commands of rustup, or the error.
    #[track_caller]
    fn check(toolchains: &[(&str, &str)], parts: &[&str], rustup: &str, expect: &[&str]) {
        let sh = Shell::new().unwrap();
        let root = sh.create_temp_dir().unwrap();
        let root = root.path();
        let programs = [("rustc", RUSTC), ("cargo", CARGO), ("rustup", rustup)];
        for (name, script) in programs.iter().filter(|(_, script)| !script.is_empty()) {
            let program = root.join("bin").join(name);
            sh.write_file(&program, format!("#!/bin/sh\n{script}\n"))
                .unwrap();
            cmd!(sh, "chmod +x {program}").quiet().run().unwrap();
        }
        for (name, version) in toolchains {
            sh.write_file(root.join(name), version).unwrap();
        }
        for part in parts {
            sh.write_file(root.join(part), "").unwrap();
        }
        sh.set_var("ROOT", root);
        sh.set_var("RUSTUP_TOOLCHAIN", "stable");
        sh.set_var(
            "PATH",
            format!("{}:/usr/bin:/bin", root.join("bin").display()),
        );

        let result = pin(&sh, &["rustfmt", "clippy"]).and_then(|()| add_target(&sh, MUSL));
        let found = match result {
            Ok(()) => sh.read_file(root.join("log")).unwrap_or_default(),
            Err(error) => format!("{error:#}"),
        };
        assert_eq!(found.lines().collect::<Vec<_>>(), expect);
    }

    /// A single test: a process that another test starts at the same time could keep a new program open, and exec would then fail.
    #[test]
    fn missing_parts_are_installed_or_an_error_names_them() {
        let all: &[&str] = &["fmt", "clippy", MUSL];
        let toolchain = format!("toolchain install --profile=minimal {PINNED}");
        let target = format!("target add {MUSL}");
        check(&[("stable", PINNED)], all, RUSTUP, &[]);
        check(
            &[("stable", PINNED)],
            &["fmt", "clippy"],
            RUSTUP,
            &[&target],
        );
        check(&[("stable", "1.999.0"), (PINNED, PINNED)], all, RUSTUP, &[]);
        check(&[("stable", "1.999.0")], all, RUSTUP, &[&toolchain]);
        check(
            &[],
            &[],
            RUSTUP,
            &[
                &toolchain,
                "component add rustfmt",
                "component add clippy",
                &target,
            ],
        );

        let stable = [("stable", PINNED)];
        check(
            &stable,
            &["fmt", "clippy"],
            "",
            &[
                "the target x86_64-unknown-linux-musl of the Rust toolchain is missing; rustup (https://rustup.rs) installs it: command not found: `rustup`",
            ],
        );
        check(
            &stable,
            &["fmt"],
            "exit 1",
            &[
                "the component clippy of the Rust toolchain is missing; rustup (https://rustup.rs) installs it: command exited with non-zero code `rustup component add clippy`: 1",
            ],
        );
        let other = format!(
            "Rust {PINNED} is installed but not in use: put rustup's directory, ~/.cargo/bin, first in PATH"
        );
        check(&[], &[], "exit 0", &[&other]);
    }
}
