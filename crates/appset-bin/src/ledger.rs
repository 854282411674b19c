//! What was answered to which ApplicationSet, and which sets are to ask again. Time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use appset_generator::Request;
use ring::digest::{SHA256, digest};
use serde_json::Value;
use tokio::time::Instant;

/// How many requests are remembered. One more replaces the one that was asked for longest ago.
const MOST_CALLS: usize = 1000;
/// A request with longer parameters is not remembered, in bytes.
const LONGEST: usize = 16 << 10;
/// A request that was not asked for so long is forgotten: its set may be gone, or ask for something else.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// How many sets are annotated in one round.
const MOST_SETS: usize = 20;
/// How long a set is left alone whose annotation could not be written.
const RETRY: Duration = Duration::from_secs(60);

/// One request, and who asked it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    application_set: String,
    profile: Option<String>,
    token: String,
    /// JSON.
    parameters: String,
}

/// What became of the annotation of one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was written.
    Requested,
    /// There is no such set in the namespaces of the configuration.
    Unknown,
    /// The API server refused, or did not answer.
    Failed,
}

/// The hash of an answer.
type Hash = [u8; 32];

struct Entry {
    asked: Instant,
    /// What the set got, or was told to ask for.
    answered: Hash,
    /// What it would get.
    now: Hash,
    /// Whether it was compared since the set got it: an object may have changed while it was being answered.
    is_compared: bool,
}

/// What was answered to whom.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<Call, Entry>,
    /// Sets that are not annotated before.
    resting: BTreeMap<String, Instant>,
}

/// A set whose answers have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    application_set: String,
    value: String,
    changed: BTreeMap<Call, Hash>,
}

impl Call {
    pub(crate) fn new(profile: Option<&str>, token: &str, request: &Request) -> Self {
        Self {
            application_set: request.application_set.clone(),
            profile: profile.map(str::to_owned),
            token: token.to_owned(),
            parameters: Value::Object(request.parameters.clone()).to_string(),
        }
    }

    pub(crate) fn profile(&self) -> Option<&str> {
        self.profile.as_deref()
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// The request once more.
    pub(crate) fn request(&self) -> Option<Request> {
        let Ok(Value::Object(parameters)) = serde_json::from_str(&self.parameters) else {
            return None;
        };
        Some(Request {
            application_set: self.application_set.clone(),
            parameters,
        })
    }
}

impl Due {
    pub(crate) fn application_set(&self) -> &str {
        &self.application_set
    }

    /// The value of the annotation: the same for the same answers.
    pub(crate) fn value(&self) -> &str {
        &self.value
    }
}

impl Ledger {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A set got an answer.
    pub(crate) fn answered(&mut self, call: Call, body: &[u8], now: Instant) {
        if call.parameters.len() > LONGEST {
            return;
        }
        if self.entries.len() >= MOST_CALLS && !self.entries.contains_key(&call) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.asked);
            if let Some(oldest) = oldest.map(|(call, _)| call.clone()) {
                self.entries.remove(&oldest);
            }
        }
        let hash = hash(body);
        let entry = Entry {
            asked: now,
            answered: hash,
            now: hash,
            is_compared: false,
        };
        self.entries.insert(call, entry);
    }

    /// The requests to answer again: `all`, or those that were not compared yet.
    pub(crate) fn calls(&mut self, all: bool, now: Instant) -> Vec<Call> {
        let is_recent = |_: &Call, entry: &mut Entry| {
            now.saturating_duration_since(entry.asked) < FORGOTTEN_AFTER
        };
        self.entries.retain(is_recent);
        let entries = self.entries.iter();
        let open = entries.filter(|(_, entry)| all || !entry.is_compared);
        open.map(|(call, _)| call.clone()).collect()
    }

    /// A request would get an answer now.
    pub(crate) fn would_answer(&mut self, call: &Call, body: &[u8]) {
        if let Some(entry) = self.entries.get_mut(call) {
            entry.now = hash(body);
            entry.is_compared = true;
        }
    }

    /// The sets to annotate, and whether there are more which have to wait.
    pub(crate) fn due(&mut self, now: Instant) -> (Vec<Due>, bool) {
        self.resting.retain(|_, until| *until > now);
        let mut sets: BTreeMap<&str, BTreeMap<Call, Hash>> = BTreeMap::new();
        let entries = self.entries.iter();
        for (call, entry) in entries.filter(|(_, entry)| entry.now != entry.answered) {
            let changed = sets.entry(&call.application_set).or_default();
            changed.insert(call.clone(), entry.now);
        }
        let all = sets.len();
        let ready = sets
            .into_iter()
            .filter(|(set, _)| !self.resting.contains_key(*set));
        let due: Vec<Due> = ready
            .take(MOST_SETS)
            .map(|(set, changed)| Due {
                application_set: set.to_owned(),
                value: value(changed.values()),
                changed,
            })
            .collect();
        let is_more = due.len() < all;
        (due, is_more)
    }

    /// A set was annotated, or could not be.
    pub(crate) fn settle(&mut self, due: &Due, outcome: Outcome, rest: Duration, now: Instant) {
        let set = due.application_set.clone();
        match outcome {
            Outcome::Requested => {
                for (call, hash) in &due.changed {
                    // It may have been asked for in the meantime.
                    if let Some(entry) = self.entries.get_mut(call) {
                        entry.answered = *hash;
                    }
                }
                self.resting.insert(set, now + rest);
            }
            Outcome::Unknown => {
                self.entries.retain(|call, _| call.application_set != set);
            }
            Outcome::Failed => {
                self.resting.insert(set, now + RETRY.max(rest));
            }
        }
    }
}

