//! The result of planning: the edits of a table, the skipped routes with their reasons, and warnings. A [`Plan`] can be
//! written as a JSON Patch that is guarded by the resource version and by a `test` before each change.

use std::fmt;

use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc, Rule};
use json_patch::jsonptr::PointerBuf;
use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation,
};
use serde_json::{Value, json};

use crate::error::{PlanError, Refusal};
use crate::intent::Intent;
use crate::mirror_policy::{Policies, PolicyChange};
use crate::ownership::ANNOTATION;

/// The plan for one table. [`Plan::to_json_patch`] returns what a store can apply.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// The table.
    pub table: ObjectKey,
    /// `metadata.resourceVersion` of the planned table. The patch does not apply to another version.
    pub resource_version: Option<String>,
    /// The changes, in the order in which they are applied.
    pub edits: Vec<Edit>,
    /// Routes that are skipped.
    pub skipped: Vec<Skip>,
    /// Warnings for the owner of the table.
    pub warnings: Vec<Warning>,
    /// Whether this plan removes the last changes of all Rollouts, so that afterwards the table is as its owner wrote it.
    pub hands_back: bool,
    /// Whether the table has a record or a managed route of the plan's Rollout after this plan.
    pub leaves_marks: bool,
    /// The Rollout that the plan is made for.
    pub(crate) rollout: ObjectKey,
    /// The refusals of routes, records and managed routes that stay unchanged although the intent asks for a change.
    pub(crate) left: Vec<Refusal>,
    /// Whether the share of the canary or of an experiment increases in a route.
    pub(crate) grows: bool,
    /// Whether the share of the canary decreases in a route that is split.
    pub(crate) shrinks: bool,
    /// The MirrorPolicies that the plan requires.
    pub(crate) policies: Option<Policies>,
}

impl Plan {
    /// A plan without edits.
    pub(crate) fn nothing(rollout: &ObjectKey, table: &RouteTableDoc) -> Self {
        Self {
            table: table.key().clone(),
            rollout: rollout.clone(),
            left: Vec::new(),
            grows: false,
            shrinks: false,
            resource_version: table.resource_version().map(str::to_owned),
            edits: Vec::new(),
            skipped: Vec::new(),
            warnings: Vec::new(),
            hands_back: false,
            leaves_marks: false,
            policies: None,
        }
    }

    /// Whether the share of the canary, or of an experiment, increases in any route.
    pub fn grows(&self) -> bool {
        self.grows
    }

    /// Whether the share of the canary decreases in any route that is recorded as split.
    pub fn takes_from_canary(&self) -> bool {
        self.shrinks
    }

    /// One error for each route, record or managed route that stays unchanged although the intent asks for a change.
    ///
    /// The caller should return them after it has applied the plan, so that the controller retries.
    pub fn left(&self) -> impl Iterator<Item = PlanError> {
        let left = self.left.iter().cloned();
        left.map(|refusal| PlanError::refused(&self.table, &self.rollout, refusal))
    }

    /// Whether the plan has no edits, so that the table does not have to be written.
    pub fn is_noop(&self) -> bool {
        self.edits.is_empty()
    }

    /// Whether the caller has to read the MirrorPolicies and apply [`Plan::policy_changes`].
    pub fn needs_policies(&self) -> bool {
        self.policies.as_ref().is_some_and(Policies::is_needed)
    }

    /// The changes of the MirrorPolicies of this table's mirror routes. `live` are the existing policies.
    ///
    /// # Errors
    /// Returns `Err` if a policy that the plugin did not create may also apply to a mirror route, or if a policy cannot be
    /// decoded.
    pub fn policy_changes(&self, live: &[MirrorPolicyDoc]) -> Result<Vec<PolicyChange>, PlanError> {
        match &self.policies {
            Some(policies) => policies.changes(live),
            None => Ok(Vec::new()),
        }
    }

    /// Whether the plan sends more requests, or copies of requests, to the canary.
    pub fn adds_share(&self, intent: &Intent) -> bool {
        self.grows || intent.adds_route() && !self.is_noop()
    }

    /// Whether the plan moves traffic or copies of it. `policies` are the existing MirrorPolicies.
    pub fn moves(&self, policies: &[MirrorPolicyDoc]) -> bool {
        let changes = self.policy_changes(policies);
        self.moves_traffic() || changes.is_ok_and(|changes| !changes.is_empty())
    }

    /// Whether the plan changes where traffic goes. Some plans change only the annotation.
    pub fn moves_traffic(&self) -> bool {
        self.edits.iter().any(Edit::moves_traffic)
    }

