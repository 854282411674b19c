//! The planner's only memory: one annotation on the table, with what each Rollout changed and what was there before.
//!
//! ```json
//! {"version":1,"rollouts":{"shop/reviews":{"routes":[{
//!   "route":{"name":"list","at":1},
//!   "share":80,
//!   "originals":[{"at":0,"destination":{"ref":{"name":"reviews"},"weight":80}}],
//!   "added":[{"namespace":"shop","name":"reviews-canary"}]
//! }]}}}
//! ```
//!
//! Text that cannot be read is refused rather than repaired: with it the originals are unknown, and guessing could
//! remove what the owner wrote.

use gloo_types::{ObjectKey, RouteTableDoc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::destinations::ListForm;
use crate::edit::{Edit, OtherAnnotations};
use crate::error::Refusal;
use crate::select::{DestinationId, Distinction, Protocol, Route};

/// Key of the annotation that holds what was changed. A table at rest has no such annotation.
pub const ANNOTATION: &str = "rollouts-plugin-trafficrouter-glooplatform/changes";

const FORMAT: u32 = 1;

/// The annotation: the records of all Rollouts, of which only one is ours to read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Records {
    version: u32,
    rollouts: Map<String, Value>,
}

/// What one Rollout changed in a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Record {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) routes: Vec<RouteRecord>,
}

/// What one Rollout changed in a route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteRecord {
    pub(crate) route: RouteKey,
    /// Percent of the route's traffic that was ours to split.
    pub(crate) share: u32,
    /// The owner's destinations that were changed or taken out, the stable one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) originals: Vec<Original>,
    /// The destinations that were put in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) added: Vec<DestinationId>,
    /// What tells destinations apart, beside the object they lead to.
    #[serde(default, skip_serializing_if = "Distinction::is_none")]
    pub(crate) by: Distinction,
    /// What the owner wrote in place of a list.
    #[serde(default, skip_serializing_if = "ListForm::is_listed")]
    pub(crate) list: ListForm,
}

/// A destination as the owner wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Original {
    /// Position in the owner's list.
    pub(crate) at: usize,
    pub(crate) destination: Value,
}

/// How a route is recognised: by a name no other route has, else by its matchers. The position breaks ties.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteKey {
    #[serde(default, rename = "in", skip_serializing_if = "Protocol::is_http")]
    protocol: Protocol,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    matchers: Option<Value>,
    at: usize,
}

impl Records {
    /// Reads the annotation of a table.
    pub(crate) fn read(table: &RouteTableDoc) -> Result<Self, Refusal> {
        let Some(text) = table
            .annotations()
            .and_then(|annotations| annotations.get(ANNOTATION))
        else {
            return Ok(Self {
                version: FORMAT,
                rollouts: Map::new(),
            });
        };
        let records: Self = serde_json::from_str(text).map_err(unreadable)?;
        if records.version != FORMAT {
            return Err(unreadable(format!(
                "format {} is not {FORMAT}",
                records.version
            )));
        }
        Ok(records)
    }

    /// The Rollouts that changed something, as `namespace/name`.
    pub(crate) fn rollouts(&self) -> impl Iterator<Item = &str> {
        self.rollouts.keys().map(String::as_str)
    }

    /// The record of one Rollout; empty when it changed nothing.
    pub(crate) fn of(&self, rollout: &ObjectKey) -> Result<Record, Refusal> {
        match self.rollouts.get(&rollout.to_string()) {
            None => Ok(Record::default()),
            Some(record) => Record::deserialize(record).map_err(unreadable),
        }
    }

