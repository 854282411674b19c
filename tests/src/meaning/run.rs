//! A run over many seeds: finds the kinds of findings, shrinks the first one of each, and reports.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::check::{Checked, Checker};
use super::generate::world;
use super::judgement::Finding;
use super::shrink::shrink;
use super::world::World;

/// Worlds that one configuration of Envoy serves.
const BATCH: u64 = 24;
/// How many kinds are shrunk. Shrinking takes some seconds.
const SHRUNK: usize = 12;

/// What a run checks.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The first seed.
    pub seed: u64,
    /// The number of RouteTables after which it ends.
    pub tables: usize,
    /// Whether it ends after the first seed.
    pub is_single: bool,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// The kinds of findings, with the number of worlds.
    pub kinds: BTreeMap<String, Kind>,
    /// Tables, steps and requests.
    pub summary: String,
}

/// A kind of finding.
#[derive(Debug, Default)]
pub struct Kind {
    /// The first seed.
    pub seed: u64,
    /// The number of tables that had been checked by then.
    pub tables: usize,
    /// The time that had passed by then.
    pub after: Duration,
    /// Worlds with such a finding.
    pub worlds: usize,
}

/// Checks worlds until enough tables are checked. `say` gets each new kind of finding as text.
///
/// # Errors
/// Returns `Err` if Envoy does not start or rejects a configuration.
pub async fn run(options: Options, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut run = Run {
        checker: Checker::start().await?,
        start: Instant::now(),
        tables: 0,
        total: Checked::default(),
        shrinking: Duration::ZERO,
        kinds: BTreeMap::new(),
    };
    let mut seed = options.seed;
    while run.tables < options.tables {
        let count = if options.is_single { 1 } else { BATCH };
        let worlds: Vec<World> = (seed..seed + count).map(world).collect();
        seed += count;
        run.check(&worlds, say).await?;
        if options.is_single {
            break;
        }
    }
    let summary = run.summary();
    Ok(Report {
        kinds: run.kinds,
        summary,
    })
}

/// The state of a run.
struct Run {
    checker: Checker,
    start: Instant,
    tables: usize,
    total: Checked,
    /// The time that shrinking took, which no rate includes.
    shrinking: Duration,
    kinds: BTreeMap<String, Kind>,
}

impl Run {
    async fn check(&mut self, worlds: &[World], say: &mut dyn FnMut(&str)) -> Result<()> {
        let checked = self.checker.check(worlds).await?;
        self.tables += worlds.iter().map(World::tables).sum::<usize>();
        self.total.steps += checked.steps;
        self.total.requests += checked.requests;
        self.total.refused += checked.refused;
        self.total.skipped += checked.skipped;
        let after = self.elapsed();
        let shrinks = Instant::now();
        for (world, finding) in first_of_each_kind(worlds, checked.findings) {
            let is_new = !self.kinds.contains_key(&finding.kind);
            let is_shrunk = is_new && self.kinds.len() < SHRUNK;
            let kind = self.kinds.entry(finding.kind.clone()).or_insert(Kind {
                seed: world.seed,
                tables: self.tables,
                after,
                worlds: 0,
            });
            kind.worlds += 1;
            if is_shrunk {
                let (smaller, finding) = shrink(&mut self.checker, world, &finding).await?;
                say(&described(&smaller, &finding));
            }
        }
        self.shrinking += shrinks.elapsed();
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed().saturating_sub(self.shrinking)
    }

    /// What was checked, and the kinds of findings.
    fn summary(&self) -> String {
        let seconds = self.elapsed().as_secs_f64();
        let minutes = seconds / 60.0;
        let mut text = format!(
            "{} tables, {} steps ({} refused), {} requests, {} not translated, in {seconds:.1} s ({:.0} tables, {:.0} steps, \
             {:.0} requests a minute) and {:.1} s of shrinking\n",
            self.tables,
            self.total.steps,
            self.total.refused,
            self.total.requests,
            self.total.skipped,
            per(self.tables, minutes),
            per(self.total.steps, minutes),
            per(self.total.requests, minutes),
            self.shrinking.as_secs_f64(),
        );
        for (name, kind) in &self.kinds {
            let Kind {
                seed,
                tables,
                after,
                worlds,
            } = kind;
            let after = after.as_secs_f64();
            let _ = writeln!(
                text,
                "{name}: {worlds} worlds, first seed {seed} after {tables} tables and {after:.1} s"
            );
        }
        text
    }
}

fn per(count: usize, minutes: f64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / minutes
}

/// The first finding of each kind in each world.
fn first_of_each_kind(worlds: &[World], findings: Vec<(usize, Finding)>) -> Vec<(&World, Finding)> {
    let mut first = BTreeMap::new();
    for (index, finding) in findings {
        first
            .entry((index, finding.kind.clone()))
            .or_insert(finding);
    }
    let first = first.into_iter();
    first
        .filter_map(|((index, _), finding)| Some((worlds.get(index)?, finding)))
        .collect()
}

/// The world and the finding as text.
fn described(world: &World, finding: &Finding) -> String {
    format!(
        "{} (MEANING_SEED={} repeats the whole world)\n{}{}\n",
        finding.kind,
        world.seed,
        world.describe(),
        finding.detail
    )
}
