//! Why traffic was not shifted, in the words a Rollout's events show.

use std::{error::Error, fmt};

use gloo_types::ObjectKey;
use rollouts_rpc::error_chain;
use route_planner::{ConfigError, PlanError};
use route_store::StoreError;

/// Why a call could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ShiftError {
    /// The Rollout has no canary strategy.
    #[error("Rollout {0} has no canary strategy: only canaries shift traffic")]
    NoCanary(ObjectKey),
    /// The Rollout has no traffic routing.
    #[error("Rollout {0} has no trafficRouting: add trafficRouting.plugins")]
    NoTrafficRouting(ObjectKey),
    /// The plugin block cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The administrator does not allow RouteTables of that namespace.
    #[error(
        "Rollout {rollout} selects RouteTables in namespace {namespace}, which --allowed-route-table-namespaces does not list"
    )]
    NamespaceNotAllowed {
        /// The Rollout.
        rollout: ObjectKey,
        /// The namespace it asks for.
        namespace: String,
    },
    /// Some parts of the call could not be carried out; all of them are named.
    #[error(transparent)]
    Partial(#[from] Failures),
}

/// Why one part of a call was not carried out: one table, or what several tables need. The other parts are carried out as
/// far as they move no more traffic to the canary.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A table cannot be planned, or one of its routes is left as it is.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A table cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The time of the call was over before an object was written. Holds its kind and name.
    #[error("{0}: not written in time: check the API server or raise --call-timeout")]
    NotWritten(String),
    /// Most of the time of the call was over before an object was read. Holds its kind and name.
    #[error("{0}: not read in time: check the API server or raise --call-timeout")]
    NotRead(String),
    /// Labels matched no table.
    #[error("Rollout {rollout} selects no RouteTable ({selector}): correct routeTableSelector")]
    NothingSelected {
        /// The Rollout.
        rollout: ObjectKey,
        /// What was looked for, in words.
        selector: String,
    },
    /// The Rollout itself, or the Service of an experiment, could not be read.
    #[error("Rollout {rollout}")]
    Read {
        /// The Rollout.
        rollout: ObjectKey,
        /// What the store said.
        #[source]
        source: Box<StoreError>,
    },
    /// The MirrorPolicies behind mirror routes could not be read.
    #[error(
        "Rollout {rollout}: mirror routes need MirrorPolicies: install their CustomResourceDefinition and grant get, list, create, patch and delete on mirrorpolicies.trafficcontrol.policy.gloo.solo.io"
    )]
    Policies {
        /// The Rollout.
        rollout: ObjectKey,
        /// What the store said.
        #[source]
        source: Box<StoreError>,
    },
    /// A table that the Rollout no longer selects could not be restored.
    #[error("RouteTable {table} is no longer selected and not restored yet")]
    NotRestored {
        /// The table.
        table: ObjectKey,
        /// Why not.
        #[source]
        source: Box<Self>,
    },
}

/// What a call left undone; one line, whatever the number.
#[derive(Debug)]
pub struct Failures(Vec<Failure>);

impl Failures {
    /// Returns `Err` if there are any `failures`.
    pub(crate) fn check(failures: Vec<Failure>) -> Result<(), Self> {
        if failures.is_empty() {
            Ok(())
        } else {
            Err(Self(failures))
        }
    }
}

impl From<Failure> for Failures {
    fn from(failure: Failure) -> Self {
        Self(vec![failure])
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown: Vec<String> = Vec::new();
        for failure in &self.0 {
            let text = error_chain(failure);
            // A table that was planned twice says the same twice.
            if !shown.contains(&text) {
                shown.push(text);
            }
        }
        f.write_str(&shown.join("; "))
    }
}

impl Error for Failures {}