    /// The edits as RFC 6902 operations; empty for a plan without edits.
    ///
    /// The first operation tests `/metadata/resourceVersion`, if the document had one. Within a list of destinations
    /// weights are set in place first, then removals run from the highest index down, then insertions from the lowest up.
    /// Whole routes follow in the same manner.
    pub fn to_json_patch(&self) -> Patch {
        let mut operations = Operations(Vec::new());
        if !self.is_noop() {
            if let Some(version) = &self.resource_version {
                operations.test(&["metadata", "resourceVersion"], json!(version));
            }
            for edit in &self.edits {
                operations.edit(edit);
            }
        }
        Patch(operations.0)
    }

    /// Applies the edits to `table`; `None` if `table` is not the one for which the plan was made.
    pub fn applied_to(&self, table: &RouteTableDoc) -> Option<RouteTableDoc> {
        let after = gloo_types::patched(table.raw().clone(), &self.to_json_patch()).ok()?;
        RouteTableDoc::from_value(after).ok()
    }
}

impl Edit {
    /// Whether this edit changes where traffic goes.
    pub fn moves_traffic(&self) -> bool {
        !matches!(self, Self::Annotation { .. })
    }
}

/// One change of a table, with the value that it expects to find.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Edit {
    /// Changes the destinations of one route.
    Destinations {
        /// The route, for messages.
        route: String,
        /// Path of the route's `forwardTo`, as tokens of a JSON pointer.
        path: Vec<String>,
        /// The `forwardTo` that must be there.
        expect: Value,
        /// The changes. An index counts after the changes before it.
        changes: Vec<DestinationChange>,
    },
    /// Inserts, replaces or removes a managed route.
    Route {
        /// Position in `spec.http`, after the edits before this one.
        index: usize,
        /// Its name.
        name: String,
        /// The route that must be there; `None` inserts a route.
        expect: Option<Value>,
        /// The whole new route; `None` removes the route.
        value: Option<Value>,
    },
    /// Sets or removes the annotation with the record.
    Annotation {
        /// The value that must be there.
        expect: Option<String>,
        /// The new value; `None` removes the annotation.
        value: Option<String>,
        /// What else `metadata.annotations` holds.
        others: OtherAnnotations,
    },
}

/// The content of `metadata.annotations` beside the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherAnnotations {
    /// The table has no annotations.
    NoMap,
    /// None: the map is removed together with the record.
    None,
    /// Other annotations.
    Some,
}

/// One change in a list of destinations.
#[derive(Clone, Debug, PartialEq)]
pub enum DestinationChange {
    /// Changes a weight in place. `None` is an absent key.
    SetWeight {
        /// Position in the list.
        index: usize,
        /// The destination, for messages.
        destination: String,
        /// The current weight.
        from: Option<Value>,
        /// The new weight.
        to: Option<Value>,
    },
    /// Replaces a destination that was inserted, because the owner changed the stable one.
    Replace {
        /// Position in the list.
        index: usize,
        /// The destination, for messages.
        destination: String,
        /// The whole new destination.
        value: Value,
    },
    /// Removes a destination.
    Remove {
        /// Position in the list.
        index: usize,
        /// The destination, for messages.
        destination: String,
    },
    /// Inserts a destination.
    Insert {
        /// Position in the list.
        index: usize,
        /// The destination, for messages.
        destination: String,
        /// The whole destination.
        value: Value,
    },
    /// Adds a list to a route without one.
    CreateList(Vec<Value>),
    /// Removes the whole list.
    RemoveList,
}

/// A route that is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skip {
    /// The route.
    pub route: String,
    /// Why.
    pub reason: SkipReason,
}

