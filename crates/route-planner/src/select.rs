//! Which routes take part, and which of their destinations are meant.

use std::collections::BTreeMap;

use gloo_types::{
    DestinationReference, ForwardToAction, HttpRoute, ObjectSelector, RouteTableDoc, RouteTableSpec,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::RouteSelector;
use crate::edit::SkipReason;

/// What a destination leads to, with the table's defaults filled in. Port, subset and weight are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationId {
    #[serde(default = "service", skip_serializing_if = "is_service")]
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) cluster: String,
}

impl DestinationId {
    /// `None` for a destination that is not an object of a cluster.
    pub(crate) fn of(destination: &DestinationReference, table_namespace: &str) -> Option<Self> {
        let reference = destination.reference.as_ref()?;
        let namespace = match reference.namespace.as_str() {
            "" => table_namespace,
            namespace => namespace,
        };
        Some(Self {
            kind: destination.kind.to_string(),
            namespace: namespace.to_owned(),
            name: reference.name.clone(),
            cluster: reference.cluster.clone(),
        })
    }

    /// The same kind of object in the same place, under another name.
    pub(crate) fn renamed(&self, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..self.clone()
        }
    }

    /// Whether this is the Service `name` in `namespace`, in whatever cluster.
    pub(crate) fn is_service(&self, namespace: &str, name: &str) -> bool {
        is_service(&self.kind) && self.namespace == namespace && self.name == name
    }
}

/// `KIND namespace/name`, with the cluster in front of the namespace if there is one.
impl std::fmt::Display for DestinationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind,
            namespace,
            name,
            cluster,
        } = self;
        let slash = if cluster.is_empty() { "" } else { "/" };
        write!(f, "{kind} {cluster}{slash}{namespace}/{name}")
    }
}

/// A route of a table: the typed view beside the raw one.
pub(crate) struct Route<'a> {
    /// Position in `spec.http`.
    pub(crate) index: usize,
    pub(crate) view: &'a HttpRoute,
    /// The route's `forwardTo` as written, and its typed view; `None` for another action.
    pub(crate) forward: Option<(&'a Value, &'a ForwardToAction)>,
    /// The route's `matchers` as written.
    pub(crate) matchers: Option<&'a Value>,
    /// Whether no other route has this name.
    pub(crate) named: bool,
    pub(crate) selected: bool,
}

impl<'a> Route<'a> {
    /// The HTTP routes of a table.
    pub(crate) fn all(
        table: &'a RouteTableDoc,
        spec: &'a RouteTableSpec,
        selector: &RouteSelector,
    ) -> Vec<Self> {
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for route in &spec.http {
            *uses.entry(&route.name).or_default() += 1;
        }
        let raw = table.raw().pointer("/spec/http").and_then(Value::as_array);
        let routes = spec.http.iter().zip(raw.into_iter().flatten()).enumerate();
        routes
            .map(|(index, (view, raw))| Self {
                index,
                view,
                forward: raw.get("forwardTo").zip(view.forward_to.as_ref()),
                matchers: raw.get("matchers"),
                named: !view.name.is_empty() && uses.get(view.name.as_str()) == Some(&1),
                selected: selector.matches(&view.name, &view.labels),
            })
            .collect()
    }

    /// The route in messages: its name, or its position when it has none.
    pub(crate) fn label(&self) -> String {
        match self.view.name.as_str() {
            "" => format!("route http[{}]", self.index),
            name => format!("route {name}"),
        }
    }

    /// Why a route that does not forward is left alone.
    pub(crate) fn other_action(&self) -> SkipReason {
        let view = self.view;
        if let Some(delegate) = &view.delegate {
            SkipReason::Delegates(delegate.route_tables.iter().map(selector_text).collect())
        } else if view.redirect.is_some() {
            SkipReason::Action("redirect")
        } else if view.direct_response.is_some() {
            SkipReason::Action("directResponse")
        } else if view.graphql.is_some() {
            SkipReason::Action("graphql route")
        } else {
            SkipReason::Action("route without action")
        }
    }
}

fn selector_text(selector: &ObjectSelector) -> String {
    let ObjectSelector {
        labels,
        name,
        namespace,
        ..
    } = selector;
    match (name.is_empty(), labels.is_empty()) {
        (false, _) if namespace.is_empty() => format!("table {name}"),
        (false, _) => format!("table {namespace}/{name}"),
        (true, false) => {
            let labels: Vec<String> = labels
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            format!("tables labelled {}", labels.join(","))
        }
        (true, true) => "any table".to_owned(),
    }
}

fn service() -> String {
    "SERVICE".to_owned()
}

fn is_service(kind: &str) -> bool {
    kind == "SERVICE"
}
