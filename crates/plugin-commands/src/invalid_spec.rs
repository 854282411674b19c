//! What the controller refuses in a Rollout. Such a Rollout is `InvalidSpec`, and no router is called.
//!
//! The rules are those of upstream's `pkg/apis/rollouts/validation/validation.go`. `tests/go/rollouts/validation_test.go` compares
//! them with the tested releases. Of a Pod template only what the plugin's users may get wrong is checked here, not every rule of
//! Kubernetes.

use std::collections::{BTreeMap, BTreeSet};

use gloo_types::{LabelRequirement, is_label_key, is_label_value};
use serde_json::Value;

use crate::controller::ControllerRelease;

/// A rule that a Rollout breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Dotted path of the value.
    pub(crate) path: String,
    /// The rule and the remedy.
    pub(crate) text: String,
}

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

const CANARY: &str = "spec.strategy.canary";
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
    let mut found = Found::default();
    let strategy = field(rollout, "spec").and_then(|spec| field(spec, "strategy"));
    let Some(canary) = strategy.and_then(|it| field(it, "canary")) else {
        return found.0;
    };
    if strategy.is_some_and(|it| field(it, "blueGreen").is_some()) {
        found.refuse(
            "spec.strategy.blueGreen",
            "a Rollout has one strategy: remove blueGreen or canary",
        );
    }
    let routing = field(canary, "trafficRouting");
    let has_router = |name: &str| routing.is_some_and(|it| field(it, name).is_some());
    found.pods_at_a_time(canary);
    found.services(canary, &has_router, release);
    found.scaling(canary, routing.is_some());
    let context = Context {
        routing,
        has_router: &has_router,
        release,
        max: max_weight(routing, release),
    };
    let steps = field(canary, "steps").and_then(Value::as_array);
    for (index, step) in steps.into_iter().flatten().enumerate() {
        found.step(&format!("{CANARY}.steps[{index}]"), step, &context);
    }
    found.anti_affinity(canary);
    found.0
}

/// Returns what the controller refuses outside of the strategy: the selector, the Pod template and numbers.
pub(crate) fn of_pods(rollout: &Value) -> Vec<Refusal> {
    let mut found = Found::default();
    let spec = field(rollout, "spec").unwrap_or(&Value::Null);
    for key in [
        "replicas",
        "minReadySeconds",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
    ] {
        if let Some(number) = number(spec, key).filter(|it| *it < 0) {
            let text = format!("{key} is {number}: it must be 0 or more");
            found.refuse(&format!("spec.{key}"), text);
        }
    }
    let ready = number(spec, "minReadySeconds").unwrap_or(0);
    let key = match field(spec, "progressDeadlineSeconds") {
        Some(_) => "progressDeadlineSeconds",
        None => "minReadySeconds",
    };
    let deadline = number(spec, "progressDeadlineSeconds").unwrap_or(600);
    if 0 <= deadline && deadline <= ready {
        let text = format!(
            "progressDeadlineSeconds ({deadline}) must be greater than minReadySeconds ({ready})"
        );
        found.refuse(&format!("spec.{key}"), text);
    }
    let template = field(spec, "template");
    if field(spec, "workloadRef").is_none() {
        found.selector(field(spec, "selector"), template);
        found.template(template.unwrap_or(&Value::Null));
    } else if template.is_some_and(has_metadata) {
        found.refuse(
            "spec.template",
            "template and workloadRef exclude each other: remove one of them",
        );
    }
    found.0
}

#[derive(Default)]
struct Found(Vec<Refusal>);

/// What the rules of steps depend on.
struct Context<'a> {
    routing: Option<&'a Value>,
    has_router: &'a dyn Fn(&str) -> bool,
    release: ControllerRelease,
    max: i64,
}

impl Context<'_> {
    /// Whether the controller does not accept something with a plugin yet, and the Rollout has none of the `others`, for which it does.
    fn is_before(&self, since: ControllerRelease, others: &[&str]) -> bool {
        self.release < since && !others.iter().any(|name| (self.has_router)(name))
    }
}

