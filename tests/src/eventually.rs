//! Waits for a condition, and returns an error after a deadline.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

/// Far longer than any step takes on a slow machine. It only ends a failing test.
pub const DEADLINE: Duration = Duration::from_secs(240);
/// The first pause between two probes. Each pause is half as long again as the last one: most conditions hold soon, and probes of
/// the others would take the time of the servers for which the test waits.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// Runs `probe` until it returns `Ok`, and returns that value. An `Err` means that the condition does not hold yet.
///
/// # Errors
/// Returns the last error of `probe`, with `what` as its context, if the deadline has passed.
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + DEADLINE;
    let mut pause = FIRST_PAUSE;
    loop {
        match probe().await {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("never came true: {what}"));
            }
            Err(_) => sleep(pause).await,
        }
        pause = LONGEST_PAUSE.min(pause * 3 / 2);
    }
}
