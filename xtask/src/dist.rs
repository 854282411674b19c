//! `cargo xtask dist`: what a release consists of, the same bytes wherever the same commit is built.

mod again;
mod archive;
mod elf;
mod manifests;
mod release;
mod sbom;
mod zig;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use ring::digest::{SHA256, digest};
use xshell::{Shell, cmd};

use crate::{
    plugin::PLUGIN,
    report::{Report, say},
};
use release::Release;
use zig::Zig;

/// Flags of `cargo xtask dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the files go.
    #[arg(long, value_name = "DIR", default_value = "dist")]
    out: PathBuf,
    /// Where the files will be downloaded from, for the manifests. Left out, that is left to whoever applies them.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Builds everything a second time, in a clone elsewhere, and compares the files.
    #[arg(long)]
    again: bool,
}

/// A platform that releases are for, in the words of Go and of containers.
struct Platform {
    name: &'static str,
    target: &'static str,
    machine: elf::Machine,
}

const AMD64: Platform = Platform {
    name: "linux-amd64",
    target: "x86_64-unknown-linux-musl",
    machine: elf::Machine::X86_64,
};
const ARM64: Platform = Platform {
    name: "linux-arm64",
    target: "aarch64-unknown-linux-musl",
    machine: elf::Machine::Aarch64,
};

/// What a binary should stay below, so that an init container or a download is quick.
const GOAL_MIB: f64 = 8.0;

/// Writes the files of a release into a directory; files of other names in there are left alone.
///
/// # Errors
/// When one of them cannot be made as it should be. The others are written all the same.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let out = sh.current_dir().join(&args.out);
    sh.create_dir(&out)?;
    remove_former(sh, &out)?;
    let dist = Dist {
        sh,
        release: Release::of_checkout(sh)?,
        out,
    };
    say(&format!("{PLUGIN} {}", dist.release.version));

    let mut report = Report::default();
    let mut zig = None;
    report.step("zig", || {
        zig = Some(Zig::install(sh)?);
        Ok(())
    });
    for platform in [AMD64, ARM64] {
        report.step(platform.name, || {
            let zig = zig.as_ref().context("its C is compiled with zig")?;
            dist.platform(&platform, &zig.build(&platform, &dist.release)?)
        });
    }
    // Better than nothing for most users, yet the step above has failed.
    if !sh.path_exists(dist.out.join(AMD64.file_name())) {
        report.step("linux-amd64 with glibc instead", || {
            let binary = dist.release.build_with_glibc(sh)?;
            dist.platform(&AMD64, &binary)
        });
    }
    let url = args.url.as_deref();
    report.step("manifests", || dist.manifests(url));
    if args.again {
        report.step("again, elsewhere", || again::compare(sh, &dist.out, url));
    }
    report.finish("dist")
}

/// A file of another commit would pass for one of this.
fn remove_former(sh: &Shell, out: &Path) -> anyhow::Result<()> {
    for path in sh.read_dir(out)? {
        let name = path.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with(PLUGIN) {
            sh.remove_path(path)?;
        }
    }
    Ok(())
}

impl Platform {
    fn file_name(&self) -> String {
        format!("{PLUGIN}-{}", self.name)
    }
}

struct Dist<'s> {
    sh: &'s Shell,
    release: Release,
    out: PathBuf,
}

