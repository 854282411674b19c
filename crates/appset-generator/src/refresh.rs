//! The configuration of push refresh: which ApplicationSets are told that an answer has changed.

use std::time::Duration;

use strict_json::{Block, Problem};

use crate::clusters::ClusterAccess;
use crate::keys::Key;

/// Least time between two refreshes of an ApplicationSet, unless the configuration has another one.
const INTERVAL: Duration = Duration::from_secs(10);

/// Which ApplicationSets are annotated when an answer that they got would now be another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// Where they are. A request has the name of its set and no namespace, so each of these is tried.
    pub namespaces: Vec<String>,
    /// Least time between two refreshes of a set. Changes within it count together.
    pub interval: Duration,
    /// The cluster that they are in; without a kubeconfig or a context the one that the generator runs in.
    pub access: ClusterAccess,
}

impl Refresh {
    pub(crate) const KEYS: &[Key] = &[
        Key::new(
            "namespaces",
            "the namespaces of the ApplicationSets; turns [push refresh](#push-refresh) on",
            "required",
        ),
        Key::new(
            "interval",
            "least time between two refreshes of a set",
            "`10s`",
        ),
        Key::new(
            "kubeconfig",
            "path of a kubeconfig for the cluster with the ApplicationSets",
            "the cluster that the generator runs in",
        ),
        Key::new(
            "context",
            "context within the kubeconfig",
            "its current one",
        ),
    ];

    pub(crate) fn from_config(block: &Block<'_>) -> Result<Self, Problem> {
        let namespaces = block.object_names("namespaces")?;
        if namespaces.is_empty() {
            return Err(block.empty("namespaces"));
        }
        let interval = block.duration("interval")?.unwrap_or(INTERVAL);
        if interval < Duration::from_secs(1) {
            return Err(Problem::Value {
                path: block.path("interval"),
                found: format!("{} ms", interval.as_millis()),
                expected: "at least 1s".into(),
            });
        }
        Ok(Self {
            namespaces,
            interval,
            access: ClusterAccess::from_config(block)?,
        })
    }
}
