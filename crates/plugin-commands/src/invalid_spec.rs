//! What the controller refuses in a Rollout. Such a Rollout is `InvalidSpec`, and no router is called.
//!
//! The rules are those of upstream's `pkg/apis/rollouts/validation/validation.go`. `tests/go/rollouts/validation_test.go` compares
//! them with the tested releases. Of a Pod template only what the plugin's users may get wrong is checked here, not every rule of
//! Kubernetes.

use std::collections::{BTreeMap, BTreeSet};

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
/// The place of the weight that is all traffic.
const MAXIMUM: &str = "spec.strategy.canary.trafficRouting.maxTrafficWeight";
/// The only kind of workload without a selector.
const POD_TEMPLATE: &str = "PodTemplate";
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
    let steps = canary.get("steps").items();
    let max = rules.routing.get("maxTrafficWeight");
    let weights = steps.iter().filter_map(|it| it.get("setWeight").number());
    let all = 0..=max.number().unwrap_or(0);
    if let Some(refusal) = refused_maximum(rollout, release)
        && weights.into_iter().any(|it| !all.contains(&it))
    {
        rules.refuse(&max, refusal.text);
    }
    for step in steps {
        rules.step(&step);
    }
    rules.anti_affinity(&canary.get("antiAffinity"));
    rules.found
}

/// Returns what is wrong with `maxTrafficWeight`, if the release has it. The controller refuses such a value only together with a
/// `setWeight`, and the plugin always.
pub(crate) fn refused_maximum(rollout: &Value, release: ControllerRelease) -> Option<Refusal> {
    let node = Node::root(rollout).get(MAXIMUM);
    let max = node.number().filter(|max| *max < 1)?;
    let text = format!("maxTrafficWeight is {max}: it must be at least 1");
    (release >= since::OTHER_MAXIMUM).then(|| node.refused(text))
}

/// Returns what the API server drops of a Rollout because the definition of this release does not have it.
pub(crate) fn dropped(rollout: &Value, release: ControllerRelease) -> Option<Refusal> {
    let node = Node::root(rollout).get(MAXIMUM);
    let is_dropped = node.is_set() && release < since::OTHER_MAXIMUM;
    is_dropped.then(|| {
        node.refused(format!(
            "controller {release} does not have maxTrafficWeight, and setWeight is a percentage: upgrade it, or remove this"
        ))
    })
}

/// Returns a Rollout as the controller of a release gets it.
pub(crate) fn known_to(release: ControllerRelease, mut rollout: Value) -> Value {
    if let Some(Refusal { at, .. }) = dropped(&rollout, release) {
        at.delete(&mut rollout);
    }
    rollout
}

/// Returns the workload in `objects` from which a Rollout takes its Pod template.
pub(crate) fn workload_of<'v>(
    rollout: &Value,
    objects: impl IntoIterator<Item = &'v Value>,
) -> Option<&'v Value> {
    let rollout = Node::root(rollout);
    let reference = rollout.get("spec.workloadRef");
    let namespace = rollout.get("metadata.namespace");
    let mut objects = objects.into_iter();
    objects.find(|object| {
        let object = Node::root(object);
        reference.is_set()
            && object.get("apiVersion").value == reference.get("apiVersion").value
            && object.get("kind").value == reference.get("kind").value
            && object.get("metadata.name").value == reference.get("name").value
            && object.get("metadata.namespace").value == namespace.value
    })
}

/// Returns the labels of the Pods of a Rollout: of its own template, or of that of its `workload`; `None` if that is not known.
pub(crate) fn labels_of(
    rollout: &Value,
    workload: Option<&Value>,
) -> Option<BTreeMap<String, String>> {
    let spec = Node::root(rollout).get("spec");
    let template = match (spec.has("workloadRef"), workload) {
        (false, _) => spec.get("template"),
        (true, Some(workload)) if Node::root(workload).get("kind").text() == POD_TEMPLATE => {
            Node::root(workload).get("template")
        }
        (true, Some(workload)) => Node::root(workload).get("spec.template"),
        (true, None) => return None,
    };
    Some(template.get("metadata.labels").texts())
}

