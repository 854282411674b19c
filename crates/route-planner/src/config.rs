//! The plugin block of a Rollout: decoded and validated once, so that planning needs no further checks.

pub mod keys;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gloo_types::{LabelRequirement, ObjectKey, RouteTableSelector, TcpRoute, TlsRoute};
use strict_json::{Problem, object_name};

use self::keys::{Block, root};
use crate::destinations::Port;
use crate::error::{ConfigError, ConfigProblem};

/// The names under which the plugin is registered. An administrator may add others.
pub const DEFAULT_PLUGIN_NAMES: [&str; 2] = ["solo-io/glooplatform", "solo-io/glooplatformAPI"];

/// The decoded block `trafficRouting.plugins.<name>`, with defaults filled in. The default selects no table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginConfig {
    route_tables: RouteTableSelector,
    routes: RouteSelector,
    header_match: HeaderMatchMode,
    header_route_placement: HeaderRoutePlacement,
    destinations: DestinationConfig,
    keep_zero_weights: bool,
    verify: VerifyMode,
    promotion_guard: PromotionGuard,
    allow_top_placement: bool,
}

/// `promotionGuard` of the plugin block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromotionGuard {
    /// How long a promotion is held after the endpoints are complete, because the gateway receives endpoints later than the
    /// API server.
    pub settle: Duration,
    /// How long a promotion is held at most, provided that half of the canary's Pods are ready behind the stable Service.
    pub timeout: Duration,
    /// How long the canary must have all traffic before the controller may promote it.
    pub before: Duration,
}

impl Default for PromotionGuard {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(5),
            timeout: Duration::from_secs(2 * 60),
            before: Duration::ZERO,
        }
    }
}

/// Selects routes of the selected tables.
///
/// An HTTP route is selected if it has one of the names or all of the labels. Without names and labels, all HTTP routes are
/// selected. TCP and TLS routes have neither, and are selected by their matchers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteSelector {
    /// Names of HTTP routes.
    pub names: Vec<String>,
    /// Labels of HTTP routes. All of them must be equal.
    pub labels: BTreeMap<String, String>,
    /// Ports of TCP routes.
    pub tcp_ports: Vec<u32>,
    /// Selectors of TLS routes.
    pub tls: Vec<TlsSelector>,
}

/// Selects TLS routes. All fields that are set must match the same matcher of the route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSelector {
    /// All server names of the matcher, in lower case and any order. Empty selects any.
    pub sni_hosts: BTreeSet<String>,
    /// Port of the matcher.
    pub port: Option<u32>,
}

/// `headerMatch`: how many of the entries in a header route's `match` a request must meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderMatchMode {
    /// One of them, as Argo Rollouts documents.
    #[default]
    Any,
    /// All of them.
    All,
}

/// `headerRoutePlacement`: where header routes are inserted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderRoutePlacement {
    /// Each right before its source, so that the precedence of the owner's routes does not change.
    #[default]
    BeforeSource,
    /// Before all routes.
    Top,
}

/// `verify`: what VerifyWeight checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyMode {
    /// The weights, and Gloo's verdict if the status of the table has one.
    #[default]
    Auto,
    /// The weights only.
    Weights,
    /// The weights and Gloo's verdict.
    Accepted,
}

impl PluginConfig {
    /// A configuration that edits all HTTP routes of these tables which forward to the stable Service, with the defaults of every
    /// other key. [`from_json`](Self::from_json) reads all keys.
    #[must_use]
    pub fn new(route_tables: RouteTableSelector) -> Self {
        Self {
            route_tables,
            ..Self::default()
        }
    }

