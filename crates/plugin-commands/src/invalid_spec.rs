//! What the controller refuses in a Rollout. Such a Rollout is `InvalidSpec`, and no router is called.
//!
//! The rules are those of upstream's `pkg/apis/rollouts/validation/validation.go`. `tests/go/rollouts/validation_test.go` compares
//! them with the tested releases. Of a Pod template only what the plugin's users may get wrong is checked here, not every rule of
//! Kubernetes.

use std::collections::BTreeSet;

use gloo_types::{LabelRequirement, is_label_key, is_label_value};
use serde_json::{Value, json};

use crate::controller::ControllerRelease;
use crate::node::{Node, Refusal};

/// Releases from which on the controller accepts something with a plugin.
mod since {
    use super::ControllerRelease;

    pub(super) const HEADERS: ControllerRelease = ControllerRelease::new(1, 7, 0);
    pub(super) const SERVICES_OPTIONAL: ControllerRelease = ControllerRelease::new(1, 7, 0);
    pub(super) const ISTIO_PAIRS: ControllerRelease = ControllerRelease::new(1, 7, 0);
    pub(super) const OTHER_MAXIMUM: ControllerRelease = ControllerRelease::new(1, 7, 0);
    pub(super) const EXPERIMENT_WEIGHTS: ControllerRelease = ControllerRelease::new(1, 8, 0);
    pub(super) const STEP_PLUGINS: ControllerRelease = ControllerRelease::new(1, 8, 0);
    pub(super) const MIRRORS: ControllerRelease = ControllerRelease::new(1, 10, 0);
    pub(super) const PING_PONG: ControllerRelease = ControllerRelease::new(1, 10, 0);
}

/// The kinds of steps of which a step may have only one.
const EXCLUSIVE: [&str; 4] = ["setWeight", "pause", "experiment", "analysis"];
/// All kinds of steps. Each may be the only one.
const KINDS: [&str; 8] = [
    "setWeight",
    "pause",
    "experiment",
    "analysis",
    "setCanaryScale",
    "setHeaderRoute",
    "setMirrorRoute",
    "plugin",
];
/// Routers that need both Services, also beside a plugin.
const NEED_SERVICES: [&str; 6] = ["smi", "apisix", "ambassador", "nginx", "appMesh", "traefik"];

/// Returns what the controller refuses in the canary strategy.
pub(crate) fn of_strategy(rollout: &Value, release: ControllerRelease) -> Vec<Refusal> {
    let strategy = Node::root(rollout).get("spec.strategy");
    let canary = strategy.get("canary");
    if !canary.is_set() {
        return Vec::new();
    }
    let mut rules = Rules {
        routing: canary.get("trafficRouting"),
        release,
        found: Vec::new(),
    };
    if strategy.has("blueGreen") {
        let text = "a Rollout has one strategy: remove blueGreen or canary";
        rules.refuse(&strategy.get("blueGreen"), text);
    }
    let surge = canary.get("maxSurge");
    if count_or_percent(&surge) == 0 && count_or_percent(&canary.get("maxUnavailable")) == 0 {
        let text = "maxSurge and maxUnavailable are both 0: set one of them to more";
        rules.refuse(&surge, text);
    }
    rules.services(&canary);
    let delay = canary.get("scaleDownDelaySeconds");
    if rules.routing.is_set() && canary.get("dynamicStableScale").is_true() && delay.is_set() {
        let text =
            "scaleDownDelaySeconds cannot be used with dynamicStableScale: remove one of them";
        rules.refuse(&delay, text);
    }
    for step in canary.get("steps").items() {
        rules.step(&step);
    }
    rules.anti_affinity(&canary.get("antiAffinity"));
    rules.found
}

/// Returns what the controller refuses outside of the strategy: the selector, the Pod template and numbers.
pub(crate) fn of_pods(rollout: &Value) -> Vec<Refusal> {
    let mut found = Vec::new();
    let spec = Node::root(rollout).get("spec");
    for key in [
        "replicas",
        "minReadySeconds",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
    ] {
        let node = spec.get(key);
        if let Some(number) = node.number().filter(|it| *it < 0) {
            found.push(node.refused(format!("{key} is {number}: it must be 0 or more")));
        }
    }
    let (ready, deadline) = (
        spec.get("minReadySeconds"),
        spec.get("progressDeadlineSeconds"),
    );
    let (least, most) = (
        ready.number().unwrap_or(0),
        deadline.number().unwrap_or(600),
    );
    if 0 <= most && most <= least {
        let node = if deadline.is_set() { deadline } else { ready };
        found.push(node.refused(format!(
            "progressDeadlineSeconds ({most}) must be greater than minReadySeconds ({least})"
        )));
    }
    let template = spec.get("template");
    if !spec.has("workloadRef") {
        found.extend(refused_selector(&spec.get("selector"), &template));
        refuse_template(&template.get("spec"), &mut found);
    } else if ["metadata.labels", "metadata.annotations"]
        .iter()
        .any(|keys| !template.get(keys).texts().is_empty())
    {
        found.push(
            template.refused("template and workloadRef exclude each other: remove one of them"),
        );
    }
    found
}