    /// The edit that replaces the record of one Rollout; `None` when it stays as it is.
    pub(crate) fn replace(
        mut self,
        table: &RouteTableDoc,
        rollout: &ObjectKey,
        old: &Record,
        new: &Record,
    ) -> Result<Option<Edit>, Refusal> {
        if old == new {
            return Ok(None);
        }
        let rollout = rollout.to_string();
        if *new == Record::default() {
            // Keep the order of the other Rollouts: `remove` would swap.
            self.rollouts.shift_remove(&rollout);
        } else {
            self.rollouts
                .insert(rollout, serde_json::to_value(new).map_err(unreadable)?);
        }
        let value = if self.rollouts.is_empty() {
            None
        } else {
            Some(serde_json::to_string(&self).map_err(unreadable)?)
        };
        let annotations = table.annotations();
        Ok(Some(Edit::Annotation {
            expect: annotations.and_then(|annotations| annotations.get(ANNOTATION).cloned()),
            value,
            others: match annotations {
                None => OtherAnnotations::NoMap,
                Some(map) if map.keys().all(|key| key == ANNOTATION) => OtherAnnotations::None,
                Some(_) => OtherAnnotations::Some,
            },
        }))
    }
}

impl RouteKey {
    /// The key of a route. `old` is kept when it differs in the position only: that alone is no reason to write.
    pub(crate) fn of(route: &Route<'_>, old: Option<&Self>) -> Self {
        let key = Self {
            protocol: route.protocol,
            name: route.named.then(|| route.name.to_owned()),
            matchers: route.matchers.filter(|_| !route.named).cloned(),
            at: route.at,
        };
        match old {
            Some(old) if old.recognises(route) => old.clone(),
            _ => key,
        }
    }

    fn recognises(&self, route: &Route<'_>) -> bool {
        self.protocol == route.protocol
            && match &self.name {
                Some(name) => route.named && *name == route.name,
                None => !route.named && self.matchers.as_ref() == route.matchers,
            }
    }

    fn stands_at(&self, route: &Route<'_>) -> bool {
        self.protocol == route.protocol && self.at == route.at
    }

    /// The route in messages.
    pub(crate) fn label(&self) -> String {
        match &self.name {
            Some(name) => format!("route {name}"),
            None => format!("route {}[{}]", self.protocol.key(), self.at),
        }
    }
}

impl Record {
    /// For each route, the record that is about it. The second part tells the records whose route is not found.
    ///
    /// Names decide first, then matchers: of several routes with the same, the nearest that still `holds` what only we can
    /// have put in. Last, a route that its owner renamed or gave other matchers is recognised by where it stands.
    pub(crate) fn locate(
        &self,
        routes: &[Route<'_>],
        holds: impl Fn(&Route<'_>, &RouteRecord) -> bool,
    ) -> (Vec<Option<&RouteRecord>>, Vec<&RouteRecord>) {
        let mut found: Vec<Option<&RouteRecord>> = vec![None; routes.len()];
        let by_key = |record: &RouteRecord, route: &Route<'_>| record.route.recognises(route);
        let in_place = |record: &RouteRecord, route: &Route<'_>| {
            record.route.stands_at(route) && holds(route, record)
        };
        let mut lost: Vec<&RouteRecord> = self.routes.iter().collect();
        for fits in [
            &by_key as &dyn Fn(&RouteRecord, &Route<'_>) -> bool,
            &in_place,
        ] {
            lost.retain(|record| {
                let free = routes
                    .iter()
                    .zip(&mut found)
                    .filter(|(_, taken)| taken.is_none());
                let best =
                    free.filter(|(route, _)| fits(record, route))
                        .min_by_key(|(route, _)| {
                            (!holds(route, record), route.at.abs_diff(record.route.at))
                        });
                match best {
                    Some((_, place)) => {
                        *place = Some(record);
                        false
                    }
                    None => true,
                }
            });
        }
        (found, lost)
    }
}

fn unreadable(reason: impl ToString) -> Refusal {
    Refusal::Record {
        annotation: ANNOTATION,
        reason: reason.to_string(),
    }
}

/// The refusal for a record whose content makes no sense.
pub(crate) fn unusable(reason: impl ToString) -> Refusal {
    unreadable(reason)
}
