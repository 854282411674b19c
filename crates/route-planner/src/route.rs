//! The routes of a table, with what planning reads of each. HTTP, TCP and TLS routes have one type.

use std::collections::{BTreeMap, HashMap};

use gloo_types::{HttpRoute, ObjectSelector, RouteTableDoc, TcpRoute, TlsRoute};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{PluginConfig, RouteSelector};
use crate::destinations::{Malformed, is_labels};
use crate::intent::Intent;
use crate::ownership::Ownership;
use crate::plan::{Edit, SkipReason};

/// The list of a table in which a route is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

/// A route of a table.
pub(crate) struct Route<'a> {
    pub(crate) protocol: Protocol,
    /// Position in its list.
    pub(crate) index: usize,
    /// Position among the routes of this list that the owner wrote. Managed routes do not change it.
    pub(crate) owner_index: usize,
    /// Empty for TCP and TLS routes, which have no names.
    pub(crate) name: &'a str,
    pub(crate) raw: &'a Value,
    /// Whether it has a name that no other route has.
    pub(crate) is_named: bool,
    pub(crate) is_selected: bool,
}

impl<'a> Route<'a> {
    /// Reads all routes of a table except managed ones: HTTP, then TCP, then TLS. A route comes with a reason if its name,
    /// its labels or its matchers cannot be decoded.
    pub(crate) fn all(
        table: &'a RouteTableDoc,
        selector: &RouteSelector,
    ) -> Vec<(Self, Option<Malformed>)> {
        let mut uses: HashMap<&str, usize> = HashMap::new();
        for raw in raw_routes(table, Protocol::Http) {
            if let Some(name) = raw.get("name").and_then(Value::as_str) {
                *uses.entry(name).or_default() += 1;
            }
        }
        let mut routes = Vec::new();
        let mut owner_index = 0;
        for (index, raw) in raw_routes(table, Protocol::Http).iter().enumerate() {
            if Ownership::of(raw).is_some() {
                continue;
            }
            let mut route = Self::unnamed(Protocol::Http, index, raw);
            route.owner_index = owner_index;
            owner_index += 1;
            let problem = route.read_http(selector).err();
            route.is_named = !route.name.is_empty() && uses.get(route.name) == Some(&1);
            routes.push((route, problem));
        }
        let tcp = |raw| TcpRoute::deserialize(raw).map(|view| selector.matches_tcp(&view));
        let tcp = (!selector.tcp_ports.is_empty()).then_some(tcp);
        let expected = "a list of TCP matchers";
        routes.extend(Self::unnamed_all(table, Protocol::Tcp, tcp, expected));
        let tls = |raw| TlsRoute::deserialize(raw).map(|view| selector.matches_tls(&view));
        let tls = (!selector.tls.is_empty()).then_some(tls);
        let expected = "a list of TLS matchers";
        routes.extend(Self::unnamed_all(table, Protocol::Tls, tls, expected));
        routes
    }

    /// Reads the routes of a list whose routes have no names. If `is_selected` cannot decode a route, it counts as selected.
    /// Without `is_selected`, no route is selected.
    fn unnamed_all(
        table: &'a RouteTableDoc,
        protocol: Protocol,
        is_selected: Option<impl Fn(&'a Value) -> Result<bool, serde_json::Error>>,
        expected: &'static str,
    ) -> impl Iterator<Item = (Self, Option<Malformed>)> {
        let routes = raw_routes(table, protocol).iter().enumerate();
        routes.map(move |(index, raw)| {
            let selected = is_selected.as_ref().map_or(Ok(false), |it| it(raw));
            let mut route = Self::unnamed(protocol, index, raw);
            route.is_selected = selected.as_ref().copied().unwrap_or(true);
            let problem = selected.err();
            (route, problem.map(|_| Malformed::new("matchers", expected)))
        })
    }

    fn unnamed(protocol: Protocol, index: usize, raw: &'a Value) -> Self {
        Self {
            protocol,
            index,
            owner_index: index,
            name: "",
            raw,
            is_named: false,
            is_selected: false,
        }
    }

    fn read_http(&mut self, selector: &RouteSelector) -> Result<(), Malformed> {
        self.is_selected = selector.matches("", &BTreeMap::new());
        if !self.raw.is_object() {
            return Err(Malformed::new("the route", "an object"));
        }
        self.name = match self.raw.get("name") {
            None => "",
            Some(Value::String(name)) => name,
            Some(_) => return Err(Malformed::new("name", "a string")),
        };
        self.is_selected = selector.matches(self.name, &BTreeMap::new());
        let labels = self.raw.get("labels");
        if !labels.is_none_or(is_labels) {
            return Err(Malformed::new("labels", "an object of strings"));
        }
        if let Some(labels) = labels.filter(|_| !selector.labels.is_empty()) {
            let labels = BTreeMap::deserialize(labels).unwrap_or_default();
            self.is_selected = selector.matches(self.name, &labels);
        }
        Ok(())
    }

    /// The JSON of the route's `forwardTo`; `None` for another action.
    pub(crate) fn forward(&self) -> Option<&'a Value> {
        self.raw.get("forwardTo").filter(|to| !to.is_null())
    }

