//! The planner's answer as a value: the edits of a table, the routes that are skipped and why, and warnings.

use std::fmt;

use gloo_types::{MirrorPolicyDoc, ObjectKey, RouteTableDoc, Rule};
use json_patch::jsonptr::PointerBuf;
use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation,
};
use serde_json::{Value, json};

use crate::error::{PlanError, Refusal};
use crate::mirror_policy::{Policies, PolicyChange};
use crate::ownership::ANNOTATION;

/// The answer for one table. [`Plan::to_json_patch`] turns it into what a store can apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The table.
    pub table: ObjectKey,
    /// `metadata.resourceVersion` the plan was made on; the patch applies to no other.
    pub resource_version: Option<String>,
    /// The changes, in the order they are applied.
    pub edits: Vec<Edit>,
    /// Routes that are skipped.
    pub skipped: Vec<Skip>,
    /// What the owner of the table should know.
    pub warnings: Vec<Warning>,
    /// Whether nothing of any Rollout is left in the table after this plan, so that the table is its owner's again.
    pub hands_back: bool,
    /// Whether something of the plan's Rollout is in the table after it: a record, or a managed route.
    pub leaves_marks: bool,
    /// The Rollout that the plan is made for.
    pub(crate) rollout: ObjectKey,
    /// Why some routes, records or managed routes stay as they are although the intent asks for a change.
    pub(crate) left: Vec<Refusal>,
    /// Whether the canary or an experiment gets a larger share of any route.
    pub(crate) grows: bool,
    /// Whether the canary gets a smaller share of a route that is split.
    pub(crate) shrinks: bool,
    /// What the plan asks of MirrorPolicies.
    pub(crate) policies: Option<Policies>,
}

impl Plan {
    /// The plan that leaves `table` as it is.
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

    /// Whether the share of the canary, or of an experiment, grows on any route.
    pub fn grows(&self) -> bool {
        self.grows
    }

    /// Whether the share of the canary shrinks on any route that is recorded as split.
    pub fn takes_from_canary(&self) -> bool {
        self.shrinks
    }

    /// One error for each route, record or managed route that the plan leaves as it is although the intent asks for a
    /// change. Report them after the plan is carried out, so that the controller asks again.
    pub fn left(&self) -> impl Iterator<Item = PlanError> {
        self.left.iter().map(|refusal| PlanError::Refused {
            table: self.table.clone(),
            rollout: self.rollout.clone(),
            refusal: Box::new(refusal.clone()),
        })
    }

    /// Whether nothing has to be written.
    pub fn is_noop(&self) -> bool {
        self.edits.is_empty()
    }

    /// Whether MirrorPolicies have to be read, for [`Plan::policy_changes`].
    pub fn needs_policies(&self) -> bool {
        self.policies.as_ref().is_some_and(Policies::is_needed)
    }

    /// The changes of the MirrorPolicies behind this table's mirror routes. `live` are those that exist.
    ///
    /// # Errors
    /// Returns `Err` if a policy that the plugin did not make may also apply to a mirror route, or cannot be read.
    pub fn policy_changes(&self, live: &[MirrorPolicyDoc]) -> Result<Vec<PolicyChange>, PlanError> {
        match &self.policies {
            Some(policies) => policies.changes(live),
            None => Ok(Vec::new()),
        }
    }

    /// Whether traffic moves. A plan may also change no more than our annotation.
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

    /// The table after the edits; `None` if it is not the table that was planned on.
    pub fn applied_to(&self, table: &RouteTableDoc) -> Option<RouteTableDoc> {
        let after = gloo_types::patched(table.raw().clone(), &self.to_json_patch()).ok()?;
        RouteTableDoc::from_value(after).ok()
    }
}

impl Edit {
    /// Whether this changes where traffic goes.
    pub fn moves_traffic(&self) -> bool {
        !matches!(self, Self::Annotation { .. })
    }
}

/// One change of a table, with what it expects to find.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// Changes the destinations of one route.
    Destinations {
        /// The route, for messages.
        route: String,
        /// Path of the route's `forwardTo`, token by token.
        path: Vec<String>,
        /// The `forwardTo` that must be there.
        expect: Value,
        /// The changes. Indices count after the changes before.
        changes: Vec<DestinationChange>,
    },
    /// Inserts a managed route.
    InsertRoute {
        /// Position in `spec.http`, after the edits before.
        index: usize,
        /// Its name.
        name: String,
        /// The whole route.
        value: Value,
    },
    /// Replaces a managed route.
    ReplaceRoute {
        /// Position in `spec.http`, after the edits before.
        index: usize,
        /// Its name.
        name: String,
        /// The route that must be there.
        expect: Value,
        /// The whole new route.
        value: Value,
    },
    /// Removes a managed route.
    RemoveRoute {
        /// Position in `spec.http`, after the edits before.
        index: usize,
        /// Its name.
        name: String,
        /// The route that must be there.
        expect: Value,
    },
    /// Sets or removes our annotation.
    Annotation {
        /// The value that must be there.
        expect: Option<String>,
        /// The new value; `None` removes the annotation.
        value: Option<String>,
        /// What else `metadata.annotations` holds.
        others: OtherAnnotations,
    },
}

/// What `metadata.annotations` holds beside our annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherAnnotations {
    /// There is no such map.
    NoMap,
    /// Nothing: the map goes when our annotation goes.
    None,
    /// Annotations of others.
    Some,
}