/// Why a route is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// This key of the plugin block does not select it.
    NotSelected(&'static str),
    /// It forwards to these destinations, none of which is the stable one.
    ForwardsTo(Vec<String>),
    /// It delegates to other tables, selected by name or labels.
    Delegates(Vec<String>),
    /// It has another action.
    Action(&'static str),
    /// Another Rollout with the same stable destination splits it.
    SplitBy(String),
}

/// A warning for the owner of a table. It does not prevent the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The owner's weights violate a rule of Gloo.
    OwnerWeights {
        /// The route.
        route: String,
        /// The rule.
        rule: Rule,
    },
    /// The owner's weights give the canary a share although nothing is rolled out.
    OwnerCanaryShare {
        /// The route.
        route: String,
        /// The canary Service.
        canary: String,
    },
    /// A route sends all traffic to the canary, and it is not known whether its owner wants that: the table has no record,
    /// and other routes forward to stable.
    OnlyCanary {
        /// The route.
        route: String,
        /// The canary Service.
        canary: String,
        /// Its percentage of the route's traffic.
        share: u32,
    },
    /// The owner led a route elsewhere while it was split, so nothing is restored.
    Repointed {
        /// The route.
        route: String,
    },
    /// A split route was removed, or is not recognised any more.
    RouteGone {
        /// The route.
        route: String,
    },
    /// The record of a split route was lost. The owner's destinations are rebuilt from the weights that were set last.
    Rebuilt {
        /// The route.
        route: String,
    },
    /// The Service of an experiment has no name. Either the experiment's Pods declare no port, so that the controller creates
    /// no Service, or the controller has lost the name: it writes the name once, and a later write from an outdated cache
    /// removes it (`createTemplateService` and `persistExperimentStatus` in `experiments/` of Argo Rollouts 1.10.1). A retry
    /// creates a new experiment.
    UnnamedService,
    /// Managed routes of two Rollouts are for the same requests, and the second one gets none.
    Unreached {
        /// The name of the second one.
        route: String,
        /// The name of the first one.
        by: String,
        /// The Rollout of the first one.
        rollout: ObjectKey,
    },
    /// The table has no http routes except managed ones. They stay, because a table without routes is invalid.
    OnlyManagedRoutes,
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Destinations { route, changes, .. } => {
                write!(f, "{route}: ")?;
                for (index, change) in changes.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{change}")?;
                }
                Ok(())
            }
            Self::Route {
                name,
                expect,
                value,
                ..
            } => {
                let done = match (expect, value) {
                    (None, _) => "inserted",
                    (Some(_), Some(_)) => "replaced",
                    (Some(_), None) => "removed",
                };
                write!(f, "managed route {name} {done}")
            }
            Self::Annotation { value: None, .. } => f.write_str("annotation removed"),
            Self::Annotation { .. } => f.write_str("annotation written"),
        }
    }
}

impl fmt::Display for DestinationChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight =
            |weight: Option<&Value>| weight.map_or("no weight".to_owned(), Value::to_string);
        match self {
            Self::SetWeight {
                destination,
                from,
                to,
                ..
            } => {
                write!(
                    f,
                    "{destination} {} to {}",
                    weight(from.as_ref()),
                    weight(to.as_ref())
                )
            }
            Self::Replace { destination, .. } => write!(f, "{destination} replaced"),
            Self::Remove { destination, .. } => write!(f, "{destination} removed"),
            Self::Insert {
                destination, value, ..
            } => {
                write!(
                    f,
                    "{destination} inserted at {}",
                    weight(value.get("weight"))
                )
            }
            Self::CreateList(list) => {
                write!(
                    f,
                    "a list of {} replaces the default destination",
                    list.len()
                )
            }
            Self::RemoveList => f.write_str("the default destination replaces the list"),
        }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { route, reason } = self;
        match reason {
            SkipReason::NotSelected(key) => write!(f, "{route} is not selected by {key}"),
            SkipReason::ForwardsTo(nothing) if nothing.is_empty() => {
                write!(f, "{route} has no destinations")
            }
            SkipReason::ForwardsTo(found) => {
                write!(f, "{route} forwards to {}", found.join(" and "))
            }
            SkipReason::Delegates(to) => write!(f, "{route} delegates to {}", to.join(" and ")),
            SkipReason::SplitBy(rollout) => write!(f, "{route} is split by Rollout {rollout}"),
            SkipReason::Action(action) => write!(f, "{route} is a {action}"),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnerWeights { route, rule } => {
                write!(
                    f,
                    "{route}: Gloo rejects the owner's weights: {rule}"
                )
            }
            Self::OwnerCanaryShare { route, canary } => write!(
                f,
                "{route}: the owner's weights give {canary} a share while nothing is rolled out, which the plugin removes: remove {canary} from the source of the table"
            ),
            Self::OnlyCanary {
                route,
                canary,
                share,
            } => write!(
                f,
                "{route}: {share} % of the traffic goes to {canary} and none to the stable Service, and the table has no record of a split; if that is not intended, set the stable Service in the route"
            ),
            Self::Repointed { route } => {
                write!(
                    f,
                    "{route} was changed to other destinations by its owner during the rollout; its record is removed, and nothing is restored in it"
                )
            }
            Self::RouteGone { route } => write!(
                f,
                "{route} was split and is not found any more: its record is kept until the rollout ends; if the route is in another table now, restore its destinations there"
            ),
            Self::Rebuilt { route } => write!(
                f,
                "{route}: annotation {ANNOTATION} is missing; the owner's destinations are rebuilt from the weights that were set last"
            ),
            Self::UnnamedService => f.write_str(
                "an experiment's Service has no name and gets no traffic: declare a containerPort; if there is one, abort and retry the rollout",
            ),
            Self::Unreached { route, by, rollout } => write!(
                f,
                "managed route {route} gets no requests: managed route {by} of Rollout {rollout} is before it and has the same matchers; give the step of one of them another match"
            ),
            Self::OnlyManagedRoutes => f.write_str(
                "the table has no http routes except managed ones, which stay because a table needs at least one: restore the owner's routes or delete the table",
            ),
        }
    }
}

