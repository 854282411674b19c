//! What the judge finds: a difference between two answers, or between the measured and the expected shares.

use std::fmt::Write as _;

use super::backends::{Answer, Received};
use super::world::{EXPERIMENT, Request};

/// A difference that no step explains.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule, and what differs. Findings of one kind are counted together.
    pub kind: String,
    /// The step after which it was found, from 0.
    pub(super) step: usize,
    /// Position in the requests of the world.
    pub(super) request: usize,
    /// The request, both answers and the expectation.
    pub(super) detail: String,
}

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) rule: Rule,
    /// The name of the managed route that may serve it.
    pub(super) managed: Option<String>,
    /// Whether that route must exist.
    pub(super) is_certain: bool,
    /// Clusters that may get the request, and their bounds in percent.
    pub(super) shares: Vec<Share>,
    /// A cluster that gets a copy, besides the copies of the owner.
    pub(super) copy: Option<String>,
    /// The answer that it must equal, apart from the destination.
    pub(super) base: Base,
}

/// The rule that an outcome follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Unnamed,
    Header,
    Mirror,
}

/// The answer that is the same but for the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// With the owner's tables.
    Owner,
    /// With this source alone: a header route on top takes requests of other routes.
    Source(usize),
}

/// The share of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Share {
    pub(super) cluster: String,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Share {
    /// Whether the share is that of a cluster. If the owner's destination has no port, an experiment has its only one.
    pub(super) fn is_of(&self, cluster: &str) -> bool {
        let is_free = !self.cluster.contains(':') && service_of(&self.cluster) == EXPERIMENT;
        self.cluster == cluster || (is_free && service_of(cluster) == EXPERIMENT)
    }
}

impl Rule {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Unnamed => "(a)",
            Self::Header => "(b)",
            Self::Mirror => "(c)",
        }
    }
}

impl Outcome {
    /// Returns what differs between an answer and this outcome; `None` if nothing does.
    pub(super) fn difference(&self, base: &Answer, found: &Answer) -> Option<String> {
        let rule = self.rule.name();
        if (base.status, &base.location, &base.body) != (found.status, &found.location, &found.body)
        {
            return Some(format!("{rule} response"));
        }
        match (&base.upstream, &found.upstream) {
            (None, None) => {}
            (Some(base), Some(found)) => {
                if let Some(part) = part(base, found) {
                    return Some(format!("{rule} {part}"));
                }
                let mut shares = self.shares.iter();
                match shares.find(|share| share.is_of(&found.cluster)) {
                    Some(share) if share.max > 0.0 => {}
                    Some(_) => return Some(format!("(d) share{}", self.place())),
                    None => return Some(format!("{rule} destination")),
                }
            }
            _ => return Some(format!("{rule} response")),
        }
        self.copies(base, found)
    }

    /// Where a share is wrong.
    pub(super) const fn place(&self) -> &'static str {
        match self.rule {
            Rule::Mirror => " in a mirror route",
            Rule::Unnamed | Rule::Header => "",
        }
    }

    fn copies(&self, base: &Answer, found: &Answer) -> Option<String> {
        let rule = self.rule.name();
        let clusters = |answer: &Answer| -> Vec<String> {
            answer
                .copies
                .iter()
                .map(|copy| copy.cluster.clone())
                .collect()
        };
        let mut expected = clusters(base);
        expected.extend(self.copy.clone());
        expected.sort();
        let actual = clusters(found);
        if actual.len() < expected.len() {
            return Some(format!("{rule} missing copy"));
        }
        if actual.len() > expected.len() {
            return Some(format!("{rule} extra copy"));
        }
        if actual != expected {
            return Some(format!("{rule} destination of a copy"));
        }
        let original = found.upstream.as_ref()?;
        let differing = found.copies.iter().find_map(|copy| part(original, copy));
        differing.map(|part| format!("{rule} {part} of a copy"))
    }
}

/// The first part in which two received requests differ, apart from the cluster.
fn part(one: &Received, other: &Received) -> Option<&'static str> {
    if one.method != other.method {
        return Some("method");
    }
    if one.path != other.path {
        return Some("path");
    }
    if one.host != other.host {
        return Some("host");
    }
    let policy = |it: &Received| it.headers.get(super::served::POLICY).cloned();
    if policy(one) != policy(other) {
        return Some("policy");
    }
    (one.headers != other.headers).then_some("headers")
}

/// The name of the Service of a cluster: `reviews` of `shop/reviews:8080`.
pub(super) fn service_of(cluster: &str) -> &str {
    let name = cluster.rsplit('/').next().unwrap_or_default();
    name.split(':').next().unwrap_or_default()
}

/// Formats a request.
pub(super) fn shown_request(request: &Request) -> String {
    let mut text = format!("{} {}", request.method, request.path);
    if !request.route.is_empty() {
        let _ = write!(text, " over {}", request.route);
    }
    for (name, value) in &request.headers {
        let _ = write!(text, " {name}: {value}");
    }
    text
}

/// Formats an answer.
pub(super) fn shown_answer(answer: &Answer) -> String {
    let mut text = format!("{} by route {}", answer.status, answer.route);
    if !answer.location.is_empty() {
        let _ = write!(text, ", location {}", answer.location);
    }
    match &answer.upstream {
        Some(received) => {
            let _ = write!(text, ", {}", shown_received(received));
        }
        None => {
            let _ = write!(text, ", body {:?}", answer.body);
        }
    }
    for copy in &answer.copies {
        let _ = write!(text, "; copy {}", shown_received(copy));
    }
    text
}

fn shown_received(received: &Received) -> String {
    let Received {
        cluster,
        method,
        path,
        host,
        headers,
    } = received;
    format!("{cluster} received {method} {path} host {host} {headers:?}")
}
