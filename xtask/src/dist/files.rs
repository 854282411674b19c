//! The files of a release. All builds of a commit have the same bytes.

mod again;
mod binary;
mod crates;
mod manifests;
mod release;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use ring::digest::{SHA256, digest};
use xshell::{Shell, cmd};

use super::Args;
use crate::{
    go::GENERATOR,
    plugin::PLUGIN,
    report::{Report, say},
    toolchain,
};
use release::{Release, Zig};

/// A platform of releases, with its name in Go and in container images.
struct Platform {
    name: &'static str,
    target: &'static str,
    machine: binary::Machine,
}

const AMD64: Platform = Platform {
    name: "linux-amd64",
    target: "x86_64-unknown-linux-musl",
    machine: binary::Machine::X86_64,
};
const ARM64: Platform = Platform {
    name: "linux-arm64",
    target: "aarch64-unknown-linux-musl",
    machine: binary::Machine::Aarch64,
};

/// The package and the program of the conformance kit.
const KIT: &str = "rollouts-plugin-check";

/// The largest size of the plugin, so that an init container or a download is quick.
const GOAL_MIB: f64 = 10.0;

/// Writes all files.
///
/// # Errors
/// As [`super::run`].
pub(super) fn write(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    toolchain::pin(sh, &[])?;
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
    for program in [PLUGIN, GENERATOR, KIT] {
        for platform in [AMD64, ARM64] {
            report.step(&platform.file_name(program), || {
                let zig = zig
                    .as_ref()
                    .context("zig, which compiles the C code, is not installed")?;
                let binary = zig.build(program, &platform, &dist.release)?;
                dist.binary(program, &platform, &binary)
            });
        }
        // Most users can use this binary; the failed step above still fails the command.
        if !sh.path_exists(dist.out.join(AMD64.file_name(program))) {
            report.step("linux-amd64 with glibc instead", || {
                let binary = dist.release.build_with_glibc(sh, program)?;
                dist.binary(program, &AMD64, &binary)
            });
        }
    }
    let url = args.url.as_deref();
    report.step("manifests of the plugin", || dist.manifests(url));
    report.step("manifests of the generator", || dist.appset_manifests());
    report.step("crates, built as they are packed", || dist.crates());
    report.step("crates, with the API that their version promises", || {
        crates::check_versions(sh)
    });
    if args.again {
        report.step("again, elsewhere", || again::compare(sh, &dist.out, url));
    }
    report.finish("dist")
}

/// Removes the files of an earlier release, which could be mistaken for files of this commit.
fn remove_former(sh: &Shell, out: &Path) -> anyhow::Result<()> {
    for path in sh.read_dir(out)? {
        let name = path.file_name().unwrap_or_default();
        if is_of_release(&name.to_string_lossy()) {
            sh.remove_path(path)?;
        }
    }
    Ok(())
}

fn is_of_release(file_name: &str) -> bool {
    let mut names = [PLUGIN, GENERATOR].into_iter().chain(crates::NAMES);
    names.any(|name| file_name.starts_with(name))
}

impl Platform {
    fn file_name(&self, program: &str) -> String {
        format!("{program}-{}", self.name)
    }
}

struct Dist<'s> {
    sh: &'s Shell,
    release: Release,
    out: PathBuf,
}

