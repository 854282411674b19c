//! A table in memory that is changed only by patches, with checks after every call.

use gloo_types::{ObjectKey, RouteTableDoc};
use route_planner::{
    ANNOTATION, AdditionalDestination, HeaderMatch, HeaderRoute, Intent, IntentKind, ManagedRoute,
    MirrorRoute, Plan, PlanError, PluginConfig, RequestMatch, ServicePair, TextMatch, Warning,
    WeightSplit, involved, restore,
};
use serde_json::{Value, json};

/// A RouteTable with its resource version and generation.
pub(crate) struct Table {
    document: Value,
    pub(crate) plugin: Value,
}

impl Table {
    pub(crate) fn new(key: &str, spec: Value) -> Self {
        let (namespace, name) = key.split_once('/').unwrap();
        Self {
            document: json!({
                "apiVersion": "networking.gloo.solo.io/v2",
                "kind": "RouteTable",
                "metadata": {"name": name, "namespace": namespace, "resourceVersion": "1", "generation": 1},
                "spec": spec,
            }),
            plugin: json!({"routeTableSelector": {"name": name, "namespace": namespace}}),
        }
    }

    pub(crate) fn document(&self) -> &Value {
        &self.document
    }

    pub(crate) fn doc(&self) -> RouteTableDoc {
        RouteTableDoc::from_value(self.document.clone()).unwrap()
    }

    pub(crate) fn config(&self, rollout: &str) -> PluginConfig {
        PluginConfig::from_json(
            self.plugin.to_string().as_bytes(),
            &key(rollout),
            &["global".to_owned()],
        )
        .unwrap()
        .allow_top_placement(true)
    }

    /// Restores the table for a deleted Rollout.
    pub(crate) fn restore(&mut self, rollout: &str) -> Plan {
        let plan = restore(&key(rollout), &self.doc()).unwrap();
        self.edit(&plan.to_json_patch());
        plan
    }

    /// Plans and applies a SetWeight, and checks what must hold after every call.
    pub(crate) fn set_weight(
        &mut self,
        rollout: &str,
        desired: i32,
        max: i32,
        additional: Vec<AdditionalDestination>,
    ) -> Result<Plan, PlanError> {
        self.apply(&intent(rollout, desired, max, additional))
    }

    pub(crate) fn apply(&mut self, intent: &Intent) -> Result<Plan, PlanError> {
        let is_rest = matches!(&intent.kind, IntentKind::SetWeight(split) if split.desired == 0);
        let config = self.config(&intent.rollout.to_string());
        let plan = route_planner::plan(&config, intent, &self.doc())?;
        let patch = plan.to_json_patch();
        assert_eq!(patch.is_empty(), plan.is_noop());
        if !plan.is_noop() {
            let first = serde_json::to_value(&patch.0[0]).unwrap();
            let version = &self.document["metadata"]["resourceVersion"];
            assert_eq!(
                first,
                json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})
            );
        }
        self.edit(&patch);
        if !plan.is_noop() {
            let marks = involved(&self.doc()).unwrap();
            assert_eq!(plan.hands_back, marks.is_empty());
            assert_eq!(plan.leaves_marks, marks.contains(&intent.rollout));
        }
        self.check_restorable();
        match route_planner::plan(&config, intent, &self.doc()) {
            Ok(again) => assert!(again.is_noop(), "planned twice: {:?}", again.edits),
            // Cleaning up succeeds only once: without the Rollout's marks, the table is planned as if it were new.
            Err(error) => {
                let reported: Vec<_> = plan.left().map(|it| it.to_string()).collect();
                let is_the_same = reported.contains(&error.to_string());
                let is_without_route = error.to_string().contains("no selected");
                let is_cleaned = is_without_route && (is_rest || !reported.is_empty());
                assert!(is_the_same || is_cleaned, "{error}: {reported:?}");
            }
        }
        Ok(plan)
    }

    /// Checks that the table can be restored for every Rollout without its configuration.
    fn check_restorable(&self) {
        let mut table = self.document.clone();
        let doc = |table: &Value| RouteTableDoc::from_value(table.clone()).unwrap();
        let mut is_kept = false;
        for rollout in involved(&doc(&table)).unwrap() {
            // A record that cannot be decoded is an error of every plan.
            let Ok(plan) = restore(&rollout, &doc(&table)) else {
                return;
            };
            // The record of a route that cannot be decoded stays.
            if plan.left().next().is_some() {
                return;
            }
            is_kept |= plan.warnings.contains(&Warning::OnlyManagedRoutes);
            json_patch::patch(&mut table, &plan.to_json_patch()).unwrap();
        }
        let left = involved(&doc(&table)).unwrap();
        assert!(left.is_empty() || is_kept, "{left:?}: {table:#}");
    }

    /// Applies a patch as a store does.
    pub(crate) fn edit(&mut self, patch: &json_patch::Patch) {
        let before = self.document.clone();
        json_patch::patch(&mut self.document, patch).unwrap();
        self.written(&before);
    }

    pub(crate) fn replace_spec(&mut self, spec: Value) {
        let before = self.document.clone();
        self.document["spec"] = spec;
        self.written(&before);
    }

    pub(crate) fn set_status(&mut self, status: Value) {
        self.document["status"] = status;
    }

    pub(crate) fn annotate(&mut self, text: &str) {
        self.document["metadata"]["annotations"] = json!({ ANNOTATION: text });
    }

    pub(crate) fn annotate_other(&mut self, key: &str, text: &str) {
        self.document["metadata"]["annotations"] = json!({ key: text });
    }

    pub(crate) fn annotation(&self) -> Option<&str> {
        self.document["metadata"]
            .get("annotations")?
            .get(ANNOTATION)?
            .as_str()
    }

    fn written(&mut self, before: &Value) {
        if self.document == *before {
            return;
        }
        let count = |value: &Value| value.as_str().unwrap().parse::<u64>().unwrap();
        let version = count(&self.document["metadata"]["resourceVersion"]) + 1;
        self.document["metadata"]["resourceVersion"] = json!(version.to_string());
        if self.document["spec"] != before["spec"] {
            let generation = self.document["metadata"]["generation"].as_i64().unwrap() + 1;
            self.document["metadata"]["generation"] = json!(generation);
        }
    }
}

