//! The MirrorPolicies of mirror routes. A mirror route has a label with a unique value, and its policy selects only that
//! label.

use std::collections::BTreeMap;

use gloo_types::{
    DestinationReference, HttpRoute, MirrorPolicy, MirrorPolicyDoc, ObjectKey, PolicyRouteSelector,
    Resource, RouteTableDoc,
};
use json_patch::Patch;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{PlanError, Refusal};
use crate::intent::MirrorRoute;
use crate::ownership::{Owner, PREFIX, Scope, fnv1a, label_value};

/// The MirrorPolicies that a plan requires.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policies {
    rollout: ObjectKey,
    table: ObjectKey,
    /// Labels of the table, which policies may select.
    table_labels: BTreeMap<String, String>,
    /// Name of the table's workspace, if Gloo has written it into the status.
    workspace: Option<String>,
    /// The destination of routes without destinations.
    default: Option<DestinationReference>,
    /// The managed routes that the plan may change.
    scope: Scope,
    wanted: Vec<Wanted>,
    /// Whether the table has mirror routes in the scope of the plan.
    pub(crate) has_mirrors: bool,
}

/// A policy that must exist, and the route that it selects.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    policy: Value,
    route: HttpRoute,
}

/// One change of a MirrorPolicy.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyChange {
    /// Creates this object.
    Create(Value),
    /// Patches the policy of that name.
    Patch(ObjectKey, Patch),
    /// Deletes this policy. It is deleted before the table is changed; the other changes are made after that.
    Delete(MirrorPolicyDoc),
}

/// The policy of one mirror route, and the label by which the policy selects the route.
pub(crate) struct Mirror {
    name: String,
    spec: Value,
    labels: Map<String, Value>,
}

/// Key of the label that a policy selects.
fn mirror_label() -> String {
    format!("{PREFIX}/mirror")
}

/// Whether a managed route is a mirror route.
pub(crate) fn is_mirror(route: &Value) -> bool {
    let labels = route.get("labels");
    labels.is_some_and(|labels| labels.get(mirror_label()).is_some())
}

impl Mirror {
    /// The policy that copies requests of `route` in `table` to `canary`.
    ///
    /// An absent percentage mirrors all requests, as Argo Rollouts documents. Gob does not send 0, so a percentage of 0
    /// arrives as an absent one, too.
    ///
    /// # Errors
    /// Returns `Err` if the percentage is not between 1 and 100.
    pub(crate) fn new(
        rollout: &ObjectKey,
        table: &ObjectKey,
        route: &MirrorRoute,
        canary: &Value,
    ) -> Result<Self, Refusal> {
        let percentage = route.percentage.unwrap_or(100);
        if !(1..=100).contains(&percentage) {
            return Err(Refusal::Percentage {
                managed: route.name.clone(),
                percentage,
            });
        }
        let name = label_value(&route.name);
        let id = format!(
            "{:016x}",
            fnv1a(&format!("{rollout} {table} {name} {canary}"))
        );
        let mut labels = Owner::new(rollout).labels(&route.name);
        labels.insert(
            format!("{PREFIX}/route-table"),
            json!(label_value(&table.name)),
        );
        Ok(Self {
            spec: json!({
                "applyToRoutes": [{"route": {"labels": {mirror_label(): id}}}],
                "config": {"destination": canary, "percentage": percentage},
            }),
            name: id,
            labels,
        })
    }

    /// The label that the mirror route needs.
    pub(crate) fn route_label(&self) -> (String, Value) {
        (mirror_label(), json!(self.name))
    }

    fn object(&self, namespace: &str) -> Value {
        json!({
            "apiVersion": format!("{}/{}", MirrorPolicy::GROUP, MirrorPolicy::VERSION),
            "kind": MirrorPolicy::KIND,
            "metadata": {
                "name": format!("rollouts-mirror-{}", self.name),
                "namespace": namespace,
                "labels": self.labels,
            },
            "spec": self.spec,
        })
    }
}

impl Policies {
    pub(crate) fn new(rollout: &ObjectKey, table: &RouteTableDoc, scope: Scope) -> Self {
        let at = |path| table.raw().pointer(path);
        Self {
            rollout: rollout.clone(),
            table: table.key().clone(),
            table_labels: table.labels().clone(),
            workspace: at("/status/ownedByWorkspace")
                .and_then(Value::as_str)
                .map(str::to_owned),
            default: at("/spec/defaultDestination")
                .and_then(|default| DestinationReference::deserialize(default).ok()),
            scope,
            wanted: Vec::new(),
            has_mirrors: false,
        }
    }

    /// Adds the policy of a mirror route.
    pub(crate) fn want(&mut self, mirror: &Mirror, route: &Map<String, Value>) {
        let route = HttpRoute::deserialize(&Value::Object(route.clone()));
        self.wanted.push(Wanted {
            policy: mirror.object(&self.table.namespace),
            route: route.unwrap_or_default(),
        });
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.has_mirrors || !self.wanted.is_empty()
    }

