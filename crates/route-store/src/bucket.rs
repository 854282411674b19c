//! A token bucket. It has no clock: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The rate limit of one API server. Watches do not count.
///
/// It is for API servers without priority and fairness. Others share their capacity among their clients by themselves, and a limit only
/// makes a caller wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestLimits {
    /// Requests per second on average. Above 0.
    pub qps: f64,
    /// Requests at once after an idle time. At least 1. A fifth is reserved for [`Priority::TowardStable`](crate::Priority).
    pub burst: u32,
}

#[derive(Debug)]
pub(crate) struct Bucket {
    limits: RequestLimits,
    /// Number of tokens at `at`.
    tokens: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) fn full(limits: RequestLimits, now: Instant) -> Self {
        Self {
            limits,
            tokens: limits.burst.into(),
            at: now,
        }
    }

    fn tokens(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let tokens = self.tokens + passed * self.limits.qps;
        tokens.min(self.limits.burst.into())
    }

    /// Returns the time until there are this many tokens.
    pub(crate) fn pause(&self, tokens: f64, now: Instant) -> Duration {
        let missing = tokens - self.tokens(now);
        // The tolerance covers the rounding of fractions of tokens.
        if missing <= 1e-6 {
            return Duration::ZERO;
        }
        let pause = Duration::try_from_secs_f64(missing / self.limits.qps);
        pause.unwrap_or(Duration::MAX)
    }

    pub(crate) fn take(&mut self, now: Instant) {
        self.tokens = self.tokens(now) - 1.0;
        self.at = self.at.max(now);
    }

    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.tokens(now) >= self.limits.burst.into()
    }
}
