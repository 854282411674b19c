//! Lists of destinations: the one that is there, the one the owner wrote, and the changes between two of them.

use gloo_types::{DestinationKind, DestinationReference, effective_weights};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::edit::DestinationChange;
use crate::error::Refusal;
use crate::record::{Original, RouteRecord, unusable};
use crate::select::{DestinationId, Port, Reading};

/// One destination of a route.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// Position in the list that is there; `None` for one that is to be put in.
    live: Option<usize>,
    pub(crate) raw: Value,
    pub(crate) view: DestinationReference,
    /// `None` for what is not an object of a cluster.
    pub(crate) id: Option<DestinationId>,
}

/// How a route says where it leads. All but `Listed` mean the table's `defaultDestination`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ListForm {
    /// A list with at least one destination.
    #[default]
    Listed,
    /// No `destinations` key.
    Absent,
    /// An empty list.
    Empty,
}

/// The destinations of a route: those that are there, those the owner wrote, or those that are to be there.
#[derive(Clone, Debug)]
pub(crate) struct DestinationList {
    pub(crate) slots: Vec<Slot>,
    /// Unless `Listed`, the first slot stands for what the owner did not write out.
    pub(crate) form: ListForm,
}

impl ListForm {
    pub(crate) fn is_listed(&self) -> bool {
        *self == Self::Listed
    }
}

impl Slot {
    /// A destination that is not in the list yet.
    pub(crate) fn new(raw: Value, view: DestinationReference, reading: Reading<'_>) -> Self {
        let id = DestinationId::of(&view, reading);
        Self {
            live: None,
            raw,
            view,
            id,
        }
    }

    /// The same destination with another weight; `None` removes the key.
    pub(crate) fn weighing(mut self, weight: Option<Value>) -> Self {
        self.view.weight = weight
            .as_ref()
            .and_then(Value::as_u64)
            .and_then(|weight| weight.try_into().ok());
        if let Value::Object(raw) = &mut self.raw {
            match weight {
                Some(weight) => raw.insert("weight".to_owned(), weight),
                None => raw.shift_remove("weight"),
            };
        }
        self
    }

    /// A copy that leads elsewhere. What is the same, or does not matter, stays as written.
    pub(crate) fn leading_to(&self, id: DestinationId) -> Self {
        let mut copy = Self {
            live: None,
            ..self.clone()
        };
        let old = self.id.as_ref();
        let Self { raw, view, .. } = &mut copy;
        let reference = raw.get_mut("ref").and_then(Value::as_object_mut);
        if let (Some(raw), Some(view)) = (reference, &mut view.reference) {
            raw.insert("name".to_owned(), json!(id.name));
            id.name.clone_into(&mut view.name);
            if old.is_none_or(|old| old.namespace != id.namespace) {
                raw.insert("namespace".to_owned(), json!(id.namespace));
                id.namespace.clone_into(&mut view.namespace);
            }
            if old.is_none_or(|old| old.cluster != id.cluster) {
                raw.insert("cluster".to_owned(), json!(id.cluster));
                id.cluster.clone_into(&mut view.cluster);
            }
        }
        if let Value::Object(raw) = raw {
            if view.kind.as_str() != id.kind {
                raw.insert("kind".to_owned(), json!(id.kind));
                view.kind = DestinationKind::from(id.kind.clone());
            }
            if let Some(port) = id
                .port
                .as_ref()
                .filter(|port| Port::of(view).as_ref() != Some(port))
            {
                raw.insert("port".to_owned(), json!(port));
                view.port = Some(port.selector());
            }
            match id.subset.as_ref().filter(|subset| **subset != view.subset) {
                Some(subset) if subset.is_empty() => {
                    raw.shift_remove("subset");
                    view.subset.clear();
                }
                Some(subset) => {
                    raw.insert("subset".to_owned(), json!(subset));
                    view.subset.clone_from(subset);
                }
                None => {}
            }
        }
        copy.id = Some(id);
        copy
    }

