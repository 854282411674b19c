//! `cargo xtask bench`: measurements for people. No measurement passes or fails.

use std::path::PathBuf;

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::{
    go, plugin, record, releases::RELEASES, report::say, toolchain, workspace::target_dir,
};

/// The method whose last recorded call is decoded: gob sends type definitions only with the first calls.
const METHOD: &str = "SetWeight";

/// Each round runs every candidate once, so that a slow phase of the machine affects all of them.
const ROUNDS: usize = 5;

/// Flags of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure requests, times, CPU and memory with etcd and kube-apiserver, behind a proxy that counts requests.
    ///
    /// Five parts: one Rollout of about 10 KB (a steady pass, a changed SetWeight, the same PATCH and a GET without the
    /// plugin); ten workers on a fifth of the Rollouts; these all get another weight at once, with and without `--qps`; a new
    /// leader with all Rollouts, and its memory after further lists; drift. The storm of weights is measured again with an API
    /// server without priority and fairness that refuses requests. With the default sizes it takes about ten minutes for each plugin.
    #[arg(long)]
    cluster: bool,
    /// Only measure the storm of weights.
    #[arg(long, requires = "cluster")]
    storm: bool,
    /// Only compare the smallest router in Rust with the smallest one in Go, both called by a host in Go.
    #[arg(long, conflicts_with = "cluster")]
    routers: bool,
    /// Only double what a caller of the ApplicationSet generator can make large, and show what grows faster.
    #[arg(long, conflicts_with_all = ["cluster", "routers"])]
    scaling: bool,
    /// Plugins to compare, alternating. Default: the release binary, which is built first.
    #[arg(value_name = "BINARY", requires = "cluster")]
    plugins: Vec<PathBuf>,
    /// Number of Rollouts of the new leader, ten for each RouteTable; at least 50.
    #[arg(long, value_name = "N", default_value_t = 10_000, requires = "cluster")]
    rollouts: usize,
    /// How often a plugin that watches has to list all objects again.
    #[arg(long, value_name = "N", default_value_t = 100, requires = "cluster")]
    relists: usize,
    /// How long the proxy delays each request.
    #[arg(
        long = "delay",
        value_name = "MILLISECONDS",
        default_value_t = 0,
        requires = "cluster"
    )]
    delay: u64,
}

/// Measures decoding, planning and the real process, or the plugin with an API server.
///
/// # Errors
/// Returns `Err` if a build or a run fails.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    toolchain::pin(sh, &[])?;
    if args.cluster {
        return cluster(sh, args);
    }
    if args.routers {
        return routers(sh);
    }
    if args.scaling {
        cmd!(
            sh,
            "cargo run --locked --release --package benches --example scaling"
        )
        .run()?;
        return Ok(());
    }
    // Built like the plugin: same target, linker, allocator and optimisation levels.
    let shipped = plugin::build_example(sh, "decode_time")?;
    let counted = target_dir(sh).join("release/examples/decode_call");
    let go = go::build_decoder(sh)?;
    cmd!(sh, "cargo build --locked --release --package rollouts-rpc --features testing --example decode_call").run()?;

    let newest = RELEASES.last().context("no release")?.version;
    let recording = format!("{}/router-{newest}", record::DATA);
    let (begin, end) = later_call(&sh.read_file(format!("{recording}.calls"))?)?;
    let arguments = &[
        format!("{recording}.gob"),
        begin.to_string(),
        end.to_string(),
    ];
    let (mut ours, mut gobwire, mut theirs) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let nanoseconds = cmd!(sh, "{shipped} {arguments...}").quiet().read()?;
        let counted = cmd!(sh, "{counted} {arguments...}").quiet().read()?;
        let mut lines = counted.lines();
        let allocations = lines.next().context("no allocations")?;
        ours.push(measured(&format!("{nanoseconds} {allocations}"))?);
        gobwire.push(measured(
            lines.next().context("no measurement of gobwire")?,
        )?);
        theirs.push(measured(&cmd!(sh, "{go} {arguments...}").quiet().read()?)?);
    }
    let (ours, gobwire, theirs) = (median(ours)?, median(gobwire)?, median(theirs)?);
    say(&format!(
        "decode of a later {METHOD}, {} bytes, median of {ROUNDS} alternating rounds:",
        end - begin
    ));
    for (name, measurement) in [("gob", ours), ("gobwire", gobwire), ("Go", theirs)] {
        let times = measurement.nanoseconds as f64 / ours.nanoseconds as f64;
        let allocations = measurement
            .allocations
            .map_or(String::new(), |count| format!(", {count} allocations"));
        say(&format!(
            "  {name:<8} {:>8} ns, {times:>5.1} times ours{allocations}",
            measurement.nanoseconds
        ));
    }
    say("planning, median of 5 rounds:");
    cmd!(
        sh,
        "cargo run --locked --release --package route-planner --example plan_times"
    )
    .run()?;
    routers(sh)?;
    go::figures(sh, &plugin::build(sh)?)
}

