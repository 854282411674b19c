//! The ids the plugin handed out in reply to Dispense, each waiting for the stream that claims it.
//!
//! The counterpart of go-plugin's `mux_broker.go`, reduced to what a plugin needs: a table without
//! clock or streams.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long an id waits for its stream, as in go-plugin.
pub(crate) const EXPIRY: Duration = Duration::from_secs(5);

/// How many ids may wait at once; a host dispenses once.
const MAX_WAITING: usize = 64;

/// Ids that were issued and not claimed.
#[derive(Debug, Default)]
pub(crate) struct Broker {
    last: u32,
    waiting: HashMap<u32, Instant>,
}

impl Broker {
    /// A new id, or `None` if too many wait for their stream already.
    pub(crate) fn issue(&mut self, now: Instant) -> Option<u32> {
        self.waiting
            .retain(|_, issued| now.duration_since(*issued) < EXPIRY);
        if self.waiting.len() >= MAX_WAITING {
            return None;
        }
        self.last = self.last.wrapping_add(1);
        self.waiting.insert(self.last, now);
        Some(self.last)
    }

    /// Whether a stream that starts with `id` may be served. An id is good for one stream.
    pub(crate) fn claim(&mut self, id: u32, now: Instant) -> bool {
        self.waiting
            .remove(&id)
            .is_some_and(|issued| now.duration_since(issued) < EXPIRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_start_at_one_as_in_go() {
        let (mut broker, now) = (Broker::default(), Instant::now());
        assert_eq!((broker.issue(now), broker.issue(now)), (Some(1), Some(2)));
    }

    #[test]
    fn an_id_is_claimed_once() {
        let (mut broker, now) = (Broker::default(), Instant::now());
        broker.issue(now);
        assert!(broker.claim(1, now));
        assert!(!broker.claim(1, now));
    }

    #[test]
    fn an_id_that_was_not_issued_is_refused() {
        assert!(!Broker::default().claim(0, Instant::now()));
    }

    #[test]
    fn an_id_expires() {
        let (mut broker, now) = (Broker::default(), Instant::now());
        broker.issue(now);
        broker.issue(now);
        assert!(broker.claim(1, now + EXPIRY - Duration::from_millis(1)));
        assert!(!broker.claim(2, now + EXPIRY));
    }

    #[test]
    fn the_number_of_waiting_ids_is_bounded_and_recovers() {
        let (mut broker, now) = (Broker::default(), Instant::now());
        assert!((0..MAX_WAITING).all(|_| broker.issue(now).is_some()));
        assert_eq!(broker.issue(now), None);
        assert!(broker.issue(now + EXPIRY).is_some());
    }
}
