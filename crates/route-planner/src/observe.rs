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
    /// Gloo has refused this generation of the table. Asking again helps only after the table is corrected.
    Refused {
        /// Gloo's own words, in one line.
        reason: String,
    },
    /// Nothing is rolled out, and only Gloo's verdict is missing. Nothing depends on the answer, and the controller would ask
    /// again every ten seconds without an end.
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
    let verdict = match status.state() {
        Some(state) => Verdict::of(state, table.generation()),
        None if config.verify() == VerifyMode::Auto => Verdict::Accepted,
        None => Verdict::Awaited("Gloo has not written a status".to_owned()),
    };
    let is_rest = matches!(&intent.kind, IntentKind::SetWeight(split) if split.is_rest());
    let of_table = |text: String| format!("RouteTable {}: {text}", table.key());
    Ok(match verdict {
        Verdict::Accepted => Observation::Verified,
        Verdict::Awaited(text) | Verdict::Refused(text) if is_rest => Observation::NotApplicable {
            reason: of_table(text),
        },
        Verdict::Awaited(text) => Observation::NotVerified {
            reason: of_table(text),
        },
        Verdict::Refused(text) => Observation::Refused {
            reason: of_table(text),
        },
    })
}

/// What Gloo says about the generation of a table that is there.
enum Verdict {
    Accepted,
    /// Gloo may still accept it.
    Awaited(String),
    /// Gloo has decided.
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
            // Gloo serves a table with a warning.
            Approval::Accepted | Approval::Warning => Self::Accepted,
            Approval::Invalid | Approval::Failed | Approval::Unlicensed => Self::Refused(text),
            Approval::Pending | Approval::Other(_) => Self::Awaited(text),
        }
    }
}
