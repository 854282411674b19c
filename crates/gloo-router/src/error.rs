//! Errors of calls, as a Rollout's events show them.

use std::{error::Error, fmt};

use gloo_types::ObjectKey;
use rollouts_rpc::rollout::Outdated;
use rollouts_rpc::{MAX_ERROR, error_chain};
use route_planner::{ConfigError, PlanError};
use route_store::StoreError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShiftError {
    /// The Rollout has no canary strategy.
    #[error("Rollout {0} has no canary strategy: only canaries shift traffic")]
    NoCanary(ObjectKey),
    /// The Rollout has no traffic routing.
    #[error("Rollout {0} has no trafficRouting: add trafficRouting.plugins")]
    NoTrafficRouting(ObjectKey),
    /// The plugin block is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The administrator does not allow RouteTables of the namespace.
    #[error(
        "Rollout {rollout} selects RouteTables in namespace {namespace}, which is not allowed: ask your administrator to allow it"
    )]
    NamespaceNotAllowed {
        /// The Rollout.
        rollout: ObjectKey,
        /// The selected namespace.
        namespace: String,
    },
    /// The plugin block cannot be used. Weight 0 is set nevertheless: the tables with marks of the Rollout are restored.
    #[error("{block}; weight 0 is set without the block: {}{}", outcome(.restored), .failures.as_ref().map_or(String::new(), |failures| format!("; {failures}")))]
    Unusable {
        /// Why the block cannot be used.
        block: Box<Self>,
        /// The restored tables.
        restored: Vec<ObjectKey>,
        /// Why other tables were not restored.
        failures: Option<Failures>,
    },
    /// A name in code is none that Kubernetes accepts.
    #[error("{of} cannot have the name \"{name}\": use lower case letters, digits, - and .")]
    InvalidName {
        /// What has the name.
        of: &'static str,
        /// The name.
        name: String,
    },
    /// More than all traffic was asked for.
    #[error("{0} is not a percentage: use 0 to 100")]
    NotAPercentage(u8),
    /// Some parts of the call failed; all of them are listed.
    #[error(transparent)]
    Partial(#[from] Failures),
}

/// Says which tables were restored.
fn outcome(tables: &[ObjectKey]) -> String {
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    match names.as_slice() {
        [] => "no RouteTable has a share of the canary".to_owned(),
        names => format!("restored RouteTable {}", names.join(", ")),
    }
}

/// Why one part of a call failed: one table, or an input of several tables. The other parts are carried out unless they would
/// move more traffic to the canary.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A table cannot be planned, or one of its routes was left unchanged.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A table cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The call ran out of time before an object was written. Holds its kind and name.
    #[error("{0}: not written in time: check the API server or raise the call timeout")]
    NotWritten(String),
    /// The call ran out of time for reading before an object was read. Holds its kind and name.
    #[error("{0}: not read in time: check the API server or raise the call timeout")]
    NotRead(String),
    /// Gloo has not accepted a table whose new weights let the controller scale down the stable Pods (`dynamicStableScale`).
    /// Holds the table and Gloo's message.
    #[error("{0}: the stable Pods are kept until Gloo accepts it")]
    NotAccepted(String),
    /// The Rollout has changed since the controller read it, for example because the controller was paused.
    #[error(
        "Rollout {rollout}: no traffic is moved to the canary: {why} after the controller read it"
    )]
    Outdated {
        /// The Rollout.
        rollout: ObjectKey,
        /// What has changed.
        why: Outdated,
    },
    /// The selector matches no table.
    #[error("Rollout {rollout} selects no RouteTable ({selector}): correct routeTableSelector")]
    NothingSelected {
        /// The Rollout.
        rollout: ObjectKey,
        /// The selector as text.
        selector: String,
    },
    /// The Rollout itself, or the Service of an experiment, could not be read.
    #[error("Rollout {rollout}")]
    Read {
        /// The Rollout.
        rollout: ObjectKey,
        /// The error of the store.
        #[source]
        source: Box<StoreError>,
    },
    /// The MirrorPolicies behind mirror routes could not be read.
    #[error(
        "Rollout {rollout}: mirror routes need MirrorPolicies: install their CustomResourceDefinition and grant list, create, patch and delete on mirrorpolicies.trafficcontrol.policy.gloo.solo.io"
    )]
    Policies {
        /// The Rollout.
        rollout: ObjectKey,
        /// The error of the store.
        #[source]
        source: Box<StoreError>,
    },
    /// A table that the Rollout no longer selects could not be restored.
    #[error("RouteTable {table} is no longer selected and not restored yet")]
    NotRestored {
        /// The table.
        table: ObjectKey,
        /// The reason.
        #[source]
        source: Box<Self>,
    },
}