impl Dist<'_> {
    /// Checks a binary and writes it with its bill of materials.
    fn binary(&self, program: &str, platform: &Platform, binary: &Path) -> anyhow::Result<()> {
        let name = platform.file_name(program);
        let bytes = self.sh.read_binary_file(binary)?;
        binary::check(&bytes, platform.machine)?;
        self.start(program, platform, binary)?;
        self.publish(&name, &bytes)?;
        let published = self.out.join(&name);
        cmd!(self.sh, "chmod +x {published}").quiet().run()?;
        let size = bytes.len() as f64 / f64::from(1 << 20);
        let verdict = match program {
            PLUGIN if size < GOAL_MIB => format!(", below {GOAL_MIB} MiB"),
            PLUGIN => format!(", ABOVE {GOAL_MIB} MiB"),
            _ => String::new(),
        };
        say(&format!("    {size:.2} MiB{verdict}"));

        let sha256 = checksum(&bytes);
        let bill = binary::bill_of_materials(self.sh, &self.release, program, platform, &sha256)?;
        self.publish(&format!("{name}.cdx.json"), bill.as_bytes())
    }

    /// Writes the manifests of the plugin.
    fn manifests(&self, url: Option<&str>) -> anyhow::Result<()> {
        let sha256 = |platform: &Platform| {
            let name = platform.file_name(PLUGIN);
            let path = self.out.join(format!("{name}.sha256"));
            self.sh.read_file(path)
        };
        let (amd64, arm64) = (sha256(&AMD64)?, sha256(&ARM64)?);
        let mut words = vec![
            ("SHA256_LINUX_AMD64", amd64.trim_end()),
            ("SHA256_LINUX_ARM64", arm64.trim_end()),
            ("VERSION", self.tag()),
        ];
        words.extend(url.map(|url| ("URL", url.trim_end_matches('/'))));
        let files = manifests::of_plugin(self.sh, &words)?;
        self.publish_archive(&format!("{PLUGIN}-manifests.tar.gz"), &files)
    }

    /// Writes the kustomization and the chart of the generator.
    fn appset_manifests(&self) -> anyhow::Result<()> {
        let words = [("VERSION", self.tag())];
        let kustomization = manifests::of_generator(self.sh, "kustomize", "", &words)?;
        self.publish_archive(&format!("{GENERATOR}-manifests.tar.gz"), &kustomization)?;
        // Helm requires a directory with the name of the chart.
        let chart = manifests::of_generator(self.sh, "chart", &format!("{GENERATOR}/"), &words)?;
        self.publish_archive(&format!("{GENERATOR}-chart.tgz"), &chart)
    }

    /// Writes the libraries and the conformance kit.
    fn crates(&self) -> anyhow::Result<()> {
        for packed in crates::pack(self.sh)? {
            let bytes = self.sh.read_binary_file(&packed)?;
            let name = packed.file_name().context("no file")?.to_string_lossy();
            self.publish(&name, &bytes)?;
        }
        Ok(())
    }

    /// The version without the commit: the tag of an image.
    fn tag(&self) -> &str {
        let version = &self.release.version;
        version.split_once(' ').map_or(version, |(tag, _)| tag)
    }

    fn publish_archive(&self, name: &str, files: &[manifests::File]) -> anyhow::Result<()> {
        self.publish(name, &manifests::tar_gz(files, self.release.seconds)?)
    }

    /// Starts the binary in an empty root directory, and checks its version.
    fn start(&self, program: &str, platform: &Platform, binary: &Path) -> anyhow::Result<()> {
        let sh = self.sh;
        let qemu = "qemu-aarch64-static";
        let printed = if platform.target.starts_with(std::env::consts::ARCH) {
            if cmd!(sh, "id -u").quiet().read()? == "0" {
                let empty = sh.create_temp_dir()?;
                sh.copy_file(binary, empty.path().join(program))?;
                let root = empty.path();
                cmd!(sh, "chroot {root} /{program} --version")
                    .quiet()
                    .read()?
            } else {
                say("    started, but only root can start it in an empty root directory");
                cmd!(sh, "{binary} --version").quiet().read()?
            }
        } else if platform.machine == binary::Machine::Aarch64
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
        let expected = format!("{program} {}", self.release.version);
        ensure!(
            printed == expected,
            "--version prints {printed}, not {expected}"
        );
        Ok(())
    }

    /// Writes a file and its checksum in the form of the controller's ConfigMap: 64 digits without a name.
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
    fn file_names_have_the_platform_names_of_go() {
        let names = [AMD64, ARM64].map(|platform| platform.file_name(PLUGIN));
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
        let former = [PLUGIN, GENERATOR].map(|program| out.path().join(AMD64.file_name(program)));
        let other = out.path().join("notes.md");
        for path in former.iter().chain([&other]) {
            sh.write_file(path, "").unwrap();
        }
        remove_former(&sh, out.path()).unwrap();
        assert!(!former.iter().any(|path| sh.path_exists(path)));
        assert!(sh.path_exists(other));
    }
}