/// The rules of a canary strategy, and what breaks them.
struct Rules<'v> {
    routing: Node<'v>,
    release: ControllerRelease,
    found: Vec<Refusal>,
}

impl Rules<'_> {
    fn refuse(&mut self, node: &Node<'_>, text: impl Into<String>) {
        self.found.push(node.refused(text));
    }

    /// Refuses a value if the controller is older than `since`, and the Rollout has none of the `others`, for which it accepts it.
    fn refuse_before(
        &mut self,
        since: ControllerRelease,
        others: &[&str],
        node: &Node<'_>,
        what: &str,
    ) {
        if self.release < since && !others.iter().any(|name| self.routing.has(name)) {
            let release = self.release;
            let text = format!("controller {release} refuses {what}: upgrade it, or remove this");
            self.refuse(node, text);
        }
    }

    fn services(&mut self, canary: &Node<'_>) {
        let (stable, new) = (canary.get("stableService"), canary.get("canaryService"));
        if !stable.text().is_empty() && stable.text() == new.text() {
            let text = "stableService and canaryService are the same: name two Services";
            self.refuse(&stable, text);
        }
        let (has_alb, has_istio) = (self.routing.has("alb"), self.routing.has("istio"));
        let pair = canary.get("pingPong");
        if pair.is_set() {
            let others: &[&str] = match self.release >= since::ISTIO_PAIRS {
                true => &["alb", "istio"],
                false => &["alb"],
            };
            self.refuse_before(since::PING_PONG, others, &pair, "pingPong with a plugin");
            let (ping, pong) = (pair.get("pingService"), pair.get("pongService"));
            for (key, service) in [("pingService", &ping), ("pongService", &pong)] {
                if service.is_set() && service.text().is_empty() {
                    self.refuse(service, format!("{key} is empty: name a Service"));
                }
            }
            if !ping.text().is_empty() && ping.text() == pong.text() {
                let text = "pingService and pongService are the same: name two Services";
                self.refuse(&ping, text);
            }
            let root = self.routing.get("alb.rootService");
            if has_alb && root.text().is_empty() {
                self.refuse(&root, "pingPong with alb needs rootService");
            }
        }
        let has_subsets = self.routing.has("istio.destinationRule");
        let is_old = self.release < since::SERVICES_OPTIONAL;
        let needs_both = match is_old {
            true => !pair.is_set() && !has_subsets,
            false => {
                NEED_SERVICES.iter().any(|name| self.routing.has(name))
                    || !pair.is_set() && (has_alb || has_istio && !has_subsets)
            }
        };
        for (key, service) in [("stableService", stable), ("canaryService", new)] {
            if needs_both && service.text().is_empty() && is_old {
                let what = format!("a Rollout without {key}");
                self.refuse_before(since::SERVICES_OPTIONAL, &[], &service, &what);
            } else if needs_both && service.text().is_empty() {
                let text = format!("{key} is missing: another router in trafficRouting needs it");
                self.refuse(&service, text);
            }
        }
    }

    fn step(&mut self, step: &Node<'_>) {
        // The API server refuses a value of another type.
        if !step.value.is_object() {
            return;
        }
        let exclusive = EXCLUSIVE.into_iter().filter(|key| step.has(key));
        if let [first, second, ..] = exclusive.collect::<Vec<_>>()[..] {
            let text = format!("a step cannot have both {first} and {second}: make it two steps");
            self.refuse(step, text);
        }
        let is_known = |key: &&str| *key != "plugin" || self.release >= since::STEP_PLUGINS;
        let kinds: Vec<_> = KINDS.into_iter().filter(is_known).collect();
        if !kinds.iter().any(|key| step.has(key)) {
            let kinds = kinds.join(", ");
            self.refuse(
                step,
                format!("the step does nothing: set one of {kinds} in it"),
            );
        }
        let max = self.routing.get("maxTrafficWeight").number();
        let max = max.filter(|_| self.release >= since::OTHER_MAXIMUM);
        let max = max.unwrap_or(100);
        let set_weight = step.get("setWeight");
        if let Some(weight) = set_weight.number().filter(|it| !(0..=max).contains(it)) {
            let text = match max {
                ..=0 => format!("setWeight is {weight}, but maxTrafficWeight is {max}: raise it"),
                _ => format!("setWeight is {weight}: it must be a whole number from 0 to {max}"),
            };
            self.refuse(&set_weight, text);
        }
        let duration = step.get("pause.duration");
        if duration.is_set() && seconds(duration.value) < 0 {
            let shown = match duration.value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let text = format!(
                "\"{}\" is no duration: write seconds, or h, m and s, such as 90s, 5m or 1h30m",
                shown.escape_debug()
            );
            self.refuse(&duration, text);
        }
        let routers = ["alb", "istio", "apisix"];
        self.managed_route(step, "setHeaderRoute", since::HEADERS, &routers);
        self.managed_route(step, "setMirrorRoute", since::MIRRORS, &["istio"]);
        let analyses = step.get("experiment.analyses").items();
        for analysis in [step.get("analysis")].into_iter().chain(analyses) {
            for arg in analysis.get("args").items() {
                let path = arg.get("valueFrom.fieldRef.fieldPath");
                if path.text().starts_with("metadata") && !is_metadata(path.text()) {
                    let text = "fieldPath must be metadata.name, metadata.namespace, metadata.uid, metadata.labels or metadata.annotations, or a key of the last two, such as metadata.labels['app']";
                    self.refuse(&path, text);
                }
            }
        }
        for template in step.get("experiment.templates").items() {
            let weight = template.get("weight");
            if weight.is_set() {
                let (routers, what) = (
                    ["alb", "smi", "istio"],
                    "weights of experiments with a plugin",
                );
                self.refuse_before(since::EXPERIMENT_WEIGHTS, &routers, &weight, what);
            }
        }
    }

    /// Checks the route that a step sets. Controllers before `since` accept it only with one of the `others`.
    fn managed_route(
        &mut self,
        step: &Node<'_>,
        kind: &str,
        since: ControllerRelease,
        others: &[&str],
    ) {
        let route = step.get(kind);
        if !route.is_set() {
            return;
        }
        self.refuse_before(since, others, &route, &format!("{kind} with a plugin"));
        for condition in route.get("match").items() {
            // Header routes have the first one, mirror routes the others.
            for key in ["headerValue", "method", "path"] {
                let value = condition.get(key);
                let set = ["exact", "prefix", "regex"].iter();
                let is_set = |key: &&&str| value.has(key) && *value.get(key).value != json!("");
                let set = set.filter(is_set).count();
                // The API server refuses a value of another type.
                if value.value.is_object() && set != 1 {
                    let what = if set == 0 { "none" } else { "several" };
                    let text =
                        format!("{key} has {what} of exact, prefix and regex: set exactly one");
                    self.refuse(&value, text);
                }
            }
        }
        let name = route.get("name").text();
        let listed = self.routing.get("managedRoutes").items();
        if !listed.iter().any(|it| it.get("name").text() == name) {
            let text = match name {
                "" => format!("{kind} has no name: give it one of trafficRouting.managedRoutes"),
                name => format!("{kind} {name}: add it to trafficRouting.managedRoutes"),
            };
            self.refuse(&route, text);
        }
    }

    fn anti_affinity(&mut self, affinity: &Node<'_>) {
        let preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution");
        let has_required = affinity.has("requiredDuringSchedulingIgnoredDuringExecution");
        if affinity.is_set() && preferred.is_set() == has_required {
            let text = "antiAffinity needs exactly one of preferredDuringSchedulingIgnoredDuringExecution and requiredDuringSchedulingIgnoredDuringExecution";
            self.refuse(affinity, text);
        }
        let node = preferred.get("weight");
        let weight = node.number().unwrap_or(0);
        if preferred.is_set() && !(1..=100).contains(&weight) {
            let text = format!(
                "weight of antiAffinity is {weight}: it must be a whole number from 1 to 100"
            );
            self.refuse(&node, text);
        }
    }
}