impl Failure {
    /// Whether the API server did not answer in time, so that another try may succeed.
    pub(crate) const fn is_unanswered(&self) -> bool {
        match self {
            Self::NotWritten(_) | Self::NotRead(_) => true,
            Self::Store(error) => error.is_unavailable(),
            Self::Read { source, .. } | Self::Policies { source, .. } => source.is_unavailable(),
            Self::NotRestored { source, .. } => source.is_unanswered(),
            _ => false,
        }
    }

    /// Whether this table itself cannot be planned as it is.
    pub(crate) fn is_plan_of(&self, table: &ObjectKey) -> bool {
        matches!(self, Self::Plan(PlanError::Refused { table: of, .. }) if of == table)
    }

    /// Whether another try may succeed although nothing else changes.
    pub(crate) const fn may_succeed_later(&self) -> bool {
        match self {
            Self::NotRestored { source, .. } => source.may_succeed_later(),
            Self::Store(StoreError::Conflict(_)) => true,
            failure => failure.is_unanswered(),
        }
    }
}

impl ShiftError {
    /// Whether another try may succeed although nothing else changes.
    pub(crate) fn may_succeed_later(&self) -> bool {
        let failures = match self {
            Self::Unusable { failures, .. } => failures.as_ref(),
            Self::Partial(failures) => Some(failures),
            _ => None,
        };
        failures.is_some_and(|failures| failures.0.iter().any(Failure::may_succeed_later))
    }
}

/// The failures of a call. Displayed as one line that is short enough for an event: long reasons are cut so that the name of
/// every object is shown.
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

impl From<Failures> for Vec<Failure> {
    fn from(failures: Failures) -> Self {
        failures.0
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
            // A table that was planned twice has the same error twice.
            if !shown.contains(&text) {
                shown.push(text);
            }
        }
        let (shown, more) = fitting(shown, MAX_ERROR);
        f.write_str(&shown.join("; "))?;
        match more {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl Error for Failures {}

/// Characters that are kept of each text at least. They contain kind and name of the object.
const SHORTEST: usize = 100;
/// Characters for the separator of two texts, and for the number of omitted texts.
const BETWEEN: usize = 2;
const MORE: usize = 20;

/// Cuts the longest of the `texts` so that all of them fit into `limit` characters. Returns how many had to be omitted.
fn fitting(mut texts: Vec<String>, limit: usize) -> (Vec<String>, usize) {
    let count = texts.len();
    let all: usize = texts
        .iter()
        .map(|text| text.chars().count() + BETWEEN)
        .sum();
    if all <= limit {
        return (texts, 0);
    }
    let limit = limit.saturating_sub(MORE);
    texts.truncate(limit / (SHORTEST + BETWEEN));
    let mut lengths: Vec<usize> = texts.iter().map(|text| text.chars().count()).collect();
    lengths.sort_unstable();
    let mut left = limit.saturating_sub(BETWEEN * lengths.len());
    let mut sharing = lengths.len();
    for length in lengths {
        let share = left / sharing;
        if length > share {
            texts.iter_mut().for_each(|text| cut(text, share));
            break;
        }
        left -= length;
        sharing -= 1;
    }
    let more = count - texts.len();
    (texts, more)
}

fn cut(text: &mut String, length: usize) {
    if text.chars().nth(length).is_some() {
        *text = text.chars().take(length.saturating_sub(1)).collect();
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the lengths of texts after cutting, and how many are omitted.
    #[track_caller]
    fn check(lengths: &[usize], expect: &[usize], more: usize) {
        let texts = lengths.iter().map(|length| "x".repeat(*length)).collect();
        let (shown, left_out) = fitting(texts, MAX_ERROR);
        let all: usize = shown
            .iter()
            .map(|text| text.chars().count() + BETWEEN)
            .sum();
        assert!(all <= MAX_ERROR);
        let shown: Vec<usize> = shown.iter().map(|text| text.chars().count()).collect();
        assert_eq!((&*shown, left_out), (expect, more));
    }

    #[test]
    fn every_failure_is_shown_if_its_name_fits() {
        check(&[], &[], 0);
        check(&[300, 300], &[300, 300], 0);
        check(&[300, 100, 900], &[300, 100, 474], 0);
        check(&[250; 6], &[144; 6], 0);
        check(&[90; 9], &[90; 9], 0);
        check(&[110; 9], &[108; 8], 1);
        check(&[250; 100], &[108; 8], 92);
    }
}
