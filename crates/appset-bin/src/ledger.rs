//! The answers that ApplicationSets got, and the sets whose answers have changed since. Time is an argument.
//!
//! ```text
//! answered: A --objects change, would_answer: B--> due --annotated, settle(Requested)--> answered: B
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use appset_generator::Request;
use ring::digest::{SHA256, digest};
use tokio::time::Instant;

/// The maximum number of requests in the ledger. A new request replaces the one that was received longest ago.
const MAX_CALLS: usize = 1000;
/// The maximum number of requests with one token, so that no token can replace those of all others.
const MAX_OF_TOKEN: usize = MAX_CALLS / 2;
/// The maximum size of the parameters of a request in the ledger, in bytes. Others are not added.
const MAX_PARAMETERS: usize = 16 << 10;
/// A request is removed if it was not received again for this time: its set may be deleted or changed.
const EXPIRY: Duration = Duration::from_secs(24 * 60 * 60);
/// The maximum number of sets that are annotated in one round.
const MAX_SETS: usize = 20;
/// The minimum time before a failed annotation is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// One request with its profile and token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    application_set: String,
    pub(crate) profile: Option<String>,
    pub(crate) token: String,
    /// JSON.
    parameters: String,
}

/// The outcome of annotating one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The annotation was written.
    Requested,
    /// The namespaces of the configuration have no such set.
    Unknown,
    /// The API server refused the request or did not answer.
    Failed,
}

/// The hash of an answer.
pub(crate) type Hash = [u8; 32];

struct Entry {
    /// When the request was received last.
    asked: Instant,
    /// The answer that the set got, or for which it was annotated.
    answered: Hash,
    /// The answer that the set would get now.
    now: Hash,
    /// Whether the answer was compared since the set got it. An object may have changed while the call was answered.
    is_compared: bool,
}

/// The answers by request.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<Call, Entry>,
    /// Sets that must not be annotated before the given time.
    paused: BTreeMap<String, Instant>,
    /// The last set of the last round. The next one begins after it, so that sets that change in each round delay no other one.
    last: String,
}

/// A set whose answers have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) application_set: String,
    /// The value of the annotation, which depends only on the answers.
    pub(crate) value: String,
    changed: BTreeMap<Call, Hash>,
}

impl Call {
    /// Returns `None` if the parameters are too long to be kept.
    pub(crate) fn new(profile: Option<&str>, token: &str, request: &Request) -> Option<Self> {
        let parameters = serde_json::to_string(&request.parameters).ok()?;
        (parameters.len() <= MAX_PARAMETERS).then(|| Self {
            application_set: request.application_set.clone(),
            profile: profile.map(str::to_owned),
            token: token.to_owned(),
            parameters,
        })
    }

    /// Returns the request.
    pub(crate) fn request(&self) -> Option<Request> {
        Some(Request {
            application_set: self.application_set.clone(),
            parameters: serde_json::from_str(&self.parameters).ok()?,
        })
    }
}

impl Ledger {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Records the answer that a set got.
    pub(crate) fn answered(&mut self, call: Call, hash: Hash, now: Instant) {
        if !self.entries.contains_key(&call) {
            self.make_room(&call.token);
        }
        let entry = Entry {
            asked: now,
            answered: hash,
            now: hash,
            is_compared: false,
        };
        self.entries.insert(call, entry);
    }

    /// Removes the oldest request if there is no room for one more with this token.
    fn make_room(&mut self, token: &str) {
        let own = |call: &Call| call.token == token;
        // A search is enough for a thousand entries, and happens once in a call at most.
        let has_most = self.entries.keys().filter(|call| own(call)).count() >= MAX_OF_TOKEN;
        if !has_most && self.entries.len() < MAX_CALLS {
            return;
        }
        let entries = self.entries.iter();
        let candidates = entries.filter(|(call, _)| own(call) || !has_most);
        let oldest = candidates.min_by_key(|(_, entry)| entry.asked);
        if let Some(oldest) = oldest.map(|(call, _)| call.clone()) {
            self.entries.remove(&oldest);
        }
    }