/// Returns what is wrong with the selector; the controller looks no further than the first fault of its labels.
fn refused_selector(selector: &Node<'_>, template: &Node<'_>) -> Vec<Refusal> {
    let labels = selector.get("matchLabels").texts();
    let expressions = selector.get("matchExpressions").items();
    if labels.is_empty() && expressions.is_empty() {
        let text = "selector is missing or empty: set matchLabels to labels of the Pod template";
        return vec![selector.refused(text)];
    }
    let is_bad = |(key, value): &(&String, &String)| !is_label_key(key) || !is_label_value(value);
    if let Some((key, value)) = labels.iter().find(is_bad) {
        let label = format!("{key}: {value}");
        let text = format!(
            "Kubernetes does not accept the label {} of selector: correct it",
            label.escape_debug()
        );
        return vec![selector.get("matchLabels").refused(text)];
    }
    let mut found = Vec::new();
    let of_pods = template.get("metadata.labels").texts();
    let mut selects = labels.iter().all(|(key, it)| of_pods.get(key) == Some(it));
    for expression in expressions {
        let values = expression.get("values").items();
        let values = values.iter().filter_map(|it| it.value.as_str());
        let requirement = LabelRequirement::new(
            expression.get("key").text().to_owned(),
            expression.get("operator").text(),
            values.map(str::to_owned).collect(),
        );
        match requirement {
            Ok(requirement) => selects &= requirement.matches(&of_pods),
            Err(error) => {
                let text = format!("{} must be {}", error.key, error.expected);
                found.push(expression.get(error.key).refused(text));
            }
        }
    }
    if !selects {
        let text =
            "selector does not select the labels of template.metadata.labels: make them equal";
        found.push(selector.refused(text));
    }
    found
}