    /// The JSON of the route's `matchers`; `None` if it has none or an empty list. Both match any request.
    pub(crate) fn matchers(&self) -> Option<&'a Value> {
        let matchers = self.raw.get("matchers");
        matchers.filter(|matchers| {
            !matchers.as_array().is_some_and(Vec::is_empty) && !matchers.is_null()
        })
    }

    /// The route's name, or an empty text if another route has the same one.
    pub(crate) fn own_name(&self) -> &'a str {
        if self.is_named { self.name } else { "" }
    }

    /// The route in messages.
    pub(crate) fn label(&self) -> String {
        format!("route {}", self.name_or_position())
    }

    /// Its name, or its position in the owner's source when it has none.
    pub(crate) fn name_or_position(&self) -> String {
        match self.name {
            "" => format!("{}[{}]", self.protocol.key(), self.owner_index),
            name => name.to_owned(),
        }
    }

    /// The key of the plugin block that selects routes of this kind.
    pub(crate) fn selector_key(&self) -> &'static str {
        match self.protocol {
            Protocol::Http => "routeSelector",
            Protocol::Tcp => "tcpRoutes",
            Protocol::Tls => "tlsRoutes",
        }
    }

    /// The reason to skip a route that does not forward.
    pub(crate) fn other_action(&self) -> SkipReason {
        if !self.protocol.is_http() {
            return SkipReason::Action("route without action");
        }
        let view = HttpRoute::deserialize(self.raw).unwrap_or_default();
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

impl PluginConfig {
    /// Returns the entries that select none of `tables`, the selected ones, or no route of them, as in the plugin block:
    /// `routeSelector name: typo`.
    pub fn unmatched(&self, tables: &[RouteTableDoc]) -> Vec<String> {
        let selector = self.route_tables();
        let has_any = || tables.iter().any(|it| selector.matches_labels(it.labels()));
        // Without names, it is an error that no table is selected.
        let labels = match selector.names.is_empty() || has_any() {
            true => None,
            false => selector.label_selector_string(),
        };
        let labels = labels.map(|labels| format!("routeTableSelector labels: {labels}"));
        let mut left = self.routes().entries();
        left.retain(|(_, protocol, entry)| !entry.selects_any(*protocol, tables));
        let left = left.into_iter().map(|(label, ..)| label);
        labels.into_iter().chain(left).collect()
    }
}

impl RouteSelector {
    /// Returns the entries that select routes of `tables`, but none that forwards to the Rollout of `intent`, if other entries do.
    pub fn idle(
        &self,
        config: &PluginConfig,
        intent: &Intent,
        tables: &[RouteTableDoc],
    ) -> Vec<String> {
        let mut entries = self.entries();
        entries.retain(|(_, protocol, entry)| entry.selects_any(*protocol, tables));
        let splits = |(_, protocol, entry): &(String, Protocol, Self)| {
            let config = config.clone().with_routes(entry.clone());
            let splits = |table| match crate::plan(&config, intent, table) {
                Ok(plan) => plan.edits.iter().any(|edit| match edit {
                    Edit::Destinations { path, .. } => {
                        path.iter().any(|part| part == protocol.key())
                    }
                    _ => false,
                }),
                Err(error) => !error.is_without_route(),
            };
            tables.iter().any(splits)
        };
        let (busy, idle): (Vec<_>, Vec<_>) = entries.into_iter().partition(splits);
        let idle = idle.into_iter().filter(|_| !busy.is_empty());
        idle.map(|(label, ..)| label).collect()
    }

    fn selects_any(&self, protocol: Protocol, tables: &[RouteTableDoc]) -> bool {
        let mut routes = tables.iter().flat_map(|table| Route::all(table, self));
        routes.any(|(route, _)| route.protocol == protocol && route.is_selected)
    }

    /// Each entry as a selector of its own, with its label.
    fn entries(&self) -> Vec<(String, Protocol, Self)> {
        let mut entries = Vec::new();
        for name in &self.names {
            let mut entry = Self::default();
            entry.names.push(name.clone());
            entries.push((format!("routeSelector name: {name}"), Protocol::Http, entry));
        }
        if !self.labels.is_empty() {
            let labels = self.labels.iter();
            let labels: Vec<_> = labels
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            let label = format!("routeSelector labels: {}", labels.join(","));
            let entry = Self {
                labels: self.labels.clone(),
                ..Self::default()
            };
            entries.push((label, Protocol::Http, entry));
        }
        for port in &self.tcp_ports {
            let mut entry = Self::default();
            entry.tcp_ports.push(*port);
            entries.push((format!("tcpRoutes port: {port}"), Protocol::Tcp, entry));
        }
        for tls in &self.tls {
            let hosts: Vec<&str> = tls.sni_hosts.iter().map(String::as_str).collect();
            let hosts = (!hosts.is_empty()).then(|| format!("sniHosts: {}", hosts.join(",")));
            let port = tls.port.map(|port| format!("port: {port}"));
            let keys: Vec<String> = hosts.into_iter().chain(port).collect();
            let mut entry = Self::default();
            entry.tls.push(tls.clone());
            entries.push((
                format!("tlsRoutes {}", keys.join(" ")),
                Protocol::Tls,
                entry,
            ));
        }
        entries
    }
}

/// The JSON of the routes of one list; empty if it is not a list.
pub(crate) fn raw_routes(table: &RouteTableDoc, list: Protocol) -> &[Value] {
    let routes = table
        .raw()
        .get("spec")
        .and_then(|spec| spec.get(list.key()));
    routes.and_then(Value::as_array).map_or(&[], Vec::as_slice)
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
