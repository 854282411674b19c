//! Plays histories of many seeds: calls of Rollouts that share tables, repairs, restores, releases, garbage collection, a
//! lost Lease, edits of the owner, and requests that fail, hang or lose their answers.
//!
//! | variable | meaning |
//! |---|---|
//! | `RACES_SEED` | the first seed, instead of 0, or of a random one with `RACES_SECONDS` |
//! | `RACES_SEEDS` | the number of seeds, instead of a small one |
//! | `RACES_SECONDS` | plays for this many seconds instead (`cargo xtask soak --races`) |
//! | `RACES_TRACE` | prints every history |

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::history::play;
use super::world::World;

/// Number of seeds of an ordinary run.
const SEEDS: u64 = 100;
/// Number of violations that are printed with their histories.
const PRINTED: usize = 3;

/// Plays the history of a seed. Returns what is wrong with it, and what happened.
fn play_seed(seed: u64) -> (Option<String>, Vec<String>) {
    // The pauses after conflicts are random too.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let world = runtime.unwrap().block_on(async {
        let world = World::new(seed);
        play(&world).await;
        world
    });
    world.clear()
}

/// Reads a number from an environment variable.
fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Plays seeds on all cores.
#[test]
fn no_history_raises_a_canary_after_its_end_or_rests_with_wrong_weights() {
    let seconds = number("RACES_SECONDS");
    // An ordinary run has fixed seeds; a soak searches for unknown violations.
    let fresh = || seconds.map_or(0, |_| u64::from(fastrand::u32(..)) << 32);
    let first = number("RACES_SEED").unwrap_or_else(fresh);
    let seeds = number("RACES_SEEDS");
    let count = match seconds {
        Some(_) => seeds.unwrap_or(u64::MAX - first),
        None => seeds.unwrap_or(SEEDS),
    };
    let begun = Instant::now();
    let (next, played) = (AtomicU64::new(first), AtomicU64::new(0));
    let wrong = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while seconds.is_none_or(|it| begun.elapsed().as_secs() < it) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - first >= count {
                        break;
                    }
                    let (violation, trace) = play_seed(seed);
                    if env::var_os("RACES_TRACE").is_some() {
                        println!("RACES_SEED={seed}\n{}\n", trace.join("\n"));
                    }
                    if let Some(violation) = violation {
                        let mut wrong = wrong.lock().unwrap();
                        println!("RACES_SEED={seed}: {violation}");
                        if wrong.len() < PRINTED {
                            println!("{}\n", trace.join("\n"));
                        }
                        wrong.push(seed);
                    }
                    played.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let (played, wrong) = (played.into_inner(), wrong.into_inner().unwrap());
    let per_minute = u128::from(played) * 60_000 / begun.elapsed().as_millis().max(1);
    println!(
        "{played} interleavings, {per_minute} per minute, {} violations",
        wrong.len()
    );
    assert!(wrong.is_empty(), "seeds {wrong:?}");
}
