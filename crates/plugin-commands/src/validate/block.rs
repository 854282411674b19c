//! Every problem of a plugin block.

use gloo_router::{Policy, ShiftError};
use jsonptr::PointerBuf;
use route_planner::{ConfigProblem, PluginConfig};
use serde_json::{Value, json};

use super::report::Problems;
use crate::input::path;
use crate::node::Node;
use crate::world::{Source, Subject};

/// Keys that decide neither which routes are selected nor where they forward to.
const WITHOUT_ROUTES: [&str; 5] = [
    "headerMatch",
    "headerRoutePlacement",
    "zeroWeight",
    "verify",
    "promotionGuard",
];

/// Finds every problem of a plugin block, and returns whether there is one. The parser reports one at a time, so the value is removed
/// from `subject` and the rest is parsed again. `subject` keeps the rest if that selects the same routes as the block was meant to. A
/// namespace that `policy` does not allow is added to it instead: a block without the namespace would mean another destination.
pub(super) fn check(
    problems: &mut Problems<'_>,
    source: &Source,
    subject: &mut Subject,
    policy: &mut Policy,
) -> bool {
    let Node { at, value } = of(source, &subject.api);
    let mut block = value.clone();
    let mut has_routes = true;
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
            _ => is_bad && removed == inside,
        };
        if !follows {
            is_bad = true;
            problems.named(&at.concat(&inside), error.to_string());
        }
        let key = inside.first().map(|key| key.decoded().into_owned());
        let is_kept = matches!(error.problem, ConfigProblem::NamespaceNotAllowed { .. });
        has_routes &= is_kept || key.is_some_and(|key| WITHOUT_ROUTES.contains(&&*key));
        let goes_on = match (&error.problem, block.as_object_mut()) {
            (ConfigProblem::NoSelector, Some(block)) => {
                block.insert("routeTableSelector".to_owned(), json!({"name": "any"}));
                true
            }
            (ConfigProblem::NamespaceNotAllowed { namespace, .. }, _) => {
                policy.destination_namespaces.push(namespace.clone());
                true
            }
            _ => !inside.is_root() && inside.delete(&mut block).is_some(),
        };
        removed = match inside.parent().filter(|object| !object.is_root()) {
            _ if goes_on => inside,
            // What is missing is removed with its object.
            Some(object) if object.delete(&mut block).is_some() => PointerBuf::new(),
            _ => break,
        };
    }
    let mut api = subject.api.clone();
    if is_bad
        && has_routes
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
