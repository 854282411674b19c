//! Counts the results of requests: totals, shares and latencies of the last seconds, and the points of the curves.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use traffic_lab::Sent;

use crate::tail::Tail;

/// The time that shares and latencies cover.
const WINDOW: Duration = Duration::from_secs(2);
/// Interval between two points of a curve.
const POINT: Duration = Duration::from_millis(500);
/// Number of points that are kept: two minutes.
pub(crate) const POINTS: usize = 240;

/// A kind of user, with the header of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Persona {
    pub(crate) name: &'static str,
    pub(crate) header: Option<(&'static str, &'static str)>,
    /// Requests per second.
    pub(crate) rate: u32,
}

/// All personas. The requests of the first one are split by weight.
pub(crate) const PERSONAS: [Persona; 3] = [
    Persona {
        name: "everyone",
        header: None,
        rate: 160,
    },
    Persona {
        name: "tester",
        header: Some(("x-tester", "yes")),
        rate: 20,
    },
    Persona {
        name: "beta user",
        header: Some(("cookie", "beta=1")),
        rate: 20,
    },
];

/// A result in the window.
#[derive(Debug)]
struct Recent {
    at: Duration,
    persona: usize,
    /// `None` for a failure.
    version: Option<u32>,
    latency: Duration,
}

/// The counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    requests: u64,
    versions: BTreeMap<u32, u64>,
    failures: BTreeMap<String, u64>,
    copies: BTreeMap<u32, u64>,
    recent: VecDeque<Recent>,
    /// Points of the curves: time, share asked for, share written, share measured, failures since the last point, latency.
    pub(crate) points: Tail<POINTS>,
    last_point: Duration,
    failed_at_last_point: u64,
    /// The answers and mirrored requests since [`Counts::take_bubbles`], three characters each.
    bubbles: String,
}

impl Counts {
    /// Counts the result of a persona's request.
    pub(crate) fn add(&mut self, persona: usize, sent: &Sent) {
        let answer = &sent.answer;
        let failure = answer.failure();
        let version = answer.version.parse().ok();
        self.requests += 1;
        match (&failure, version) {
            (None, Some(version)) => *self.versions.entry(version).or_default() += 1,
            _ => {
                let kind = failure.clone().unwrap_or_else(|| "no version".to_owned());
                *self.failures.entry(kind).or_default() += 1;
            }
        }
        let is_failed = failure.is_some() || version.is_none();
        self.bubble(
            persona,
            version.unwrap_or(0),
            if is_failed { 'x' } else { '.' },
        );
        self.recent.push_back(Recent {
            at: sent.answered,
            persona,
            version: version.filter(|_| !is_failed),
            latency: sent.answered.saturating_sub(sent.at),
        });
    }

    /// Counts mirrored requests to a version.
    pub(crate) fn add_copies(&mut self, version: u32, count: usize) {
        for _ in 0..count {
            *self.copies.entry(version).or_default() += 1;
            self.bubble(0, version, 'o');
        }
    }

    /// Adds a bubble, which is three characters: the persona, the version, and the fate. The fate is `.` for a success, `x`
    /// for a failure and `o` for a mirrored request.
    fn bubble(&mut self, persona: usize, version: u32, fate: char) {
        let digit = |number: u32| char::from_digit(number % 36, 36).unwrap_or('0');
        self.bubbles
            .push(digit(u32::try_from(persona).unwrap_or(0)));
        self.bubbles.push(digit(version));
        self.bubbles.push(fate);
    }

    /// Returns the bubbles since the last call.
    pub(crate) fn take_bubbles(&mut self) -> String {
        std::mem::take(&mut self.bubbles)
    }

    /// Returns the share of a version in the answers to the first persona, in percent; `None` without answers.
    pub(crate) fn share(&self, version: u32) -> Option<f64> {
        let answers = || self.recent.iter().filter(|it| it.persona == 0);
        let its = answers().filter(|it| it.version == Some(version)).count();
        let all = answers().filter(|it| it.version.is_some()).count();
        percent(its, all)
    }

    /// Drops results that are older than the window, and adds a point to the curves each [`POINT`].
    pub(crate) fn tick(&mut self, now: Duration, asked: i32, written: f64, canary: Option<u32>) {
        while self.recent.front().is_some_and(|it| it.at + WINDOW < now) {
            self.recent.pop_front();
        }
        if now < self.last_point + POINT {
            return;
        }
        self.last_point = now;
        let failed = self.failed();
        let (_, p99) = self.latencies();
        self.points.push(json!([
            tenths(now.as_secs_f64()),
            asked,
            written,
            canary.and_then(|it| self.share(it)).map(tenths),
            failed - self.failed_at_last_point,
            p99,
        ]));
        self.failed_at_last_point = failed;
    }

