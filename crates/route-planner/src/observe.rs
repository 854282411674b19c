//! The question behind VerifyWeight: is an intent in force on a table?

use gloo_types::{Approval, RouteTableDoc, State};

use crate::config::{PluginConfig, VerifyMode};
use crate::error::PlanError;
use crate::intent::{Intent, IntentKind};

/// The answer for one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The intent is in force.
    Verified,
    /// Not yet; worth asking again.
    NotVerified {
        /// What is missing, in one line.
        reason: String,
    },
    /// Nothing is rolled out, and only Gloo's verdict is missing: nothing depends on the answer, and asking again every
    /// ten seconds would never end.
    NotApplicable {
        /// What is missing, in one line.
        reason: String,
    },
}

/// Compares `table` with `intent`: nothing may be left to plan and, as far as the configuration asks for it, Gloo must have
/// accepted this generation of the table.
///
/// # Errors
/// As [`crate::plan`]. The controller promotes unverified after an error, so callers should answer "not verified" instead.
pub fn observe(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
) -> Result<Observation, PlanError> {
    let plan = crate::plan(config, intent, table)?;
    if let Some(edit) = plan.edits.iter().find(|edit| edit.moves_traffic()) {
        let reason = format!("RouteTable {}: still to be done: {edit}", table.key());
        return Ok(Observation::NotVerified { reason });
    }
    if config.verify() == VerifyMode::Weights {
        return Ok(Observation::Verified);
    }
    let status = table.status()?;
    let missing = match status.state() {
        Some(state) => verdict(state, table.generation()),
        None if config.verify() == VerifyMode::Auto => None,
        None => Some("Gloo has not written a status".to_owned()),
    };
    let is_rest = matches!(&intent.kind, IntentKind::SetWeight(split) if split.is_rest());
    Ok(
        match missing.map(|missing| format!("RouteTable {}: {missing}", table.key())) {
            None => Observation::Verified,
            Some(reason) if is_rest => Observation::NotApplicable { reason },
            Some(reason) => Observation::NotVerified { reason },
        },
    )
}

/// What speaks against acceptance.
fn verdict(state: &State, generation: Option<i64>) -> Option<String> {
    if let Some(generation) = generation
        && generation != state.observed_generation
    {
        let seen = state.observed_generation;
        return Some(format!("Gloo has seen generation {seen} of {generation}"));
    }
    match &state.approval {
        // A warning does not keep Gloo from serving the table.
        Approval::Accepted | Approval::Warning => None,
        other if state.message.is_empty() => Some(format!("Gloo says {other}")),
        other => {
            let message = state
                .message
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
            Some(format!("Gloo says {other}: {message}"))
        }
    }
}
