//! Which routes take part, and which of their destinations are meant.

use std::collections::BTreeMap;

use gloo_types::{
    DestinationReference, HttpRoute, ObjectSelector, PortSelector, RouteTableDoc, RouteTableSpec,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::RouteSelector;
use crate::edit::SkipReason;
use crate::ownership::Ownership;

/// What a destination leads to, with the table's defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationId {
    #[serde(default = "service", skip_serializing_if = "is_service")]
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) cluster: String,
    /// Absent when it does not matter, or when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<Port>,
    /// Absent when it does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subset: Option<BTreeMap<String, String>>,
}

/// Which parts of a destination, beside the object it leads to, tell it from others.
///
/// An owner may give a destination another port in the middle of a rollout, so these count only where they have to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Distinction {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) port: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) subset: bool,
}

/// How the destinations of a table are read.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    /// The table's namespace.
    pub(crate) namespace: &'a str,
    pub(crate) by: Distinction,
}

/// The port of a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Port {
    Number(u32),
    Name(String),
}

impl Port {
    pub(crate) fn of(destination: &DestinationReference) -> Option<Self> {
        let PortSelector { number, name } = destination.port.as_ref()?;
        let by_number = number.map(Self::Number);
        by_number.or_else(|| name.clone().map(Self::Name))
    }

    pub(crate) fn selector(&self) -> PortSelector {
        match self {
            Self::Number(number) => PortSelector {
                number: Some(*number),
                name: None,
            },
            Self::Name(name) => PortSelector {
                number: None,
                name: Some(name.clone()),
            },
        }
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "port {number}"),
            Self::Name(name) => write!(f, "port {name}"),
        }
    }
}

impl Distinction {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl DestinationId {
    /// `None` for a destination that is not an object of a cluster.
    pub(crate) fn of(destination: &DestinationReference, reading: Reading<'_>) -> Option<Self> {
        let Reading { namespace, by } = reading;
        let reference = destination.reference.as_ref()?;
        Some(Self {
            kind: destination.kind.to_string(),
            namespace: reference.namespace_from(namespace).to_owned(),
            name: reference.name.clone(),
            cluster: reference.cluster.clone(),
            port: Port::of(destination).filter(|_| by.port),
            subset: by.subset.then(|| destination.subset.clone()),
        })
    }

    /// Whether both lead to the same object, through whatever port and subset.
    pub(crate) fn is_same_object(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.namespace == other.namespace
            && self.name == other.name
            && self.cluster == other.cluster
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
            ..
        } = self;
        let slash = if cluster.is_empty() { "" } else { "/" };
        write!(f, "{kind} {cluster}{slash}{namespace}/{name}")
    }
}

/// The list of a table in which a route stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    #[default]
    Http,
    Tcp,
    Tls,
}

impl Protocol {
    /// The key of the list in `spec`.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }

    pub(crate) fn is_http(&self) -> bool {
        *self == Self::Http
    }
}

/// A route of a table: the typed view beside the raw one.
pub(crate) struct Route<'a> {
    pub(crate) protocol: Protocol,
    /// Position in its list.
    pub(crate) index: usize,
    /// Position among the routes that their owner wrote, which managed routes do not move.
    pub(crate) at: usize,
    /// Empty for TCP and TLS routes, which have no names.
    pub(crate) name: &'a str,
    /// The typed view of an HTTP route.
    pub(crate) http: Option<&'a HttpRoute>,
    /// The route's `forwardTo` as written, and its destinations; `None` for another action.
    pub(crate) forward: Option<(&'a Value, Option<&'a [DestinationReference]>)>,
    /// The route's `matchers` as written.
    pub(crate) matchers: Option<&'a Value>,
    /// Whether no other route has this name.
    pub(crate) named: bool,
    pub(crate) selected: bool,
}

impl<'a> Route<'a> {
    /// The routes of a table that its owner wrote, all but managed ones: HTTP, then TCP, then TLS.
    pub(crate) fn all(
        table: &'a RouteTableDoc,
        spec: &'a RouteTableSpec,
        selector: &RouteSelector,
    ) -> Vec<Self> {
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for route in &spec.http {
            *uses.entry(&route.name).or_default() += 1;
        }
        let http = raw_routes(table, Protocol::Http).zip(&spec.http);
        let http = http.filter(|((_, raw), _)| Ownership::of(raw).is_none());
        let http = http.enumerate().map(|(at, ((index, raw), view))| {
            let forward_to = view.forward_to.as_ref();
            Self {
                at,
                name: &view.name,
                http: Some(view),
                named: !view.name.is_empty() && uses.get(view.name.as_str()) == Some(&1),
                selected: selector.matches(&view.name, &view.labels),
                ..Self::unnamed(
                    (Protocol::Http, index, raw),
                    forward_to.map(|to| to.destinations.as_deref()),
                )
            }
        });
        let tcp = raw_routes(table, Protocol::Tcp).zip(&spec.tcp);
        let tcp = tcp.map(|((index, raw), view)| {
            let forward_to = view.forward_to.as_ref();
            Self {
                selected: selector.matches_tcp(view),
                ..Self::unnamed(
                    (Protocol::Tcp, index, raw),
                    forward_to.map(|to| to.destinations.as_deref()),
                )
            }
        });
        let tls = raw_routes(table, Protocol::Tls).zip(&spec.tls);
        let tls = tls.map(|((index, raw), view)| {
            let forward_to = view.forward_to.as_ref();
            Self {
                selected: selector.matches_tls(view),
                ..Self::unnamed(
                    (Protocol::Tls, index, raw),
                    forward_to.map(|to| to.destinations.as_deref()),
                )
            }
        });
        http.chain(tcp).chain(tls).collect()
    }

    fn unnamed(
        (protocol, index, raw): (Protocol, usize, &'a Value),
        destinations: Option<Option<&'a [DestinationReference]>>,
    ) -> Self {
        Self {
            protocol,
            index,
            at: index,
            name: "",
            http: None,
            forward: raw.get("forwardTo").zip(destinations),
            matchers: raw.get("matchers"),
            named: false,
            selected: false,
        }
    }

    /// The route in messages: its name, or its position when it has none.
    pub(crate) fn label(&self) -> String {
        match self.name {
            "" => format!("route {}[{}]", self.protocol.key(), self.index),
            name => format!("route {name}"),
        }
    }

    /// The configuration key that decides whether the route is selected.
    pub(crate) fn selector_key(&self) -> &'static str {
        match self.protocol {
            Protocol::Http => "routeSelector",
            Protocol::Tcp => "tcpRoutes",
            Protocol::Tls => "tlsRoutes",
        }
    }

    /// Why a route that does not forward is left alone.
    pub(crate) fn other_action(&self) -> SkipReason {
        let Some(view) = self.http else {
            return SkipReason::Action("route without action");
        };
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

fn raw_routes(table: &RouteTableDoc, list: Protocol) -> impl Iterator<Item = (usize, &Value)> {
    let routes = table
        .raw()
        .get("spec")
        .and_then(|spec| spec.get(list.key()));
    let routes = routes.and_then(Value::as_array);
    routes.into_iter().flatten().enumerate()
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