    /// Returns the requests whose answers are to be compared: `all`, or those that were not compared yet.
    pub(crate) fn calls(&mut self, all: bool, now: Instant) -> Vec<Call> {
        let age = |entry: &Entry| now.saturating_duration_since(entry.asked);
        self.entries.retain(|_, entry| age(entry) < EXPIRY);
        let entries = self.entries.iter();
        let open = entries.filter(|(_, entry)| all || !entry.is_compared);
        open.map(|(call, _)| call.clone()).collect()
    }

    /// Records the answer that a request would get now.
    pub(crate) fn would_answer(&mut self, call: &Call, hash: Hash) {
        if let Some(entry) = self.entries.get_mut(call) {
            entry.now = hash;
            entry.is_compared = true;
        }
    }

    /// Returns the sets to annotate, and whether more sets have to wait.
    pub(crate) fn due(&mut self, now: Instant) -> (Vec<Due>, bool) {
        self.paused.retain(|_, until| *until > now);
        let mut sets: BTreeMap<&str, BTreeMap<Call, Hash>> = BTreeMap::new();
        let entries = self.entries.iter();
        for (call, entry) in entries.filter(|(_, entry)| entry.now != entry.answered) {
            let changed = sets.entry(&call.application_set).or_default();
            changed.insert(call.clone(), entry.now);
        }
        // Paused sets count, so that another round follows although no object changes.
        let all = sets.len();
        sets.retain(|set, _| !self.paused.contains_key(*set));
        // The name that would follow the last one.
        let next = format!("{}\0", self.last);
        let after = sets.split_off(next.as_str());
        let in_turn = after.into_iter().chain(sets);
        let due = in_turn.take(MAX_SETS).map(|(set, changed)| Due {
            application_set: set.to_owned(),
            value: value(changed.values()),
            changed,
        });
        let due: Vec<Due> = due.collect();
        if let Some(last) = due.last() {
            self.last = last.application_set.clone();
        }
        let is_more = due.len() < all;
        (due, is_more)
    }

    /// Records the outcome of annotating a set. `pause` is the minimum time until its next annotation.
    pub(crate) fn settle(&mut self, due: &Due, outcome: Outcome, pause: Duration, now: Instant) {
        let set = due.application_set.clone();
        match outcome {
            Outcome::Requested => {
                for (call, hash) in &due.changed {
                    // The request may have been removed in the meantime.
                    if let Some(entry) = self.entries.get_mut(call) {
                        // Not `now`: the answer may have changed again while the set was annotated.
                        entry.answered = *hash;
                    }
                }
                self.paused.insert(set, now + pause);
            }
            // The set was deleted, or is in a namespace that the configuration does not name.
            Outcome::Unknown => self.entries.retain(|call, _| call.application_set != set),
            Outcome::Failed => {
                self.paused.insert(set, now + RETRY.max(pause));
            }
        }
    }
}

/// Returns the hash of a body.
pub(crate) fn hash(body: &[u8]) -> Hash {
    let digest = digest(&SHA256, body);
    digest.as_ref().try_into().unwrap_or_default()
}