    /// Finds the block of the only one of the `accepted` plugin names in `plugins` (raw JSON by name), and decodes it.
    ///
    /// # Errors
    /// Returns `Err` if `plugins` has no accepted name or several, or if [`PluginConfig::from_json`] does.
    pub fn for_rollout<N: AsRef<str>, B: AsRef<[u8]>>(
        plugins: &BTreeMap<String, B>,
        accepted: &[N],
        rollout: &ObjectKey,
        allowed_namespaces: &[String],
    ) -> Result<Self, ConfigError> {
        let is_accepted = |name: &str| accepted.iter().any(|it| it.as_ref() == name);
        let mut found = plugins.iter().filter(|(name, _)| is_accepted(name));
        let problem = match (found.next(), found.next()) {
            (Some((_, raw)), None) => {
                return Self::from_json(raw.as_ref(), rollout, allowed_namespaces);
            }
            (None, _) => ConfigProblem::MissingPlugin {
                accepted: accepted.iter().map(|it| it.as_ref().to_owned()).collect(),
                found: plugins.keys().cloned().collect(),
            },
            // The controller calls the plugin once for both, without saying for which.
            (Some((one, _)), Some((other, _))) => {
                ConfigProblem::SeveralPlugins(one.clone(), other.clone())
            }
        };
        Err(ConfigError {
            rollout: rollout.clone(),
            problem,
        })
    }

    /// Decodes a plugin block. Namespaces default to that of `rollout`; `null` counts as absent. Destinations may be in
    /// another namespace only if that is one of `allowed_namespaces`.
    ///
    /// # Errors
    /// Returns `Err` if a key is unknown, if a value has the wrong type or is not allowed, or if no table is selected.
    pub fn from_json(
        raw: &[u8],
        rollout: &ObjectKey,
        allowed_namespaces: &[String],
    ) -> Result<Self, ConfigError> {
        parse(raw, rollout, allowed_namespaces).map_err(|problem| ConfigError {
            rollout: rollout.clone(),
            problem,
        })
    }

    /// The selector of the tables to edit.
    pub fn route_tables(&self) -> &RouteTableSelector {
        &self.route_tables
    }

    /// The selector of the routes to edit in these tables.
    pub fn routes(&self) -> &RouteSelector {
        &self.routes
    }

    /// Selects the routes to edit.
    #[must_use]
    pub fn with_routes(self, routes: RouteSelector) -> Self {
        Self { routes, ..self }
    }

    /// How many of the entries in a header route's `match` a request must meet.
    pub fn header_match(&self) -> HeaderMatchMode {
        self.header_match
    }

    /// Where header routes are inserted.
    pub fn header_route_placement(&self) -> HeaderRoutePlacement {
        self.header_route_placement
    }

    /// Sets whether the administrator allows `headerRoutePlacement: top`, with which header routes can take requests from
    /// routes of other owners. The default is `false`.
    #[must_use]
    pub fn allow_top_placement(self, allowed: bool) -> Self {
        Self {
            allow_top_placement: allowed,
            ..self
        }
    }

    /// Whether the block sets `headerRoutePlacement: top` although the administrator does not allow it.
    pub(crate) fn is_top_refused(&self) -> bool {
        self.header_route_placement == HeaderRoutePlacement::Top && !self.allow_top_placement
    }

    pub(crate) fn destinations(&self) -> &DestinationConfig {
        &self.destinations
    }

    /// Whether the owner's destinations stay in the list with weight 0 while they get no traffic (`zeroWeight: keep`).
    pub(crate) fn keeps_zero_weights(&self) -> bool {
        self.keep_zero_weights
    }

    /// What VerifyWeight checks.
    pub fn verify(&self) -> VerifyMode {
        self.verify
    }

    /// How long a promotion waits for Pods.
    pub fn promotion_guard(&self) -> &PromotionGuard {
        &self.promotion_guard
    }
}

