//! Parses scenario files. The crate's documentation explains the format.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use gloo_router::DEFAULT_PLUGIN_NAMES;
use gloo_types::{ObjectKey, Resource as _, RouteTable};
use json_patch::{Patch, merge};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The Rollout into which each file merges its own fields.
const BASE: &str = include_str!("base.yaml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Scenario {
    /// Specs by `namespace/name`, in the order of the file.
    pub(super) tables: Map<String, Value>,
    #[serde(default)]
    pub(super) newer_gloo: bool,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, Value>,
    #[serde(default)]
    services: BTreeMap<String, Value>,
    #[serde(default)]
    pub(super) plugin: Option<Value>,
    #[serde(default)]
    pub(super) flags: Flags,
    #[serde(default)]
    pub(super) rollout: Value,
    pub(super) calls: Vec<Call>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Flags {
    pub(super) route_table_namespaces: Vec<String>,
    pub(super) destination_namespaces: Vec<String>,
    pub(super) allow_top_placement: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Call {
    set_weight: Option<i32>,
    verify_weight: Option<i32>,
    set_header_route: Option<Value>,
    set_mirror_route: Option<Value>,
    remove_managed_routes: Option<bool>,
    update_hash: Option<Hashes>,
    edit: Option<Patch>,
    reapply: Option<bool>,
    status: Option<Value>,
    delete: Option<bool>,
    restart: Option<bool>,
    change: Option<bool>,

    pub(super) additional: Vec<(String, i32)>,
    pub(super) table: Option<String>,
    pub(super) rollout: Value,
    #[serde(rename = "as")]
    pub(super) rollout_name: Option<String>,
    pub(super) meanwhile: Option<Patch>,
    pub(super) once: bool,

    pub(super) name: Option<String>,
    pub(super) routes: Option<BTreeMap<String, Value>>,
    pub(super) http: Option<Value>,
    pub(super) tables: Option<BTreeMap<String, Value>>,
    pub(super) same: Option<String>,
    pub(super) unchanged: bool,
    pub(super) restored: bool,
    pub(super) clean: bool,
    pub(super) writes: Option<usize>,
    pub(super) policies: Option<usize>,
    pub(super) verification: Option<String>,
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hashes {
    pub(super) canary: String,
    pub(super) stable: String,
}

/// The action of a call.
#[derive(Clone, Debug)]
pub(super) enum Action<'a> {
    SetWeight(i32),
    VerifyWeight(i32),
    SetHeaderRoute(&'a Value),
    SetMirrorRoute(&'a Value),
    RemoveManagedRoutes,
    UpdateHash(&'a Hashes),
    Edit(&'a Patch),
    Reapply,
    Status(&'a Value),
    Delete,
    Restart,
    Change,
}

impl Action<'_> {
    /// Whether this is a call of the controller.
    pub(super) const fn is_from_the_controller(&self) -> bool {
        matches!(
            self,
            Self::SetWeight(_)
                | Self::VerifyWeight(_)
                | Self::SetHeaderRoute(_)
                | Self::SetMirrorRoute(_)
                | Self::RemoveManagedRoutes
                | Self::UpdateHash(_)
        )
    }
}

impl Call {
    pub(super) fn action(&self) -> Result<Action<'_>> {
        let flag = |flag: Option<bool>, action| (flag == Some(true)).then_some(action);
        let mut actions = [
            self.set_weight.map(Action::SetWeight),
            self.verify_weight.map(Action::VerifyWeight),
            self.set_header_route.as_ref().map(Action::SetHeaderRoute),
            self.set_mirror_route.as_ref().map(Action::SetMirrorRoute),
            flag(self.remove_managed_routes, Action::RemoveManagedRoutes),
            self.update_hash.as_ref().map(Action::UpdateHash),
            self.edit.as_ref().map(Action::Edit),
            flag(self.reapply, Action::Reapply),
            self.status.as_ref().map(Action::Status),
            flag(self.delete, Action::Delete),
            flag(self.restart, Action::Restart),
            flag(self.change, Action::Change),
        ]
        .into_iter()
        .flatten();
        match (actions.next(), actions.next()) {
            (Some(action), None) => Ok(action),
            (first, second) => {
                bail!("a call needs exactly one action, not {first:?} and {second:?}")
            }
        }
    }

    /// Whether the call has an expectation about the tables.
    pub(super) fn expects_tables(&self) -> bool {
        self.routes.is_some()
            || self.http.is_some()
            || self.tables.is_some()
            || self.same.is_some()
            || self.unchanged
            || self.restored
            || self.error.is_some()
    }
}

impl Scenario {
    /// Returns the tables as their owner creates them, in the order of the file.
    pub(super) fn objects(&self) -> Result<Vec<(ObjectKey, Value)>> {
        let object = |(name, spec): (&String, &Value)| {
            let key = key(name)?;
            let mut object = json!({
                "apiVersion": format!("{}/{}", RouteTable::GROUP, RouteTable::VERSION),
                "kind": RouteTable::KIND,
                "metadata": {"name": key.name, "namespace": key.namespace},
                "spec": spec,
            });
            if let Some(labels) = self.labels.get(name)
                && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
            {
                metadata.insert("labels".to_owned(), labels.clone());
            }
            Ok((key, object))
        };
        self.tables.iter().map(object).collect()
    }

    /// Returns the Services. Each selects nothing.
    pub(super) fn services(&self) -> Result<Vec<Value>> {
        let service = |(name, ports): (&String, &Value)| {
            let key = key(name)?;
            Ok(json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": key.name, "namespace": key.namespace},
                "spec": {"ports": ports},
            }))
        };
        self.services.iter().map(service).collect()
    }

    /// Returns the named Rollout as the API server would show it, or the Rollout of the file.
    pub(super) fn rollout(&self, name: Option<&str>) -> Result<Value> {
        let (first, _) = self.tables.iter().next().context("no tables")?;
        let first = key(first)?;
        let selects_first =
            json!({"routeTableSelector": {"name": first.name, "namespace": first.namespace}});
        let block = self.plugin.clone().unwrap_or(selects_first);
        let routing = json!({"plugins": {DEFAULT_PLUGIN_NAMES[0]: block}});

        let mut rollout: Value = serde_saphyr::from_str(BASE)?;
        merge(&mut rollout, &canary(json!({"trafficRouting": routing})));
        if !self.rollout.is_null() {
            merge(&mut rollout, &self.rollout);
        }
        if let Some(name) = name {
            let services =
                json!({"stableService": name, "canaryService": format!("{name}-canary")});
            merge(&mut rollout, &canary(services));
            merge(&mut rollout, &json!({"metadata": {"name": name}}));
        }
        Ok(rollout)
    }
}

fn canary(strategy: Value) -> Value {
    json!({"spec": {"strategy": {"canary": strategy}}})
}

/// Parses a file and expands its short forms.
pub(super) fn parse(file: &str) -> Result<Scenario> {
    let mut scenario: Scenario = serde_saphyr::from_str(file)?;
    scenario.tables.values_mut().for_each(expand);
    for call in &mut scenario.calls {
        for value in call.routes.iter_mut().flat_map(BTreeMap::values_mut) {
            expand_list(value);
        }
        call.tables
            .iter_mut()
            .flat_map(BTreeMap::values_mut)
            .for_each(expand);
        call.http.iter_mut().for_each(expand);
        let action = call.action()?;
        ensure!(
            !action.is_from_the_controller() || call.expects_tables(),
            "{action:?} has no expectation"
        );
    }
    Ok(scenario)
}

/// Parses `namespace/name`.
pub(super) fn key(text: &str) -> Result<ObjectKey> {
    let (namespace, name) = text
        .split_once('/')
        .with_context(|| format!("{text} is not namespace/name"))?;
    Ok(ObjectKey::new(namespace, name))
}

/// Expands all short destinations in `value`.
fn expand(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match key.as_str() {
                    "destinations" => expand_list(value),
                    "defaultDestination" => expand_destination(value),
                    _ => expand(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(expand),
        _ => {}
    }
}

fn expand_list(list: &mut Value) {
    list.as_array_mut()
        .into_iter()
        .flatten()
        .for_each(expand_destination);
}

fn expand_destination(short: &mut Value) {
    let Some(text) = short.as_str() else { return };
    let (name, weight) = text.split_once(' ').map_or((text, None), |(name, weight)| {
        (name, weight.parse::<u32>().ok())
    });
    let mut destination =
        json!({"ref": {"name": name, "namespace": "shop"}, "port": {"number": 80}});
    if let (Some(weight), Some(fields)) = (weight, destination.as_object_mut()) {
        fields.insert("weight".to_owned(), json!(weight));
    }
    *short = destination;
}
