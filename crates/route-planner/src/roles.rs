//! The roles of destinations: which ones of a route are the Rollout's stable and canary destination, and how a missing one
//! is made.
//!
//! Weights, header routes and mirror routes all use [`Roles`], so that they agree on the destinations.
//!
//! A role is a pattern: kind, namespace and name, and also cluster, port and subset if the plugin block sets them. For
//! Rollout `shop/reviews` with the Services `reviews` and `reviews-canary`, and no configuration of destinations:
//!
//! ```text
//! destination                                           role
//! {ref: {name: reviews, namespace: shop}}               stable
//! {ref: {name: reviews-canary, namespace: shop}}        canary
//! {ref: {name: legacy, namespace: shop}}                none: it is foreign
//! ```
//!
//! The *anchor* is the owner's destination by which a route forwards to the Rollout: here `reviews`. A route without an anchor
//! is not split. A destination that is missing in a route is made as a copy of the anchor with the fields of the pattern, so
//! that it keeps the port and everything else that the owner wrote.
//!
//! With `subset` in the plugin block, both roles are subsets of one Service, distinguished by a label with the hash of their
//! Pods. The owner lists the Service without that label. This is the anchor, and stable and canary are both copies of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use gloo_types::{DestinationKind, ObjectKey, ServicePort};

use crate::config::{PluginConfig, RoleConfig};
use crate::destinations::{Destination, DestinationList, Distinction, Object, Port};
use crate::error::Refusal;
use crate::intent::{ExperimentPorts, Intent, PodHashes, ServicePair};
use crate::route::{Protocol, Route};

/// What a Service that an experiment runs is to the Rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Stable,
    Canary,
    /// A destination besides the two.
    Additional,
}

/// The Rollout's destinations in their current roles.
pub(crate) struct Roles<'a> {
    pub(crate) stable: Role<'a>,
    pub(crate) canary: Role<'a>,
    pub(crate) distinction: Distinction,
    /// The namespace of the Rollout, which is also that of the Services of experiments.
    namespace: &'a str,
    /// [`ServicePair::ping_pong`].
    ping_pong: bool,
}

/// One role: what its destination must be.
pub(crate) struct Role<'a> {
    /// `stable`, `canary` or `experiment`, for messages.
    title: &'static str,
    pattern: Pattern<'a>,
    /// The pattern of the other role if that is more specific: a destination that matches it is in the other role.
    except: Option<Pattern<'a>>,
    distinction: Distinction,
    /// The ports of an experiment's Service. They decide to which port a destination that is made for this role leads.
    ports: Option<&'a ExperimentPorts>,
    /// The last anchor and its copy, as a cache: most routes of a table have the same stable destination.
    last_copy: RefCell<Option<(Destination<'a>, Destination<'a>)>>,
}

/// What a destination must be. An unset field matches any value, and is copied from the anchor if a destination is made.
#[derive(Clone, PartialEq)]
struct Pattern<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    cluster: Option<&'a str>,
    port: Option<&'a Port>,
    subset: Option<&'a BTreeMap<String, String>>,
    /// The label and the hash that the subset must contain, in addition to the labels that the owner wrote.
    pods: Option<(&'a str, &'a str)>,
}

static NO_SUBSET: BTreeMap<String, String> = BTreeMap::new();

impl<'a> Roles<'a> {
    /// Combines the configuration with the Services of the Rollout.
    ///
    /// # Errors
    /// Returns `Err` if a role has no name, or if both roles are the same destination.
    pub(crate) fn new(config: &'a PluginConfig, intent: &'a Intent) -> Result<Self, Refusal> {
        let destinations = config.destinations();
        let namespace = intent.rollout.namespace.as_str();
        let mut stable = Pattern::new(&destinations.stable, namespace);
        let mut canary = Pattern::new(&destinations.canary, namespace);
        if let Some(pods) = &destinations.pods {
            check_selector(&pods.service, &intent.services)?;
            let hashes = intent.hashes.as_ref();
            let hash = |of: &'a str| Some((pods.label.as_str(), of));
            stable.name = &pods.service;
            canary.name = &pods.service;
            stable.pods = hash(hashes.map_or("", |hashes| &hashes.stable));
            canary.pods = hash(hashes.map_or("", |hashes| &hashes.canary));
        } else {
            if stable.name.is_empty() {
                stable.name = &intent.services.stable;
            }
            if canary.name.is_empty() {
                canary.name = &intent.services.canary;
            }
            if stable.name.is_empty() {
                return Err(Refusal::NoService { role: "stable" });
            }
            if canary.name.is_empty() {
                // Without a canary Service, canaryDestination may still distinguish the canary from stable.
                canary.name = stable.name;
                if canary == stable {
                    return Err(Refusal::NoService { role: "canary" });
                }
            }
            if canary == stable {
                return Err(Refusal::SameDestination(stable.to_string()));
            }
        }
        let distinction = Distinction {
            port: stable.port.is_some() || canary.port.is_some(),
            subset: [&stable, &canary]
                .iter()
                .any(|pattern| pattern.subset.is_some() || pattern.pods.is_some()),
        };
        let role = |title, pattern: &Pattern<'a>, other: &Pattern<'a>| Role {
            title,
            pattern: pattern.clone(),
            except: (other.precision() > pattern.precision()).then(|| other.clone()),
            distinction,
            ports: None,
            last_copy: RefCell::default(),
        };
        Ok(Self {
            stable: role("stable", &stable, &canary),
            canary: role("canary", &canary, &stable),
            distinction,
            namespace,
            ping_pong: intent.services.ping_pong,
        })
    }

