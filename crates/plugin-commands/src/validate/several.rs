//! Problems of several objects together.

use std::collections::{BTreeMap, BTreeSet};

use gloo_types::{MirrorPolicy, ObjectKey, Resource as _, RouteTable, RouteTableDoc};
use route_planner::{DestinationChange, Edit, Intent, PluginConfig, plan};
use serde_json::Value;
use strict_json::resembles;

use super::block;
use super::report::Problem;
use super::shape::{self, Misfit};
use crate::controller::HASH_LABEL;
use crate::input::{Manifest, Spot, Step, path};
use crate::world::{Source, Subject};

/// Finds objects that are in the files more than once. The later one would replace the earlier one.
pub(super) fn duplicates(source: &Source, manifests: &[Manifest]) -> Vec<Problem> {
    let mut seen: BTreeMap<(String, ObjectKey), Spot> = BTreeMap::new();
    let mut problems = Vec::new();
    for manifest in manifests {
        let Some(key) = source.key_of(manifest) else {
            continue;
        };
        let kind = manifest.kind();
        if !matches!(
            kind,
            "Rollout" | RouteTable::KIND | MirrorPolicy::KIND | "Service"
        ) {
            continue;
        }
        let version = manifest.value.get("apiVersion").and_then(Value::as_str);
        let group = version.unwrap_or_default().split('/').next();
        let id = format!("{kind}.{}", group.unwrap_or_default());
        let spot = manifest.spot(&path("metadata"));
        match seen.get(&(id.clone(), key.clone())) {
            Some(first) => {
                let text = format!("{kind} {key} is also in {first}: remove one of them");
                problems.push(Problem::error(spot, text));
            }
            None => {
                seen.insert((id, key), spot);
            }
        }
    }
    problems
}

/// Finds objects that are ignored because of a misspelt word: a kind, or the name of the plugin.
pub(super) fn ignored(source: &Source, manifests: &[Manifest]) -> Vec<Problem> {
    const KINDS: [&str; 3] = ["Rollout", RouteTable::KIND, MirrorPolicy::KIND];
    let mut problems = Vec::new();
    for manifest in manifests {
        let kind = manifest.kind();
        if let Some(known) = KINDS.into_iter().find(|known| is_misspelt(kind, known)) {
            let text = format!(
                "kind {} is not known: did you mean {known}? The object is ignored",
                kind.escape_debug()
            );
            problems.push(Problem::warning(manifest.spot(&path("kind")), text));
        }
        let at = path("spec.strategy.canary.trafficRouting.plugins");
        let plugins = block::lookup(&manifest.value, &at).and_then(Value::as_object);
        let is_rollout = kind == "Rollout" && !source.is_subject(manifest);
        for misfit in shape::of_rollout(&manifest.value) {
            if let (Misfit::Unknown(at, text), true) = (misfit, is_rollout)
                && at.starts_with("spec.strategy.canary.trafficRouting.")
                && let Some(key) = source.key_of(manifest)
            {
                let text = format!("Rollout {key}: the API server drops {text}");
                problems.push(Problem::warning(manifest.spot(&path(&at)), text));
            }
        }
        for name in plugins.into_iter().flatten().map(|(name, _)| name) {
            let names = source.policy().plugin_names;
            let known = names.iter().find(|known| is_misspelt(name, known));
            if let (Some(known), Some(key)) =
                (known, source.key_of(manifest).filter(|_| is_rollout))
            {
                let text = format!(
                    "Rollout {key}: trafficRouting.plugins has {}: did you mean {known}? Without it the Rollout is not checked",
                    name.escape_debug()
                );
                let at: Vec<Step> = at
                    .iter()
                    .cloned()
                    .chain([Step::Key(name.clone())])
                    .collect();
                problems.push(Problem::warning(manifest.spot(&at), text));
            }
        }
    }
    problems
}

fn is_misspelt(word: &str, known: &str) -> bool {
    word != known && resembles(word, &[known])
}

/// Finds Services of the files that the controller refuses for a Rollout: their selector has a label that its Pods lack.
pub(super) fn services(source: &Source, manifests: &[Manifest], subject: &Subject) -> Vec<Problem> {
    let Some(labels) = subject.api.pointer("/spec/template/metadata/labels") else {
        return Vec::new();
    };
    let Some(canary) = subject.api.pointer("/spec/strategy/canary") else {
        return Vec::new();
    };
    let names = [
        "/stableService",
        "/canaryService",
        "/pingPong/pingService",
        "/pingPong/pongService",
    ];
    let names = names.map(|name| canary.pointer(name).and_then(Value::as_str));
    let mut problems = Vec::new();
    for manifest in manifests.iter().filter(|it| it.kind() == "Service") {
        let key = source.key_of(manifest);
        let Some(key) = key.filter(|key| key.namespace == subject.key.namespace) else {
            continue;
        };
        let selector = manifest
            .value
            .pointer("/spec/selector")
            .and_then(Value::as_object);
        let mut selector = selector.into_iter().flatten();
        let missing = selector.find(|(label, value)| {
            *label != HASH_LABEL && labels.get(label.as_str()) != Some(*value)
        });
        if let Some((label, _)) = missing.filter(|_| names.contains(&Some(key.name.as_str()))) {
            let text = format!(
                "Service {key}: the Pods of Rollout {} do not have the label {label} of its selector, and the controller refuses the Rollout: make them equal",
                subject.key
            );
            problems.push(Problem::error(manifest.spot(&path("spec.selector")), text));
        }
    }
    problems
}

/// The destinations that a Rollout splits.
pub(super) struct Splits {
    rollout: ObjectKey,
    /// Where the Rollout is.
    spot: Spot,
    /// Each with its route. Their places would not do: in the cluster, a managed route of one Rollout moves the routes of another.
    parts: BTreeSet<(String, String)>,
}

impl Splits {
    pub(super) fn new(
        subject: &Subject,
        spot: Spot,
        config: &PluginConfig,
        intent: &Intent,
        tables: &[RouteTableDoc],
    ) -> Self {
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
                    let (DestinationChange::SetWeight { destination, .. }
                    | DestinationChange::Replace { destination, .. }
                    | DestinationChange::Remove { destination, .. }) = change
                    else {
                        continue;
                    };
                    parts.insert((route.clone(), destination));
                }
            }
        }
        Self {
            rollout: subject.key.clone(),
            spot,
            parts,
        }
    }
}

/// Finds Rollouts that split the same destination.
pub(super) fn same_stable(all: &[Splits]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, second) in all.iter().enumerate() {
        for first in all.iter().take(index) {
            let shared = second.parts.intersection(&first.parts).next();
            if let Some((route, stable)) = shared.filter(|_| first.rollout != second.rollout) {
                let text = format!(
                    "Rollout {}: Rollout {} in {} splits the same destination {stable} in {route}: give each Rollout a stable Service of its own, or other routes",
                    second.rollout, first.rollout, first.spot
                );
                problems.push(Problem::error(second.spot.clone(), text));
            }
        }
    }
    problems
}
