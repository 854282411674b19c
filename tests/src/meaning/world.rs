//! A world: what owners wrote, the Rollouts, what the controller asks for, and the requests. Plain data, so that it can be
//! printed and shrunk.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::steps::Act;
pub(super) use super::steps::{EXPERIMENT, Request};

/// The namespace of all objects.
pub(super) const NAMESPACE: &str = "shop";
/// The host of the root tables.
pub(super) const HOST: &str = "shop.example.com";
/// The name of the plugin in a Rollout.
const PLUGIN: &str = "solo-io/glooplatform";

/// Tables, policies, Rollouts, the controller's steps, and requests.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    pub(super) seed: u64,
    pub(super) tables: Vec<Value>,
    pub(super) mirrors: Vec<Value>,
    pub(super) timeouts: Vec<Value>,
    pub(super) services: Vec<Value>,
    pub(super) canaries: Vec<Canary>,
    pub(super) history: Vec<Step>,
    pub(super) requests: Vec<Request>,
}

/// A Rollout. Its stable Service has its name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Canary {
    pub(super) name: String,
    /// The tables that it selects: those with a route to its stable Service.
    pub(super) tables: Vec<String>,
    pub(super) is_top: bool,
    /// Whether a request must meet all entries of a header step.
    pub(super) needs_all: bool,
    /// `managedRoutes`: the first one wins.
    pub(super) managed: Vec<String>,
    /// Ports of the TCP and the TLS routes that it selects.
    pub(super) tcp: Option<u32>,
    pub(super) tls: Option<u32>,
}

/// A step of one of the Rollouts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) who: usize,
    pub(super) act: Act,
}

impl Canary {
    /// The name of the canary Service.
    pub(super) fn canary(&self) -> String {
        format!("{}-canary", self.name)
    }
}

impl World {
    /// The number of RouteTables.
    #[must_use]
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// The names of the tables with an HTTP route to a Service.
    pub(super) fn tables_of(&self, service: &str) -> Vec<String> {
        let leads = |table: &&Value| {
            let default = table.pointer("/spec/defaultDestination");
            let default = default.into_iter();
            let routes = table.pointer("/spec/http").and_then(Value::as_array);
            routes.into_iter().flatten().any(|route| {
                let Some(forward) = route.get("forwardTo") else {
                    return false;
                };
                let own = forward.get("destinations").and_then(Value::as_array);
                let has = |to: &Value| to.pointer("/ref/name").is_some_and(|name| name == service);
                match own {
                    Some(own) => own.iter().any(has),
                    None => default.clone().any(has),
                }
            })
        };
        let tables = self.tables.iter().filter(leads);
        let names = tables.filter_map(|table| table.pointer("/metadata/name")?.as_str());
        names.map(str::to_owned).collect()
    }

    /// The Rollout `who` at step `at` of the history, as the API server shows it.
    pub(super) fn rollout(&self, who: usize, at: usize) -> Value {
        let Some(canary) = self.canaries.get(who) else {
            return Value::Null;
        };
        let own = self.history.iter().enumerate();
        let own = own.filter(|(_, step)| step.who == who);
        let steps: Vec<Value> = own
            .clone()
            .filter_map(|(_, step)| step.act.step())
            .collect();
        let so_far: Vec<&Step> = own
            .filter(|(at_, _)| *at_ <= at)
            .map(|(_, it)| it)
            .collect();
        let is_aborted = so_far.iter().any(|step| step.act == Act::Abort);
        let is_promoted = so_far.iter().any(|step| step.act == Act::Promote);
        let done = so_far
            .iter()
            .filter(|step| step.act.step().is_some())
            .count();
        let index = match (is_aborted, is_promoted) {
            (true, _) => 0,
            (_, true) => steps.len(),
            _ => done.saturating_sub(1),
        };
        let mut strategy = json!({
            "stableService": canary.name,
            "canaryService": canary.canary(),
            "steps": steps,
            "trafficRouting": {"plugins": {PLUGIN: canary.block()}},
        });
        if let Some(Value::Object(routing)) = strategy.get_mut("trafficRouting") {
            let managed = canary.managed.iter().map(|name| json!({"name": name}));
            routing.insert("managedRoutes".to_owned(), managed.collect());
        }
        json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Rollout",
            "metadata": {
                "name": canary.name, "namespace": NAMESPACE, "uid": canary.name, "generation": 2,
                "annotations": {"rollout.argoproj.io/revision": "2"},
            },
            "spec": {
                "replicas": 4,
                "selector": {"matchLabels": {"app": canary.name}},
                "strategy": {"canary": strategy},
            },
            "status": {
                "stableRS": if is_promoted { "v2" } else { "v1" },
                "currentPodHash": "v2",
                "currentStepIndex": index,
                "replicas": 4, "updatedReplicas": 1, "availableReplicas": 4,
                "abort": is_aborted,
            },
        })
    }

    /// The tables, policies and Rollouts as YAML, the history, and the requests.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        let objects = self
            .tables
            .iter()
            .chain(&self.mirrors)
            .chain(&self.timeouts);
        for object in objects.chain(&self.services) {
            let _ = write!(text, "---\n{}", yaml(object));
        }
        for canary in &self.canaries {
            let _ = writeln!(
                text,
                "# Rollout {}: managedRoutes {:?}, {}",
                canary.name,
                canary.managed,
                canary.block()
            );
        }
        for (index, step) in self.history.iter().enumerate() {
            let name = self.canaries.get(step.who).map(|canary| &*canary.name);
            let _ = writeln!(
                text,
                "# step {}: {} {}",
                index + 1,
                name.unwrap_or_default(),
                step.act
            );
        }
        text
    }
}

impl Canary {
    /// The plugin block.
    fn block(&self) -> Value {
        let mut block = json!({"routeTableSelector": {"names": self.tables}});
        let mut set = |key: &str, value: Value| {
            if let Value::Object(block) = &mut block {
                block.insert(key.to_owned(), value);
            }
        };
        if self.is_top {
            set("headerRoutePlacement", json!("top"));
        }
        if self.needs_all {
            set("headerMatch", json!("all"));
        }
        if let Some(port) = self.tcp {
            set("tcpRoutes", json!([{"port": port}]));
        }
        if let Some(port) = self.tls {
            set("tlsRoutes", json!([{"port": port}]));
        }
        block
    }
}

/// Formats an object as YAML.
pub(super) fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string())
}
