//! The greatest age of a cache's content: the time since the cache sent the last request whose answer proved the content.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The time at which a request was sent, by both clocks of this machine.
///
/// Neither clock is enough: the monotonic one stands still while the machine is suspended, and the other one can be set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) monotonic: Instant,
    wall: SystemTime,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// Returns the time since `earlier`, by the clock that counted more.
    pub(super) fn since(&self, earlier: &Self) -> Duration {
        let monotonic = self.monotonic.saturating_duration_since(earlier.monotonic);
        let wall = self.wall.duration_since(earlier.wall);
        monotonic.max(wall.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Moment {
        /// A moment after this many seconds by each clock.
        pub(in crate::kube_api) fn after(self, monotonic: u64, wall: i64) -> Self {
            let by = Duration::from_secs(wall.unsigned_abs());
            Self {
                monotonic: self.monotonic + Duration::from_secs(monotonic),
                wall: if wall < 0 {
                    self.wall - by
                } else {
                    self.wall + by
                },
            }
        }
    }

    #[test]
    fn the_clock_that_counted_more_is_right() {
        let start = Moment::now();
        for (monotonic, wall, expect) in [
            (5, 5, 5),
            // The machine was suspended.
            (5, 600, 600),
            // The clock was set back.
            (600, -3600, 600),
            (0, 0, 0),
        ] {
            let age = start.after(monotonic, wall).since(&start);
            assert_eq!(age, Duration::from_secs(expect));
        }
        assert_eq!(start.since(&start.after(5, 5)), Duration::ZERO);
    }
}