/// The intent of a Rollout whose Services are named after it.
pub(crate) fn intent(
    rollout: &str,
    desired: i32,
    max: i32,
    additional: Vec<AdditionalDestination>,
) -> Intent {
    let rollout = key(rollout);
    let (stable, canary) = (rollout.name.clone(), format!("{}-canary", rollout.name));
    let services = ServicePair::new(stable, canary);
    Intent::new(rollout, services, weight(desired, max, additional))
}

pub(crate) fn weight(desired: i32, max: i32, additional: Vec<AdditionalDestination>) -> IntentKind {
    let mut split = WeightSplit::out_of(desired, max);
    split.additional = additional;
    IntentKind::SetWeight(split)
}

/// A Service of a running experiment.
pub(crate) fn experiment(service: impl Into<String>, weight: i32) -> AdditionalDestination {
    AdditionalDestination {
        service: service.into(),
        weight,
        ..AdditionalDestination::default()
    }
}

pub(crate) fn key(text: &str) -> ObjectKey {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectKey::new(namespace, name)
}

/// Expands the short form of destinations (`reviews 80`) everywhere in a spec.
pub(crate) fn expand(mut spec: Value) -> Value {
    if let Some(default) = spec.get_mut("defaultDestination") {
        *default = destination(default.take());
    }
    let lists = ["http", "tcp", "tls"];
    for list in lists {
        for route in spec
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(list) = route.pointer_mut("/forwardTo/destinations") {
                for short in list.as_array_mut().into_iter().flatten() {
                    *short = destination(short.take());
                }
            }
        }
    }
    spec
}

fn destination(short: Value) -> Value {
    let Some(text) = short.as_str() else {
        return short;
    };
    let (name, weight) = text.split_once(' ').unwrap_or((text, ""));
    let mut destination =
        json!({"ref": {"name": name, "namespace": "shop"}, "port": {"number": 80}});
    match weight.parse::<u32>() {
        Ok(weight) => destination["weight"] = json!(weight),
        Err(_) if weight.is_empty() => {}
        Err(_) => return short,
    }
    destination
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn text_match(value: &Value) -> TextMatch {
    TextMatch {
        exact: text(&value["exact"]),
        prefix: text(&value["prefix"]),
        regex: text(&value["regex"]),
    }
}

/// A `setHeaderRoute` as written in a step of a Rollout.
pub(crate) fn header_route(step: &Value) -> ManagedRoute {
    let matches = step["match"].as_array().into_iter().flatten();
    ManagedRoute::Header(HeaderRoute {
        name: text(&step["name"]),
        matches: matches
            .map(|entry| HeaderMatch {
                name: text(&entry["headerName"]),
                value: text_match(&entry["headerValue"]),
            })
            .collect(),
    })
}

/// A `setMirrorRoute` as written in a step of a Rollout.
pub(crate) fn mirror_route(step: &Value) -> ManagedRoute {
    let matches = step["match"].as_array().into_iter().flatten();
    let percentage = step["percentage"].as_i64();
    ManagedRoute::Mirror(MirrorRoute {
        name: text(&step["name"]),
        percentage: percentage.and_then(|percentage| percentage.try_into().ok()),
        matches: matches
            .map(|entry| RequestMatch {
                method: entry.get("method").map(text_match),
                path: entry.get("path").map(text_match),
                headers: entry["headers"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, value)| (name.clone(), text_match(value)))
                    .collect(),
            })
            .collect(),
    })
}