    /// Whether this leads where `id` says, as far as that says it.
    pub(crate) fn is(&self, id: &DestinationId) -> bool {
        let port = || id.port.is_none() || id.port == Port::of(&self.view);
        let subset = || {
            id.subset
                .as_ref()
                .is_none_or(|subset| *subset == self.view.subset)
        };
        self.id.as_ref().is_some_and(|own| own.is_same_object(id)) && port() && subset()
    }

    /// Whether both lead to the same object.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        other.id.as_ref().is_some_and(|id| self.is(id))
    }

    /// The destination in messages.
    pub(crate) fn label(&self) -> String {
        self.id
            .as_ref()
            .map_or_else(|| self.view.to_string(), ToString::to_string)
    }

    /// The destination in messages, with its port.
    pub(crate) fn place(&self) -> String {
        match Port::of(&self.view) {
            Some(port) => format!("{} {port}", self.label()),
            None => self.label(),
        }
    }

    fn raw_weight(&self) -> Option<&Value> {
        self.raw.get("weight")
    }
}

impl DestinationList {
    /// The destinations that are there, in a `forwardTo` as written and in their typed view.
    pub(crate) fn live(
        raw: &Value,
        view: Option<&[DestinationReference]>,
        reading: Reading<'_>,
    ) -> Self {
        let form = match view {
            None => ListForm::Absent,
            Some([]) => ListForm::Empty,
            Some(_) => ListForm::Listed,
        };
        let raw = raw.get("destinations").and_then(Value::as_array);
        let both = raw.into_iter().flatten().zip(view.into_iter().flatten());
        let slots = both.enumerate().map(|(index, (raw, view))| Slot {
            live: Some(index),
            ..Slot::new(raw.clone(), view.clone(), reading)
        });
        Self {
            slots: slots.collect(),
            form,
        }
    }

    /// What the owner's list is, given what is there and what we remember to have changed.
    ///
    /// `None` when nothing of ours is left in the list: the owner has pointed the route elsewhere.
    pub(crate) fn undo(
        &self,
        record: &RouteRecord,
        default: Option<&Slot>,
        reading: Reading<'_>,
    ) -> Result<Option<Self>, Refusal> {
        let mut originals = Vec::new();
        for Original { at, destination } in &record.originals {
            let view = DestinationReference::deserialize(destination).map_err(unusable)?;
            // What told destinations apart when the record was written does so still, whatever the configuration says now.
            let then = Reading {
                by: record.by,
                ..reading
            };
            let id = DestinationId::of(&view, then)
                .ok_or_else(|| unusable("an original without ref"))?;
            let slot = Slot::new(destination.clone(), view, reading);
            originals.push((*at, id, slot));
        }
        let is_added = |slot: &Slot| record.added.iter().any(|id| slot.is(id));
        let is_ours =
            |slot: &Slot| is_added(slot) || originals.iter().any(|(_, id, _)| slot.is(id));
        let was_reapplied = !self.form.is_listed() && !record.list.is_listed();
        if !was_reapplied && !self.slots.iter().any(is_ours) {
            return Ok(None);
        }

        // Positions count in the owner's list, which others may have changed since. What was put in stands where the
        // stable destination was; the others are found from their neighbours.
        let mut stand_in = self.slots.iter().position(is_added);
        let mut slots: Vec<Slot> = self
            .slots
            .iter()
            .filter(|slot| !is_added(slot))
            .cloned()
            .collect();
        for (at, id, original) in &originals {
            if let Some(slot) = slots.iter_mut().find(|slot| slot.is(id)) {
                *slot = slot.clone().weighing(original.raw_weight().cloned());
                stand_in = None;
                continue;
            }
            let neighbours = originals.iter().filter_map(|(other_at, other, _)| {
                Some((*other_at, slots.iter().position(|slot| slot.is(other))?))
            });
            let nearest = neighbours.min_by_key(|(other_at, _)| other_at.abs_diff(*at));
            let position = match (stand_in.take(), nearest) {
                (Some(index), _) => index,
                (None, Some((other_at, index))) if other_at < *at => index + (at - other_at),
                (None, Some((other_at, index))) => (index + 1).saturating_sub(other_at - at),
                (None, None) => *at,
            };
            slots.insert(position.min(slots.len()), original.clone());
        }
        let owners = Self {
            slots,
            form: record.list,
        };
        Ok(Some(owners.materialised(default)))
    }

