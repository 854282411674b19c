//! VerifyWeight: compares a table with an intent, and reads the status that Gloo wrote.

use gloo_types::{Approval, RouteTableDoc, State};

use crate::config::{PluginConfig, VerifyMode};
use crate::error::PlanError;
use crate::intent::{Intent, IntentKind};
use crate::record::RecordSet;
use crate::table_state::{Action, Relation, TableState};

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
    let (is_final, text) = match status.state() {
        Some(state) => match verdict(state, table.generation()) {
            Some(verdict) => verdict,
            None => return Ok(Observation::Verified),
        },
        None if config.verify() == VerifyMode::Auto => return Ok(Observation::Verified),
        None => (false, "Gloo has not written a status".to_owned()),
    };
    let reason = format!("RouteTable {}: {text}", table.key());
    Ok(match is_final {
        _ if intent.sends_all_to_stable() => Observation::NotApplicable { reason },
        true => Observation::Refused { reason },
        false => Observation::NotAccepted { reason },
    })
}

/// What a Rollout's versions get of the requests of a route that it splits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// The name of the route, or its position in the owner's source, as in `http[0]`.
    pub route: String,
    /// Percent of the route's requests that the canary gets.
    pub canary: u32,
    /// Percent that stable, canary and experiments get together.
    pub all: u32,
}

impl Portion {
    /// The canary's part of `all` in percent, rounded; `None` if none of the versions gets a request.
    #[must_use]
    pub fn percent(&self) -> Option<u32> {
        (self.canary * 100 + self.all / 2).checked_div(self.all)
    }
}

/// Returns the portions of the routes of `table` that the Rollout of `intent` splits. Empty if they cannot be planned.
pub fn portions(config: &PluginConfig, intent: &Intent, table: &RouteTableDoc) -> Vec<Portion> {
    let records = RecordSet::read(table, &intent.rollout.to_string());
    let Ok(state) = TableState::new(config, intent, table, &records) else {
        return Vec::new();
    };
    let (stable, canary) = (&state.roles.stable, &state.roles.canary);
    let additional: &[_] = match &intent.kind {
        IntentKind::SetWeight(split) => &split.additional,
        _ => &[],
    };
    let additional = additional
        .iter()
        .map(|it| state.roles.additional(&it.service, None));
    let additional: Vec<_> = additional.collect();
    let portions = state.routes.iter().filter_map(|it| {
        let Action::Forward {
            live,
            relation: Relation::Managed { .. },
        } = &it.action
        else {
            return None;
        };
        let mut portion = Portion {
            route: it.route.name_or_position(),
            canary: 0,
            all: 0,
        };
        for (destination, percent) in live.destinations.iter().zip(live.effective_weights()) {
            // With weight 0 the owner means none.
            let percent = if destination.is_explicit_zero() {
                0
            } else {
                percent
            };
            if canary.is(destination) {
                portion.canary += percent;
            }
            let mut others = additional.iter().chain([stable, canary]);
            if others.any(|role| role.is(destination)) {
                portion.all += percent;
            }
        }
        Some(portion)
    });
    portions.collect()
}

/// Why Gloo has not accepted the current generation of a table, and whether that is final; `None` if it has.
fn verdict(state: &State, generation: Option<i64>) -> Option<(bool, String)> {
    if let Some(generation) = generation
        && generation != state.observed_generation
    {
        let seen = state.observed_generation;
        let text = format!("Gloo has seen generation {seen} of {generation}");
        return Some((false, text));
    }
    let message: Vec<&str> = state.message.split_whitespace().collect();
    let text = match message.as_slice() {
        [] => format!("Gloo says {}", state.approval),
        words => format!("Gloo says {}: {}", state.approval, words.join(" ")),
    };
    match state.approval {
        // Gloo serves a table that has warnings.
        Approval::Accepted | Approval::Warning => None,
        Approval::Invalid | Approval::Failed | Approval::Unlicensed => Some((true, text)),
        Approval::Pending | Approval::Other(_) => Some((false, text)),
    }
}
