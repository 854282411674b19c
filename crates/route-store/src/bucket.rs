//! A token bucket. It has no clock: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// How many tokens a bucket gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Above 0.
    pub(crate) per_second: f64,
    /// The tokens of a full bucket.
    pub(crate) burst: f64,
}

#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    /// Number of tokens at `at`.
    tokens: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) const fn full(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            tokens: rate.burst,
            at: now,
        }
    }

    fn tokens(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let tokens = self.tokens + passed * self.rate.per_second;
        tokens.min(self.rate.burst)
    }

    /// Returns the time until there are this many tokens.
    pub(crate) fn pause(&self, tokens: f64, now: Instant) -> Duration {
        let missing = tokens - self.tokens(now);
        // The tolerance covers the rounding of fractions of tokens.
        if missing <= 1e-6 {
            return Duration::ZERO;
        }
        let pause = Duration::try_from_secs_f64(missing / self.rate.per_second);
        pause.unwrap_or(Duration::MAX)
    }

    pub(crate) fn take(&mut self, now: Instant) {
        self.tokens = self.tokens(now) - 1.0;
        self.at = self.at.max(now);
    }

    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.tokens(now) >= self.rate.burst
    }
}