    /// The role of an experiment's Service, whatever its port.
    pub(crate) fn additional(
        &self,
        service: &'a str,
        ports: Option<&'a ExperimentPorts>,
    ) -> Role<'a> {
        let cluster = self.stable.pattern.cluster;
        let pattern = Pattern {
            kind: "SERVICE",
            namespace: self.namespace,
            name: service,
            cluster,
            port: None,
            subset: self.distinction.subset.then_some(&NO_SUBSET),
            pods: None,
        };
        Role {
            title: "experiment",
            pattern,
            except: None,
            distinction: self.distinction,
            ports,
            last_copy: RefCell::default(),
        }
    }

    /// Returns what an experiment's Service is: it may run one of the Rollout's own.
    pub(crate) fn version_of(&self, service: &str) -> Version {
        if self.is_service(&self.stable, service) {
            Version::Stable
        } else if self.is_service(&self.canary, service) {
            Version::Canary
        } else {
            Version::Additional
        }
    }

    /// Whether the role's destination is the Service of that name in the Rollout's namespace.
    pub(crate) fn is_service(&self, role: &Role<'_>, name: &str) -> bool {
        let Pattern {
            kind,
            namespace,
            name: own,
            ..
        } = role.pattern;
        kind == "SERVICE" && namespace == self.namespace && own == name
    }

    /// Whether there are two versions to split traffic between. If subsets of one Service distinguish them, that is so only
    /// while the hashes differ.
    pub(crate) fn has_two_versions(&self) -> bool {
        let hash = |role: &Role<'_>| role.pattern.pods.map(|(_, hash)| hash.to_owned());
        match (hash(&self.stable), hash(&self.canary)) {
            (Some(stable), Some(canary)) => {
                stable != canary && !stable.is_empty() && !canary.is_empty()
            }
            _ => true,
        }
    }

    /// Whether the stable subset has to stay in the list even if the canary has no weight: both roles are subsets of one
    /// Service, which selects Pods of two versions. The Pods of a version may exist longer than the Rollout's status names
    /// its hash.
    pub(crate) fn must_separate_pods(&self, intent: &Intent) -> bool {
        let has_others = |hashes: &PodHashes| hashes.others && !hashes.stable.is_empty();
        let has_others = intent.hashes.as_ref().is_some_and(has_others);
        self.stable.pattern.pods.is_some() && (self.has_two_versions() || has_others)
    }

    /// Whether `intent` asks that nothing is rolled out: no weight for the canary, and no Pods to separate.
    pub(crate) fn is_rest(&self, intent: &Intent) -> bool {
        intent.sends_all_to_stable() && !self.must_separate_pods(intent)
    }

    /// The anchors in the owner's list: the stable destinations or else, in a route that `is_split` already or with
    /// ping-pong, the canary destinations.
    pub(crate) fn anchors<'l, 'd>(
        &self,
        owner_list: &'l DestinationList<'d>,
        is_split: bool,
    ) -> Vec<&'l Destination<'d>> {
        let stable = self.stable.listed(owner_list);
        if stable.is_empty() && (is_split || self.ping_pong) {
            return self.canary.listed(owner_list);
        }
        stable
    }

    /// Whether a destination of the owner is an anchor.
    pub(crate) fn is_anchor(&self, destination: &Destination<'_>) -> bool {
        self.stable.is_listed_as(destination)
            || (self.ping_pong && self.canary.is_listed_as(destination))
    }

    /// Checks that the owner's list does not have several anchors.
    ///
    /// # Errors
    /// Returns `Err` if it does.
    pub(crate) fn check_anchor(
        &self,
        route: &Route<'_>,
        owner_list: &DestinationList<'_>,
        is_split: bool,
    ) -> Result<(), Refusal> {
        let anchors = self.anchors(owner_list, is_split);
        self.stable.only(route, &anchors).map(|_| ())
    }
}

