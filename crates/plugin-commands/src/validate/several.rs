//! Problems of several objects together.

use std::collections::{BTreeMap, BTreeSet};

use gloo_types::{MirrorPolicy, ObjectKey, Resource as _, RouteTable, RouteTableDoc};
use jsonptr::PointerBuf;
use route_planner::{DestinationChange, Edit, Intent, PluginConfig, plan};
use serde_json::Value;
use strict_json::resembles;

use super::report::{Problem, Problems};
use crate::controller::HASH_LABEL;
use crate::input::{Manifest, Spot, path};
use crate::node::Node;
use crate::world::{Source, Subject};

/// The annotation of a Service with the name of the Rollout whose controller changes its selector.
const MANAGED_BY: &str = "argo-rollouts.argoproj.io/managed-by-rollouts";

/// The kinds of objects that are read, besides Services.
const KINDS: [&str; 3] = ["Rollout", RouteTable::KIND, MirrorPolicy::KIND];

/// Finds objects that are in the files more than once. The later one would replace the earlier one.
pub(super) fn duplicates(manifests: &[Manifest]) -> Vec<Problem> {
    let mut seen: BTreeMap<String, Spot> = BTreeMap::new();
    let mut problems = Vec::new();
    for manifest in manifests {
        let (Some(key), kind) = (manifest.key(), manifest.kind()) else {
            continue;
        };
        if !KINDS.contains(&kind) && kind != "Service" {
            continue;
        }
        let version = Node::root(&manifest.value).get("apiVersion").text();
        let group = version.split('/').next();
        let id = format!("{kind} {key} of {}", group.unwrap_or_default());
        let spot = manifest.spot(&path("metadata"));
        if let Some(first) = seen.get(&id) {
            let text = format!("{kind} {key} is also in {first}: remove one of them");
            problems.push(Problem::error(spot, text));
        } else {
            seen.insert(id, spot);
        }
    }
    problems
}

/// Finds objects that are ignored because of a mistake: a misspelt kind, or a plugin block that has another path.
pub(super) fn ignored(source: &Source, manifests: &[Manifest]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for manifest in manifests {
        let kind = manifest.kind();
        let is_near = |known: &&str| kind != *known && resembles(kind, &[known]);
        if let Some(known) = KINDS.into_iter().find(is_near) {
            let text = format!(
                "kind {} is not known: did you mean {known}? The object is ignored",
                kind.escape_debug()
            );
            problems.push(Problem::warning(manifest.spot(&path("kind")), text));
        }
        if let Some(key) = manifest.key().filter(|_| kind.is_empty()) {
            let kind_at = manifest.spot(&path("kind"));
            let text = format!("object {key} has no kind and is ignored: set it");
            problems.push(Problem::warning(kind_at, text));
        }
        if kind == "Rollout" && !source.is_subject(manifest) {
            problems.extend(lost_block(source, manifest));
        }
    }
    problems
}

/// Finds the plugin block of a Rollout under a misspelt name, a misspelt key or in another place.
fn lost_block(source: &Source, manifest: &Manifest) -> Option<Problem> {
    let names = source.policy().plugin_names;
    let mut found = vec!["spec".to_owned()];
    let name = block_below(manifest.value.get("spec")?, &names, &mut found)?;
    let right = format!("spec.strategy.canary.trafficRouting.plugins.{name}");
    let text = format!(
        "Rollout {}: {} is not read: did you mean {right}? Without it the controller does not call the plugin, and the Rollout is not checked",
        manifest.key()?,
        found.join("."),
    );
    // The position of the first key that differs.
    let same = found.iter().zip(right.split('.'));
    let same = same.take_while(|(found, right)| found == right).count();
    let at = PointerBuf::from_tokens(found.iter().take(same + 1));
    let spot = manifest.spot(&at);
    Some(Problem::error(spot, text))
}

/// Finds a key that is, or resembles, one of these names, and adds its path to `at`. Returns the name.
fn block_below<'n>(value: &Value, names: &'n [String], at: &mut Vec<String>) -> Option<&'n str> {
    // The Pod template is not the plugin's.
    let fields = value
        .as_object()?
        .iter()
        .filter(|(key, _)| *key != "template");
    for (key, value) in fields {
        at.push(key.clone());
        let name = names.iter().find(|name| resembles(key, &[name]));
        if let Some(name) = name
            .map(String::as_str)
            .or_else(|| block_below(value, names, at))
        {
            return Some(name);
        }
        at.pop();
    }
    None
}

