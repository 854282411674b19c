//! The plugin over time: random histories of a controller, of owners and of failures, and what must hold after each call.
//!
//! | variable | meaning |
//! |---|---|
//! | `MODEL_SEED` | histories of that seed, instead of fresh ones |
//! | `MODEL_MINUTES` | for so long, instead of a fixed number of histories (`cargo xtask soak`) |
//!
//! A history that fails is shrunk and printed, one action a line. Saved as `histories/<what it shows>.yaml`, it is played in
//! every run from then on.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic, also in its helpers, and prints what it found"
)]

mod api;
mod controller;
mod documents;
mod history;
mod oracle;
mod owner;
mod play;
mod rules;

use std::cell::Cell;
use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use plugin_bin::testing::scenarios;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestCaseError, TestError, TestRunner};
use proptest_state_machine::ReferenceStateMachine as _;

use crate::history::History;
use crate::play::play;

/// Histories of an ordinary run, and the actions of each.
const HISTORIES: u32 = 100;
const ACTIONS: usize = 60;

fn main() -> Result<ExitCode> {
    // Shrinking repeats a panic many times; the last one is reported.
    std::panic::set_hook(Box::new(|_| {}));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model/histories");
    let recorded = |(name, text): (String, String)| {
        Trial::test(format!("recorded::{name}"), move || {
            let history = History::parse(&text).map_err(|error| format!("{error:#}"))?;
            play(&history, &|| {}).map_err(Failed::from)
        })
    };
    let mut trials: Vec<Trial> = scenarios(&folder)?.into_iter().map(recorded).collect();
    trials.push(Trial::test("histories", || {
        explore().map_err(|error| format!("{error:#}").into())
    }));
    Ok(libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}

/// Plays random histories, up to a number of them or for a time.
fn explore() -> Result<()> {
    let seed = number("MODEL_SEED")?.unwrap_or_else(|| fastrand::u64(..));
    let end = number("MODEL_MINUTES")?.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let (histories, actions) = (Cell::new(0_u64), Cell::new(0_u64));
    println!("histories of MODEL_SEED={seed}");
    let mut round = 0;
    let outcome = loop {
        let outcome = explore_some(seed.wrapping_add(round), &histories, &actions);
        round += 1;
        if outcome.is_err() || end.is_none_or(|end| Instant::now() >= end) {
            break outcome;
        }
    };
    println!("{} histories, {} actions, {} violations", histories.get(), actions.get(), u8::from(outcome.is_err()));
    outcome
}

fn explore_some(seed: u64, histories: &Cell<u64>, actions: &Cell<u64>) -> Result<()> {
    let config = Config {
        cases: HISTORIES,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    };
    let strategy = History::sequential_strategy(ACTIONS);
    let has_failed = Cell::new(false);
    let outcome = TestRunner::new(config).run(&strategy, |(setup, actions_of, counter)| {
        let history = History { setup, actions: actions_of };
        let seen = || {
            if let Some(counter) = &counter {
                counter.fetch_add(1, Ordering::SeqCst);
            }
            if !has_failed.get() {
                actions.set(actions.get() + 1);
            }
        };
        if !has_failed.get() {
            histories.set(histories.get() + 1);
        }
        play(&history, &seen).map_err(|why| {
            has_failed.set(true);
            TestCaseError::fail(why)
        })
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(_, (setup, actions, _))) => {
            let history = shortest(History { setup, actions });
            let why = play(&history, &|| {}).err().unwrap_or_default();
            anyhow::bail!("{why}\n\n# MODEL_SEED={seed}\n{history}")
        }
        Err(error) => anyhow::bail!("{error}"),
    }
}

/// Drops every action without which the history fails still. Shrinking tries each only once.
fn shortest(mut history: History) -> History {
    let mut index = 0;
    while index < history.actions.len() {
        let mut shorter = history.clone();
        shorter.actions.remove(index);
        if play(&shorter, &|| {}).is_err() {
            history = shorter;
            index = 0;
        } else {
            index += 1;
        }
    }
    history
}

/// A number in the environment.
fn number(name: &str) -> Result<Option<u64>> {
    let Ok(text) = env::var(name) else { return Ok(None) };
    let number = text.parse().with_context(|| format!("{name}={text} is no number"))?;
    Ok(Some(number))
}
