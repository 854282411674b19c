//! Every problem of a plugin block.

use gloo_router::ShiftError;
use route_planner::{ConfigProblem, PluginConfig};
use serde_json::{Value, json};

use super::report::Problem;
use crate::input::{Manifest, Step, path};
use crate::world::{Source, Subject};

/// Returns every problem of a plugin block. The parser reports one at a time, so the value is removed from `subject` and the rest is
/// parsed again.
pub(super) fn problems(
    source: &Source,
    manifest: &Manifest,
    subject: &mut Subject,
) -> Vec<Problem> {
    let at = path_of(source, &subject.api);
    let Some(mut block) = lookup(&subject.api, &at).cloned() else {
        return Vec::new();
    };
    let mut has_selector = true;
    let namespaces = source.policy().destination_namespaces;
    let mut problems = Vec::new();
    let mut removed = Vec::new();
    while let Err(error) =
        PluginConfig::from_json(block.to_string().as_bytes(), &subject.key, &namespaces)
    {
        let inside = path(error.problem.path().unwrap_or_default());
        // A value may be missing only because a wrong one was removed.
        let follows = match error.problem {
            ConfigProblem::NoSelector => !problems.is_empty(),
            ConfigProblem::Key(strict_json::Problem::Empty { .. }) => removed.starts_with(&inside),
            _ => false,
        };
        if !follows {
            let whole: Vec<Step> = at.iter().chain(&inside).cloned().collect();
            problems.push(Problem::error(manifest.spot(&whole), error.to_string()));
        }
        let goes_on = match (&error.problem, block.as_object_mut()) {
            (ConfigProblem::NoSelector, Some(block)) => {
                has_selector = false;
                block.insert("routeTableSelector".to_owned(), json!({"name": "any"}));
                true
            }
            _ => remove(&mut block, &inside),
        };
        if !goes_on {
            break;
        }
        removed = inside;
    }
    let mut api = subject.api.clone();
    if !problems.is_empty()
        && has_selector
        && let Some(whole) = lookup_mut(&mut api, &at)
    {
        *whole = block;
        if let Ok(rest) = Subject::new(api) {
            *subject = rest;
        }
    }
    problems
}

/// Returns the path of the plugin block that is read.
pub(super) fn path_of(source: &Source, api: &Value) -> Vec<Step> {
    let mut at = path("spec.strategy.canary.trafficRouting.plugins");
    let plugins = lookup(api, &at);
    let names = source.policy().plugin_names.into_iter();
    let name = names
        .into_iter()
        .find(|name| plugins.is_some_and(|plugins| plugins.get(name).is_some()));
    at.extend(name.map(Step::Key));
    at
}

/// Whether a Rollout has several blocks of the plugin, of which only the first is checked.
pub(super) fn is_of_several_blocks(error: &ShiftError) -> bool {
    matches!(error, ShiftError::Config(error) if matches!(error.problem, ConfigProblem::SeveralPlugins(..)))
}

pub(super) fn lookup<'v>(value: &'v Value, path: &[Step]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    })
}

fn lookup_mut<'v>(value: &'v mut Value, path: &[Step]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    })
}

/// Removes the value at `path`. Returns whether it existed.
fn remove(value: &mut Value, path: &[Step]) -> bool {
    let Some((last, above)) = path.split_last() else {
        return false;
    };
    match (lookup_mut(value, above), last) {
        (Some(Value::Object(fields)), Step::Key(key)) => fields.shift_remove(key).is_some(),
        (Some(Value::Array(items)), Step::Index(index)) if *index < items.len() => {
            items.remove(*index);
            true
        }
        _ => false,
    }
}
