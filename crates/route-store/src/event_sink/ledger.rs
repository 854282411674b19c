//! Decides which Events are posted, counted as repeats, throttled or dropped. Time is an argument.
//!
//! ```text
//! add:   equal to a queued Event?  -> Counted       queue full?            -> the oldest is Dropped
//! next:  rate of the object is used up?  -> Throttled, or Counted if an equal Event was posted within 10 min
//!        rate of all is used up?   -> Wait
//!        otherwise                 -> Post: a new Event, or a repeat that updates the posted one
//! ```

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use gloo_types::ObjectKey;
use jiff::Timestamp;

use super::{Event, EventObject, EventResult, MESSAGE};

/// An equal Event within this time of the last one raises its count.
const WINDOW: Duration = Duration::from_secs(600);
/// Maximum number of queued Events.
const QUEUE: usize = 256;
/// The rate of Events of one object.
const PER_OBJECT: Rate = Rate {
    burst: 10.0,
    every: Duration::from_secs(60),
};
/// The rate of all Events.
const ALL: Rate = Rate {
    burst: 5.0,
    every: Duration::from_millis(200),
};
/// Characters of the object's name in the Event's name. Names have at most 253; `.` and the time need up to 17.
const NAME: usize = 236;

/// The queued Events, and the posted Events of the last [`WINDOW`].
#[derive(Default)]
pub(super) struct Ledger {
    waiting: VecDeque<Posting>,
    posted: HashMap<Identity, Posted>,
    objects: HashMap<EventObject, Bucket>,
    all: Option<Bucket>,
}

/// The next action of the task.
#[derive(Debug)]
pub(super) enum Next {
    Post(Box<Posting>),
    /// The rate of all Events allows the next one after this time.
    Wait(Duration),
    /// The queue is empty.
    Nothing,
}

/// An Event to post.
#[derive(Debug)]
pub(super) struct Posting {
    pub(super) event: Event,
    /// Whether the Event is in the cluster, so that only its count and time change.
    pub(super) is_repeat: bool,
    pub(super) count: u32,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    name: String,
}

/// The fields by which two Events are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    about: EventObject,
    reason: &'static str,
    message: String,
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
    /// Time until one more token.
    every: Duration,
}

/// A token bucket.
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// The reason and the result of an Event.
type Ended = (&'static str, EventResult);

impl Ledger {
    /// Queues an Event that happens at `(now, time)`. Returns a result if an Event is finished: this one if an equal one is
    /// queued, or the oldest one if the queue was full.
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
        let base: String = event.about.key.name.chars().take(NAME).collect();
        self.waiting.push_back(Posting {
            event,
            is_repeat: false,
            count: 1,
            first: time,
            last: time,
            // client-go names Events in this way.
            name: format!("{base}.{:x}", time.as_nanosecond()),
        });
        oldest.map(|oldest| (oldest.event.reason, EventResult::Dropped))
    }

    /// Returns the next action, and the Events that are finished without a request. The count of a throttled repeat is
    /// included in the next repeat that is posted.
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
            let mut posting = waiting;
            if let Some(posted) = earlier {
                posting.is_repeat = true;
                posting.count = posting.count.saturating_add(posted.count);
                posting.first = posted.first;
                posting.name.clone_from(&posted.name);
            }
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

    /// Forgets an Event that could not be posted, so that the next occurrence creates it.
    pub(super) fn forget(&mut self, posting: &Posting) {
        self.posted.remove(&posting.event.identity());
    }

    /// Remembers a posted Event, and drops expired Events and full buckets.
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

    /// Returns the time until there is one token.
    fn pause(&self, rate: Rate, now: Instant) -> Duration {
        let missing = (1.0 - self.tokens(rate, now)).max(0.0);
        // Rounded up, because a slightly too short pause would be followed by another one.
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
