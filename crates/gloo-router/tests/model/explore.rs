//! Plays random histories: their number and seed, and how a failing one is shortened and printed.
//!
//! | variable | meaning |
//! |---|---|
//! | `MODEL_SEED` | the seed, instead of the fixed one, or of a random one with `MODEL_MINUTES` |
//! | `MODEL_MINUTES` | plays for this many minutes instead of a fixed number of histories (`cargo xtask soak`) |
//! | `MODEL_TRACE` | prints every action, call and table |

use std::cell::Cell;
use std::env;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestCaseError, TestError, TestRunner};
use proptest_state_machine::ReferenceStateMachine as _;

use crate::history::History;
use crate::play::play;

/// Number of histories of an ordinary run, and of actions in each.
const HISTORIES: u32 = 100;
const ACTIONS: usize = 60;
const ORDINARY_SEED: u64 = 1;

/// Plays random histories: a fixed number up to the first that fails, or for a fixed time.
pub(crate) fn explore() -> Result<()> {
    let minutes = number("MODEL_MINUTES")?;
    // An ordinary run has a fixed seed; a soak searches for unknown violations.
    let fresh = || minutes.map_or(ORDINARY_SEED, |_| fastrand::u64(..));
    let seed = number("MODEL_SEED")?.unwrap_or_else(fresh);
    let end = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut count = Count::default();
    let mut violations = 0;
    for seed in seed.. {
        println!("{HISTORIES} histories of MODEL_SEED={seed}");
        violations += u64::from(explore_some(seed, &mut count)?);
        if end.is_none_or(|end| Instant::now() >= end) {
            break;
        }
    }
    let Count { histories, actions } = count;
    println!("{histories} histories, {actions} actions, {violations} violations");
    ensure!(violations == 0, "{violations} violations, printed above");
    Ok(())
}

/// Number of played histories and actions.
#[derive(Clone, Copy, Default)]
struct Count {
    histories: u64,
    actions: u64,
}

/// Plays the histories of a seed, and prints the first one that fails. Returns whether there was one.
fn explore_some(seed: u64, count: &mut Count) -> Result<bool> {
    let config = Config {
        cases: HISTORIES,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    };
    let strategy = History::sequential_strategy(ACTIONS);
    let played = Cell::new(*count);
    let is_shrinking = Cell::new(false);
    let outcome = TestRunner::new(config).run(&strategy, |(setup, actions, counter)| {
        let seen = || {
            if let Some(counter) = &counter {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        };
        let outcome = play(&History { setup, actions }, &seen);
        if !is_shrinking.get() {
            let Count { histories, actions } = played.get();
            let seen = counter.map_or(0, |counter| counter.load(Ordering::SeqCst));
            played.set(Count {
                histories: histories + 1,
                actions: actions + u64::try_from(seen).unwrap_or_default(),
            });
        }
        outcome.map_err(|why| {
            is_shrinking.set(true);
            TestCaseError::fail(why)
        })
    });
    *count = played.get();
    match outcome {
        Ok(()) => Ok(false),
        Err(TestError::Fail(_, (setup, actions, _))) => {
            let history = shortest(History { setup, actions });
            let why = play(&history, &|| {}).err().unwrap_or_default();
            println!("{why}\n\n# MODEL_SEED={seed}\n{history}");
            Ok(true)
        }
        Err(error) => bail!("{error}"),
    }
}

/// Removes every action without which the history still fails. Shrinking tries each action only once.
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

/// Reads a number from an environment variable.
fn number(name: &str) -> Result<Option<u64>> {
    let Ok(text) = env::var(name) else {
        return Ok(None);
    };
    let number = text
        .parse()
        .with_context(|| format!("{name}={text} is no number"))?;
    Ok(Some(number))
}
