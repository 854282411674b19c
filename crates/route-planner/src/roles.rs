//! Which destinations of a route are the Rollout's, and how a missing one is made from the owner's.
//!
//! Weights, header routes and mirror routes all ask here, so that they mean the same destinations.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use crate::config::{PluginConfig, RoleConfig};
use crate::destinations::{DestinationList, Distinction, Object, Port, Slot};
use crate::error::Refusal;
use crate::intent::{Intent, IntentKind, PodHashes, ServicePair};
use crate::route::{Protocol, Route};

/// The Rollout's destinations in their current roles.
pub(crate) struct Roles<'a> {
    pub(crate) stable: Role<'a>,
    pub(crate) canary: Role<'a>,
    pub(crate) by: Distinction,
    /// The Rollout's namespace, in which experiments have their Services.
    namespace: &'a str,
    /// Whether the roles are exchanged at each promotion, so that the owner's destination may be in either.
    are_exchanged: bool,
}

/// What the destination in one role looks like.
pub(crate) struct Role<'a> {
    /// `stable` or `canary`, for messages.
    title: &'static str,
    pattern: Pattern<'a>,
    /// What the other role claims more precisely.
    except: Option<Pattern<'a>>,
    by: Distinction,
    /// The port of a destination made in this role, where it is not that of the owner's destination.
    port_when_made: Option<Port>,
    /// The last copy, as a cache: most routes of a table have the same stable destination.
    last_copy: RefCell<Option<(Slot<'a>, Slot<'a>)>>,
}

/// What a destination must be. Unset fields take the owner's values when a destination is made.
#[derive(Clone, PartialEq)]
struct Pattern<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    cluster: Option<&'a str>,
    port: Option<&'a Port>,
    subset: Option<&'a BTreeMap<String, String>>,
    /// Label and value that the subset holds beside what the owner wrote.
    pods: Option<(&'a str, &'a str)>,
}

static NO_SUBSET: BTreeMap<String, String> = BTreeMap::new();