impl<'a> Role<'a> {
    pub(crate) fn name(&self) -> &str {
        self.pattern.name
    }

    /// The destinations of a list that are in this role.
    pub(crate) fn find<'l, 'd>(
        &self,
        list: &'l DestinationList<'d>,
    ) -> impl Iterator<Item = &'l Destination<'d>> {
        list.destinations.iter().filter(|it| self.is(it))
    }

    /// The destination of a list that is in this role; `None` if there is none.
    ///
    /// # Errors
    /// Returns `Err` if there are several.
    pub(crate) fn find_only<'l, 'd>(
        &self,
        route: &Route<'_>,
        list: &'l DestinationList<'d>,
    ) -> Result<Option<&'l Destination<'d>>, Refusal> {
        let mut found = self.find(list);
        let first = found.next();
        if found.next().is_some() {
            return self.only(route, &self.find(list).collect::<Vec<_>>());
        }
        Ok(first)
    }

    fn only<'l, 'd>(
        &self,
        route: &Route<'_>,
        found: &[&'l Destination<'d>],
    ) -> Result<Option<&'l Destination<'d>>, Refusal> {
        if found.len() > 1 {
            let places: Vec<String> = found.iter().map(|it| it.label_with_port()).collect();
            return Err(Refusal::Ambiguous {
                route: route.label(),
                destination: self.label(),
                found: places.join(", "),
            });
        }
        Ok(found.first().copied())
    }

    /// Whether a destination is in this role.
    pub(crate) fn is(&self, destination: &Destination<'_>) -> bool {
        self.is_listed_as(destination)
            && self
                .pattern
                .pods
                .is_none_or(|(label, hash)| destination.subset_label(label) == Some(hash))
    }

