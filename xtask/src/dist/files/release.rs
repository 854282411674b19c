//! Builds the programs of a release so that their bytes depend only on the commit: its version, and zig as the C compiler.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xshell::{Cmd, Shell, cmd};

use super::Platform;
use crate::{
    plugin::{LINK_FLAGS, LINKER, PLUGIN},
    toolchain,
    workspace::target_dir,
};

/// The commit of a release.
pub(super) struct Release {
    /// The output of `--version`: the version of the manifest, and the commit in parentheses.
    pub(super) version: String,
    /// The time of the commit, in seconds since 1970. Archives use it instead of the time of the build.
    pub(super) seconds: u64,
}

impl Release {
    /// The release of the checked-out commit; without git, the version has no commit and the time is 0.
    ///
    /// # Errors
    /// Returns `Err` if the package has no version.
    pub(super) fn of_checkout(sh: &Shell) -> anyhow::Result<Self> {
        let id = cmd!(sh, "cargo pkgid --quiet --package {PLUGIN}")
            .quiet()
            .read()?;
        let (_, version) = id.rsplit_once(['@', '#']).context("no version")?;
        let git = |command: Cmd<'_>| command.quiet().ignore_stderr().read().ok();
        // Without tags: `vX.Y.Z` is less exact than the commit.
        let commit = git(cmd!(
            sh,
            "git describe --always --dirty --abbrev=12 --exclude *"
        ));
        let seconds = git(cmd!(sh, "git log -1 --format=%ct"));
        Ok(Self {
            version: describe(version, commit.as_deref()),
            seconds: seconds.map_or(Ok(0), |seconds| seconds.parse())?,
        })
    }

    /// The command that builds a program so that it depends on the commit and not on the machine, and the path of the binary.
    /// `flags` are for all crates.
    ///
    /// # Errors
    /// Returns `Err` if the dependencies cannot be downloaded.
    pub(super) fn build<'s>(
        &self,
        sh: &'s Shell,
        cargo: &str,
        program: &str,
        target: &str,
        flags: &[&str],
        link_flags: &[&str],
    ) -> anyhow::Result<(Cmd<'s>, PathBuf)> {
        cmd!(sh, "cargo fetch --quiet --locked").quiet().run()?;
        let target_dir = target_dir(sh).join("dist");
        let mut rust_flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        for (from, to) in path_prefixes(sh, &target_dir)? {
            rust_flags.push(format!("--remap-path-prefix={}={to}", from.display()));
        }
        let command = cmd!(
            sh,
            "{cargo} rustc --quiet --locked --release --package {program} --bin {program} --target {target} --target-dir {target_dir} -- {link_flags...}"
        );
        let command = command
            .env("RELEASE_VERSION", &self.version)
            // C code can contain the day of its build, also of an earlier one that cargo has kept.
            .env("SOURCE_DATE_EPOCH", "0")
            .env("CARGO_ENCODED_RUSTFLAGS", rust_flags.join("\x1f"));
        Ok((
            command,
            target_dir.join(target).join("release").join(program),
        ))
    }

    /// Builds a program with glibc, for machines without zig. The binary is for amd64, larger, and cannot use the plugins of glibc
    /// that look up users and hosts.
    ///
    /// # Errors
    /// Returns `Err` if cargo fails.
    pub(super) fn build_with_glibc(&self, sh: &Shell, program: &str) -> anyhow::Result<PathBuf> {
        let flags = ["-Ctarget-feature=+crt-static"];
        let target = "x86_64-unknown-linux-gnu";
        let (command, binary) = self.build(sh, "cargo", program, target, &flags, &[])?;
        command.run()?;
        Ok(binary)
    }
}

fn describe(version: &str, commit: Option<&str>) -> String {
    match commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    }
}

/// Directories whose names panic messages of dependencies would contain, each with its replacement.
fn path_prefixes(sh: &Shell, target_dir: &Path) -> anyhow::Result<Vec<(PathBuf, &'static str)>> {
    let cargo_home = match sh.var_os("CARGO_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => std::env::home_dir()
            .context("no home directory")?
            .join(".cargo"),
    };
    let mut places = vec![
        (sh.current_dir(), "/plugin"),
        (target_dir.to_owned(), "/target"),
    ];
    // One directory for each registry or mirror.
    for registry in sh.read_dir(cargo_home.join("registry/src"))? {
        places.push((registry, "/registry"));
    }
    Ok(places)
}

/// Exact versions, because they determine the bytes of the binaries.
const CARGO_ZIGBUILD: &str = "0.24.0";
const ZIG: &str = "0.17.1";

/// Zig, the C compiler for all targets.
pub(super) struct Zig<'s> {
    sh: &'s Shell,
    /// `PATH`, with the programs of its virtual environment first.
    path: OsString,
}

impl<'s> Zig<'s> {
    /// Installs zig from its Python package, unless it is installed already.
    ///
    /// # Errors
    /// Returns `Err` if there is no Python with `venv`, or if a package cannot be installed.
    pub(super) fn install(sh: &'s Shell) -> anyhow::Result<Self> {
        let root = target_dir(sh).join(format!("tools/zig-{ZIG}-{CARGO_ZIGBUILD}"));
        let bin = root.join("bin");
        let pip = bin.join("pip");
        if !sh.path_exists(bin.join("cargo-zigbuild")) {
            cmd!(sh, "python3 -m venv --clear {root}").run()?;
            cmd!(
                sh,
                "{pip} install --quiet --disable-pip-version-check cargo-zigbuild=={CARGO_ZIGBUILD} ziglang=={ZIG}"
            )
            .run()?;
        }
        Ok(Self {
            sh,
            path: in_front(&bin, &sh.var_os("PATH").context("there is no PATH")?)?,
        })
    }

    /// Builds a program, and returns the path of the binary.
    ///
    /// # Errors
    /// Returns `Err` if the target or a dependency cannot be installed, or if cargo fails.
    pub(super) fn build(
        &self,
        program: &str,
        platform: &Platform,
        release: &Release,
    ) -> anyhow::Result<PathBuf> {
        let target = platform.target;
        toolchain::add_target(self.sh, target)?;
        let (command, binary) =
            release.build(self.sh, "cargo-zigbuild", program, target, &[], &LINK_FLAGS)?;
        let name = target.replace('-', "_");
        command
            // `.cargo/config.toml` has set the C compiler of the machine, for this process too.
            .env_remove(format!("CC_{name}"))
            // Not zig's linker, which does not pack relocations.
            .env(format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), LINKER)
            .env("PATH", &self.path)
            .run()?;
        Ok(binary)
    }
}

fn in_front(dir: &Path, path: &OsString) -> anyhow::Result<OsString> {
    let dirs = std::iter::once(dir.to_owned()).chain(std::env::split_paths(path));
    Ok(std::env::join_paths(dirs)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_the_commit_if_there_is_one() {
        assert_eq!(
            describe("0.1.0", Some("93a34cd0ffee")),
            "0.1.0 (93a34cd0ffee)"
        );
        assert_eq!(describe("0.1.0", None), "0.1.0");
    }
}