fn hash(body: &[u8]) -> Hash {
    let digest = digest(&SHA256, body);
    digest.as_ref().try_into().unwrap_or_default()
}

/// Sixteen hexadecimal digits for these answers, in whatever order.
fn value<'h>(hashes: impl Iterator<Item = &'h Hash>) -> String {
    let sorted: BTreeSet<&Hash> = hashes.collect();
    let all: Vec<u8> = sorted.into_iter().flatten().copied().collect();
    let digits = hash(&all);
    digits
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_secs(10);

    /// A ledger and a clock.
    struct Book {
        ledger: Ledger,
        now: Instant,
    }

    impl Book {
        fn new() -> Self {
            let ledger = Ledger::default();
            let now = Instant::now();
            Self { ledger, now }
        }

        fn answer(&mut self, set: &str, parameter: &str, body: &str) {
            let call = call(set, parameter);
            self.ledger.answered(call, body.as_bytes(), self.now);
        }

        /// Every request of a set would get this now.
        fn becomes(&mut self, set: &str, body: &str) {
            for call in self.ledger.calls(true, self.now) {
                if call.application_set == set {
                    self.ledger.would_answer(&call, body.as_bytes());
                }
            }
        }

        /// What is due, which is settled with this outcome.
        fn round(&mut self, outcome: Outcome) -> Vec<String> {
            let (due, _) = self.ledger.due(self.now);
            for set in &due {
                self.ledger.settle(set, outcome, REST, self.now);
            }
            due.into_iter().map(|set| set.application_set).collect()
        }
    }

    fn call(set: &str, parameter: &str) -> Call {
        let body = format!(
            r#"{{"applicationSetName":"{set}","input":{{"parameters":{{"a":"{parameter}"}}}}}}"#
        );
        let request = Request::from_body(body.as_bytes()).unwrap();
        Call::new(None, "t", &request)
    }

    #[test]
    fn a_set_is_due_once_for_an_answer_that_has_changed() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        book.answer("one", "y", "1");
        book.answer("two", "x", "1");
        assert!(book.round(Outcome::Requested).is_empty());
        book.becomes("one", "2");
        assert_eq!(book.round(Outcome::Requested), ["one"]);
        // Argo CD has not asked yet, or asked another replica.
        book.now += REST;
        assert!(book.round(Outcome::Requested).is_empty());
        book.becomes("one", "3");
        assert_eq!(book.round(Outcome::Requested), ["one"]);
    }

    #[test]
    fn an_answer_is_compared_once_though_nothing_changes_after_it() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        assert_eq!(book.ledger.calls(false, book.now).len(), 1);
        // An object changed while it was being answered.
        book.becomes("one", "2");
        assert!(book.ledger.calls(false, book.now).is_empty());
        assert_eq!(book.round(Outcome::Requested), ["one"]);
        book.answer("one", "x", "2");
        assert_eq!(book.ledger.calls(false, book.now).len(), 1);
    }

    #[test]
    fn an_answer_that_changes_back_is_not_due() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        book.becomes("one", "2");
        book.becomes("one", "1");
        assert!(book.round(Outcome::Requested).is_empty());
        // Nor is one that was asked for in the meantime.
        book.becomes("one", "2");
        book.answer("one", "x", "2");
        assert!(book.round(Outcome::Requested).is_empty());
    }

    #[test]
    fn a_set_is_annotated_once_in_an_interval() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        book.becomes("one", "2");
        assert_eq!(book.round(Outcome::Requested), ["one"]);
        book.becomes("one", "3");
        assert!(book.round(Outcome::Requested).is_empty());
        assert!(book.ledger.due(book.now).1, "it waits");
        book.now += REST;
        assert_eq!(book.round(Outcome::Requested), ["one"]);
    }

    #[test]
    fn what_cannot_be_annotated_is_tried_again_later() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        book.becomes("one", "2");
        assert_eq!(book.round(Outcome::Failed), ["one"]);
        book.now += REST;
        assert!(book.round(Outcome::Failed).is_empty());
        book.now += RETRY;
        assert_eq!(book.round(Outcome::Requested), ["one"]);
    }

    #[test]
    fn a_set_that_is_not_there_is_forgotten() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        book.becomes("one", "2");
        assert_eq!(book.round(Outcome::Unknown), ["one"]);
        assert_eq!(book.ledger.len(), 0);
    }

    #[test]
    fn what_is_remembered_and_written_has_a_bound() {
        let mut book = Book::new();
        for number in 0..MOST_CALLS {
            book.answer(&format!("set-{number}"), "x", "1");
            book.now += Duration::from_millis(1);
        }
        book.answer("one-more", "x", "1");
        book.answer("too-long", &"x".repeat(LONGEST), "1");
        assert_eq!(book.ledger.len(), MOST_CALLS);
        assert!(!book.ledger.entries.contains_key(&call("set-0", "x")));
        for number in 1..30 {
            book.becomes(&format!("set-{number}"), "2");
        }
        assert_eq!(book.round(Outcome::Requested).len(), MOST_SETS);
        assert_eq!(book.round(Outcome::Requested).len(), 9);
        book.now += FORGOTTEN_AFTER;
        assert!(book.ledger.calls(true, book.now).is_empty());
    }

    #[test]
    fn two_replicas_write_the_same_value() {
        let values: Vec<String> = [["x", "y"], ["y", "x"]]
            .map(|order| {
                let mut book = Book::new();
                for parameter in order {
                    book.answer("one", parameter, "1");
                    book.now += Duration::from_secs(1);
                }
                book.becomes("one", "2");
                book.ledger.due(book.now).0.remove(0).value
            })
            .into();
        assert_eq!(values[0], values[1]);
        assert_eq!(values[0].len(), 16);
    }
}