    /// Makes the destination of this role: a copy of the owner's `anchor` with the fields of the pattern.
    ///
    /// # Errors
    /// Returns `Err` if the hash of its Pods is not known, if a TCP route cannot forward to it, if the copy would inherit a
    /// subset, which selects no Pod of the other version, or if no port of an experiment's Service belongs to the anchor.
    pub(crate) fn made_from(
        &self,
        anchor: &Destination<'a>,
        route: &Route<'_>,
    ) -> Result<Destination<'a>, Refusal> {
        let Pattern {
            kind, subset, pods, ..
        } = &self.pattern;
        self.check_hash()?;
        if subset.is_none() && pods.is_none() && !anchor.has_subset(&NO_SUBSET) {
            return Err(Refusal::Subset {
                route: route.label(),
                from: anchor.label(),
            });
        }
        if route.protocol == Protocol::Tcp && *kind == "EXTERNAL_SERVICE" {
            return Err(Refusal::ExternalForTcp {
                route: route.label(),
                destination: self.label(),
            });
        }
        if let Some(ports) = self.ports
            && port_behind(anchor, ports).is_none()
        {
            let shown: Vec<String> = ports.own.iter().map(ToString::to_string).collect();
            return Err(Refusal::ExperimentPort {
                route: route.label(),
                service: self.label(),
                ports: shown.join(", "),
                destination: anchor.label_with_port(),
            });
        }
        Ok(self.copy_of(anchor))
    }

    /// Checks that the hash of the Pods is known, if subsets by Pod hash distinguish the roles.
    ///
    /// # Errors
    /// Returns `Err` if it is not.
    pub(crate) fn check_hash(&self) -> Result<(), Refusal> {
        match self.pattern.pods {
            Some((_, "")) => Err(Refusal::NoHash { role: self.title }),
            _ => Ok(()),
        }
    }

    /// As [`Self::made_from`], without the checks.
    pub(crate) fn copy_of(&self, anchor: &Destination<'a>) -> Destination<'a> {
        let mut last = self.last_copy.borrow_mut();
        match &*last {
            Some((of, copy)) if of.object() == anchor.object() && of.has_content_of(anchor) => {
                copy.clone()
            }
            _ => {
                let copy = self.new_copy_of(anchor);
                *last = Some((anchor.clone(), copy.clone()));
                copy
            }
        }
    }

    fn new_copy_of(&self, anchor: &Destination<'a>) -> Destination<'a> {
        let Pattern {
            kind,
            namespace,
            name,
            cluster,
            port,
            subset,
            pods,
        } = &self.pattern;
        let inherited = anchor.object().map_or("", |object| object.cluster);
        let subset = || {
            let mut subset = subset.map_or_else(|| anchor.subset(), Clone::clone);
            if let Some((label, hash)) = pods {
                subset.insert((*label).to_owned(), (*hash).to_owned());
            }
            subset
        };
        let object = Object {
            kind,
            namespace,
            name,
            cluster: cluster.unwrap_or(inherited),
        };
        let subset = self.distinction.subset.then(subset);
        let made = self.ports.and_then(|ports| port_behind(anchor, ports));
        anchor.routing_to(object, made.as_ref().or(*port), subset.as_ref())
    }

    /// Whether a destination selects Pods of one version by its subset. Only planning inserts such a destination.
    pub(crate) fn selects_pods(&self, destination: &Destination<'_>) -> bool {
        let label = self.pattern.pods.map(|(label, _)| label);
        label.is_some_and(|label| {
            self.is_listed_as(destination) && destination.subset_label(label).is_some()
        })
    }

    /// Removes the label that selects Pods of one version: an owner lists a destination without it.
    pub(crate) fn without_pod_label<'d>(&self, destination: &Destination<'d>) -> Destination<'d> {
        match (self.pattern.pods, destination.object()) {
            (Some((label, _)), Some(object)) if destination.subset_label(label).is_some() => {
                let mut subset = destination.subset();
                subset.remove(label);
                destination.routing_to(object, None, Some(&subset))
            }
            _ => destination.clone(),
        }
    }

    /// The role in messages.
    pub(crate) fn label(&self) -> String {
        self.pattern.to_string()
    }

    /// The destinations of a list that the owner lists for this role.
    fn listed<'l, 'd>(&self, list: &'l DestinationList<'d>) -> Vec<&'l Destination<'d>> {
        list.destinations
            .iter()
            .filter(|it| self.is_listed_as(it))
            .collect()
    }

    /// Whether an owner lists this destination for this role. If subsets by Pod hash distinguish the roles, that is the Service
    /// of both.
    pub(crate) fn is_listed_as(&self, destination: &Destination<'_>) -> bool {
        let fits = |pattern: &Pattern<'_>| pattern.fits(destination);
        fits(&self.pattern) && !self.except.as_ref().is_some_and(fits)
    }
}

impl<'a> Pattern<'a> {
    /// The pattern of the configuration. The name is empty if it is not configured.
    fn new(config: &'a RoleConfig, namespace: &'a str) -> Self {
        Self {
            kind: config.kind.as_deref().unwrap_or("SERVICE"),
            namespace: config.namespace.as_deref().unwrap_or(namespace),
            name: config.name.as_deref().unwrap_or_default(),
            cluster: config.cluster.as_deref(),
            port: config.port.as_ref(),
            subset: config.subset.as_ref(),
            pods: None,
        }
    }

    /// Whether a destination matches all fields but `pods`.
    fn fits(&self, destination: &Destination<'_>) -> bool {
        destination.object().is_some_and(|object| {
            object.name == self.name
                && object.namespace == self.namespace
                && object.kind == self.kind
                && self.cluster.is_none_or(|it| object.cluster == it)
        }) && self
            .port
            .is_none_or(|it| destination.port().as_ref() == Some(it))
            && self
                .subset
                .is_none_or(|subset| destination.has_subset(subset))
    }

    /// How many of the optional fields are set.
    fn precision(&self) -> usize {
        let Self {
            cluster,
            port,
            subset,
            ..
        } = self;
        usize::from(cluster.is_some()) + usize::from(port.is_some()) + usize::from(subset.is_some())
    }
}

/// The Service of the stable destination; `None` if that is an object of another kind.
pub fn stable_service(config: &PluginConfig, intent: &Intent) -> Option<ObjectKey> {
    let stable = Roles::new(config, intent).ok()?.stable.pattern;
    (stable.kind == "SERVICE").then(|| ObjectKey::new(stable.namespace, stable.name))
}