impl RouteSelector {
    /// Whether an HTTP route is selected.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let by_label = !self.labels.is_empty();
        (self.names.is_empty() && !by_label)
            || self.names.iter().any(|selected| selected == name)
            || (by_label
                && self
                    .labels
                    .iter()
                    .all(|(key, value)| labels.get(key) == Some(value)))
    }

    /// Whether a TCP route is selected: it accepts connections on one of the ports.
    pub fn matches_tcp(&self, route: &TcpRoute) -> bool {
        self.tcp_ports.iter().any(|selected| {
            let takes = |port: Option<u32>| port.is_none_or(|port| port == *selected);
            route.matchers.is_empty() || route.matchers.iter().any(|matcher| takes(matcher.port))
        })
    }

    /// Whether a TLS route is selected: it has a matcher with exactly the selected server names, on the selected port.
    pub fn matches_tls(&self, route: &TlsRoute) -> bool {
        self.tls.iter().any(|selected| {
            route.matchers.iter().any(|matcher| {
                let hosts = matcher
                    .sni_hosts
                    .iter()
                    .map(|host| host.to_ascii_lowercase());
                let hosts: BTreeSet<String> = hosts.collect();
                let by_host = selected.sni_hosts.is_empty() || hosts == selected.sni_hosts;
                let by_port = match (selected.port, matcher.port) {
                    (Some(selected), Some(port)) => selected == port,
                    (_, _) => true,
                };
                by_host && by_port
            })
        })
    }
}

fn parse(
    raw: &[u8],
    rollout: &ObjectKey,
    allowed: &[String],
) -> Result<PluginConfig, ConfigProblem> {
    // The API server validates both, but a plugin host may send a Rollout that never was in an API server.
    object_name(&rollout.namespace, "metadata.namespace".to_owned())?;
    object_name(&rollout.name, "metadata.name".to_owned())?;
    let document = root(raw)?;
    let block = Block::root(&document, keys::BLOCK)?;

    Ok(PluginConfig {
        route_tables: route_tables(&block, &rollout.namespace)?,
        routes: routes(&block)?,
        header_match: match block.one_of("headerMatch")? {
            Some("all") => HeaderMatchMode::All,
            _ => HeaderMatchMode::Any,
        },
        header_route_placement: match block.one_of("headerRoutePlacement")? {
            Some("top") => HeaderRoutePlacement::Top,
            _ => HeaderRoutePlacement::BeforeSource,
        },
        destinations: DestinationConfig::read(&block, rollout, allowed)?,
        keep_zero_weights: block.one_of("zeroWeight")? == Some("keep"),
        verify: match block.one_of("verify")? {
            Some("weights") => VerifyMode::Weights,
            Some("accepted") => VerifyMode::Accepted,
            _ => VerifyMode::Auto,
        },
        promotion_guard: promotion_guard(&block)?,
        allow_top_placement: false,
    })
}

fn route_tables(
    block: &Block<'_>,
    rollout_namespace: &str,
) -> Result<RouteTableSelector, ConfigProblem> {
    let selector = block.block("routeTableSelector")?;

    let mut names = selector.object_names("names")?;
    let name = (selector.object_name("name")?, "routeTableSelector.name");
    let alias = (block.object_name("routeTableName")?, "routeTableName");
    names.extend(one_of_both(name, alias)?);
    let mut namespaces = selector.object_names("namespaces")?;
    let namespace = selector.object_name("namespace")?;
    let namespace = (namespace, "routeTableSelector.namespace");
    let alias = block.object_name("routeTableNamespace")?;
    namespaces.extend(one_of_both(namespace, (alias, "routeTableNamespace"))?);
    if namespaces.is_empty() {
        namespaces.push(rollout_namespace.to_owned());
    }
    for list in [&mut names, &mut namespaces] {
        list.sort();
        list.dedup();
    }

    let selector = RouteTableSelector {
        names,
        labels: selector.labels("labels")?,
        match_expressions: selector
            .blocks("matchExpressions")?
            .iter()
            .map(label_requirement)
            .collect::<Result<_, _>>()?,
        namespaces,
    };
    if selector.names.is_empty() && !selector.by_label() {
        return Err(ConfigProblem::NoSelector);
    }
    Ok(selector)
}

