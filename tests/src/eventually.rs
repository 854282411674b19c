//! Waiting for a condition with a deadline that fails loudly.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

/// Far above what any step takes on a slow machine: it bounds a failing test, it measures nothing.
const DEADLINE: Duration = Duration::from_secs(90);
const INTERVAL: Duration = Duration::from_millis(50);

/// Runs `probe` until it succeeds and returns what it found; an error means "not yet".
///
/// # Errors
/// The last error of `probe`, under `what`, when the deadline has passed.
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match probe().await {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("never came true: {what}"));
            }
            Err(_) => sleep(INTERVAL).await,
        }
    }
}
