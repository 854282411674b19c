//! `cargo run -p e2e-tests --bin hostile_clients -- BINARY...`: measures what attackers with one token do to everybody else: to an
//! honest caller with its own token and profile, to `/livez`, and to the memory of the ApplicationSet generator. It prints
//! measurements and checks nothing.
//!
//! Each attack has a fresh process of each binary, one after the other. 30 attackers repeat the calls of the attack. Meanwhile one
//! honest caller opens a connection for each call, and another one reuses its connection, like Argo CD.

#![allow(clippy::print_stdout, reason = "prints measurements")]

mod attacks;
mod clients;
mod generator;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::{Parser as _, ValueEnum as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

use crate::attacks::Attack;
use crate::clients::{Attackers, Errand, Met, Tally, honest};
use crate::generator::{Generator, memory};

/// Measures what hostile clients do to everybody else.
#[derive(clap::Parser)]
struct Args {
    /// The generators to measure, alternating.
    #[arg(required = true)]
    binaries: Vec<String>,
    /// The attacks; by default each.
    #[arg(long = "attack", value_enum)]
    attacks: Vec<Attack>,
    /// The duration of each attack.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// The time in seconds between an attack and the second measurement of memory.
    #[arg(long, default_value_t = 60)]
    wait: u64,
    /// The memory in MiB that ends a process. More than that of a container, to see what an attack needs.
    #[arg(long, default_value_t = 3072)]
    memory: u64,
    /// The number of attackers who make calls.
    #[arg(long, default_value_t = 30)]
    callers: usize,
    /// The number of half-open connections.
    #[arg(long, default_value_t = 2000)]
    connections: u32,
    /// The number of calls whose bodies are slow.
    #[arg(long, default_value_t = 64)]
    bodies: usize,
}

/// The attackers run on one thread, so that they do not take all of a small machine. The honest callers have another one.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    allow_many_files()?;
    let all = if args.attacks.is_empty() {
        Attack::value_variants()
    } else {
        &args.attacks
    };
    println!(
        "{} attackers, {} s for each attack; times in ms, memory in MiB at the peak and {} s after the attack",
        args.callers, args.seconds, args.wait
    );
    row(&[
        "attack",
        "binary",
        "new p50",
        "p99",
        "failed",
        "kept p50",
        "p99",
        "failed",
        "livez p99",
        "max",
        "failed",
        "peak",
        "later",
        "answers to the attackers, by status, per second",
    ]);
    row(&["---"; 14]);
    for attack in all {
        for binary in &args.binaries {
            let cells = measure(&args, *attack, binary).await?;
            row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
    Ok(())
}

/// Prints a row of a table in Markdown.
fn row(cells: &[&str]) {
    let mut line = String::new();
    for (index, cell) in cells.iter().enumerate() {
        let width = [14, 8, 7, 7, 13, 8, 7, 13, 9, 7, 12, 5, 8, 0];
        let width = width.get(index).copied().unwrap_or_default();
        line += &format!("| {cell:width$} ");
    }
    println!("{line}|");
}

/// Runs one attack on a fresh process of `binary`. Returns the cells of its row.
async fn measure(args: &Args, attack: Attack, binary: &str) -> Result<Vec<String>> {
    let parts = attack.parts();
    let is_slow = parts.contains(&Attack::SlowLog);
    let pause = Duration::from_millis(if is_slow { 20 } else { 0 });
    let mut generator = Generator::start(binary, args.memory << 20, pause)?;
    let attackers = Arc::new(Attackers {
        api: generator.api,
        ops: generator.ops,
        calls: parts.iter().filter_map(|part| part.call()).collect(),
        answers: Tally::default().into(),
    });
    let mut running = JoinSet::new();
    if !attackers.calls.is_empty() {
        for caller in 0..args.callers {
            running.spawn(Arc::clone(&attackers).repeat(caller));
        }
    }
    if parts.contains(&Attack::HalfOpen) {
        for slot in 0..args.connections {
            running.spawn(Arc::clone(&attackers).annoy(slot));
        }
    }
    if parts.contains(&Attack::SlowBodies) {
        for _ in 0..args.bodies {
            running.spawn(Arc::clone(&attackers).trickle());
        }
    }
    if parts.contains(&Attack::Reloads) {
        running.spawn(rewrite(generator.config()));
    }
    let peak = Arc::new(AtomicU64::new(0));
    let duration = Duration::from_secs(args.seconds);
    let [new, kept, livez] = observe(&generator, duration, Arc::clone(&peak)).await?;
    running.shutdown().await;

    let later = match generator.ended() {
        Some(ended) => ended,
        None => {
            sleep(Duration::from_secs(args.wait)).await;
            let rss = memory(generator.id(), "VmRSS").map(|mib| mib.to_string());
            rss.or_else(|| generator.ended()).unwrap_or_default()
        }
    };
    let name = attack.to_possible_value();
    let name = name
        .as_ref()
        .map_or("", clap::builder::PossibleValue::get_name);
    let ([new_p50, new_p99, _], new_failed) = new.figures();
    let ([kept_p50, kept_p99, _], kept_failed) = kept.figures();
    let ([_, livez_p99, livez_max], livez_failed) = livez.figures();
    let answers = attackers
        .answers
        .lock()
        .map_err(|_| anyhow!("an attacker panicked"))?;
    let seconds = u32::try_from(args.seconds).unwrap_or(u32::MAX);
    let per_second = answers.iter().map(|(status, count)| {
        let count = u32::try_from(*count).unwrap_or(u32::MAX);
        format!("{status}: {:.1}", f64::from(count) / f64::from(seconds))
    });
    let short = |path: &str| path.rsplit('/').nth(1).unwrap_or(path).to_owned();
    Ok(vec![
        name.to_owned(),
        short(binary),
        new_p50,
        new_p99,
        new_failed,
        kept_p50,
        kept_p99,
        kept_failed,
        livez_p99,
        livez_max,
        livez_failed,
        peak.load(Ordering::Relaxed).to_string(),
        later,
        per_second.collect::<Vec<_>>().join(", "),
    ])
}

/// Runs the honest callers and the probe on a thread of their own, so that they do not wait for the attackers, and watches the peak
/// of the memory.
async fn observe(
    generator: &Generator,
    duration: Duration,
    peak: Arc<AtomicU64>,
) -> Result<[Met; 3]> {
    let (api, ops, id) = (generator.api, generator.ops, generator.id());
    let observing = tokio::task::spawn_blocking(move || -> Result<[Met; 3]> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(async {
            let end = Instant::now() + duration;
            // Until the process ends.
            let watching = tokio::spawn(async move {
                while let Some(mib) = memory(id, "VmHWM") {
                    peak.fetch_max(mib, Ordering::Relaxed);
                    sleep(Duration::from_millis(20)).await;
                }
            });
            let (new, kept, livez) = tokio::join!(
                honest(Errand::call(api, false), end),
                honest(Errand::call(api, true), end),
                honest(Errand::probe(ops), end),
            );
            watching.abort();
            [new, kept, livez]
        }))
    });
    observing.await.context("an honest caller panicked")?
}

/// Replaces the configuration with a large one each second.
async fn rewrite(config: PathBuf) {
    let mut second = interval(Duration::from_secs(1));
    for version in 0.. {
        second.tick().await;
        let new = config.with_extension("new");
        let written = attacks::config(Some(version)).and_then(|text| {
            std::fs::write(&new, text)?;
            Ok(std::fs::rename(&new, &config)?)
        });
        if let Err(error) = written {
            println!("the configuration was not rewritten: {error}");
            return;
        }
    }
}

fn allow_many_files() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, most).context("the limit of open files cannot be raised")
}
