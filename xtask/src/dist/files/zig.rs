//! Zig as C compiler for all targets, the same on every machine.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use xshell::{Shell, cmd};

use super::{Platform, release::Release};
use crate::{
    plugin::{LINK_FLAGS, LINKER, target_dir},
    toolchain,
};

/// They decide which bytes come out, so a release names them exactly.
const CARGO_ZIGBUILD: &str = "0.24.0";
const ZIG: &str = "0.17.1";

/// An installed zig.
pub(super) struct Zig<'s> {
    sh: &'s Shell,
    /// With the programs of its virtual environment in front.
    path: OsString,
}

impl<'s> Zig<'s> {
    /// Installs zig from the Python packages that carry it, once.
    ///
    /// # Errors
    /// When there is no Python with `venv`, or the packages cannot be had.
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
    /// When the target or a dependency cannot be had, or cargo fails.
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
            // `.cargo/config.toml` names the machine's C compiler, to this process too.
            .env_remove(format!("CC_{name}"))
            // Zig would link too, but its linker does not pack relocations.
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
