//! `cargo xtask fuzz`: the targets of `fuzz`, with their seeds and limits.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use xshell::{Shell, cmd};

use crate::{report::say, toolchain, workspace::target_dir};

const CARGO_FUZZ: &str = "0.13.2";

/// Seconds of each target in `cargo xtask test`: a minute for all of them.
const SMOKE: u64 = 10;

/// Lines of a failed run to print: the panic, its backtrace and how to reproduce it.
const TAIL: usize = 60;

/// Flags of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file in `fuzz/fuzz_targets`, without extension. Default: all of them, one after another.
    target: Option<String>,
    /// Minutes for each target.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
}

struct Target {
    name: &'static str,
    /// In `fuzz/dictionaries`.
    dictionary: &'static str,
    /// Folders whose files are used as inputs.
    seeds: &'static [&'static str],
    /// Longest input. Short inputs run faster; the recordings are long.
    max_len: usize,
}

const TARGETS: &[Target] = &[
    Target {
        name: "gob_stream",
        dictionary: "gob",
        seeds: &["crates/gob/tests/data"],
        max_len: 4096,
    },
    Target {
        name: "netrpc_session",
        dictionary: "gob",
        seeds: &["crates/rollouts-rpc/tests/data"],
        max_len: 32768,
    },
    Target {
        name: "yamux_session",
        dictionary: "gob",
        seeds: &["fuzz/seeds/yamux_session"],
        max_len: 4096,
    },
    Target {
        name: "handshake_env",
        dictionary: "environment",
        seeds: &["fuzz/seeds/handshake_env"],
        max_len: 4096,
    },
    Target {
        name: "route_table_plan",
        dictionary: "document",
        seeds: &["crates/gloo-router/tests/scenarios"],
        max_len: 4096,
    },
    Target {
        name: "plugin_config",
        dictionary: "document",
        seeds: &["fuzz/seeds/plugin_config"],
        max_len: 4096,
    },
];

/// Fuzzes one target or all.
///
/// # Errors
/// Returns `Err` if a target crashes, hangs or uses too much memory.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let fuzzer = Fuzzer::prepare(sh)?;
    let wanted = |target: &&Target| args.target.as_ref().is_none_or(|name| name == target.name);
    let targets: Vec<_> = TARGETS.iter().filter(wanted).collect();
    if targets.is_empty() {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        bail!("unknown target: use one of {}", names.join(", "));
    }
    for target in targets {
        fuzzer.fuzz(target, args.minutes * 60)?;
    }
    Ok(())
}

/// Fuzzes all targets for a minute together.
///
/// # Errors
/// As [`run`].
pub(crate) fn smoke(sh: &Shell) -> anyhow::Result<()> {
    let fuzzer = Fuzzer::prepare(sh)?;
    // The build takes longer than the fuzzing, so less optimisation and no line numbers are worth slower targets.
    let _level = sh.push_env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    let _lines = sh.push_env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    for target in TARGETS {
        fuzzer.fuzz(target, SMOKE)?;
    }
    Ok(())
}

/// cargo-fuzz, installed.
struct Fuzzer<'s> {
    sh: &'s Shell,
    cargo_fuzz: PathBuf,
}

impl<'s> Fuzzer<'s> {
    fn prepare(sh: &'s Shell) -> anyhow::Result<Self> {
        let cargo_fuzz = toolchain::tool(sh, "cargo-fuzz", CARGO_FUZZ, &[])?;
        // cargo-fuzz itself would change the lock file silently.
        cmd!(
            sh,
            "cargo fetch --quiet --locked --manifest-path fuzz/Cargo.toml"
        )
        .run()
        .context("run `cargo update --workspace --manifest-path fuzz/Cargo.toml`")?;
        Ok(Self { sh, cargo_fuzz })
    }

    /// Runs a target without a sanitizer: our crates have no unsafe code, and so a stable toolchain is enough.
    fn fuzz(&self, target: &Target, seconds: u64) -> anyhow::Result<()> {
        let Self { sh, cargo_fuzz } = self;
        let &Target {
            name,
            dictionary,
            seeds,
            max_len,
        } = target;
        let found = format!("fuzz/corpus/{name}");
        sh.create_dir(&found)?;
        let build_dir = target_dir(sh).join("fuzz");
        let (time, length) = (seconds.to_string(), max_len.to_string());
        let fuzz = cmd!(
            sh,
            "{cargo_fuzz} run --sanitizer none --target-dir {build_dir} {name} {found} {seeds...} --
             -max_total_time={time} -max_len={length} -dict=fuzz/dictionaries/{dictionary}.dict
             -timeout=10 -malloc_limit_mb=64 -rss_limit_mb=512"
        );
        let output = fuzz.quiet().ignore_status().output()?;
        let log = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            let done = log.lines().rfind(|line| line.contains("DONE"));
            let done = done.context("libFuzzer did not print DONE")?;
            say(&format!("    {name} in {seconds} s: {done}"));
            return Ok(());
        }
        let lines: Vec<_> = log.lines().collect();
        let tail = lines.len().saturating_sub(TAIL);
        for line in lines.into_iter().skip(tail) {
            say(&format!("    {line}"));
        }
        bail!("{name} failed: add the input that it found to the tests of the crate")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_target_has_seeds_that_it_reads_whole() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for target in TARGETS {
            let folders = target.seeds.iter().map(|folder| root.join(folder));
            let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
            let lengths = files.map(|file| file.unwrap().metadata().unwrap().len());
            let whole = lengths.filter(|length| *length <= target.max_len as u64);
            assert!(whole.count() >= 3, "{}", target.name);
        }
        let mut targets = fs::read_dir(root.join("fuzz/fuzz_targets")).unwrap();
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        assert!(targets.all(|file| {
            let path = file.unwrap().path();
            names.contains(&path.file_stem().unwrap().to_str().unwrap())
        }));
    }
}
