//! Requests, and the steps of a Rollout: their form in the Rollout, and which requests they name.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};

use super::text::Text;

/// The Service of an experiment.
pub(super) const EXPERIMENT: &str = "trial";

/// What the controller does next for a Rollout.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Act {
    Weight(i32),
    /// A header route. Without entries, it is removed.
    Header {
        name: String,
        entries: Vec<(String, Text)>,
    },
    /// A mirror route of all matching requests. Without entries, it is removed.
    Mirror {
        name: String,
        entries: Vec<Part>,
    },
    /// An experiment with this weight.
    Experiment(i32),
    Abort,
    Promote,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    /// The TCP or TLS route, such as `tcp0`; empty for HTTP.
    pub(super) route: String,
    pub(super) method: String,
    /// With the query.
    pub(super) path: String,
    pub(super) headers: BTreeMap<String, String>,
}

impl Request {
    /// The path without the query.
    pub(super) fn path_only(&self) -> &str {
        self.path.split('?').next().unwrap_or_default()
    }
}

/// An entry of a mirror step. All parts must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Part {
    pub(super) method: Option<String>,
    pub(super) path: Option<Text>,
    pub(super) headers: Vec<(String, Text)>,
}

impl Act {
    /// The step in `spec.steps`; `None` for an abort and a promotion.
    pub(super) fn step(&self) -> Option<Value> {
        Some(match self {
            Self::Weight(weight) => json!({"setWeight": weight}),
            Self::Header { .. } => json!({"setHeaderRoute": self.route()?}),
            Self::Mirror { .. } => json!({"setMirrorRoute": self.route()?}),
            Self::Experiment(weight) => json!({"experiment": {"templates": [
                {"name": "a", "specRef": "canary", "weight": weight, "service": {"name": EXPERIMENT}},
            ]}}),
            Self::Abort | Self::Promote => return None,
        })
    }

    /// The route of a header or a mirror step, as the controller sends it.
    pub(super) fn route(&self) -> Option<Value> {
        Some(match self {
            Self::Header { name, entries } => {
                let entries = entries.iter().map(
                    |(name, value)| json!({"headerName": name, "headerValue": value.to_json()}),
                );
                json!({"name": name, "match": entries.collect::<Vec<_>>()})
            }
            Self::Mirror { name, entries } => {
                let entries: Vec<Value> = entries.iter().map(Part::to_json).collect();
                json!({"name": name, "percentage": 100, "match": entries})
            }
            _ => return None,
        })
    }

    /// The name of the managed route.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Header { name, .. } | Self::Mirror { name, .. } => Some(name),
            _ => None,
        }
    }

    pub(super) fn is_mirror(&self) -> bool {
        matches!(self, Self::Mirror { .. })
    }

    /// Whether the step removes its route.
    pub(super) fn is_removal(&self) -> bool {
        match self {
            Self::Header { entries, .. } => entries.is_empty(),
            Self::Mirror { entries, .. } => entries.is_empty(),
            _ => false,
        }
    }

    /// Whether the step's match includes the request.
    pub(super) fn names(&self, request: &Request, needs_all: bool) -> bool {
        match self {
            Self::Header { entries, .. } => {
                let mut met = entries.iter().map(|entry| has_header(request, entry));
                match needs_all {
                    true => !entries.is_empty() && met.all(|met| met),
                    false => met.any(|met| met),
                }
            }
            Self::Mirror { entries, .. } => entries.iter().any(|part| part.names(request)),
            _ => false,
        }
    }
}

impl Part {
    fn names(&self, request: &Request) -> bool {
        let mut headers = self.headers.iter();
        self.method.as_ref().is_none_or(|it| *it == request.method)
            && self
                .path
                .as_ref()
                .is_none_or(|it| it.matches(request.path_only()))
            && headers.all(|header| has_header(request, header))
    }

    fn to_json(&self) -> Value {
        let mut part = Map::new();
        if let Some(method) = &self.method {
            part.insert("method".to_owned(), json!({"exact": method}));
        }
        if let Some(path) = &self.path {
            part.insert("path".to_owned(), path.to_json());
        }
        if !self.headers.is_empty() {
            let headers = self.headers.iter();
            let headers = headers.map(|(name, value)| (name.clone(), value.to_json()));
            part.insert("headers".to_owned(), Value::Object(headers.collect()));
        }
        Value::Object(part)
    }
}

fn has_header(request: &Request, (name, value): &(String, Text)) -> bool {
    let found = request.headers.get(name);
    found.is_some_and(|found| value.matches(found))
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abort => f.write_str("aborted: RemoveManagedRoutes, SetWeight 0"),
            Self::Promote => f.write_str("promoted: RemoveManagedRoutes, SetWeight 0"),
            other => write!(f, "{}", other.step().unwrap_or_default()),
        }
    }
}