    /// Returns the totals as JSON.
    pub(crate) fn totals(&self) -> Value {
        let (p50, p99) = self.latencies();
        json!({
            "requests": self.requests,
            "failed": self.failed(),
            "versions": self.versions,
            "failures": self.failures,
            "copies": self.copies,
            "p50": p50,
            "p99": p99,
        })
    }

    /// Returns the shares of the versions in the answers to each persona, in percent.
    pub(crate) fn personas(&self) -> Vec<Value> {
        let personas = PERSONAS.iter().enumerate();
        personas
            .map(|(index, persona)| {
                let mut versions: BTreeMap<String, usize> = BTreeMap::new();
                let answers = self.recent.iter().filter(|it| it.persona == index);
                let mut all = 0;
                for answer in answers {
                    let key = answer.version.map(|it| it.to_string());
                    *versions.entry(key.unwrap_or("failed".into())).or_default() += 1;
                    all += 1;
                }
                let share = |(key, count)| Some((key, percent(count, all)?.round()));
                let shares: BTreeMap<_, _> = versions.into_iter().filter_map(share).collect();
                json!({"name": persona.name, "shares": shares})
            })
            .collect()
    }

    fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Returns the median and the 99th percentile of the latencies in the window, in milliseconds.
    fn latencies(&self) -> (Option<f64>, Option<f64>) {
        let mut all: Vec<Duration> = self.recent.iter().map(|it| it.latency).collect();
        all.sort_unstable();
        let at = |percent: usize| {
            let latency = all.get(all.len().saturating_sub(1) * percent / 100);
            latency.map(|it| tenths(it.as_secs_f64() * 1000.0))
        };
        (at(50), at(99))
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn percent(count: usize, all: usize) -> Option<f64> {
    (all > 0).then(|| 100.0 * count as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use traffic_lab::Answer;

    use super::*;

    fn sent(ms: u64, version: &str, status: u16) -> Sent {
        Sent {
            at: Duration::from_millis(ms),
            answered: Duration::from_millis(ms + 2),
            answer: Answer {
                status: http::StatusCode::from_u16(status).ok(),
                version: version.to_owned(),
                route: String::new(),
                flags: "UH".to_owned(),
                error: None,
            },
        }
    }

    /// Counts 4 s of answers: three in four by version 1, and all answers to the tester by version 2.
    fn counts() -> Counts {
        let mut counts = Counts::default();
        for ms in 0..4000 {
            counts.add(0, &sent(ms, if ms % 4 == 0 { "2" } else { "1" }, 200));
            if ms % 8 == 0 {
                counts.add(1, &sent(ms, "2", 200));
            }
        }
        counts
    }

    #[test]
    fn a_share_covers_the_first_persona_and_the_last_seconds() {
        let mut counts = counts();
        assert_eq!(counts.share(2), Some(25.0));
        for ms in 4000..6000 {
            counts.add(0, &sent(ms, "1", 200));
        }
        counts.tick(Duration::from_millis(6003), 25, 25.0, Some(2));
        assert_eq!(counts.share(2), Some(0.0));
        assert_eq!(Counts::default().share(1), None);
    }

    #[test]
    fn failures_are_counted_by_kind_and_do_not_change_shares() {
        let mut counts = counts();
        counts.add(0, &sent(3999, "", 503));
        counts.add(2, &sent(3999, "2", 500));
        let totals = counts.totals();
        assert_eq!(totals["failed"], 2);
        assert_eq!(totals["failures"], json!({"503 UH": 1, "500 UH": 1}));
        assert_eq!(totals["requests"], 4502);
        assert_eq!(totals["versions"], json!({"1": 3000, "2": 1500}));
        assert_eq!(counts.share(2), Some(25.0));
    }

    #[test]
    fn all_personas_together_send_at_most_500_requests_per_second() {
        let rates = PERSONAS.iter().map(|persona| persona.rate);
        assert!(rates.sum::<u32>() <= 500);
    }

    #[test]
    fn bubbles_are_taken_once() {
        let mut counts = Counts::default();
        counts.add(1, &sent(1, "2", 200));
        counts.add(0, &sent(2, "", 503));
        counts.add_copies(3, 1);
        assert_eq!(counts.take_bubbles(), "12.00x03o");
        assert_eq!(counts.take_bubbles(), "");
    }
}