/// Finds Services of the files that the controller refuses for a Rollout, because their selector has a label that its Pods lack or
/// because they belong to another one, and names of Services and AnalysisTemplates that are probably misspelt, because the files have another one with nearly this name.
/// `labels` are those of the Pods, if they are known.
pub(super) fn references(
    problems: &mut Problems<'_>,
    manifests: &[Manifest],
    subject: &Subject,
    labels: Option<&BTreeMap<String, String>>,
) {
    let objects: Vec<(&Manifest, &str, ObjectKey)> = manifests
        .iter()
        .filter_map(|it| Some((it, it.kind(), it.key()?)))
        .filter(|(_, _, key)| key.namespace == subject.key.namespace)
        .collect();
    let references = references_of(subject);
    let names: BTreeSet<&str> = references.iter().map(|(it, _)| it.text()).collect();
    for (reference, kind) in &references {
        let name = reference.text();
        let same_kind = objects.iter().filter(|(_, it, _)| it == kind);
        let Some((service, _, key)) = same_kind.clone().find(|(_, _, key)| key.name == name) else {
            let near = same_kind.map(|(_, _, key)| key.name.as_str());
            let mut near = near.filter(|it| !names.contains(it) && resembles(name, &[it]));
            if let Some(near) = near.next() {
                let text = format!("the files have no {kind} {name}: did you mean {near}?");
                problems.warn(&reference.at, text);
            }
            continue;
        };
        if *kind != "Service" {
            continue;
        }
        let annotations = Node::root(&service.value).get("metadata.annotations");
        let other = annotations.value.get(MANAGED_BY).and_then(Value::as_str);
        if let Some(other) = other.filter(|it| *it != subject.key.name) {
            let text = format!(
                "Service {key}: annotation {MANAGED_BY} gives it to Rollout {}, and the controller refuses Rollout {}: remove the annotation, or use another Service",
                other.escape_debug(),
                subject.key
            );
            let at = annotations.at.with_trailing_token(MANAGED_BY);
            problems.found.push(Problem::error(service.spot(&at), text));
        }
        let selector = Node::root(&service.value).get("spec.selector").texts();
        let missing = selector.iter().find(|(label, value)| {
            let is_of_pods = labels.is_none_or(|labels| labels.get(*label) == Some(*value));
            *label != HASH_LABEL && !is_of_pods
        });
        if let Some((label, _)) = missing {
            let text = format!(
                "Service {key}: the Pods of Rollout {} do not have the label {label} of its selector, and the controller refuses the Rollout: make them equal",
                subject.key
            );
            let spot = service.spot(&path("spec.selector"));
            problems.found.push(Problem::error(spot, text));
        }
    }
}

/// Returns the names of Services and AnalysisTemplates in a Rollout, each with its kind.
fn references_of(subject: &Subject) -> Vec<(Node<'_>, &'static str)> {
    let canary = subject.get("spec.strategy.canary");
    let services = [
        "stableService",
        "canaryService",
        "pingPong.pingService",
        "pingPong.pongService",
    ];
    let services = services.map(|keys| (canary.get(keys), "Service"));
    let holders = canary.get("steps").items().into_iter();
    let analyses = holders.chain([canary]).map(|it| it.get("analysis"));
    let templates = analyses.flat_map(|it| it.get("templates").items());
    let templates = templates.map(|it| (it.get("templateName"), "AnalysisTemplate"));
    let mut references: Vec<_> = services.into_iter().chain(templates).collect();
    references.retain(|(name, _)| name.value.is_string());
    references
}

/// The destinations that a Rollout splits.
pub(super) struct Splits {
    pub(super) rollout: ObjectKey,
    /// Names of its Services.
    pub(super) services: BTreeSet<String>,
    /// Where the Rollout is.
    pub(super) spot: Spot,
    /// Each with its route. Their places would not do: in the cluster, a managed route of one Rollout moves the routes of another.
    pub(super) parts: BTreeSet<(String, String)>,
}

/// Returns the destinations in `tables` that a request of a Rollout splits, each with its route.
pub(super) fn split_by(
    config: &PluginConfig,
    intent: &Intent,
    tables: &[RouteTableDoc],
) -> BTreeSet<(String, String)> {
    let mut parts = BTreeSet::new();
    for table in tables {
        // The simulation reports an error.
        let edits = plan(config, intent, table).map(|plan| plan.edits);
        for edit in edits.into_iter().flatten() {
            let Edit::Destinations { route, changes, .. } = edit else {
                continue;
            };
            let route = format!("{route} of RouteTable {}", table.key());
            for change in changes {
                if let DestinationChange::SetWeight { destination, .. }
                | DestinationChange::Replace { destination, .. }
                | DestinationChange::Remove { destination, .. } = change
                {
                    parts.insert((route.clone(), destination));
                }
            }
        }
    }
    parts
}

/// Returns the names of the Services between which a Rollout shifts traffic.
pub(super) fn services_of(subject: &Subject) -> BTreeSet<String> {
    let references = references_of(subject).into_iter();
    let services = references.filter(|(name, kind)| *kind == "Service" && !name.text().is_empty());
    services.map(|(name, _)| name.text().to_owned()).collect()
}

/// Finds Rollouts with the same Service, and Rollouts that split the same destination. Each is reported once, with the first other.
pub(super) fn shared(all: &[Splits]) -> Vec<Problem> {
    let found = all.iter().enumerate().filter_map(|(index, second)| {
        let before = all.get(..index)?;
        let text = before.iter().find_map(|first| clash(first, second))?;
        Some(Problem::error(second.spot.clone(), text))
    });
    found.collect()
}

/// Returns the error of `second` if both have the same Service, or split the same destination.
fn clash(first: &Splits, second: &Splits) -> Option<String> {
    let (rollout, other, spot) = (&second.rollout, &first.rollout, &first.spot);
    if rollout == other {
        return None;
    }
    let mut services = second.services.intersection(&first.services);
    let service = services.next();
    if let Some(service) = service.filter(|_| rollout.namespace == other.namespace) {
        return Some(format!(
            "Rollout {rollout}: Rollout {other} in {spot} has the same Service {service}, and the controller refuses the second one: give each Rollout Services of its own"
        ));
    }
    let (route, stable) = second.parts.intersection(&first.parts).next()?;
    Some(format!(
        "Rollout {rollout}: Rollout {other} in {spot} splits the same destination {stable} in {route}: give each Rollout a stable Service of its own, or other routes"
    ))
}
