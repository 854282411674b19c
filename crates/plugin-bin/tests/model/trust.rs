//! What may be expected of what the plugin hands back, after edits that destroy what it remembered.

use crate::controller::{Controller, Roles};

/// What may be expected of a route when it is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The owner's document, byte for byte.
    Bytes,
    /// The same division of traffic: the record of the route was destroyed, but the live table told enough.
    Traffic,
    /// Nothing: nobody can tell the plugin's weights from the owner's.
    Nothing,
}

/// What tells the plugin's weights from the owner's where the record is gone.
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