impl<'a> Roles<'a> {
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
                // Without a Service of its own the canary may still be told apart by what canaryDestination says.
                canary.name = stable.name;
                if canary == stable {
                    return Err(Refusal::NoService { role: "canary" });
                }
            }
            if canary == stable {
                return Err(Refusal::SameDestination(stable.to_string()));
            }
        }
        let by = Distinction {
            port: stable.port.is_some() || canary.port.is_some(),
            subset: [&stable, &canary]
                .iter()
                .any(|pattern| pattern.subset.is_some() || pattern.pods.is_some()),
        };
        let role = |title, pattern: &Pattern<'a>, other: &Pattern<'a>| Role {
            title,
            pattern: pattern.clone(),
            except: (other.precision() > pattern.precision()).then(|| other.clone()),
            by,
            port_when_made: None,
            last_copy: RefCell::default(),
        };
        Ok(Self {
            stable: role("stable", &stable, &canary),
            canary: role("canary", &canary, &stable),
            by,
            namespace,
            are_exchanged: intent.services.ping_pong,
        })
    }

    /// The role of an experiment's Service. `made_port` is its port if the controller made it with another one than the stable
    /// destination has.
    pub(crate) fn additional(&self, service: &'a str, made_port: Option<u32>) -> Role<'a> {
        let Pattern { cluster, port, .. } = self.stable.pattern;
        let pattern = Pattern {
            kind: "SERVICE",
            namespace: self.namespace,
            name: service,
            cluster,
            port,
            subset: self.by.subset.then_some(&NO_SUBSET),
            pods: None,
        };
        Role {
            title: "experiment",
            pattern,
            except: None,
            by: self.by,
            port_when_made: made_port.map(Port::Number),
            last_copy: RefCell::default(),
        }
    }

    /// Whether the role is played by the Service of that name in the Rollout's namespace.
    pub(crate) fn is_service(&self, role: &Role<'_>, name: &str) -> bool {
        let Pattern {
            kind,
            namespace,
            name: own,
            ..
        } = role.pattern;
        kind == "SERVICE" && namespace == self.namespace && own == name
    }

    /// Whether there are two versions to split traffic between. Where subsets of one Service distinguish them, its Pods are
    /// of one version most of the time.
    pub(crate) fn are_two(&self) -> bool {
        let hash = |role: &Role<'_>| role.pattern.pods.map(|(_, hash)| hash.to_owned());
        match (hash(&self.stable), hash(&self.canary)) {
            (Some(stable), Some(canary)) => {
                stable != canary && !stable.is_empty() && !canary.is_empty()
            }
            _ => true,
        }
    }

    /// Checks that pods can be told apart, where that is needed.
    pub(crate) fn check_hashes(&self) -> Result<(), Refusal> {
        self.stable.check_hash()?;
        self.canary.check_hash()
    }

    /// Whether both roles are subsets of one Service with Pods of two versions, so that even a canary without weight has to
    /// be kept apart. The Pods of a version may be there longer than its hash is in the Rollout.
    pub(crate) fn keep_apart(&self, intent: &Intent) -> bool {
        let has_others = |hashes: &PodHashes| hashes.others && !hashes.stable.is_empty();
        let has_others = intent.hashes.as_ref().is_some_and(has_others);
        self.stable.pattern.pods.is_some() && (self.are_two() || has_others)
    }

    /// Whether `intent` asks that nothing is rolled out: no weight, and no versions to keep apart.
    pub(crate) fn are_at_rest(&self, intent: &Intent) -> bool {
        let is_down = matches!(&intent.kind, IntentKind::SetWeight(split) if split.is_rest());
        is_down && !self.keep_apart(intent)
    }

    /// The destinations by which the owner's list leads to the Rollout: the stable ones or, in a route that `is_split`
    /// already, the canary. With ping-pong the two exchange their roles at the end of a rollout, and the owner's destination
    /// is in either of them.
    pub(crate) fn anchors<'l, 'd>(
        &self,
        owners: &'l DestinationList<'d>,
        is_split: bool,
    ) -> Vec<&'l Slot<'d>> {
        let stable = self.stable.owners(owners);
        if stable.is_empty() && (is_split || self.are_exchanged) {
            return self.canary.owners(owners);
        }
        stable
    }

    /// Whether an owner's destination leads to the Rollout.
    pub(crate) fn is_anchor(&self, slot: &Slot<'_>) -> bool {
        self.stable.is_owners(slot) || (self.are_exchanged && self.canary.is_owners(slot))
    }

    /// Whether a destination is the stable one or, with ping-pong, was or will be the stable one.
    pub(crate) fn is_or_was_stable(&self, slot: &Slot<'_>) -> bool {
        self.stable.is(slot) || (self.are_exchanged && self.canary.is(slot))
    }

    /// Checks that the owner's list leaves no choice between several anchors.
    pub(crate) fn check_anchor(
        &self,
        route: &Route<'_>,
        owners: &DestinationList<'_>,
        is_split: bool,
    ) -> Result<(), Refusal> {
        let anchors = self.anchors(owners, is_split);
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
    ) -> impl Iterator<Item = &'l Slot<'d>> {
        list.slots.iter().filter(|slot| self.is(slot))
    }

    /// The destination of a list that is in this role.
    ///
    /// # Errors
    /// Returns `Err` if there are several.
    pub(crate) fn find_only<'l, 'd>(
        &self,
        route: &Route<'_>,
        list: &'l DestinationList<'d>,
    ) -> Result<Option<&'l Slot<'d>>, Refusal> {
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
        found: &[&'l Slot<'d>],
    ) -> Result<Option<&'l Slot<'d>>, Refusal> {
        if found.len() > 1 {
            let places: Vec<String> = found.iter().map(|slot| slot.place()).collect();
            return Err(Refusal::Ambiguous {
                route: route.label(),
                destination: self.label(),
                found: places.join(", "),
            });
        }
        Ok(found.first().copied())
    }

    pub(crate) fn is(&self, slot: &Slot<'_>) -> bool {
        self.is_owners(slot)
            && self
                .pattern
                .pods
                .is_none_or(|(label, hash)| slot.subset_label(label) == Some(hash))
    }

    /// A destination in this role, made from the owner's `anchor`: a copy of it that leads elsewhere.
    ///
    /// # Errors
    /// Returns `Err` if the hash of its Pods is not known, and if the copy would inherit a subset, which selects no Pod of
    /// the other version.
    pub(crate) fn made_from(
        &self,
        anchor: &Slot<'a>,
        route: &Route<'_>,
    ) -> Result<Slot<'a>, Refusal> {
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
        Ok(self.copy_of(anchor))
    }

    fn check_hash(&self) -> Result<(), Refusal> {
        match self.pattern.pods {
            Some((_, "")) => Err(Refusal::NoHash { role: self.title }),
            _ => Ok(()),
        }
    }

    /// The copy without the checks of [`Self::made_from`], to know what it would lead to.
    pub(crate) fn copy_of(&self, anchor: &Slot<'a>) -> Slot<'a> {
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

    fn new_copy_of(&self, anchor: &Slot<'a>) -> Slot<'a> {
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
        let subset = self.by.subset.then(subset);
        let port = self.port_when_made.as_ref().or(*port);
        anchor.leading_to(object, port, subset.as_ref())
    }

    /// Whether a destination of the Service selects Pods of one version. Only planning inserts such a destination.
    pub(crate) fn selects_pods(&self, slot: &Slot<'_>) -> bool {
        let label = self.pattern.pods.map(|(label, _)| label);
        label.is_some_and(|label| self.is_owners(slot) && slot.subset_label(label).is_some())
    }

    /// A destination of this role as its owner lists it: without the label that selects Pods of one version.
    pub(crate) fn listed_as<'d>(&self, slot: &Slot<'d>) -> Slot<'d> {
        match (self.pattern.pods, slot.object()) {
            (Some((label, _)), Some(object)) if slot.subset_label(label).is_some() => {
                let mut subset = slot.subset();
                subset.remove(label);
                slot.leading_to(object, None, Some(&subset))
            }
            _ => slot.clone(),
        }
    }

    /// The role in messages.
    pub(crate) fn label(&self) -> String {
        self.pattern.to_string()
    }

    /// What the owner lists for this role: where subsets by Pods distinguish the roles, the Service of both.
    fn owners<'l, 'd>(&self, list: &'l DestinationList<'d>) -> Vec<&'l Slot<'d>> {
        list.slots
            .iter()
            .filter(|slot| self.is_owners(slot))
            .collect()
    }

    pub(crate) fn is_owners(&self, slot: &Slot<'_>) -> bool {
        let fits = |pattern: &Pattern<'_>| pattern.fits(slot);
        fits(&self.pattern) && !self.except.as_ref().is_some_and(fits)
    }
}

impl<'a> Pattern<'a> {
    /// What the configuration says; the name may be empty.
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

    fn fits(&self, slot: &Slot<'_>) -> bool {
        slot.object().is_some_and(|object| {
            object.name == self.name
                && object.namespace == self.namespace
                && object.kind == self.kind
                && self.cluster.is_none_or(|it| object.cluster == it)
        }) && self.port.is_none_or(|it| slot.port().as_ref() == Some(it))
            && self.subset.is_none_or(|subset| slot.has_subset(subset))
    }

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

/// The controller narrows the selectors of the Services the Rollout names to one version each.
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

/// As the destination it describes.
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
        write!(f, "{kind} ")?;
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