impl Found {
    fn refuse(&mut self, path: &str, text: impl Into<String>) {
        let (path, text) = (path.to_owned(), text.into());
        self.0.push(Refusal { path, text });
    }

    fn canary(&mut self, key: &str, text: impl Into<String>) {
        self.refuse(&format!("{CANARY}.{key}"), text);
    }

    fn pods_at_a_time(&mut self, canary: &Value) {
        let count = |key| field(canary, key).map_or(25, count_or_percent);
        if count("maxSurge") == 0 && count("maxUnavailable") == 0 {
            let text = "maxSurge and maxUnavailable are both 0: set one of them to more";
            self.canary("maxSurge", text);
        }
    }

    fn services(
        &mut self,
        canary: &Value,
        has_router: &dyn Fn(&str) -> bool,
        release: ControllerRelease,
    ) {
        let (stable, new) = (text(canary, "stableService"), text(canary, "canaryService"));
        if !stable.is_empty() && stable == new {
            let text = "stableService and canaryService are the same: name two Services";
            self.canary("stableService", text);
        }
        let pair = field(canary, "pingPong");
        if let Some(pair) = pair {
            let is_istio = has_router("istio") && release >= since::ISTIO_PAIRS;
            let routes_pairs = has_router("alb") || is_istio;
            if release < since::PING_PONG && !routes_pairs {
                self.canary("pingPong", before(release, "pingPong with a plugin"));
            }
            let (ping, pong) = (text(pair, "pingService"), text(pair, "pongService"));
            for (key, service) in [("pingService", ping), ("pongService", pong)] {
                if service.is_empty() && field(pair, key).is_some() {
                    self.canary(
                        &format!("pingPong.{key}"),
                        format!("{key} is empty: name a Service"),
                    );
                }
            }
            if !ping.is_empty() && ping == pong {
                let text = "pingService and pongService are the same: name two Services";
                self.canary("pingPong.pingService", text);
            }
            if has_router("alb")
                && field(canary, "trafficRouting")
                    .and_then(|it| field(it, "alb"))
                    .is_some_and(|alb| text(alb, "rootService").is_empty())
            {
                let text = "pingPong with alb needs rootService";
                self.canary("trafficRouting.alb.rootService", text);
            }
        }
        let has_subsets = has_router("istio")
            && field(canary, "trafficRouting")
                .and_then(|it| field(it, "istio"))
                .is_some_and(|istio| field(istio, "destinationRule").is_some());
        let needs_both = match release < since::SERVICES_OPTIONAL {
            true => pair.is_none() && !has_subsets,
            false => {
                NEED_SERVICES.into_iter().any(has_router)
                    || pair.is_none() && (has_router("alb") || has_router("istio") && !has_subsets)
            }
        };
        for (key, service) in [("stableService", stable), ("canaryService", new)] {
            if needs_both && service.is_empty() {
                let text = match release < since::SERVICES_OPTIONAL {
                    true => before(release, &format!("a Rollout without {key}")),
                    false => format!("{key} is missing: another router in trafficRouting needs it"),
                };
                self.canary(key, text);
            }
        }
    }

    fn scaling(&mut self, canary: &Value, has_routing: bool) {
        let is_dynamic = field(canary, "dynamicStableScale") == Some(&Value::Bool(true));
        let has_delay = field(canary, "scaleDownDelaySeconds").is_some();
        if has_routing && is_dynamic && has_delay {
            let text =
                "scaleDownDelaySeconds cannot be used with dynamicStableScale: remove one of them";
            self.canary("scaleDownDelaySeconds", text);
        }
    }