/// Measures the smallest routers in Rust and in Go. Both are linked statically, because the controller's image has no loader: Go does
/// so by default, and ours uses glibc, whose allocator is faster than musl's.
fn routers(sh: &Shell) -> anyhow::Result<()> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    cmd!(
        sh,
        "cargo rustc --locked --release --package rollouts-rpc --example minimal_router --target {target} -- -Ctarget-feature=+crt-static"
    )
    .run()?;
    say("the smallest traffic routers, called by a host in Go:");
    let example = format!("{target}/release/examples/minimal_router");
    go::compare(sh, &target_dir(sh).join(example))
}

/// Runs the program in `tests` that measures plugins with a cluster.
fn cluster(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    // The shell is at the repository's root; the working directory of the user may be another.
    let plugins = args.plugins.iter().map(std::path::absolute);
    let mut plugins = plugins.collect::<Result<Vec<PathBuf>, _>>()?;
    if plugins.is_empty() {
        plugins.push(plugin::build(sh)?);
    }
    go::build(sh)?;
    let Args {
        storm,
        rollouts,
        relists,
        delay,
        ..
    } = args;
    let only = storm.then_some("--only-storm");
    let numbers = [rollouts.to_string(), relists.to_string(), delay.to_string()];
    go::with_programs(
        sh,
        cmd!(
            sh,
            "cargo run --quiet --locked --release --package e2e-tests --bin bench -- {only...} {numbers...} {plugins...}"
        ),
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Measured {
    nanoseconds: u64,
    allocations: Option<u64>,
}

/// Parses a line with nanoseconds, and with allocations if the language can count them.
fn measured(line: &str) -> anyhow::Result<Measured> {
    let mut numbers = line.split_whitespace().map(str::parse);
    Ok(Measured {
        nanoseconds: numbers.next().context("no number")??,
        allocations: numbers.next().transpose()?,
    })
}

fn median(mut rounds: Vec<Measured>) -> anyhow::Result<Measured> {
    rounds.sort();
    rounds
        .get(rounds.len() / 2)
        .copied()
        .context("no measurement")
}

/// The range of the last call of the method.
fn later_call(calls: &str) -> anyhow::Result<(usize, usize)> {
    let mut begin = 0;
    let mut found = None;
    for line in calls.lines() {
        let (method, end) = line.split_once(' ').context("a call without its end")?;
        let end = end.parse()?;
        if method == METHOD {
            found = Some((begin, end));
        }
        begin = end;
    }
    found.with_context(|| format!("no {METHOD} was recorded"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_call_of_the_method_is_measured() {
        let calls = "Type 3\nSetWeight 50\nType 53\nSetWeight 60\nType 63\n";
        assert_eq!(later_call(calls).unwrap(), (53, 60));
        assert!(later_call("Type 3").is_err());
    }

    #[test]
    fn the_median_round_counts() {
        let rounds = ["9", "2 7", "3 8"].map(|line| measured(line).unwrap());
        assert_eq!(median(rounds.into()).unwrap(), measured("3 8").unwrap());
    }
}