/// Finds what is wrong with the Pods.
fn refuse_template(pod: &Node<'_>, found: &mut Vec<Refusal>) {
    let containers = pod.get("containers");
    if containers.items().is_empty() {
        let text = "template.spec.containers is empty: the Pods need a container";
        found.push(containers.refused(text));
    }
    let mut names = BTreeSet::new();
    for container in containers.items() {
        let name = container.get("name").text();
        if !is_name(name) || !names.insert(name) {
            let text = format!(
                "container name \"{}\" must be unique, of lower-case letters, digits and -",
                name.escape_debug()
            );
            found.push(container.get("name").refused(text));
        }
        if container.get("image").text().trim().is_empty() {
            found.push(container.refused(format!("container {name} has no image")));
        }
        for port in container.get("ports").items() {
            let port = port.get("containerPort");
            let number = port.number().unwrap_or(0);
            if !(1..=65535).contains(&number) {
                let text = format!("containerPort is {number}: it must be from 1 to 65535");
                found.push(port.refused(text));
            }
        }
    }
    let policy = pod.get("restartPolicy");
    if !matches!(policy.text(), "" | "Always") {
        let text = "restartPolicy must be Always in the Pods of a Rollout: remove it";
        found.push(policy.refused(text));
    }
}

/// Returns a number of Pods, or a percentage; by default 25.
fn count_or_percent(node: &Node<'_>) -> i64 {
    match node.value {
        Value::Null => 25,
        Value::String(text) => {
            let number = text.strip_suffix('%').unwrap_or(text);
            number.parse().unwrap_or(0)
        }
        other => other.as_i64().unwrap_or(0),
    }
}

/// The length of a pause as the controller reads it; negative if it is no duration.
fn seconds(duration: &Value) -> i64 {
    match duration {
        Value::String(text) => {
            let plain = text.parse::<i32>().map(i64::from).ok();
            plain.or_else(|| go_seconds(text)).unwrap_or(-1)
        }
        _ => duration.as_i64().unwrap_or(-1),
    }
}

/// Reads a duration as Go's `time.ParseDuration`, in whole seconds.
fn go_seconds(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut sum = 0.0;
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c))?);
        let end = after.find(is_number).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * unit;
        rest = after;
    }
    // Go's durations have 64 bits of nanoseconds, and the controller keeps 32 bits of seconds.
    let is_something = text.contains(|c: char| c.is_ascii_digit());
    let whole = (sign * sum).trunc();
    (is_something && whole.abs() <= f64::from(i32::MAX)).then_some(whole as i64)
}

/// Whether the downward API has this field of an object's metadata.
fn is_metadata(path: &str) -> bool {
    let key = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
    match key("metadata.labels['").or_else(|| key("metadata.annotations['")) {
        Some(key) => is_label_key(&key.to_ascii_lowercase()),
        None => matches!(
            path,
            "metadata.name"
                | "metadata.namespace"
                | "metadata.uid"
                | "metadata.labels"
                | "metadata.annotations"
        ),
    }
}

/// Whether a text is a DNS label.
fn is_name(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_framed = !text.starts_with('-') && !text.ends_with('-');
    (1..=63).contains(&text.len()) && is_framed && text.chars().all(legal)
}
