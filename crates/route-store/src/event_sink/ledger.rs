//! Which Events are posted, which are counted as repeats, and which are not posted at all. Times are arguments.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use gloo_types::ObjectKey;
use jiff::Timestamp;

use super::{Event, EventObject, EventResult, MESSAGE};

/// How long an Event is counted up instead of posted again.
const WINDOW: Duration = Duration::from_secs(600);
/// Events that may wait.
const QUEUE: usize = 256;
/// What one object may have at once, and how long until it may have one more.
const PER_OBJECT: Rate = Rate {
    burst: 10.0,
    every: Duration::from_secs(60),
};
/// The same for all objects together.
const ALL: Rate = Rate {
    burst: 5.0,
    every: Duration::from_millis(200),
};
/// Names of objects have at most 253 characters; `.` and the time take some of them.
const NAME: usize = 236;

/// Events that wait, and what is known of those that were posted.
#[derive(Default)]
pub(super) struct Ledger {
    waiting: VecDeque<Waiting>,
    posted: HashMap<Identity, Posted>,
    objects: HashMap<EventObject, Bucket>,
    all: Option<Bucket>,
}

/// What the task does next.
#[derive(Debug)]
pub(super) enum Next {
    Post(Box<Posting>),
    /// Nothing may be posted before this time has passed.
    Wait(Duration),
    /// Nothing waits.
    Nothing,
}

/// An Event to post.
#[derive(Debug)]
pub(super) struct Posting {
    pub(super) event: Event,
    /// Whether it is in the cluster and only its count and time change.
    pub(super) is_repeat: bool,
    pub(super) count: u32,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    name: String,
}

/// What makes two Events the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    about: EventObject,
    reason: &'static str,
    message: String,
}

struct Waiting {
    event: Event,
    count: u32,
    first: Timestamp,
    last: Timestamp,
}

struct Posted {
    name: String,
    count: u32,
    first: Timestamp,
    at: Instant,
}

#[derive(Clone, Copy)]
struct Rate {
    burst: f64,
    /// Time until there is room for one more.
    every: Duration,
}

/// A token bucket.
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// The reason of an Event, and what became of it.
type Ended = (&'static str, EventResult);

impl Ledger {
    /// Adds what happens at `(now, time)`. Returns what is over at once: this Event, if an equal one waits; the oldest, if
    /// too many wait.
    pub(super) fn add(
        &mut self,
        mut event: Event,
        (_, time): (Instant, Timestamp),
    ) -> Option<Ended> {
        if let Some((end, _)) = event.message.char_indices().nth(MESSAGE) {
            event.message.truncate(end);
        }
        if let Some(equal) = self.waiting.iter_mut().find(|it| it.event == event) {
            equal.count = equal.count.saturating_add(1);
            equal.last = time;
            return Some((event.reason, EventResult::Counted));
        }
        let oldest = if self.waiting.len() < QUEUE {
            None
        } else {
            self.waiting.pop_front()
        };
        self.waiting.push_back(Waiting {
            event,
            count: 1,
            first: time,
            last: time,
        });
        oldest.map(|oldest| (oldest.event.reason, EventResult::Dropped))
    }

    /// The next request, and what ends without one: an Event whose object has no budget left is not posted, and a repeat of
    /// a posted one is shown with the next repeat that is.
    pub(super) fn next(&mut self, now: Instant) -> (Next, Vec<Ended>) {
        let mut ended = Vec::new();
        while let Some(waiting) = self.waiting.front() {
            let object = self.objects.get(&waiting.event.about);
            let is_affordable = object.is_none_or(|bucket| bucket.pause(PER_OBJECT, now).is_zero());
            let all = self.all.get_or_insert_with(|| Bucket::full(ALL, now));
            let pause = all.pause(ALL, now);
            if is_affordable && !pause.is_zero() {
                return (Next::Wait(pause), ended);
            }
            let Some(waiting) = self.waiting.pop_front() else {
                break;
            };
            let about = waiting.event.about.clone();
            let earlier = self.posted.get_mut(&waiting.event.identity());
            let earlier = earlier.filter(|posted| now.duration_since(posted.at) < WINDOW);
            if !is_affordable {
                let result = match earlier {
                    Some(posted) => {
                        posted.count = posted.count.saturating_add(waiting.count);
                        EventResult::Counted
                    }
                    None => EventResult::Throttled,
                };
                ended.push((waiting.event.reason, result));
                continue;
            }
            let posting = waiting.posting(earlier.as_deref());
            all.take(ALL, now);
            let bucket = self.objects.entry(about);
            bucket
                .or_insert_with(|| Bucket::full(PER_OBJECT, now))
                .take(PER_OBJECT, now);
            self.remember(&posting, now);
            return (Next::Post(Box::new(posting)), ended);
        }
        (Next::Nothing, ended)
    }

    /// Forgets an Event that could not be posted: the next occurrence is a new one.
    pub(super) fn forget(&mut self, posting: &Posting) {
        self.posted.remove(&posting.event.identity());
    }

    /// Remembers an Event, and nothing that has no influence any more.
    fn remember(&mut self, posting: &Posting, now: Instant) {
        self.posted
            .retain(|_, posted| now.duration_since(posted.at) < WINDOW);
        self.objects
            .retain(|_, bucket| !bucket.is_full(PER_OBJECT, now));
        let posted = Posted {
            name: posting.name.clone(),
            count: posting.count,
            first: posting.first,
            at: now,
        };
        self.posted.insert(posting.event.identity(), posted);
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.waiting.len(), self.posted.len(), self.objects.len()]
    }
}

impl Waiting {
    fn posting(self, earlier: Option<&Posted>) -> Posting {
        let Self {
            event,
            count,
            first,
            last,
        } = self;
        let base: String = event.about.key.name.chars().take(NAME).collect();
        match earlier {
            Some(posted) => Posting {
                event,
                is_repeat: true,
                count: posted.count.saturating_add(count),
                first: posted.first,
                last,
                name: posted.name.clone(),
            },
            None => Posting {
                event,
                is_repeat: false,
                count,
                first,
                last,
                // As client-go names Events.
                name: format!("{base}.{:x}", first.as_nanosecond()),
            },
        }
    }
}

impl Posting {
    pub(super) fn key(&self) -> ObjectKey {
        ObjectKey::new(self.event.about.key.namespace.clone(), self.name.clone())
    }

    pub(super) const fn reason(&self) -> &'static str {
        self.event.reason
    }
}

impl Event {
    fn identity(&self) -> Identity {
        Identity {
            about: self.about.clone(),
            reason: self.reason,
            message: self.message.clone(),
        }
    }
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self {
            tokens: rate.burst,
            at: now,
        }
    }

    fn tokens(&self, rate: Rate, now: Instant) -> f64 {
        let passed = now.duration_since(self.at).as_secs_f64();
        (self.tokens + passed / rate.every.as_secs_f64()).min(rate.burst)
    }

    /// Time until there is one token.
    fn pause(&self, rate: Rate, now: Instant) -> Duration {
        let missing = (1.0 - self.tokens(rate, now)).max(0.0);
        // Rounded up: a pause that is too short by a fraction would be followed by another one.
        let nanos = (missing * rate.every.as_nanos() as f64).ceil();
        Duration::from_nanos(nanos as u64)
    }

    fn take(&mut self, rate: Rate, now: Instant) {
        *self = Self {
            tokens: self.tokens(rate, now) - 1.0,
            at: now,
        };
    }

    fn is_full(&self, rate: Rate, now: Instant) -> bool {
        self.tokens(rate, now) >= rate.burst
    }
}