    fn step(&mut self, at: &str, step: &Value, context: &Context<'_>) {
        // The API server refuses a value of another type.
        if !step.is_object() && !step.is_null() {
            return;
        }
        let has = |key: &&&str| field(step, key).is_some();
        let exclusive: Vec<_> = EXCLUSIVE.iter().filter(has).copied().collect();
        if let [first, second, ..] = exclusive[..] {
            let text = format!("a step cannot have both {first} and {second}: make it two steps");
            self.refuse(at, text);
        }
        let is_known = |key: &&&str| **key != "plugin" || context.release >= since::STEP_PLUGINS;
        let kinds: Vec<_> = KINDS.iter().filter(is_known).copied().collect();
        if !kinds.iter().any(|key| field(step, key).is_some()) {
            let text = format!(
                "the step does nothing: set one of {} in it",
                kinds.join(", ")
            );
            self.refuse(at, text);
        }
        let max = context.max;
        if let Some(weight) = number(step, "setWeight").filter(|it| !(0..=max).contains(it)) {
            let text = match max {
                ..=0 => format!("setWeight is {weight}, but maxTrafficWeight is {max}: raise it"),
                _ => format!("setWeight is {weight}: it must be a whole number from 0 to {max}"),
            };
            self.refuse(&format!("{at}.setWeight"), text);
        }
        let duration = field(step, "pause").and_then(|pause| field(pause, "duration"));
        if let Some(duration) = duration.filter(|it| seconds(it) < 0) {
            let shown = duration
                .as_str()
                .map_or_else(|| duration.to_string(), str::to_owned);
            let text = format!(
                "\"{}\" is no duration: write seconds, or h, m and s, such as 90s, 5m or 1h30m",
                shown.escape_debug()
            );
            self.refuse(&format!("{at}.pause.duration"), text);
        }
        self.header_route(at, step, context);
        self.mirror_route(at, step, context);
        self.arguments(at, step);
        let experiment = field(step, "experiment");
        let templates = experiment.map(|it| list(it, "templates")).unwrap_or(&[]);
        for (index, template) in templates.iter().enumerate() {
            let is_old = context.is_before(since::EXPERIMENT_WEIGHTS, &["alb", "smi", "istio"]);
            if is_old && field(template, "weight").is_some() {
                let text = before(context.release, "weights of experiments with a plugin");
                self.refuse(&format!("{at}.experiment.templates[{index}].weight"), text);
            }
        }
    }

    fn header_route(&mut self, at: &str, step: &Value, context: &Context<'_>) {
        let Some(route) = field(step, "setHeaderRoute") else {
            return;
        };
        let at = format!("{at}.setHeaderRoute");
        if context.is_before(since::HEADERS, &["alb", "istio", "apisix"]) {
            self.refuse(&at, before(context.release, "setHeaderRoute with a plugin"));
        }
        for (index, condition) in list(route, "match").iter().enumerate() {
            // The API server refuses one without a value.
            if let Some(value) = field(condition, "headerValue") {
                self.one_match(&format!("{at}.match[{index}].headerValue"), value);
            }
        }
        self.managed_route(&at, "setHeaderRoute", route, context);
    }

    fn mirror_route(&mut self, at: &str, step: &Value, context: &Context<'_>) {
        let Some(route) = field(step, "setMirrorRoute") else {
            return;
        };
        let at = format!("{at}.setMirrorRoute");
        if context.is_before(since::MIRRORS, &["istio"]) {
            self.refuse(&at, before(context.release, "setMirrorRoute with a plugin"));
        }
        for (index, condition) in list(route, "match").iter().enumerate() {
            for key in ["method", "path"] {
                if let Some(value) = field(condition, key) {
                    self.one_match(&format!("{at}.match[{index}].{key}"), value);
                }
            }
        }
        self.managed_route(&at, "setMirrorRoute", route, context);
    }

    /// Checks a condition on a text.
    fn one_match(&mut self, at: &str, value: &Value) {
        let keys = ["exact", "prefix", "regex"];
        let set = keys.iter().filter(|key| !text(value, key).is_empty());
        let what = match set.count() {
            1 => return,
            0 => "none",
            _ => "several",
        };
        let key = at.rsplit('.').next().unwrap_or_default();
        let text = format!("{key} has {what} of exact, prefix and regex: set exactly one");
        self.refuse(at, text);
    }

