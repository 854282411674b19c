//! Every problem of a plugin block.

use gloo_router::ShiftError;
use jsonptr::PointerBuf;
use route_planner::{ConfigProblem, PluginConfig};
use serde_json::{Value, json};

use super::report::Problem;
use crate::input::{Manifest, path};
use crate::world::{Source, Subject};

/// Returns every problem of a plugin block. The parser reports one at a time, so the value is removed from `subject` and the rest is
/// parsed again.
pub(super) fn problems(
    source: &Source,
    manifest: &Manifest,
    subject: &mut Subject,
) -> Vec<Problem> {
    let at = path_of(source, &subject.api);
    let Ok(mut block) = at.resolve(&subject.api).cloned() else {
        return Vec::new();
    };
    let mut has_selector = true;
    let namespaces = source.policy().destination_namespaces;
    let mut problems = Vec::new();
    let mut removed = PointerBuf::new();
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
            let spot = manifest.spot(&at.concat(&inside));
            problems.push(Problem::error(spot, error.to_string()));
        }
        let goes_on = match (&error.problem, block.as_object_mut()) {
            (ConfigProblem::NoSelector, Some(block)) => {
                has_selector = false;
                block.insert("routeTableSelector".to_owned(), json!({"name": "any"}));
                true
            }
            _ => !inside.is_root() && inside.delete(&mut block).is_some(),
        };
        if !goes_on {
            break;
        }
        removed = inside;
    }
    let mut api = subject.api.clone();
    if !problems.is_empty()
        && has_selector
        && let Ok(whole) = at.resolve_mut(&mut api)
    {
        *whole = block;
        if let Ok(rest) = Subject::new(api) {
            *subject = rest;
        }
    }
    problems
}

/// Returns the path of the plugin block that is read.
pub(super) fn path_of(source: &Source, api: &Value) -> PointerBuf {
    let plugins = path("spec.strategy.canary.trafficRouting.plugins");
    let names = source.policy().plugin_names.into_iter();
    let mut blocks = names.map(|name| plugins.with_trailing_token(name));
    let block = blocks.find(|at| at.resolve(api).is_ok());
    block.unwrap_or(plugins)
}

/// Whether a Rollout has several blocks of the plugin, of which only the first is checked.
pub(super) fn is_of_several_blocks(error: &ShiftError) -> bool {
    matches!(error, ShiftError::Config(error) if matches!(error.problem, ConfigProblem::SeveralPlugins(..)))
}