/// Returns the value of a key or of its alias, each with its path.
///
/// # Errors
/// Returns `Err` if both have values, and these differ.
fn one_of_both(
    (value, key): (Option<String>, &'static str),
    (other, alias): (Option<String>, &'static str),
) -> Result<Option<String>, Problem> {
    match (&value, &other) {
        (Some(_), Some(_)) if value != other => Err(Problem::Conflict {
            path: alias.to_owned(),
            other: key,
        }),
        _ => Ok(value.or(other)),
    }
}

fn label_requirement(block: &Block<'_>) -> Result<LabelRequirement, Problem> {
    let key = block.label_text("key")?.unwrap_or_default();
    let values = block.label_texts("values")?;
    let operator = block.one_of("operator")?.unwrap_or_default();
    LabelRequirement::new(key, operator, values).map_err(|invalid| Problem::Value {
        path: block.path(invalid.key),
        found: invalid.found,
        expected: invalid.expected.into(),
    })
}

fn routes(block: &Block<'_>) -> Result<RouteSelector, Problem> {
    let selector = block.block("routeSelector")?;
    let mut names = selector.strings("names")?;
    names.extend(
        selector
            .string("name")?
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
    );
    let tcp = block.blocks("tcpRoutes")?;
    let tls = block.blocks("tlsRoutes")?;
    Ok(RouteSelector {
        names,
        labels: selector.labels("labels")?,
        tcp_ports: tcp
            .iter()
            .map(|route| route.port("port")?.ok_or_else(|| route.empty("port")))
            .collect::<Result<_, _>>()?,
        tls: tls.iter().map(tls_selector).collect::<Result<_, _>>()?,
    })
}

fn promotion_guard(block: &Block<'_>) -> Result<PromotionGuard, Problem> {
    let block = block.block("promotionGuard")?;
    let default = PromotionGuard::default();
    Ok(PromotionGuard {
        settle: block.duration("settle")?.unwrap_or(default.settle),
        timeout: block.duration("timeout")?.unwrap_or(default.timeout),
        before: block.duration("before")?.unwrap_or(default.before),
    })
}

fn tls_selector(block: &Block<'_>) -> Result<TlsSelector, Problem> {
    let selector = TlsSelector {
        sni_hosts: {
            let hosts = block.strings("sniHosts")?.into_iter();
            hosts.map(|host| host.to_ascii_lowercase()).collect()
        },
        port: block.port("port")?,
    };
    if selector == TlsSelector::default() {
        return Err(block.empty("sniHosts or port"));
    }
    Ok(selector)
}

/// The configuration of the destinations in both roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DestinationConfig {
    pub(crate) stable: RoleConfig,
    /// Unset fields inherit from `stable`, except for name and subset.
    pub(crate) canary: RoleConfig,
    pub(crate) pods: Option<PodSubset>,
}

/// The configuration of the destination in one role. An unset field is not compared, and keeps the owner's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleConfig {
    /// `SERVICE` if absent.
    pub(crate) kind: Option<String>,
    /// The Service of that role if absent.
    pub(crate) name: Option<String>,
    /// The Rollout's namespace if absent.
    pub(crate) namespace: Option<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) port: Option<Port>,
    pub(crate) subset: Option<BTreeMap<String, String>>,
}

/// The key `subset`: one Service for both roles, which are distinguished by a subset with the hash of their Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodSubset {
    pub(crate) service: String,
    /// The label of the Pods that contains the hash.
    pub(crate) label: String,
}

const SERVICE: &str = "SERVICE";