    pub(crate) fn changes(&self, live: &[MirrorPolicyDoc]) -> Result<Vec<PolicyChange>, PlanError> {
        let mut changes = Vec::new();
        for policy in live.iter().filter(|policy| self.is_ours(policy)) {
            let mut wanted = self.wanted.iter();
            if !wanted.any(|wanted| is_named(policy, &wanted.policy)) {
                changes.push(PolicyChange::Delete(policy.clone()));
            }
        }
        let mut seen: Vec<&Value> = Vec::new();
        for Wanted { policy, route } in &self.wanted {
            if let Some((other, selects)) = self.other(route, live)? {
                let refusal = Refusal::OtherMirrorPolicy {
                    route: route.name.clone(),
                    policy: other.key().clone(),
                    selects,
                };
                return Err(PlanError::refused(&self.table, &self.rollout, refusal));
            }
            if seen.contains(&policy) {
                continue;
            }
            seen.push(policy);
            match live.iter().find(|live| is_named(live, policy)) {
                None => changes.push(PolicyChange::Create(policy.clone())),
                Some(live) => changes.extend(correction(live, policy)?),
            }
        }
        Ok(changes)
    }

    /// Whether a policy belongs to a mirror route in the scope of the plan.
    fn is_ours(&self, policy: &MirrorPolicyDoc) -> bool {
        let managed = policy.labels().get(&format!("{PREFIX}/managed-route"));
        is_for_table(policy, &self.rollout, &self.table)
            && managed.is_some_and(|managed| self.scope.includes(managed))
    }

    /// Finds a policy that the plugin did not create and that may also apply to `route`, and what it selects of the route.
    fn other<'p>(
        &self,
        route: &HttpRoute,
        live: &'p [MirrorPolicyDoc],
    ) -> Result<Option<(&'p MirrorPolicyDoc, String)>, PlanError> {
        for policy in live {
            if policy.labels().keys().any(|key| key.starts_with(PREFIX)) {
                continue;
            }
            let mut selectors = policy.spec()?.apply_to_routes;
            if selectors.is_empty() {
                selectors.push(PolicyRouteSelector::default());
            }
            let mut selected = selectors.iter();
            if let Some(selects) = selected.find_map(|it| self.selection(it, route)) {
                return Ok(Some((policy, selects)));
            }
        }
        Ok(None)
    }

    /// Why a policy may apply to a route; `None` if it does not.
    fn selection(&self, selector: &PolicyRouteSelector, route: &HttpRoute) -> Option<String> {
        let namespace = &self.table.namespace;
        match (&selector.route, &selector.with_destinations) {
            (None, None) => Some("every route".to_owned()),
            (Some(labels), _) => {
                let workspace = self.workspace.as_deref().unwrap_or(&labels.workspace);
                let is_elsewhere = !labels.workspace.is_empty() && labels.workspace != workspace;
                let selects = labels.may_select(&route.labels, &self.table_labels, namespace);
                (selects && !is_elsewhere).then(|| "its labels".to_owned())
            }
            (None, Some(wanted)) => {
                let forward = route.forward_to.as_ref()?;
                let listed = forward.destinations.as_deref().unwrap_or_default();
                let default = self.default.iter().filter(|_| listed.is_empty());
                let mut destinations = listed.iter().chain(default);
                let selected = destinations.find(|to| wanted.may_select(to, namespace))?;
                Some(format!("its destination {selected}"))
            }
        }
    }
}

/// Whether a policy was created for a Rollout. Such a policy is deleted with the managed routes of the Rollout.
pub fn belongs_to(policy: &MirrorPolicyDoc, rollout: &ObjectKey) -> bool {
    let labels = Owner::new(rollout).own_labels();
    labels
        .iter()
        .all(|(key, value)| policy.labels().get(key) == Some(value))
}

/// Whether a policy was created for the mirror routes of a Rollout in one table.
pub fn is_for_table(policy: &MirrorPolicyDoc, rollout: &ObjectKey, table: &ObjectKey) -> bool {
    let label = policy.labels().get(&format!("{PREFIX}/route-table"));
    belongs_to(policy, rollout)
        && policy.key().namespace == table.namespace
        && label == Some(&label_value(&table.name))
}

fn is_named(policy: &MirrorPolicyDoc, object: &Value) -> bool {
    let key = policy.key();
    let metadata = object.get("metadata");
    let text = |key| metadata.and_then(|metadata| metadata.get(key)?.as_str());
    text("namespace") == Some(&key.namespace) && text("name") == Some(&key.name)
}

/// The patch that turns a policy into the wanted one; `None` if their specs are equal after decoding.
fn correction(live: &MirrorPolicyDoc, wanted: &Value) -> Result<Option<PolicyChange>, PlanError> {
    let wanted_spec = MirrorPolicyDoc::from_value(wanted.clone())?.spec()?;
    if live.spec()? == wanted_spec {
        return Ok(None);
    }
    let operations = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": live.resource_version()},
        {"op": "add", "path": "/spec", "value": wanted.get("spec")},
    ]);
    let patch = Patch::deserialize(&operations).unwrap_or_default();
    Ok(Some(PolicyChange::Patch(live.key().clone(), patch)))
}
