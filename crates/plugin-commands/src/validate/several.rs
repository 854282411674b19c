//! Problems of several objects together.

use std::collections::BTreeMap;

use gloo_types::{ObjectKey, RouteTableDoc};
use route_planner::{DestinationChange, Edit, Intent, PluginConfig, plan};
use serde_json::Value;

use super::report::Problem;
use crate::input::{Manifest, Spot, path};
use crate::world::{Source, Subject};

/// The label by which the controller tells the Pods of versions apart. It sets it in the selectors of Services.
const HASH_LABEL: &str = "rollouts-pod-template-hash";

/// Finds objects that are in the files more than once. The later one would replace the earlier one.
pub(super) fn duplicates(source: &Source, manifests: &[Manifest]) -> Vec<Problem> {
    let mut seen: BTreeMap<(String, ObjectKey), Spot> = BTreeMap::new();
    let mut problems = Vec::new();
    for manifest in manifests {
        let object = source.with_namespace(&manifest.value);
        let Some(key) = key(&object) else { continue };
        let kind = manifest.kind();
        if !matches!(kind, "Rollout" | "RouteTable" | "MirrorPolicy" | "Service") {
            continue;
        }
        let version = object.get("apiVersion").and_then(Value::as_str);
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
        let object = source.with_namespace(&manifest.value);
        let Some(key) = key(&object).filter(|key| key.namespace == subject.key.namespace) else {
            continue;
        };
        let selector = object.pointer("/spec/selector").and_then(Value::as_object);
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

fn key(object: &Value) -> Option<ObjectKey> {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    let namespace = text("/metadata/namespace").unwrap_or_default();
    Some(ObjectKey::new(namespace, text("/metadata/name")?))
}

/// The destinations that a Rollout splits.
pub(super) struct Splits {
    rollout: ObjectKey,
    /// Where the Rollout is.
    spot: Spot,
    /// The route and the destination, by the path of the latter.
    parts: BTreeMap<String, (String, String)>,
}

impl Splits {
    pub(super) fn new(
        subject: &Subject,
        spot: Spot,
        config: &PluginConfig,
        intent: &Intent,
        tables: &[RouteTableDoc],
    ) -> Self {
        let mut parts = BTreeMap::new();
        for table in tables {
            // The simulation reports an error.
            let edits = plan(config, intent, table).map(|plan| plan.edits);
            for edit in edits.into_iter().flatten() {
                let Edit::Destinations {
                    route,
                    path,
                    changes,
                    ..
                } = edit
                else {
                    continue;
                };
                for change in changes {
                    let (DestinationChange::SetWeight {
                        index, destination, ..
                    }
                    | DestinationChange::Replace {
                        index, destination, ..
                    }
                    | DestinationChange::Remove {
                        index, destination, ..
                    }) = change
                    else {
                        continue;
                    };
                    let at = format!("{} {}[{index}]", table.key(), path.join("."));
                    let route = format!("{route} of RouteTable {}", table.key());
                    parts.insert(at, (route, destination));
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
            let mut shared = second.parts.iter();
            let shared = shared.find(|(at, _)| first.parts.contains_key(*at));
            if let Some((_, (route, stable))) = shared.filter(|_| first.rollout != second.rollout) {
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
