//! The owner's side of a table: the document as the owner means it, and what may be expected of each route.
//!
//! What the plugin restores must be that document. Where an edit destroys what the plugin remembered, the bytes cannot come
//! back; [`Trust`] says what can still be expected.

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
    /// Of each http route of the document.
    pub(crate) trust: Vec<Trust>,
    pub(crate) is_deleted: bool,
    pub(crate) is_selected: bool,
    /// Whether the annotation is one that the owner made unreadable.
    pub(crate) is_spoiled: bool,
    /// Whether the owner has ever left weights that Gloo refuses: they are restored as any others, also in a copy.
    pub(crate) was_invalid: bool,
    /// Names and matchers of the routes that the plugin knows, with the annotation in which it wrote them.
    pub(crate) known: Vec<(Value, Value)>,
    recorded: Option<String>,
    pub(crate) cut: Option<Cut>,
    /// Counts what gets a new name.
    pub(crate) count: usize,
}

/// A route that its owner has cut and may paste.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) live: Value,
    pub(crate) owners: Value,
    pub(crate) trust: Trust,
    /// The Rollout that it leads to.
    pub(crate) rollout: Option<&'static str>,
    /// Whether the record of that Rollout went away since.
    pub(crate) is_forgotten: bool,
}

impl Cut {
    /// Whether there is a record that may be about the route.
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

    /// The live routes are those of the document.
    pub(crate) fn in_step(&mut self) {
        for (route, trust) in http(&self.document).iter().zip(&mut self.trust) {
            // Weights that might have been the plugin's have become the owner's text.
            if !destinations(route).iter().any(is_plugins) {
                *trust = Trust::Bytes;
            }
        }
    }

    /// Notes that the table was restored: what is there is the owner's from now on.
    pub(crate) fn adopt(&mut self, route: usize, live: &Value) {
        let trust = &mut self.trust[route];
        if *trust != Trust::Bytes && !destinations(live).iter().any(is_plugins) {
            http_mut(&mut self.document)[route] = live.clone();
            *trust = Trust::Bytes;
        }
    }

    /// Notes the live table after a call.
    pub(crate) fn see(&mut self, live: &Value) {
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
            // What is written now is not recorded.
            let routes = http(&self.document).iter().zip(owned(live));
            for ((owners, at), trust) in routes.zip(&mut self.trust) {
                // A route to the canary alone could be one that was split at 100 %.
                if destinations(owners).iter().any(is_plugins) {
                    *trust = Trust::Nothing;
                } else if !has_same_bytes(&http(live)[at], owners) {
                    *trust = trust.max_loss(Trust::Traffic);
                }
            }
        }
    }

    /// Without the record, weights that are not those of the status count as the owner's: the status may be older, or the table
    /// was not selected when it changed.
    pub(crate) fn meet_another_status(&mut self, live: &Value) {
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

    /// Whether a route, or the table, is such that the plugin cannot read it.
    pub(crate) fn is_broken(&self) -> bool {
        !self.is_deleted && (self.is_spoiled || http(&self.document).iter().any(is_broken))
    }
}

/// What may be expected of a route when it is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The owner's document, byte for byte.
    Bytes,
    /// The same division of traffic: the record of the route was destroyed, but the live table told enough.
    Traffic,
    /// Nothing: the plugin's weights cannot be distinguished from the owner's.
    Nothing,
}

/// What distinguishes the plugin's weights from the owner's if the record is gone.
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
            canary: controller.told.canary.into(),
            max: controller.max.into(),
            has_experiment: !controller.told.additional.is_empty(),
        }
    }
}

impl Trust {
    /// The lesser of two.
    pub(crate) fn max_loss(self, other: Self) -> Self {
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