    fn managed_route(&mut self, at: &str, key: &str, route: &Value, context: &Context<'_>) {
        let name = text(route, "name");
        let listed = context
            .routing
            .map(|it| list(it, "managedRoutes"))
            .unwrap_or(&[]);
        if listed.iter().any(|it| text(it, "name") == name) {
            return;
        }
        let text = match name {
            "" => format!("{key} has no name: give it one of trafficRouting.managedRoutes"),
            name => format!("{key} {name}: add it to trafficRouting.managedRoutes"),
        };
        self.refuse(at, text);
    }

    /// Checks the arguments of analyses.
    fn arguments(&mut self, at: &str, step: &Value) {
        let mut lists = Vec::new();
        if let Some(analysis) = field(step, "analysis") {
            lists.push((format!("{at}.analysis"), list(analysis, "args")));
        }
        let experiment = field(step, "experiment");
        let analyses = experiment.map(|it| list(it, "analyses")).unwrap_or(&[]);
        for (index, analysis) in analyses.iter().enumerate() {
            let at = format!("{at}.experiment.analyses[{index}]");
            lists.push((at, list(analysis, "args")));
        }
        for (at, args) in lists {
            for (index, arg) in args.iter().enumerate() {
                let path = arg
                    .pointer("/valueFrom/fieldRef/fieldPath")
                    .and_then(Value::as_str);
                if path.is_some_and(|path| path.starts_with("metadata") && !is_metadata(path)) {
                    let text = "fieldPath must be metadata.name, metadata.namespace, metadata.uid, metadata.labels or metadata.annotations, or a key of the last two, such as metadata.labels['app']";
                    self.refuse(
                        &format!("{at}.args[{index}].valueFrom.fieldRef.fieldPath"),
                        text,
                    );
                }
            }
        }
    }

    fn anti_affinity(&mut self, canary: &Value) {
        let Some(affinity) = field(canary, "antiAffinity") else {
            return;
        };
        let preferred = field(affinity, "preferredDuringSchedulingIgnoredDuringExecution");
        let required = field(affinity, "requiredDuringSchedulingIgnoredDuringExecution");
        if preferred.is_some() == required.is_some() {
            let text = "antiAffinity needs exactly one of preferredDuringSchedulingIgnoredDuringExecution and requiredDuringSchedulingIgnoredDuringExecution";
            self.canary("antiAffinity", text);
        }
        let weight = preferred.map(|it| number(it, "weight").unwrap_or(0));
        if let Some(weight) = weight.filter(|it| !(1..=100).contains(it)) {
            let text = format!(
                "weight of antiAffinity is {weight}: it must be a whole number from 1 to 100"
            );
            self.canary(
                "antiAffinity.preferredDuringSchedulingIgnoredDuringExecution.weight",
                text,
            );
        }
    }

    fn selector(&mut self, selector: Option<&Value>, template: Option<&Value>) {
        let at = "spec.selector";
        let labels = selector.map(|it| texts(it, "matchLabels"));
        let labels = labels.unwrap_or_default();
        let expressions = selector
            .map(|it| list(it, "matchExpressions"))
            .unwrap_or(&[]);
        if labels.is_empty() && expressions.is_empty() {
            let text =
                "selector is missing or empty: set matchLabels to labels of the Pod template";
            self.refuse(at, text);
            return;
        }
        let bad = labels
            .iter()
            .find(|(key, value)| !is_label_key(key) || !is_label_value(value));
        if let Some((key, value)) = bad {
            let label = format!("{key}: {value}");
            let text = format!(
                "Kubernetes does not accept the label {} of selector: correct it",
                label.escape_debug()
            );
            self.refuse(&format!("{at}.matchLabels"), text);
            return;
        }
        let of_pods = template.and_then(|it| field(it, "metadata"));
        let of_pods = of_pods.map(|it| texts(it, "labels")).unwrap_or_default();
        let mut selects = labels
            .iter()
            .all(|(key, value)| of_pods.get(key) == Some(value));
        for (index, expression) in expressions.iter().enumerate() {
            let values = list(expression, "values").iter();
            let values = values.filter_map(|it| it.as_str().map(str::to_owned));
            let requirement = LabelRequirement::new(
                text(expression, "key").to_owned(),
                text(expression, "operator"),
                values.collect(),
            );
            match requirement {
                Ok(requirement) => selects &= requirement.matches(&of_pods),
                Err(error) => {
                    let text = format!("{} must be {}", error.key, error.expected);
                    let at = format!("{at}.matchExpressions[{index}].{}", error.key);
                    self.refuse(&at, text);
                }
            }
        }
        if !selects {
            let text =
                "selector does not select the labels of template.metadata.labels: make them equal";
            self.refuse(at, text);
        }
    }