    /// Writes out the table's default destination, in front of what the owner may have added to a list of ours.
    pub(crate) fn materialised(mut self, default: Option<&Slot>) -> Self {
        if !self.form.is_listed() {
            self.slots.splice(..0, default.cloned());
        }
        self
    }

    /// The list to leave behind: as the owner wrote it, unless the default now has company.
    pub(crate) fn resting(self) -> Self {
        let form = if self.slots.len() > 1 {
            ListForm::Listed
        } else {
            self.form
        };
        Self { form, ..self }
    }

    pub(crate) fn holds(&self, slot: &Slot) -> bool {
        self.slots.iter().any(|here| here.is_same(slot))
    }

    /// Whether both lists are the same JSON.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.form == other.form
            && self
                .slots
                .iter()
                .map(|slot| &slot.raw)
                .eq(other.slots.iter().map(|slot| &slot.raw))
    }

    /// Effective weight of each slot, as Gloo reads the list.
    pub(crate) fn effective_weights(&self) -> Vec<u32> {
        effective_weights(&self.views())
    }

    pub(crate) fn views(&self) -> Vec<DestinationReference> {
        self.slots.iter().map(|slot| slot.view.clone()).collect()
    }

    /// The changes that turn this list, which is there, into `target`.
    pub(crate) fn changes_to(&self, target: Self) -> Vec<DestinationChange> {
        match (self.form, target.form) {
            (ListForm::Absent, ListForm::Listed) => {
                let list = target.slots.into_iter().map(|slot| slot.raw).collect();
                return vec![DestinationChange::CreateList(list)];
            }
            (ListForm::Listed, ListForm::Absent) => return vec![DestinationChange::RemoveList],
            (_, ListForm::Listed) | (ListForm::Listed, _) => {}
            (_, _) => return Vec::new(),
        }
        let target = if target.form.is_listed() {
            self.linked(target.slots)
        } else {
            Vec::new()
        };

        let mut changes = Vec::new();
        for (index, here) in self.slots.iter().enumerate() {
            let kept = target.iter().find(|slot| slot.live == Some(index));
            if let Some(slot) = kept.filter(|slot| slot.raw_weight() != here.raw_weight()) {
                changes.push(DestinationChange::SetWeight {
                    index,
                    destination: slot.label(),
                    from: here.raw_weight().cloned(),
                    to: slot.raw_weight().cloned(),
                });
            }
        }
        for (index, slot) in self.slots.iter().enumerate().rev() {
            if !target.iter().any(|kept| kept.live == Some(index)) {
                changes.push(DestinationChange::Remove {
                    index,
                    destination: slot.label(),
                });
            }
        }
        let missing = target
            .into_iter()
            .enumerate()
            .filter(|(_, slot)| slot.live.is_none());
        for (index, slot) in missing {
            let destination = slot.label();
            changes.push(DestinationChange::Insert {
                index,
                destination,
                value: slot.raw,
            });
        }
        changes
    }

    /// Finds for each target slot the one that is there already, as long as that keeps the order of both lists.
    fn linked(&self, target: Vec<Slot>) -> Vec<Slot> {
        let mut next = 0;
        let link = |slot: Slot| {
            let same = |here: &&Slot| slot.id.is_some() && here.id == slot.id;
            let index = slot
                .live
                .or_else(|| self.slots.iter().find(same).and_then(|here| here.live));
            match index.and_then(|index| self.slots.get(index)) {
                Some(here) if here.live >= Some(next) => {
                    next = here.live.map_or(next, |index| index + 1);
                    // What the owner changed in it meanwhile stays; only the weight is ours.
                    here.clone().weighing(slot.raw_weight().cloned())
                }
                _ => Slot { live: None, ..slot },
            }
        };
        target.into_iter().map(link).collect()
    }
}