/// Returns sixteen hexadecimal digits for a set of answers. Their order does not matter.
fn value<'h>(hashes: impl Iterator<Item = &'h Hash>) -> String {
    let sorted: BTreeSet<&Hash> = hashes.collect();
    let all: Vec<u8> = sorted.into_iter().flatten().copied().collect();
    let digits = hash(&all);
    let digits = digits.iter().take(8).map(|byte| format!("{byte:02x}"));
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PAUSE: Duration = Duration::from_secs(10);

    /// A ledger with a clock.
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
            self.ledger.answered(call, hash(body.as_bytes()), self.now);
        }

        /// Changes the answer to every request of a set.
        fn becomes(&mut self, set: &str, body: &str) {
            for call in self.ledger.calls(true, self.now) {
                if call.application_set == set {
                    self.ledger.would_answer(&call, hash(body.as_bytes()));
                }
            }
        }

        /// Settles all sets that are due with this outcome, and returns their names.
        fn round(&mut self, outcome: Outcome) -> Vec<String> {
            let (due, _) = self.ledger.due(self.now);
            for set in &due {
                self.ledger.settle(set, outcome, PAUSE, self.now);
            }
            due.into_iter().map(|set| set.application_set).collect()
        }
    }

    fn call(set: &str, parameter: &str) -> Call {
        let body = format!(
            r#"{{"applicationSetName":"{set}","input":{{"parameters":{{"a":"{parameter}"}}}}}}"#
        );
        let request = Request::from_body(body.as_bytes()).unwrap();
        Call::new(None, &parameter[..1], &request).unwrap()
    }

    #[test]
    fn a_set_is_due_once_for_a_changed_answer() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        book.answer("one", "y", "1");
        book.answer("two", "x", "1");
        assert!(book.round(Outcome::Requested).is_empty());
        book.becomes("one", "2");
        assert_eq!(book.round(Outcome::Requested), ["one"]);
        // Argo CD has not sent a request yet, or sent it to another replica.
        book.now += PAUSE;
        assert!(book.round(Outcome::Requested).is_empty());
        book.becomes("one", "3");
        assert_eq!(book.round(Outcome::Requested), ["one"]);
    }

    #[test]
    fn a_new_answer_is_compared_once_without_a_change() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        assert_eq!(book.ledger.calls(false, book.now).len(), 1);
        // An object changed while the call was answered.
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
        // A set that has got the new answer is not due either.
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
        assert!(book.ledger.due(book.now).1, "the set has to wait");
        book.now += PAUSE;
        assert_eq!(book.round(Outcome::Requested), ["one"]);
    }

    #[test]
    fn a_failed_annotation_is_tried_again_later() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        book.becomes("one", "2");
        assert_eq!(book.round(Outcome::Failed), ["one"]);
        book.now += PAUSE;
        assert!(book.round(Outcome::Failed).is_empty());
        book.now += RETRY;
        assert_eq!(book.round(Outcome::Requested), ["one"]);
    }

    #[test]
    fn a_set_that_does_not_exist_is_removed() {
        let mut book = Book::new();
        book.answer("one", "x", "1");
        book.becomes("one", "2");
        assert_eq!(book.round(Outcome::Unknown), ["one"]);
        assert_eq!(book.ledger.len(), 0);
    }

    #[test]
    fn the_ledger_and_each_round_are_bounded() {
        let mut book = Book::new();
        for number in 0..MAX_OF_TOKEN {
            for token in ["x", "y"] {
                book.answer(&format!("set-{number}"), token, "1");
                book.now += Duration::from_millis(1);
            }
        }
        book.answer("one-more", "y", "1");
        assert!(book.ledger.entries.contains_key(&call("set-0", "x")));
        assert!(!book.ledger.entries.contains_key(&call("set-0", "y")));
        book.answer("one-more", "z", "1");
        let long = json!({"input": {"parameters": {"a": "x".repeat(MAX_PARAMETERS)}}});
        let long = Request::from_body(long.to_string().as_bytes()).unwrap();
        assert_eq!(Call::new(None, "x", &long), None);
        assert_eq!(book.ledger.len(), MAX_CALLS);
        assert!(!book.ledger.entries.contains_key(&call("set-0", "x")));
        for number in 1..30 {
            book.becomes(&format!("set-{number}"), "2");
        }
        assert_eq!(book.round(Outcome::Requested).len(), MAX_SETS);
        assert_eq!(book.round(Outcome::Requested).len(), 9);
        assert_eq!(book.ledger.len(), MAX_CALLS);
        book.now += EXPIRY;
        assert!(book.ledger.calls(true, book.now).is_empty());
    }

    #[test]
    fn sets_that_change_in_each_round_delay_no_other_one() {
        let mut book = Book::new();
        let names: Vec<String> = (10..35).map(|number| format!("set-{number}")).collect();
        names.iter().for_each(|name| book.answer(name, "x", "0"));
        let mut annotated = BTreeSet::new();
        for round in 1..=2 {
            names
                .iter()
                .for_each(|name| book.becomes(name, &round.to_string()));
            annotated.extend(book.round(Outcome::Requested));
            book.now += PAUSE;
        }
        assert!(annotated.iter().eq(&names), "{annotated:?}");
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
