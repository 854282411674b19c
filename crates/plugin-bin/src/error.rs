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
    /// The tables, or the Rollout itself, could not be read.
    #[error("Rollout {rollout}")]
    Select {
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
    /// Labels matched no table.
    #[error("Rollout {rollout} selects no RouteTable ({selector}): correct routeTableSelector")]
    NothingSelected {
        /// The Rollout.
        rollout: ObjectKey,
        /// What was looked for, in words.
        selector: String,
    },
    /// Some tables could not be planned or written; all of them are named.
    #[error(transparent)]
    Tables(#[from] TableErrors),
}

/// Why one table was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// It cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// It cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The errors of several tables; one line, whatever their number.
#[derive(Debug)]
pub struct TableErrors(Vec<TableError>);

impl TableErrors {
    /// Fails when there are any `errors`.
    ///
    /// # Errors
    /// Exactly then.
    pub(crate) fn check(errors: Vec<TableError>) -> Result<(), Self> {
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Self(errors))
        }
    }
}

impl From<TableError> for TableErrors {
    fn from(error: TableError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for TableErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{}", error_chain(error))?;
        }
        Ok(())
    }
}

impl Error for TableErrors {}
