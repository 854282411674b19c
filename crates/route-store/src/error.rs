//! The errors of all stores. Each message names the object and the remedy.

use std::error::Error;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use gloo_types::{NoSuchTable, ObjectKey, Resource};

/// Why an object could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The object or its resource type does not exist.
    #[error("{what} not found: create it or correct routeTableSelector")]
    NotFound {
        /// What was looked for, for example `RouteTable shop/web`.
        what: String,
    },
    /// The object changed since it was read, or another client created it first.
    #[error("{0} changed while it was being written: try again")]
    Conflict(String),
    /// The API server rejected the changed object, because of its schema or an admission webhook.
    #[error("the change to {what} was rejected: {reason}")]
    Rejected {
        /// The object.
        what: String,
        /// The API server's message.
        reason: String,
    },
    /// Credentials or permissions are missing.
    #[error("not allowed to {verb} {what}: grant it on {resource} ({reason})")]
    Forbidden {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// The object or collection.
        what: String,
        /// The RBAC resource, for example `routetables.networking.gloo.solo.io`.
        resource: String,
        /// The API server's message.
        reason: String,
    },
    /// The request's timeout passed without an answer.
    #[error("no answer to {verb} {what} within {} s: check the API server or raise the request timeout", after.as_secs_f32())]
    Timeout {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// The object or collection.
        what: String,
        /// The timeout.
        after: Duration,
    },
    /// The caller's deadline, which is earlier than the request's timeout, passed without an answer.
    #[error(
        "no answer to {verb} {what} before the end of the call: check the API server or raise the call timeout"
    )]
    CallEnded {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// The object or collection.
        what: String,
    },
    /// The request was not sent, because the last requests all failed and the breaker is open.
    #[error(
        "cannot {verb} {what}: the API server fails every request, check that it is reachable ({reason})"
    )]
    Failing {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// The object or collection.
        what: String,
        /// Why the last request failed.
        reason: Arc<str>,
    },
    /// The request was not sent, because the budget has no token for it before the deadline.
    #[error(
        "cannot {verb} {what} in time: more requests wait than may be sent to the API server, raise qps and burst"
    )]
    Throttled {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// The object or collection.
        what: String,
    },
    /// The request was not sent, because its [`Permit`](crate::Permit) was withdrawn while it waited.
    #[error("the request to {verb} {what} was not sent: a call of the controller has taken over")]
    Withdrawn {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// The object or collection.
        what: String,
    },
    /// The store could not be reached, or its answer is unexpected.
    #[error("cannot {verb} {what}: check that the API server or directory is reachable")]
    Unreachable {
        /// `get`, `list`, `create`, `patch` or `delete`.
        verb: &'static str,
        /// The object or collection.
        what: String,
        /// The client's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The stored content cannot be decoded.
    #[error("{what} is no valid {kind}: correct it")]
    Unreadable {
        /// The object or file.
        what: String,
        /// The expected kind.
        kind: &'static str,
        /// The parser's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl StoreError {
    /// Returns the error and its sources in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let sources = iter::successors(Error::source(self), |error| (*error).source());
        sources.fold(self.to_string(), |line, source| format!("{line}: {source}"))
    }

    /// Returns whether the request gave no information about the object: it was not sent, timed out, or its answer is
    /// unexpected.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. }
                | Self::CallEnded { .. }
                | Self::Failing { .. }
                | Self::Throttled { .. }
                | Self::Withdrawn { .. }
                | Self::Unreachable { .. }
        )
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
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Unreadable {
            what: what.to_string(),
            kind: K::KIND,
            source: source.into(),
        }
    }

    /// Returns `None` in place of [`StoreError::NotFound`].
    pub(crate) fn or_none<T>(found: Result<T, Self>) -> Result<Option<T>, Self> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Self::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl From<NoSuchTable> for StoreError {
    fn from(NoSuchTable { what }: NoSuchTable) -> Self {
        Self::NotFound { what }
    }
}

/// Returns the name of an object in messages: `RouteTable mesh/web`.
pub(crate) fn label<K: Resource>(key: &ObjectKey) -> String {
    format!("{} {key}", K::KIND)
}
