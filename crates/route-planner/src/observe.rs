//! VerifyWeight: compares a table with an intent, and reads the status that Gloo wrote.

use gloo_types::{Approval, RouteTableDoc, State};

use crate::config::{PluginConfig, VerifyMode};
use crate::error::PlanError;
use crate::intent::Intent;

/// The result for one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The table is as the intent asks and, if the configuration requires it, Gloo has accepted it.
    Verified,
    /// The table still has to be changed. The caller should ask again.
    NotApplied {
        /// What is missing, in one line.
        reason: String,
    },
    /// The table is as the intent asks, but Gloo has not accepted it yet. The caller should ask again.
    NotAccepted {
        /// What is missing, in one line.
        reason: String,
    },
    /// Gloo has rejected this generation of the table. The result changes only after the table is corrected.
    Refused {
        /// The message of Gloo, in one line.
        reason: String,
    },
    /// Nothing is rolled out, and Gloo has not accepted the table. Nothing depends on this result, and with "not verified"
    /// the controller would ask again every ten seconds forever.
    NotApplicable {
        /// What is missing, in one line.
        reason: String,
    },
}

/// Compares `table` with `intent`: the plan for them must not move traffic or leave a route as it is and,
/// depending on `verify` in the plugin block, Gloo must have accepted this generation of the table.
///
/// # Errors
/// Returns `Err` as [`crate::plan()`] does, or if the status cannot be decoded. After an error of VerifyWeight the controller
/// promotes without verification, so callers should answer "not verified" instead.
pub fn observe(
    config: &PluginConfig,
    intent: &Intent,
    table: &RouteTableDoc,
) -> Result<Observation, PlanError> {
    let plan = crate::plan(config, intent, table)?;
    if let Some(edit) = plan.edits.iter().find(|edit| edit.moves_traffic()) {
        let reason = format!("RouteTable {}: not yet applied: {edit}", table.key());
        return Ok(Observation::NotApplied { reason });
    }
    if let Some(left) = plan.left().next() {
        let reason = left.to_string();
        return Ok(Observation::NotApplied { reason });
    }
    if config.verify() == VerifyMode::Weights {
        return Ok(Observation::Verified);
    }
    let status = table.status()?;
    let verdict = match status.state() {
        Some(state) => Verdict::of(state, table.generation()),
        None if config.verify() == VerifyMode::Auto => Verdict::Accepted,
        None => Verdict::Awaited("Gloo has not written a status".to_owned()),
    };
    let is_rest = intent.sends_all_to_stable();
    let of_table = |text: String| format!("RouteTable {}: {text}", table.key());
    Ok(match verdict {
        Verdict::Accepted => Observation::Verified,
        Verdict::Awaited(text) | Verdict::Refused(text) if is_rest => Observation::NotApplicable {
            reason: of_table(text),
        },
        Verdict::Awaited(text) => Observation::NotAccepted {
            reason: of_table(text),
        },
        Verdict::Refused(text) => Observation::Refused {
            reason: of_table(text),
        },
    })
}

/// The verdict of Gloo about the current generation of a table.
enum Verdict {
    Accepted,
    /// Gloo has not decided yet.
    Awaited(String),
    /// Gloo has rejected it.
    Refused(String),
}

impl Verdict {
    fn of(state: &State, generation: Option<i64>) -> Self {
        if let Some(generation) = generation
            && generation != state.observed_generation
        {
            let seen = state.observed_generation;
            return Self::Awaited(format!("Gloo has seen generation {seen} of {generation}"));
        }
        let message: Vec<&str> = state.message.split_whitespace().collect();
        let text = match message.as_slice() {
            [] => format!("Gloo says {}", state.approval),
            words => format!("Gloo says {}: {}", state.approval, words.join(" ")),
        };
        match state.approval {
            // Gloo serves a table that has warnings.
            Approval::Accepted | Approval::Warning => Self::Accepted,
            Approval::Invalid | Approval::Failed | Approval::Unlicensed => Self::Refused(text),
            Approval::Pending | Approval::Other(_) => Self::Awaited(text),
        }
    }
}