/// The port of an experiment's Service that routes to the same port of the containers as `anchor`.
///
/// That is the `targetPort` of the anchor's port, by number or, because the ports of the experiment's Service have the names of
/// those of the containers, by name. If it is not among them or not known, because the Service cannot be read or the anchor is
/// of another kind, it is the port with the anchor's own number or name.
fn port_behind(anchor: &Destination<'_>, ports: &ExperimentPorts) -> Option<Port> {
    let port = anchor.port();
    let is_anchors = |it: &&ServicePort| match &port {
        Some(Port::Number(number)) => it.number == *number,
        Some(Port::Name(name)) => it.name == *name,
        None => false,
    };
    let is_service = anchor.object().is_some_and(|it| it.kind == "SERVICE");
    let stable = match &*ports.stable {
        [only] if port.is_none() => Some(only),
        several => several.iter().find(is_anchors),
    };
    let stable = stable.filter(|_| is_service);
    let leads_there =
        |it: &&ServicePort| stable.is_some_and(|to| it.target == to.target || it.name == to.target);
    let found = match &*ports.own {
        [only] => Some(only),
        own => own.iter().find(leads_there).or(own.iter().find(is_anchors)),
    };
    found.map(|port| Port::Number(port.number))
}

/// Checks that the Service of `subset` is neither the stable nor the canary Service: the controller changes the selector of
/// these so that each selects one version.
fn check_selector(service: &str, named: &ServicePair) -> Result<(), Refusal> {
    for (role, name) in [("stable", &named.stable), ("canary", &named.canary)] {
        if name == service {
            return Err(Refusal::SwitchedService {
                role,
                service: service.to_owned(),
            });
        }
    }
    Ok(())
}

/// The form of a destination in messages.
impl fmt::Display for Pattern<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            name,
            cluster,
            port,
            subset,
            ..
        } = self;
        write!(f, "{} ", DestinationKind::word_of(kind))?;
        if let Some(cluster) = cluster {
            write!(f, "{cluster}/")?;
        }
        write!(f, "{namespace}/{name}")?;
        if let Some(port) = port {
            write!(f, " {port}")?;
        }
        for (label, value) in subset.iter().copied().flatten() {
            write!(f, " {label}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::destinations::ReadContext;

    /// Ports are written as `name:number>target`.
    fn ports(text: &str) -> Vec<ServicePort> {
        let port = |text: &str| {
            let (name, port) = text.split_once(':').unwrap();
            let (number, target) = port.split_once('>').unwrap_or((port, port));
            ServicePort {
                number: number.parse().unwrap(),
                name: name.to_owned(),
                target: target.to_owned(),
            }
        };
        text.split_ascii_whitespace().map(port).collect()
    }

    #[track_caller]
    fn check(anchor: &Value, stable: &str, own: &str, expect: Option<u32>) {
        let context = ReadContext {
            namespace: "shop",
            distinction: Distinction::default(),
        };
        let known = ExperimentPorts {
            own: ports(own),
            stable: ports(stable),
        };
        let found = port_behind(&Destination::new(anchor, context), &known);
        let number = expect.map(Port::Number);
        assert_eq!(found, number, "{anchor}, stable {stable}, own {own}");
    }

    #[test]
    fn a_port_of_an_experiment_is_found_through_the_stable_service() {
        let to = |port: Value| json!({"ref": {"name": "reviews"}, "port": port});
        let number = |number: u32| to(json!({ "number": number }));
        let name = |name: &str| to(json!({ "name": name }));
        let none = json!({"ref": {"name": "reviews"}});
        let own = "metrics:9090 http:8080";
        // By the number or the name of the targetPort.
        check(&number(80), "x:80>8080 y:81>9090", own, Some(8080));
        check(&number(80), "x:80>http", own, Some(8080));
        check(&name("y"), "x:80>8080 y:81>9090", own, Some(9090));
        // The number of the anchor is another port of the containers.
        check(&number(9090), "x:9090>8080", own, Some(8080));
        // A Service with one port needs none in the route.
        check(&none, ":80>http", own, Some(8080));
        check(&none, "x:80>8080 y:81>9090", own, None);
        // The stable Service does not tell.
        check(&number(8080), "", own, Some(8080));
        check(&name("http"), "x:81>9090", own, Some(8080));
        check(&number(8080), "x:8080>1234", own, Some(8080));
        check(&number(80), "x:80>1234", own, None);
        check(&number(80), "", own, None);
        check(&none, "", own, None);
        // One port is the only choice.
        check(&number(80), "x:80>1234", ":3000", Some(3000));
        check(&none, "", ":3000", Some(3000));
        check(&none, "", "", None);
        // A VirtualDestination has its own ports.
        let virtual_destination = json!({"kind": "VIRTUAL_DESTINATION", "ref": {"name": "reviews"}, "port": {"number": 8080}});
        check(&virtual_destination, "x:8080>9090", own, Some(8080));
    }
}