/// Returns what the controller refuses outside of the strategy: the selector, the Pod template and numbers. `workload` is what
/// `workloadRef` names, if it is known.
pub(crate) fn of_pods(rollout: &Value, workload: Option<&Value>) -> Vec<Refusal> {
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
    let labels = labels_of(rollout, workload);
    let (selector, reference) = (spec.get("selector"), spec.get("workloadRef"));
    if !reference.is_set() {
        found.extend(refused_selector(&selector, labels.as_ref(), false));
        refuse_template(&template, &mut found);
        return found;
    }
    if ["metadata.labels", "metadata.annotations"]
        .iter()
        .any(|keys| !template.get(keys).texts().is_empty())
    {
        found.push(
            template.refused("template and workloadRef exclude each other: remove one of them"),
        );
    }
    let kind = reference.get("kind").text();
    match (reference.get("apiVersion").text(), kind) {
        ("apps/v1", "Deployment" | "ReplicaSet") | ("v1", POD_TEMPLATE) => {}
        _ => found.push(reference.refused(
            "workloadRef must be a Deployment or ReplicaSet of apps/v1, or a PodTemplate of v1: correct its apiVersion and kind",
        )),
    }
    if reference.get("name").text().is_empty() {
        found.push(reference.refused("workloadRef has no name: name the workload"));
    }
    if selector.is_set() {
        found.extend(refused_selector(&selector, labels.as_ref(), true));
    } else if kind == POD_TEMPLATE {
        // The controller takes the selector of other kinds.
        let text = "selector is missing, and a PodTemplate has none: set matchLabels to labels of the Pod template";
        found.push(selector.refused(text));
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
        let is_refused = |weight: &i64| max > 0 && !(0..=max).contains(weight);
        if let Some(weight) = set_weight.number().filter(is_refused) {
            let text = format!("setWeight is {weight}: it must be a whole number from 0 to {max}");
            self.refuse(&set_weight, text);
        }
        let duration = step.get("pause.duration");
        if duration.is_set() {
            let remedy = match seconds(duration.value) {
                Length::Seconds(0..) => None,
                Length::TooLong => Some(
                    "is too long: the controller counts up to 2147483647 seconds, which are 68 years",
                ),
                Length::Seconds(_) | Length::Unreadable => {
                    Some("is no duration: write seconds, or h, m and s, such as 90s, 5m or 1h30m")
                }
            };
            if let Some(remedy) = remedy {
                let shown = match duration.value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                self.refuse(&duration, format!("\"{}\" {remedy}", shown.escape_debug()));
            }
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
        let keys: &[&str] = match kind {
            "setHeaderRoute" => &["headerValue"],
            _ => &["method", "path"],
        };
        let is_exact_only = kind == "setHeaderRoute" && self.routing.has("alb");
        for condition in route.get("match").items() {
            for key in keys {
                let value = condition.get(key);
                // The API server refuses a value of another type.
                if !value.value.is_object() {
                    continue;
                }
                let is_set = |key: &&str| value.has(key) && *value.get(key).value != json!("");
                let set = ["exact", "prefix", "regex"].into_iter().filter(is_set);
                let set: Vec<&str> = set.collect();
                if is_exact_only && set != ["exact"] {
                    let text =
                        format!("{key}: alb in trafficRouting takes exact only: set it alone");
                    self.refuse(&value, text);
                } else if set.len() != 1 {
                    let what = if set.is_empty() { "none" } else { "several" };
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

/// Returns what is wrong with the selector; the controller looks no further than the first fault of its labels. `of_pods` are the
/// labels of the Pods, if they are known. With a workload the selector may be empty.
fn refused_selector(
    selector: &Node<'_>,
    of_pods: Option<&BTreeMap<String, String>>,
    has_workload: bool,
) -> Vec<Refusal> {
    let labels = selector.get("matchLabels").texts();
    let expressions = selector.get("matchExpressions").items();
    if labels.is_empty() && expressions.is_empty() {
        let text = "selector is missing or empty: set matchLabels to labels of the Pod template";
        return match has_workload {
            true => Vec::new(),
            false => vec![selector.refused(text)],
        };
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
    let has = |(key, it): (&String, &String)| of_pods.is_none_or(|all| all.get(key) == Some(it));
    let mut selects = labels.iter().all(has);
    for expression in expressions {
        let values = expression.get("values").items();
        let values = values.iter().filter_map(|it| it.value.as_str());
        let requirement = LabelRequirement::new(
            expression.get("key").text().to_owned(),
            expression.get("operator").text(),
            values.map(str::to_owned).collect(),
        );
        match requirement {
            Ok(requirement) => selects &= of_pods.is_none_or(|it| requirement.matches(it)),
            Err(error) => {
                let text = format!("{} must be {}", error.key, error.expected);
                found.push(expression.get(error.key).refused(text));
            }
        }
    }
    if !selects {
        let text = match has_workload {
            true => {
                "selector does not select the labels of the Pods of workloadRef: make them equal"
            }
            false => {
                "selector does not select the labels of template.metadata.labels: make them equal"
            }
        };
        found.push(selector.refused(text));
    }
    found
}

/// Finds what is wrong with the Pods.
fn refuse_template(template: &Node<'_>, found: &mut Vec<Refusal>) {
    let (pod, metadata) = (template.get("spec"), template.get("metadata"));
    let labels = metadata.get("labels");
    for (key, value) in labels.texts() {
        if !is_label_key(&key) || !is_label_value(&value) {
            let label = format!("{key}: {value}");
            let text = format!(
                "Kubernetes does not accept the label {} of the Pods: correct it",
                label.escape_debug()
            );
            found.push(labels.refused(text));
        }
    }
    let annotations = metadata.get("annotations");
    for (key, _) in annotations.texts() {
        if !is_annotation_key(&key) {
            let text = format!(
                "Kubernetes does not accept the annotation {} of the Pods: correct its key",
                key.escape_debug()
            );
            found.push(annotations.refused(text));
        }
    }
    let containers = pod.get("containers");
    if containers.items().is_empty() {
        let text = "template.spec.containers is empty: the Pods need a container";
        found.push(containers.refused(text));
    }
    let mut names = BTreeSet::new();
    for container in [containers.items(), pod.get("initContainers").items()].concat() {
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
        refuse_ports(&container, found);
    }
    let policy = pod.get("restartPolicy");
    if !matches!(policy.text(), "" | "Always") {
        let text = "restartPolicy must be Always in the Pods of a Rollout: remove it";
        found.push(policy.refused(text));
    }
    let deadline = pod.get("activeDeadlineSeconds");
    if deadline.is_set() {
        let text = "the Pods of a Rollout cannot have activeDeadlineSeconds: remove it";
        found.push(deadline.refused(text));
    }
}

/// Finds what is wrong with the ports of a container.
fn refuse_ports(container: &Node<'_>, found: &mut Vec<Refusal>) {
    let mut names = BTreeSet::new();
    for port in container.get("ports").items() {
        // No hostPort is the same as 0.
        for (key, least) in [("containerPort", 1), ("hostPort", 0)] {
            let node = port.get(key);
            let number = node.number().unwrap_or(0);
            if !(least..=65535).contains(&number) {
                let text = format!("{key} is {number}: it must be from 1 to 65535");
                found.push(node.refused(text));
            }
        }
        let name = port.get("name").text();
        if !name.is_empty() && (!is_port_name(name) || !names.insert(name)) {
            let text = format!(
                "port name \"{}\" must be unique in its container, of up to 15 lower-case letters, digits and single -, with a letter",
                name.escape_debug()
            );
            found.push(port.get("name").refused(text));
        }
    }
}

/// Whether Kubernetes accepts a text as the name of a port.
fn is_port_name(text: &str) -> bool {
    let has_letter = text.contains(|c: char| c.is_ascii_lowercase());
    text.len() <= 15 && is_name(text) && has_letter && !text.contains("--")
}

/// Returns a number of Pods, or a percentage, as the controller reads it; by default 25.
fn count_or_percent(node: &Node<'_>) -> i64 {
    match node.value {
        Value::Null => 25,
        Value::String(text) => {
            let percentage = text.strip_suffix('%');
            let number = percentage.unwrap_or(text);
            let is_signed = number.starts_with(['+', '-']);
            match is_whole(number) && !(percentage.is_some() && is_signed) {
                // Go takes the nearest number that has 64 bits.
                true => number.parse().unwrap_or(i64::MAX),
                false => 0,
            }
        }
        other => other.as_i64().unwrap_or(0),
    }
}

/// The length of a pause.
enum Length {
    Seconds(i64),
    TooLong,
    Unreadable,
}

/// Returns the length of a pause as the controller reads it.
fn seconds(duration: &Value) -> Length {
    let seconds = match duration {
        Value::String(text) if is_whole(text) => Some(text.parse().unwrap_or(i64::MAX)),
        Value::String(text) => go_seconds(text),
        _ => duration.as_i64(),
    };
    match seconds {
        // The controller keeps 32 bits of seconds.
        Some(seconds) if seconds > i64::from(i32::MAX) => Length::TooLong,
        Some(seconds) => Length::Seconds(seconds),
        None => Length::Unreadable,
    }
}

/// Whether a text is a whole number, of any length, as Go's `Atoi` reads it.
fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit())
}

/// Reads a duration as Go's `time.ParseDuration`, in whole seconds.
fn go_seconds(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
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
    let is_something = text.contains(|c: char| c.is_ascii_digit());
    is_something.then_some((sign * sum).trunc() as i64)
}

/// Whether the downward API has this field of an object's metadata.
fn is_metadata(path: &str) -> bool {
    let key = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
    match (key("metadata.labels['"), key("metadata.annotations['")) {
        (Some(label), _) => is_label_key(label),
        (None, Some(annotation)) => is_annotation_key(annotation),
        (None, None) => matches!(
            path,
            "metadata.name"
                | "metadata.namespace"
                | "metadata.uid"
                | "metadata.labels"
                | "metadata.annotations"
        ),
    }
}

/// Whether Kubernetes accepts a text as the key of an annotation.
fn is_annotation_key(text: &str) -> bool {
    is_label_key(&text.to_lowercase())
}

/// Whether a text is a DNS label.
fn is_name(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_framed = !text.starts_with('-') && !text.ends_with('-');
    (1..=63).contains(&text.len()) && is_framed && text.chars().all(legal)
}