    fn template(&mut self, template: &Value) {
        let spec = field(template, "spec").unwrap_or(&Value::Null);
        let at = "spec.template.spec";
        let containers = list(spec, "containers");
        if containers.is_empty() {
            let text = "template.spec.containers is empty: the Pods need a container";
            self.refuse(&format!("{at}.containers"), text);
        }
        let mut names = BTreeSet::new();
        for (index, container) in containers.iter().enumerate() {
            let at = format!("{at}.containers[{index}]");
            let name = text(container, "name");
            if !is_name(name) || !names.insert(name) {
                let text = format!(
                    "container name \"{}\" must be unique, of lower-case letters, digits and -",
                    name.escape_debug()
                );
                self.refuse(&format!("{at}.name"), text);
            }
            if text(container, "image").trim().is_empty() {
                self.refuse(&at, format!("container {name} has no image"));
            }
            for (index, port) in list(container, "ports").iter().enumerate() {
                let number = number(port, "containerPort").unwrap_or(0);
                if !(1..=65535).contains(&number) {
                    let text = format!("containerPort is {number}: it must be from 1 to 65535");
                    self.refuse(&format!("{at}.ports[{index}].containerPort"), text);
                }
            }
        }
        let policy = text(spec, "restartPolicy");
        if !matches!(policy, "" | "Always") {
            let text = "restartPolicy must be Always in the Pods of a Rollout: remove it";
            self.refuse(&format!("{at}.restartPolicy"), text);
        }
    }
}

fn before(release: ControllerRelease, what: &str) -> String {
    format!("controller {release} refuses {what}: upgrade it, or remove this")
}

/// Returns a field that is not `null`.
fn field<'v>(object: &'v Value, key: &str) -> Option<&'v Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn text<'v>(object: &'v Value, key: &str) -> &'v str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn number(object: &Value, key: &str) -> Option<i64> {
    object.get(key)?.as_i64()
}

fn list<'v>(object: &'v Value, key: &str) -> &'v [Value] {
    let list = object.get(key).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

fn texts(object: &Value, key: &str) -> BTreeMap<String, String> {
    let fields = object.get(key).and_then(Value::as_object);
    let fields = fields.into_iter().flatten();
    let texts = fields.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

fn has_metadata(template: &Value) -> bool {
    let metadata = field(template, "metadata");
    ["labels", "annotations"]
        .iter()
        .any(|key| metadata.is_some_and(|it| !texts(it, key).is_empty()))
}

fn max_weight(routing: Option<&Value>, release: ControllerRelease) -> i64 {
    let max = routing.and_then(|it| number(it, "maxTrafficWeight"));
    max.filter(|_| release >= since::OTHER_MAXIMUM)
        .unwrap_or(100)
}

/// A number of Pods, or a percentage.
fn count_or_percent(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or_default();
    let text = text.strip_suffix('%').unwrap_or(text);
    value.as_i64().or_else(|| text.parse().ok()).unwrap_or(0)
}

/// The length of a pause as the controller reads it; negative if it is none.
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