struct Operations(Vec<PatchOperation>);

impl Operations {
    fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Destinations {
                path,
                expect,
                changes,
                ..
            } => {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                self.test(&path, expect.clone());
                let list = [path.as_slice(), &["destinations"]].concat();
                for change in changes {
                    self.destination(&list, change);
                }
            }
            Edit::Route {
                index,
                expect,
                value,
                ..
            } => {
                let path = ["spec", "http", &index.to_string()];
                if let Some(expect) = expect {
                    self.test(&path, expect.clone());
                }
                match (expect, value) {
                    (None, Some(value)) => self.add(&path, value.clone()),
                    (Some(_), Some(value)) => self.replace(&path, value.clone()),
                    (_, None) => self.remove(&path),
                }
            }
            Edit::Annotation {
                expect,
                value,
                others,
            } => {
                self.annotation(expect.as_deref(), value.as_deref(), *others);
            }
        }
    }

    fn destination(&mut self, list: &[&str], change: &DestinationChange) {
        let at = |index: &usize| index.to_string();
        match change {
            DestinationChange::SetWeight {
                index, from, to, ..
            } => {
                let index = at(index);
                let path = [list, &[&index, "weight"]].concat();
                match (from, to) {
                    (Some(_), Some(weight)) => self.replace(&path, weight.clone()),
                    (None, Some(weight)) => self.add(&path, weight.clone()),
                    (_, None) => self.remove(&path),
                }
            }
            DestinationChange::Replace { index, value, .. } => {
                self.replace(&[list, &[&at(index)]].concat(), value.clone());
            }
            DestinationChange::Remove { index, .. } => self.remove(&[list, &[&at(index)]].concat()),
            DestinationChange::Insert { index, value, .. } => {
                self.add(&[list, &[&at(index)]].concat(), value.clone());
            }
            DestinationChange::CreateList(destinations) => self.add(list, json!(destinations)),
            DestinationChange::RemoveList => self.remove(list),
        }
    }

    fn annotation(&mut self, expect: Option<&str>, value: Option<&str>, others: OtherAnnotations) {
        let map = ["metadata", "annotations"];
        let key = ["metadata", "annotations", ANNOTATION];
        if let Some(expect) = expect {
            self.test(&key, json!(expect));
        }
        match (value, others) {
            // A `test` cannot express that the map or the key is absent; the resource version guards that.
            (Some(value), OtherAnnotations::NoMap) => self.add(&map, json!({ ANNOTATION: value })),
            (Some(value), _) => self.add(&key, json!(value)),
            (None, OtherAnnotations::None) => self.remove(&map),
            (None, _) => self.remove(&key),
        }
    }

    /// Adds a `test` for `value`, or for those parts of it for which a `test` works in every API server.
    fn test(&mut self, path: &[&str], value: Value) {
        if is_equal_everywhere(&value) {
            self.0.push(PatchOperation::Test(TestOperation {
                path: pointer(path),
                value,
            }));
            return;
        }
        // The resource version, which is tested first, guards the parts that are not tested.
        if let Value::Object(fields) = value {
            for (key, part) in fields {
                self.test(&[path, &[&key]].concat(), part);
            }
        }
    }

    fn add(&mut self, path: &[&str], value: Value) {
        self.0.push(PatchOperation::Add(AddOperation {
            path: pointer(path),
            value,
        }));
    }

    fn replace(&mut self, path: &[&str], value: Value) {
        self.0.push(PatchOperation::Replace(ReplaceOperation {
            path: pointer(path),
            value,
        }));
    }

    fn remove(&mut self, path: &[&str]) {
        self.0.push(PatchOperation::Remove(RemoveOperation {
            path: pointer(path),
        }));
    }
}

/// Whether a `test` for `value` succeeds in an API server that stores exactly this value.
///
/// Kubernetes compares scalars as text (evanphx/json-patch v4, `lazyNode.equal`) with the output of Go's encoder, which
/// escapes `<`, `>`, `&` and two line separators and writes floats in its own form. It panics on `null` in a list.
fn is_equal_everywhere(value: &Value) -> bool {
    const ESCAPED_BY_GO: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];
    let is_plain = |text: &str| !text.contains(ESCAPED_BY_GO) && !text.contains(char::is_control);
    match value {
        Value::Null | Value::Bool(_) => true,
        Value::Number(number) => !number.is_f64(),
        Value::String(text) => is_plain(text),
        Value::Array(items) => items
            .iter()
            .all(|item| !item.is_null() && is_equal_everywhere(item)),
        Value::Object(fields) => fields.values().all(is_equal_everywhere),
    }
}

fn pointer(tokens: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(tokens.iter().copied())
}
