//! What can keep a store from answering, each with its remedy.

use std::time::Duration;

use gloo_types::ObjectKey;

/// Why a RouteTable could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No such table, or no such resource type.
    #[error("{what} not found: create it or correct routeTableSelector")]
    NotFound {
        /// What was looked for, for example `RouteTable shop/web`.
        what: String,
    },
    /// The table changed since it was read.
    #[error("RouteTable {0} changed while it was being written: try again")]
    Conflict(ObjectKey),
    /// The store understood the patch and refused the outcome (schema, admission webhook).
    #[error("the change to RouteTable {key} was rejected: {reason}")]
    Rejected {
        /// The table.
        key: ObjectKey,
        /// The store's own words.
        reason: String,
    },
    /// Credentials are missing or not good enough.
    #[error(
        "not allowed to {verb} {what}: grant get, list and patch on routetables.networking.gloo.solo.io ({reason})"
    )]
    Forbidden {
        /// `get`, `list` or `patch`.
        verb: &'static str,
        /// What was asked for.
        what: String,
        /// The store's own words.
        reason: String,
    },
    /// No answer within the request's deadline.
    #[error("no answer to {verb} {what} within {} s: check the API server or raise --request-timeout", after.as_secs_f32())]
    Timeout {
        /// `get`, `list` or `patch`.
        verb: &'static str,
        /// What was asked for.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// The store could not be reached, or answered with something else than an answer.
    #[error("cannot {verb} {what}: check that the API server or directory is reachable")]
    Unreachable {
        /// `get`, `list` or `patch`.
        verb: &'static str,
        /// What was asked for.
        what: String,
        /// The client's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is stored under that name is not a RouteTable that can be read.
    #[error("{what} cannot be read as a RouteTable: correct it")]
    Unreadable {
        /// Where it was found.
        what: String,
        /// The parser's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    pub(crate) fn table_not_found(key: &ObjectKey) -> Self {
        Self::NotFound {
            what: format!("RouteTable {key}"),
        }
    }

    pub(crate) fn not_in_namespaces(name: &str, namespaces: &[String]) -> Self {
        let keys: Vec<String> = namespaces
            .iter()
            .map(|namespace| format!("{namespace}/{name}"))
            .collect();
        Self::NotFound {
            what: format!("RouteTable {}", keys.join(" or ")),
        }
    }
}
