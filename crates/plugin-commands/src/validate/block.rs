//! Every problem of a plugin block.

use gloo_router::{Policy, ShiftError};
use jsonptr::PointerBuf;
use route_planner::{ConfigProblem, PluginConfig};
use serde_json::{Value, json};

use super::report::Problems;
use crate::input::path;
use crate::node::Node;
use crate::world::{Source, Subject};

/// Finds every problem of a plugin block, and returns whether there is one. The parser reports one at a time, so the value is removed
/// from `subject` and the rest is parsed again. A namespace that `policy` does not allow is added to it instead: a block without the
/// namespace would mean another destination.
pub(super) fn check(
    problems: &mut Problems<'_>,
    source: &Source,
    subject: &mut Subject,
    policy: &mut Policy,
) -> bool {
    let Node { at, value } = of(source, &subject.api);
    let mut block = value.clone();
    let mut has_selector = true;
    let mut is_bad = false;
    let mut removed = PointerBuf::new();
    while let Err(error) = PluginConfig::from_json(
        block.to_string().as_bytes(),
        &subject.key,
        &policy.destination_namespaces,
    ) {
        let inside = path(error.problem.path().unwrap_or_default());
        // A value may be missing only because a wrong one was removed.
        let follows = match error.problem {
            ConfigProblem::NoSelector => is_bad,
            ConfigProblem::Key(strict_json::Problem::Empty { .. }) => removed.starts_with(&inside),
            _ => false,
        };
        if !follows {
            is_bad = true;
            problems.named(&at.concat(&inside), error.to_string());
        }
        let goes_on = match (&error.problem, block.as_object_mut()) {
            (ConfigProblem::NoSelector, Some(block)) => {
                has_selector = false;
                block.insert("routeTableSelector".to_owned(), json!({"name": "any"}));
                true
            }
            (ConfigProblem::NamespaceNotAllowed { namespace, .. }, _) => {
                policy.destination_namespaces.push(namespace.clone());
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
    if is_bad
        && has_selector
        && let Ok(whole) = at.resolve_mut(&mut api)
    {
        *whole = block;
        if let Ok(rest) = Subject::new(api) {
            *subject = rest;
        }
    }
    is_bad
}

/// Returns the plugin block that is read.
pub(super) fn of<'v>(source: &Source, api: &'v Value) -> Node<'v> {
    let plugins = Node::root(api).get("spec.strategy.canary.trafficRouting.plugins");
    let names = source.policy().plugin_names.into_iter();
    // A name may have a dot.
    let mut blocks = names.filter_map(|name| {
        let value = plugins.value.get(&name)?;
        let at = plugins.at.with_trailing_token(name);
        Some(Node { at, value })
    });
    blocks.next().unwrap_or(plugins.clone())
}

/// Whether a Rollout has several blocks of the plugin, of which only the first is checked.
pub(super) fn is_of_several_blocks(error: &ShiftError) -> bool {
    matches!(error, ShiftError::Config(error) if matches!(error.problem, ConfigProblem::SeveralPlugins(..)))
}
