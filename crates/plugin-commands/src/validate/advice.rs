//! Warnings about settings that work, but not as their owner may expect.

use serde_json::Value;

use super::block;
use super::report::Problems;
use crate::controller::{ControllerRelease, abort_advice};
use crate::world::{Source, Subject};

/// Seconds that old Pods have to serve after a promotion, until every gateway has received the change.
const ENOUGH_FOR_A_GATEWAY: u64 = 15;

/// Warns of Pods that would end before the gateway stops sending requests to them, which no router can prevent.
pub(super) fn about_scaling(
    problems: &mut Problems<'_>,
    subject: &Subject,
    release: Option<ControllerRelease>,
) {
    let canary = subject.get("spec.strategy.canary");
    let mut warn = |key: &str, message: &str| {
        problems.warn(&canary.get(key).at, format!("{key}: {message}"));
    };
    let is_dynamic = canary.get("dynamicStableScale").is_true();
    if is_dynamic {
        let containers = subject.get("spec.template.spec.containers");
        let mut pods = containers.items().into_iter();
        // The template of a workloadRef is not available here.
        if containers.value.is_array() && !pods.any(|it| it.has("lifecycle.preStop")) {
            warn(
                "dynamicStableScale",
                "give the Pods a preStop hook that sleeps for some seconds, since they end before the gateway stops sending requests to them",
            );
        }
        if let Some(advice) = abort_advice(release, &subject.api) {
            warn("dynamicStableScale", &advice);
        }
    }
    let delay = canary.get("scaleDownDelaySeconds").value.as_u64();
    if delay.is_some_and(|delay| !is_dynamic && delay < ENOUGH_FOR_A_GATEWAY) {
        let message = format!(
            "raise it to at least {ENOUGH_FOR_A_GATEWAY}, so that old Pods serve until the gateway has stopped sending requests to them"
        );
        warn("scaleDownDelaySeconds", &message);
    }
}

/// Warns of keys of the plugin block.
pub(super) fn about_block(problems: &mut Problems<'_>, source: &Source, subject: &Subject) {
    let block = block::of(source, &subject.api);
    let zero = block.get("zeroWeight");
    if zero.text() == "keep" {
        problems.warn(
            &zero.at,
            "zeroWeight: keep leaves stable in the route with weight 0 while the canary has 100, and Gloo's reference takes 0 for unset and refuses that: remove the key, unless your Gloo accepts it",
        );
    }
    let selector = block.get("routeSelector");
    let is_empty = |key: &str| match selector.get(key).value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => true,
    };
    if selector.value.is_object() && ["name", "names", "labels"].into_iter().all(is_empty) {
        problems.warn(
            &selector.at,
            "routeSelector is empty, which selects all HTTP routes: remove it, or name routes in it",
        );
    }
}

/// Warns of numbers and steps that the controller accepts, but does not follow.
pub(super) fn about_steps(problems: &mut Problems<'_>, subject: &Subject) {
    let canary = subject.get("spec.strategy.canary");
    let steps = canary.get("steps").items();
    if steps.is_empty() {
        let message = "there are no steps, so all traffic moves to a new version as soon as its Pods are available: add steps";
        problems.warn(&canary.at, message);
    }
    let threshold = canary.get("replicaProgressThreshold");
    let mut numbers = vec![
        subject.get("spec.rollbackWindow.revisions"),
        canary.get("abortScaleDownDelaySeconds"),
        canary.get("scaleDownDelaySeconds"),
        canary.get("minPodsPerReplicaSet"),
        threshold.get("value"),
    ];
    for step in steps {
        let scale = step.get("setCanaryScale");
        // In the order in which the controller uses them.
        let keys = ["matchTrafficWeight", "replicas", "weight"].into_iter();
        let mut set = keys.filter(|key| {
            let value = scale.get(key).value;
            !value.is_null() && *value != Value::Bool(false)
        });
        if let (Some(used), Some(ignored)) = (set.next(), set.next()) {
            let message = format!(
                "setCanaryScale has {used}, so the controller ignores {ignored}: remove one of them"
            );
            problems.warn(&scale.at, message);
        }
        numbers.extend(["replicas", "weight"].map(|key| scale.get(key)));
    }
    let kind = threshold.get("type");
    if kind.value.is_string() && !["Percent", "Pods"].contains(&kind.text()) {
        let text = format!(
            "type {}: the controller takes it for Pods: use Percent or Pods",
            kind.text().escape_debug()
        );
        problems.warn(&kind.at, text);
    }
    if threshold.get("value").number() == Some(0) {
        let text = "replicaProgressThreshold 0: steps and the promotion do not wait for Pods: use 1 or more";
        problems.warn(&threshold.get("value").at, text);
    }
    for node in numbers {
        if let Some(number) = node.number().filter(|it| *it < 0) {
            let key = node.key();
            problems.warn(&node.at, format!("{key} is {number}: it must be 0 or more"));
        }
    }
}