impl DestinationConfig {
    /// Reads the keys. Namespaces other than the Rollout's must be `allowed`.
    fn read(
        block: &Block<'_>,
        rollout: &ObjectKey,
        allowed: &[String],
    ) -> Result<Self, ConfigProblem> {
        let check = |path: String, namespace: Option<&String>| match namespace {
            Some(namespace) if *namespace != rollout.namespace && !allowed.contains(namespace) => {
                Err(ConfigProblem::NamespaceNotAllowed {
                    path,
                    namespace: namespace.clone(),
                })
            }
            _ => Ok(()),
        };
        let legacy = RoleConfig {
            kind: kind(block, "destinationKind")?,
            namespace: block.object_name("destinationNamespace")?,
            ..RoleConfig::default()
        };
        check("destinationNamespace".to_owned(), legacy.namespace.as_ref())?;
        let mut roles = Vec::new();
        for key in ["stableDestination", "canaryDestination"] {
            let block = block.block(key)?;
            let role = RoleConfig::read(&block)?;
            check(block.path("namespace"), role.namespace.as_ref())?;
            roles.push(role);
        }
        let canary = roles.pop().unwrap_or_default();
        let mut stable = roles.pop().unwrap_or_default();

        let pods = PodSubset::read(block)?;
        if pods.is_some() {
            let is_other = |kind: &Option<String>| kind.as_ref().is_some_and(|it| it != SERVICE);
            let fixed = [
                ("destinationKind", is_other(&legacy.kind)),
                ("stableDestination.kind", is_other(&stable.kind)),
                ("stableDestination.name", stable.name.is_some()),
                ("stableDestination.subset", stable.subset.is_some()),
                ("canaryDestination", canary != RoleConfig::default()),
            ];
            if let Some((path, _)) = fixed.into_iter().find(|(_, set)| *set) {
                return Err(Problem::Conflict {
                    path: path.to_owned(),
                    other: "subset",
                }
                .into());
            }
        }
        let alias = (legacy.kind, "destinationKind");
        stable.kind = one_of_both((stable.kind, "stableDestination.kind"), alias)?;
        let alias = (legacy.namespace, "destinationNamespace");
        let namespace = (stable.namespace, "stableDestination.namespace");
        stable.namespace = one_of_both(namespace, alias)?;
        let canary = canary.or(&stable);
        for (path, role) in [
            ("stableDestination", &stable),
            ("canaryDestination", &canary),
        ] {
            let kind = role.kind.as_deref().unwrap_or(SERVICE);
            if role.subset.is_some() && kind != SERVICE {
                return Err(Problem::Value {
                    path: format!("{path}.kind"),
                    found: kind.to_owned(),
                    expected: "SERVICE beside a subset".into(),
                }
                .into());
            }
        }
        Ok(Self {
            stable,
            canary,
            pods,
        })
    }
}

impl RoleConfig {
    fn read(block: &Block<'_>) -> Result<Self, Problem> {
        let port = block.block("port")?;
        let port = match (port.port("number")?, port.string("name")?) {
            (Some(_), Some(_)) => {
                return Err(Problem::Conflict {
                    path: port.path("number"),
                    other: "name",
                });
            }
            (Some(number), None) => Some(Port::Number(number)),
            (None, Some("") | None) => None,
            (None, Some(name)) => Some(Port::Name(name.to_owned())),
        };
        let subset = block.labels("subset")?;
        Ok(Self {
            kind: kind(block, "kind")?,
            name: block.object_name("name")?,
            namespace: block.object_name("namespace")?,
            cluster: block.object_name("cluster")?,
            port,
            subset: (!subset.is_empty()).then_some(subset),
        })
    }

    /// Unset fields inherit from `other`, except for name and subset.
    fn or(self, other: &Self) -> Self {
        Self {
            kind: self.kind.or_else(|| other.kind.clone()),
            namespace: self.namespace.or_else(|| other.namespace.clone()),
            cluster: self.cluster.or_else(|| other.cluster.clone()),
            port: self.port.or_else(|| other.port.clone()),
            ..self
        }
    }
}

impl PodSubset {
    fn read(block: &Block<'_>) -> Result<Option<Self>, Problem> {
        let subset = block.block("subset")?;
        let label = subset
            .label_text("label")?
            .filter(|label| !label.is_empty());
        match (subset.object_name("service")?, label) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(subset.empty("service")),
            (Some(service), label) => Ok(Some(Self {
                service,
                // The label that Argo Rollouts sets on every Pod.
                label: label.unwrap_or_else(|| "rollouts-pod-template-hash".to_owned()),
            })),
        }
    }
}

fn kind(block: &Block<'_>, key: &str) -> Result<Option<String>, Problem> {
    let kind = block.one_of(key)?;
    Ok(kind.map(str::to_owned))
}
