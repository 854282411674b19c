//! The owner's view of a table: the owner's document, and what may be expected of each route.
//!
//! The plugin must restore that document. If an edit destroys the plugin's record, the bytes cannot be restored; [`Trust`]
//! says what can still be expected.

use gloo_types::ObjectKey;
use serde_json::Value;

use crate::controller::{Controller, Roles};
use crate::documents::{annotation, destinations, has_same_bytes, http, http_mut, id, owned};

/// One RouteTable, as its owner sees it.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) key: ObjectKey,
    /// The owner's document.
    pub(crate) document: Value,
    /// What may be expected of each HTTP route of the document.
    pub(crate) trust: Vec<Trust>,
    pub(crate) is_deleted: bool,
    pub(crate) is_selected: bool,
    /// Whether the owner has made the annotation unreadable.
    pub(crate) is_spoiled: bool,
    /// Whether the owner has ever written weights that Gloo refuses. They are restored as any others, also in a copy.
    pub(crate) was_invalid: bool,
    /// Names and matchers of the routes when the plugin last wrote the annotation.
    pub(crate) known: Vec<(Value, Value)>,
    recorded: Option<String>,
    pub(crate) cut: Option<Cut>,
    /// Counter for new names.
    pub(crate) count: usize,
}

/// A route that its owner has removed and may insert again.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) live: Value,
    pub(crate) owners: Value,
    pub(crate) trust: Trust,
    /// The Rollout to which it forwards.
    pub(crate) rollout: Option<&'static str>,
    /// Whether the record of that Rollout was removed since.
    pub(crate) is_forgotten: bool,
}

impl Cut {
    /// Whether a record exists that may belong to the route.
    pub(crate) fn is_recorded(&self, live: &Value) -> bool {
        let key = |rollout| format!("\"shop/{rollout}\"");
        let has_key = |text: &str| self.rollout.is_none_or(|it| text.contains(&key(it)));
        annotation(live).is_some_and(has_key)
    }
}

impl Table {
    pub(crate) fn new(document: Value) -> Self {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        Self {
            key: ObjectKey::new("shop", name),
            trust: vec![Trust::Bytes; http(&document).len()],
            document,
            is_deleted: false,
            is_selected: true,
            is_spoiled: false,
            was_invalid: false,
            known: Vec::new(),
            recorded: None,
            cut: None,
            count: 0,
        }
    }

    pub(crate) fn recreate(&mut self) -> Value {
        self.is_deleted = false;
        self.is_spoiled = false;
        if let Some(cut) = &mut self.cut {
            cut.is_forgotten = true;
        }
        self.in_step();
        self.document.clone()
    }

    /// Notes that the live routes equal those of the document.
    pub(crate) fn in_step(&mut self) {
        for (route, trust) in http(&self.document).iter().zip(&mut self.trust) {
            // Weights that may be the plugin's are now the owner's text.
            if !destinations(route).iter().any(is_plugins) {
                *trust = Trust::Bytes;
            }
        }
    }

    /// Notes that a route was restored: the live route is now the owner's.
    pub(crate) fn adopt(&mut self, route: usize, live: &Value) {
        let trust = &mut self.trust[route];
        if *trust != Trust::Bytes && !destinations(live).iter().any(is_plugins) {
            http_mut(&mut self.document)[route] = live.clone();
            *trust = Trust::Bytes;
        }
    }

    /// Notes the live table after a call.
    pub(crate) fn note_live(&mut self, live: &Value) {
        let recorded = annotation(live).map(str::to_owned);
        if recorded.is_none() || recorded != self.recorded {
            let routes = http(live).iter();
            let known = routes.map(|route| (route["name"].clone(), route["matchers"].clone()));
            self.known = known.collect();
            self.recorded = recorded;
        }
        if let Some(cut) = &mut self.cut {
            cut.is_forgotten |= !cut.is_recorded(live);
        }
        if self.is_spoiled {
            // Current writes are not recorded.
            let routes = http(&self.document).iter().zip(owned(live));
            for ((owners, at), trust) in routes.zip(&mut self.trust) {
                // A route to the canary alone could be one that was split at 100 %.
                if destinations(owners).iter().any(is_plugins) {
                    *trust = Trust::Nothing;
                } else if !has_same_bytes(&http(live)[at], owners) {
                    *trust = trust.min(Trust::Traffic);
                }
            }
        }
    }

    /// Without the record, weights that differ from the status count as the owner's. The status may be older, or the table
    /// was not selected when the status changed.
    pub(crate) fn note_another_status(&mut self, live: &Value) {
        if annotation(live).is_some() {
            return;
        }
        let at = owned(live);
        for (route, trust) in self.trust.iter_mut().enumerate() {
            if *trust == Trust::Traffic {
                *trust = Trust::Nothing;
                http_mut(&mut self.document)[route] = http(live)[at[route]].clone();
            }
        }
    }

    /// Whether the plugin cannot read the table or a route of it.
    pub(crate) fn is_broken(&self) -> bool {
        !self.is_deleted && (self.is_spoiled || http(&self.document).iter().any(is_broken))
    }
}

/// What may be expected of a restored route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The owner's document, byte for byte.
    Bytes,
    /// The same division of traffic: the record of the route was destroyed, but the live table had enough information.
    Traffic,
    /// Nothing: the plugin's weights cannot be distinguished from the owner's.
    Nothing,
}

/// What distinguishes the plugin's weights from the owner's if the record is lost.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) rollout: &'static str,
    pub(crate) roles: Roles,
    pub(crate) canary: i64,
    pub(crate) max: i64,
    pub(crate) has_experiment: bool,
}

impl Status {
    pub(crate) fn of(controller: &Controller) -> Self {
        Self {
            rollout: controller.name(),
            roles: controller.pass().roles,
            canary: controller.weights.canary.into(),
            max: controller.max.into(),
            has_experiment: !controller.weights.additional.is_empty(),
        }
    }
}

impl Trust {
    /// Returns the lesser of two.
    pub(crate) fn min(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Nothing) => Self::Nothing,
            (Self::Traffic, _) | (_, Self::Traffic) => Self::Traffic,
            (Self::Bytes, Self::Bytes) => Self::Bytes,
        }
    }
}

pub(crate) fn is_broken(route: &Value) -> bool {
    destinations(route).iter().any(Value::is_string)
}

/// Whether a destination has a name that owners do not write.
pub(crate) fn is_plugins(destination: &Value) -> bool {
    let (name, hash) = id(destination);
    name.ends_with("-canary")
        || name.ends_with("-pong")
        || name == crate::controller::EXPERIMENT
        || hash.is_some()
}