/// One change in a list of destinations.
#[derive(Clone, Debug, PartialEq)]
pub enum DestinationChange {
    /// Changes the weight in place. `None` is an absent key.
    SetWeight {
        /// Position in the list.
        index: usize,
        /// The destination, for messages.
        destination: String,
        /// Weight that is there.
        from: Option<Value>,
        /// Weight that is to be there.
        to: Option<Value>,
    },
    /// Replaces a destination that was inserted, after its owner changed the stable one.
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
    /// Writes a list where there was none.
    CreateList(Vec<Value>),
    /// Removes the whole list.
    RemoveList,
}

/// A route that is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The route.
    pub route: String,
    /// Why.
    pub reason: SkipReason,
}

/// Why a route is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// This key of the configuration does not select it.
    NotSelected(&'static str),
    /// It leads to these destinations, not to the stable Service.
    LeadsTo(Vec<String>),
    /// It delegates to other tables, selected by name or labels.
    Delegates(Vec<String>),
    /// It has another action.
    Action(&'static str),
    /// Another Rollout with the same stable destination splits it.
    SplitBy(String),
}

/// Something the owner of a table should know; the plan is carried out all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The owner's weights break a rule of Gloo.
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
    /// A route sends everything to the canary, and it is unknown whether its owner wants that: the record of the table is
    /// lost, and other routes lead to stable.
    OnlyCanary {
        /// The route.
        route: String,
        /// The canary Service.
        canary: String,
    },
    /// The owner pointed a route elsewhere while it was split: nothing is restored.
    Repointed {
        /// The route.
        route: String,
    },
    /// A split route is no longer there, or cannot be recognised.
    RouteGone {
        /// The route.
        route: String,
    },
    /// The record of a split route was lost; what it was before is taken from the weights that were set last.
    Rebuilt {
        /// The route.
        route: String,
    },
    /// An experiment's Service has no name, because its pods declare no port.
    UnnamedService,
    /// The table has no http route but managed ones, which stay: without them it would be invalid.
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
            Self::InsertRoute { name, .. } => write!(f, "managed route {name} inserted"),
            Self::ReplaceRoute { name, .. } => write!(f, "managed route {name} replaced"),
            Self::RemoveRoute { name, .. } => write!(f, "managed route {name} removed"),
            Self::Annotation { value: None, .. } => f.write_str("forget the originals"),
            Self::Annotation { .. } => f.write_str("remember the originals"),
        }
    }
}

impl fmt::Display for DestinationChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = |weight: Option<&Value>| weight.map_or("unset".to_owned(), Value::to_string);
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
                write!(f, "{} destinations instead of the default", list.len())
            }
            Self::RemoveList => f.write_str("back to the default destination"),
        }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { route, reason } = self;
        match reason {
            SkipReason::NotSelected(key) => write!(f, "{route} is not selected by {key}"),
            SkipReason::LeadsTo(nothing) if nothing.is_empty() => {
                write!(f, "{route} leads nowhere")
            }
            SkipReason::LeadsTo(found) => write!(f, "{route} leads to {}", found.join(" and ")),
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
                    "{route}: the owner's weights are invalid to Gloo: {rule}"
                )
            }
            Self::OwnerCanaryShare { route, canary } => write!(
                f,
                "{route}: the table itself gives {canary} a share while nothing is rolled out; it is taken out until the next rollout"
            ),
            Self::OnlyCanary { route, canary } => write!(
                f,
                "{route}: all traffic goes to {canary}, and no record says that it was split; unless it is meant to, lead it to the stable Service"
            ),
            Self::Repointed { route } => {
                write!(
                    f,
                    "{route} was pointed elsewhere during the rollout; what was there before is forgotten"
                )
            }
            Self::RouteGone { route } => write!(
                f,
                "{route} was split and is not found any more: its original is kept until the rollout ends; if it is in another table now, restore it there"
            ),
            Self::Rebuilt { route } => write!(
                f,
                "{route}: annotation {ANNOTATION} is gone; its original is rebuilt from the weights that were set last"
            ),
            Self::UnnamedService => f.write_str(
                "an experiment's Service has no name and gets no traffic: declare a containerPort",
            ),
            Self::OnlyManagedRoutes => f.write_str(
                "managed routes are the table's only http routes and stay, since it needs one: restore the owner's routes or delete the table",
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
            Edit::InsertRoute { index, value, .. } => {
                self.add(&["spec", "http", &index.to_string()], value.clone());
            }
            Edit::ReplaceRoute {
                index,
                expect,
                value,
                ..
            } => {
                let path = ["spec", "http", &index.to_string()];
                self.test(&path, expect.clone());
                self.replace(&path, value.clone());
            }
            Edit::RemoveRoute { index, expect, .. } => {
                let path = ["spec", "http", &index.to_string()];
                self.test(&path, expect.clone());
                self.remove(&path);
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
            // The resource version guards what no `test` can express: that there is no such map or key.
            (Some(value), OtherAnnotations::NoMap) => self.add(&map, json!({ ANNOTATION: value })),
            (Some(value), _) => self.add(&key, json!(value)),
            (None, OtherAnnotations::None) => self.remove(&map),
            (None, _) => self.remove(&key),
        }
    }

    /// Tests for `value`, or for those parts of it that every API server finds equal to themselves.
    fn test(&mut self, path: &[&str], value: Value) {
        if is_equal_everywhere(&value) {
            self.0.push(PatchOperation::Test(TestOperation {
                path: pointer(path),
                value,
            }));
            return;
        }
        // The resource version, which is tested first, guards what is left out.
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

/// Whether a `test` for `value` holds in an API server that has it.
///
/// Kubernetes compares scalars as text (evanphx/json-patch v4, `lazyNode.equal`) with what Go's encoder writes, which
/// escapes `<`, `>`, `&` and two line separators and has its own form of floats. On null in a list it panics.
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
