//! What can keep a store from answering, each with its remedy.

use std::error::Error;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use gloo_types::{NoSuchTable, ObjectKey, Resource};

/// Why a RouteTable could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No such table, or no such resource type.
    #[error("{what} not found: create it or correct routeTableSelector")]
    NotFound {
        /// What was looked for, for example `RouteTable shop/web`.
        what: String,
    },
    /// The object changed since it was read, or another client created it first.
    #[error("{0} changed while it was being written: try again")]
    Conflict(String),
    /// The store understood the patch and refused the outcome (schema, admission webhook).
    #[error("the change to {what} was rejected: {reason}")]
    Rejected {
        /// The object.
        what: String,
        /// The store's own words.
        reason: String,
    },
    /// Credentials are missing or not good enough.
    #[error("not allowed to {verb} {what}: grant it on {resource} ({reason})")]
    Forbidden {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// What was asked for.
        what: String,
        /// The resource as RBAC names it, for example `routetables.networking.gloo.solo.io`.
        resource: String,
        /// The store's own words.
        reason: String,
    },
    /// No answer within the request's deadline.
    #[error("no answer to {verb} {what} within {} s: check the API server or raise the limit", after.as_secs_f32())]
    Timeout {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// What was asked for.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// No answer before the caller stops waiting, which is sooner than the request's deadline.
    #[error(
        "no answer to {verb} {what} before the end of the call: check the API server or give calls more time"
    )]
    CallEnded {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// What was asked for.
        what: String,
    },
    /// The request was not sent, because the last ones have all failed (the breaker is open).
    #[error(
        "cannot {verb} {what}: the API server fails every request, check that it is reachable ({reason})"
    )]
    Failing {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// What was asked for.
        what: String,
        /// Why the last request failed.
        reason: Arc<str>,
    },
    /// The request was not sent, because more urgent ones use up what the API server may be asked until the deadline.
    #[error(
        "cannot {verb} {what} in time: more requests wait than the limits of the API server allow, raise them"
    )]
    Throttled {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// What was asked for.
        what: String,
    },
    /// The store could not be reached, or answered with something else than an answer.
    #[error("cannot {verb} {what}: check that the API server or directory is reachable")]
    Unreachable {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// What was asked for.
        what: String,
        /// The client's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// What is stored under that name cannot be read.
    #[error("{what} cannot be read as a {kind}: correct it")]
    Unreadable {
        /// Where it was found.
        what: String,
        /// What it should be.
        kind: &'static str,
        /// The parser's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl StoreError {
    /// The error and what caused it, in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let sources = iter::successors(Error::source(self), |error| (*error).source());
        sources.fold(self.to_string(), |line, source| format!("{line}: {source}"))
    }

    /// Whether nothing was learned, because the API server was not asked, did not answer in time, or answered with nothing
    /// of use. What is known about the object is neither confirmed nor refuted.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::CallEnded { .. }
            | Self::Failing { .. }
            | Self::Throttled { .. }
            | Self::Unreachable { .. } => true,
            Self::NotFound { .. }
            | Self::Conflict(_)
            | Self::Rejected { .. }
            | Self::Forbidden { .. }
            | Self::Unreadable { .. } => false,
        }
    }

    pub(crate) fn not_found<K: Resource>(key: &ObjectKey) -> Self {
        Self::NotFound {
            what: label::<K>(key),
        }
    }

    pub(crate) fn conflict<K: Resource>(key: &ObjectKey) -> Self {
        Self::Conflict(label::<K>(key))
    }

    pub(crate) fn unreadable<K: Resource>(
        what: impl ToString,
        source: impl Error + Send + Sync + 'static,
    ) -> Self {
        Self::Unreadable {
            what: what.to_string(),
            kind: K::KIND,
            source: Box::new(source),
        }
    }
}

impl From<NoSuchTable> for StoreError {
    fn from(NoSuchTable { what }: NoSuchTable) -> Self {
        Self::NotFound { what }
    }
}

/// An object in messages: `RouteTable mesh/web`.
pub(crate) fn label<K: Resource>(key: &ObjectKey) -> String {
    format!("{} {key}", K::KIND)
}
