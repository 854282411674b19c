//! Warnings about settings that work, but not as their owner may expect.

use serde_json::Value;

use super::block;
use super::report::Problem;
use crate::controller::{ControllerRelease, abort_advice};
use crate::input::{Manifest, path, value_at};
use crate::world::{Source, Subject};

/// Seconds that old Pods have to serve after a promotion, until every gateway has received the change.
const ENOUGH_FOR_A_GATEWAY: u64 = 15;

/// Returns warnings about Pods that would end before the gateway stops sending requests to them, which no router can prevent.
pub(super) fn scaling_problems(
    manifest: &Manifest,
    subject: &Subject,
    release: Option<ControllerRelease>,
) -> Vec<Problem> {
    let canary = subject.api.pointer("/spec/strategy/canary");
    let of_canary = |key: &str| canary.and_then(|canary| canary.get(key));
    let mut problems = Vec::new();
    let mut warn = |key: &str, message: &str| {
        let spot = manifest.spot(&path(&format!("spec.strategy.canary.{key}")));
        let message = format!("Rollout {}: {key}: {message}", subject.key);
        problems.push(Problem::warning(spot, message));
    };
    let is_dynamic = of_canary("dynamicStableScale").and_then(Value::as_bool) == Some(true);
    if is_dynamic {
        let containers = subject.api.pointer("/spec/template/spec/containers");
        let has_hook = |container: &Value| container.pointer("/lifecycle/preStop").is_some();
        // The template of a workloadRef is not available here.
        if let Some(containers) = containers.and_then(Value::as_array)
            && !containers.iter().any(has_hook)
        {
            warn(
                "dynamicStableScale",
                "give the Pods a preStop hook that sleeps for some seconds, since they end before the gateway stops sending requests to them",
            );
        }
        if let Some(advice) = abort_advice(release, &subject.api) {
            warn("dynamicStableScale", &advice);
        }
    }
    let delay = of_canary("scaleDownDelaySeconds").and_then(Value::as_u64);
    if delay.is_some_and(|delay| !is_dynamic && delay < ENOUGH_FOR_A_GATEWAY) {
        let message = format!(
            "raise it to at least {ENOUGH_FOR_A_GATEWAY}, so that old Pods serve until the gateway has stopped sending requests to them"
        );
        warn("scaleDownDelaySeconds", &message);
    }
    problems
}

/// Returns a warning about ping-pong that is new for a Rollout which exists in the cluster. Files alone do not tell.
pub(super) async fn ping_pong_problem(
    source: &Source,
    manifest: &Manifest,
    subject: &Subject,
) -> Option<Problem> {
    let pong = source.unprepared_pong(subject).await?;
    let spot = manifest.spot(&path("spec.strategy.canary.pingPong"));
    let message = format!("Rollout {}: {pong}", subject.key);
    Some(Problem::warning(spot, message))
}

/// Returns warnings about the plugin block.
pub(super) fn block_problems(
    source: &Source,
    manifest: &Manifest,
    subject: &Subject,
) -> Vec<Problem> {
    let at = block::path_of(source, &subject.api);
    let Ok(block) = at.resolve(&subject.api) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let mut warn = |key: &str, message: &str| {
        let message = format!("Rollout {}: {message}", subject.key);
        let spot = manifest.spot(&at.concat(&path(key)));
        problems.push(Problem::warning(spot, message));
    };
    if block.get("zeroWeight").and_then(Value::as_str) == Some("keep") {
        warn(
            "zeroWeight",
            "zeroWeight: keep leaves stable in the route with weight 0 while the canary has 100, and Gloo's reference takes 0 for unset and refuses that: remove the key, unless your Gloo accepts it",
        );
    }
    if let Some(selector) = block.get("routeSelector").filter(|it| it.is_object()) {
        let is_set = |key: &str| {
            selector.get(key).is_some_and(|value| match value {
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                Value::String(text) => !text.is_empty(),
                _ => false,
            })
        };
        if !["name", "names", "labels"].into_iter().any(is_set) {
            warn(
                "routeSelector",
                "routeSelector is empty, which selects all HTTP routes: remove it, or name routes in it",
            );
        }
    }
    problems
}

/// Returns warnings about numbers and steps that the controller accepts, but does not follow.
pub(super) fn step_problems(manifest: &Manifest, subject: &Subject) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut warn = |at: &str, message: String| {
        let spot = manifest.spot(&path(at));
        let message = format!("Rollout {}: {message}", subject.key);
        problems.push(Problem::warning(spot, message));
    };
    let mut numbers: Vec<String> = [
        "spec.rollbackWindow.revisions",
        "spec.strategy.canary.abortScaleDownDelaySeconds",
        "spec.strategy.canary.scaleDownDelaySeconds",
        "spec.strategy.canary.minPodsPerReplicaSet",
        "spec.strategy.canary.replicaProgressThreshold.value",
    ]
    .map(str::to_owned)
    .into();
    let steps = subject.api.pointer("/spec/strategy/canary/steps");
    let steps = steps.and_then(Value::as_array).into_iter().flatten();
    if subject.rollout.steps().is_empty() {
        let message = "there are no steps, so all traffic moves to a new version as soon as its Pods are available: add steps";
        warn("spec.strategy.canary", message.to_owned());
    }
    for (index, step) in steps.enumerate() {
        let at = format!("spec.strategy.canary.steps[{index}].setCanaryScale");
        let Some(scale) = step.get("setCanaryScale") else {
            continue;
        };
        // In the order in which the controller uses them.
        let keys = ["matchTrafficWeight", "replicas", "weight"];
        let mut set = keys.into_iter().filter(|key| {
            let value = scale.get(*key);
            value.is_some_and(|it| !it.is_null() && *it != Value::Bool(false))
        });
        if let (Some(used), Some(ignored)) = (set.next(), set.next()) {
            let message = format!(
                "setCanaryScale has {used}, so the controller ignores {ignored}: remove one of them"
            );
            warn(&at, message);
        }
        numbers.extend(["replicas", "weight"].map(|key| format!("{at}.{key}")));
    }
    let at = "spec.strategy.canary.replicaProgressThreshold";
    if let Some(threshold) = value_at(&subject.api, at) {
        let kind = threshold.get("type").and_then(Value::as_str);
        if let Some(kind) = kind.filter(|it| !["Percent", "Pods"].contains(it)) {
            let text = format!(
                "type {}: the controller takes it for Pods: use Percent or Pods",
                kind.escape_debug()
            );
            warn(&format!("{at}.type"), text);
        }
        if threshold.get("value").and_then(Value::as_i64) == Some(0) {
            let text = "replicaProgressThreshold 0: steps and the promotion do not wait for Pods: use 1 or more";
            warn(&format!("{at}.value"), text.to_owned());
        }
    }
    for at in numbers {
        let number = value_at(&subject.api, &at).and_then(Value::as_i64);
        if let Some(number) = number.filter(|it| *it < 0) {
            let key = at.rsplit('.').next().unwrap_or_default();
            warn(&at, format!("{key} is {number}: it must be 0 or more"));
        }
    }
    problems
}