impl Dist<'_> {
    /// Checks a binary and publishes it with its bill of materials.
    fn platform(&self, platform: &Platform, binary: &Path) -> anyhow::Result<()> {
        let name = platform.file_name();
        let bytes = self.sh.read_binary_file(binary)?;
        elf::check(&bytes, platform.machine)?;
        self.start(platform, binary)?;
        self.publish(&name, &bytes)?;
        let published = self.out.join(&name);
        cmd!(self.sh, "chmod +x {published}").quiet().run()?;
        let size = bytes.len() as f64 / f64::from(1 << 20);
        let verdict = if size < GOAL_MIB { "below" } else { "ABOVE" };
        say(&format!("    {size:.2} MiB, {verdict} {GOAL_MIB} MiB"));

        let bill = sbom::of_binary(self.sh, &self.release, platform, &checksum(&bytes))?;
        self.publish(&format!("{name}.cdx.json"), bill.as_bytes())
    }

    /// Publishes the manifests of these binaries.
    fn manifests(&self, url: Option<&str>) -> anyhow::Result<()> {
        let sha256 = |platform: &Platform| {
            let path = self.out.join(format!("{}.sha256", platform.file_name()));
            self.sh.read_file(path)
        };
        let (amd64, arm64) = (sha256(&AMD64)?, sha256(&ARM64)?);
        // The commit is no part of a tag.
        let version = self.release.version.split(' ').next();
        let mut words = vec![
            ("SHA256_LINUX_AMD64", amd64.trim_end()),
            ("SHA256_LINUX_ARM64", arm64.trim_end()),
            ("VERSION", version.unwrap_or_default()),
        ];
        words.extend(url.map(|url| ("URL", url.trim_end_matches('/'))));
        let files = manifests::files(self.sh, &words)?;
        self.publish(
            &format!("{PLUGIN}-manifests.tar.gz"),
            &archive::tar_gz(&files, self.release.seconds)?,
        )
    }

    /// Starts the binary where there is nothing else, and sees that it knows its version.
    fn start(&self, platform: &Platform, binary: &Path) -> anyhow::Result<()> {
        let sh = self.sh;
        let qemu = "qemu-aarch64-static";
        let printed = if platform.target.starts_with(std::env::consts::ARCH) {
            if cmd!(sh, "id -u").quiet().read()? == "0" {
                let empty = sh.create_temp_dir()?;
                sh.copy_file(binary, empty.path().join("plugin"))?;
                let root = empty.path();
                cmd!(sh, "chroot {root} /plugin --version").quiet().read()?
            } else {
                say("    started, but only root can start it in an empty root directory");
                cmd!(sh, "{binary} --version").quiet().read()?
            }
        } else if platform.machine == elf::Machine::Aarch64
            && cmd!(sh, "{qemu} --version")
                .quiet()
                .ignore_stdout()
                .run()
                .is_ok()
        {
            cmd!(sh, "{qemu} {binary} --version").quiet().read()?
        } else {
            say(&format!("    not started: that needs {qemu}"));
            return Ok(());
        };
        let expected = format!("{PLUGIN} {}", self.release.version);
        ensure!(printed == expected, "it calls itself {printed}");
        Ok(())
    }

    /// Writes a file and its checksum, as the controller's ConfigMap wants it: 64 digits and no name.
    fn publish(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let sha256 = checksum(bytes);
        say(&format!("    {sha256} {:>9} {name}", bytes.len()));
        let path = self.out.join(name);
        self.sh.write_file(&path, bytes)?;
        Ok(self
            .sh
            .write_file(self.out.join(format!("{name}.sha256")), sha256 + "\n")?)
    }
}

fn checksum(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_are_named_as_the_go_world_names_platforms() {
        let names = [AMD64, ARM64].map(|platform| platform.file_name());
        assert_eq!(
            names,
            [
                "rollouts-plugin-trafficrouter-glooplatform-linux-amd64",
                "rollouts-plugin-trafficrouter-glooplatform-linux-arm64",
            ]
        );
    }

    /// The digest of the empty message, from FIPS 180.
    #[test]
    fn a_checksum_is_64_lower_case_digits() {
        assert_eq!(
            checksum(b""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn files_of_another_commit_are_removed_and_other_files_are_not() {
        let sh = Shell::new().unwrap();
        let out = sh.create_temp_dir().unwrap();
        let former = out.path().join(AMD64.file_name());
        let other = out.path().join("notes.md");
        for path in [&former, &other] {
            sh.write_file(path, "").unwrap();
        }
        remove_former(&sh, out.path()).unwrap();
        assert!(!sh.path_exists(former));
        assert!(sh.path_exists(other));
    }
}
