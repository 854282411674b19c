//! Decides which Events are posted, counted as repeats, throttled or dropped. Time is an argument.
//!
//! ```text
//! add:   equal to a queued Event?  -> Counted       queue full?            -> the oldest is Dropped
//! next:  rate of the object is used up?  -> Throttled, or Counted if an equal Event was posted within 10 min
//!        rate of all is used up?   -> Wait
//!        otherwise                 -> Post: a new Event, or a repeat that updates the posted one
//! ```

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use gloo_types::ObjectKey;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{Event, EventObject, EventResult, MESSAGE};
use crate::RequestLimits;
use crate::bucket::Bucket;

/// An equal Event within this time of the last one raises its count.
const WINDOW: Duration = Duration::from_secs(600);
/// Maximum number of queued Events.
const QUEUE: usize = 256;
/// The rate of Events of one object.
const PER_OBJECT: RequestLimits = RequestLimits {
    qps: 1.0 / 60.0,
    burst: 10,
};
/// The rate of all Events.
const ALL: RequestLimits = RequestLimits { qps: 5.0, burst: 5 };
/// Characters of the object's name in the Event's name. Names have at most 253; `.` and the time need up to 17.
const NAME: usize = 236;

/// The queued Events, and the posted Events of the last [`WINDOW`].
#[derive(Default)]
pub(super) struct Ledger {
    waiting: VecDeque<Posting>,
    posted: HashMap<Event, (Series, Instant)>,
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
    pub(super) series: Series,
    pub(super) last: Timestamp,
}

/// The occurrences of an Event.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// The name of the object in the cluster that counts them.
    name: String,
    pub(super) count: u32,
    pub(super) first: Timestamp,
}

/// The reason and the result of an Event.
pub(super) type Ended = (&'static str, EventResult);

impl Ledger {
    /// Queues an Event that happens at `time`. Returns a result if an Event is finished: this one if an equal one is
    /// queued, or the oldest one if the queue was full.
    pub(super) fn add(&mut self, mut event: Event, time: Timestamp) -> Option<Ended> {
        if let Some((end, _)) = event.message.char_indices().nth(MESSAGE) {
            event.message.truncate(end);
        }
        if let Some(equal) = self.waiting.iter_mut().find(|it| it.event == event) {
            equal.series.add(1);
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
            series: Series {
                // client-go names Events in this way.
                name: format!("{base}.{:x}", time.as_nanosecond()),
                count: 1,
                first: time,
            },
            last: time,
        });
        oldest.map(|oldest| (oldest.event.reason, EventResult::Dropped))
    }

    /// Returns the next action, and the Events that are finished without a request. The count of a throttled repeat is
    /// included in the next repeat that is posted.
    pub(super) fn next(&mut self, now: Instant) -> (Next, Vec<Ended>) {
        let mut ended = Vec::new();
        while let Some(waiting) = self.waiting.front() {
            let object = self.objects.get(&waiting.event.about);
            let is_affordable = object.is_none_or(|bucket| bucket.pause(1.0, now).is_zero());
            let all = self.all.get_or_insert_with(|| Bucket::full(ALL, now));
            let pause = all.pause(1.0, now);
            if is_affordable && !pause.is_zero() {
                return (Next::Wait(pause), ended);
            }
            let Some(mut posting) = self.waiting.pop_front() else {
                break;
            };
            let earlier = self.posted.get_mut(&posting.event);
            let earlier = earlier.filter(|(_, at)| now.duration_since(*at) < WINDOW);
            if !is_affordable {
                let result = match earlier {
                    Some((posted, _)) => {
                        posted.add(posting.series.count);
                        EventResult::Counted
                    }
                    None => EventResult::Throttled,
                };
                ended.push((posting.event.reason, result));
                continue;
            }
            if let Some((posted, _)) = earlier {
                posted.add(posting.series.count);
                posting.series = posted.clone();
                posting.is_repeat = true;
            }
            all.take(now);
            let bucket = self.objects.entry(posting.event.about.clone());
            let bucket = bucket.or_insert_with(|| Bucket::full(PER_OBJECT, now));
            bucket.take(now);
            self.remember(&posting, now);
            return (Next::Post(Box::new(posting)), ended);
        }
        (Next::Nothing, ended)
    }

    /// Forgets an Event that could not be posted, so that the next occurrence creates it.
    pub(super) fn forget(&mut self, posting: &Posting) {
        self.posted.remove(&posting.event);
    }

    /// Remembers a posted Event, and drops expired Events and full buckets.
    fn remember(&mut self, posting: &Posting, now: Instant) {
        self.posted
            .retain(|_, (_, at)| now.duration_since(*at) < WINDOW);
        self.objects.retain(|_, bucket| !bucket.is_full(now));
        let posted = (posting.series.clone(), now);
        self.posted.insert(posting.event.clone(), posted);
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.waiting.len(), self.posted.len(), self.objects.len()]
    }
}

impl Series {
    const fn add(&mut self, occurrences: u32) {
        self.count = self.count.saturating_add(occurrences);
    }
}

impl Posting {
    pub(super) fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.event.about.key.namespace, &self.series.name)
    }
}
