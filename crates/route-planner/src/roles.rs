//! Which destinations of a route are the Rollout's, and how one that is missing is made from the owner's.
//!
//! Splitting weights, header routes and mirror routes all ask here, so that they mean the same destinations.

use crate::destinations::{DestinationList, Slot};
use crate::error::Refusal;
use crate::intent::Intent;
use crate::record::RouteRecord;
use crate::select::Route;

/// The Rollout's destinations in their current roles.
pub(crate) struct Roles<'a> {
    pub(crate) stable: Role<'a>,
    pub(crate) canary: Role<'a>,
}

/// What the destination in one role looks like. What is not said here is as in the owner's destination.
pub(crate) struct Role<'a> {
    /// Traffic may be moved only between Services in the Rollout's namespace.
    namespace: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> Roles<'a> {
    pub(crate) fn new(intent: &'a Intent) -> Result<Self, Refusal> {
        let stable = intent.services.stable.as_str();
        let canary = intent.services.canary.as_str();
        for (role, service) in [("stable", stable), ("canary", canary)] {
            if service.is_empty() {
                return Err(Refusal::NoService { role });
            }
        }
        if stable == canary {
            return Err(Refusal::SameService(stable.to_owned()));
        }
        let namespace = intent.rollout.namespace.as_str();
        Ok(Self {
            stable: Role {
                namespace,
                name: stable,
            },
            canary: Role {
                namespace,
                name: canary,
            },
        })
    }

    /// The role of an experiment's Service.
    pub(crate) fn additional(&self, service: &'a str) -> Role<'a> {
        Role {
            namespace: self.stable.namespace,
            name: service,
        }
    }

    /// The destination by which the owner's list leads to the Rollout, if it does: the stable one or, in a route that is
    /// split already, the canary. With ping-pong the two change roles at the end of a rollout, and the owner's destination
    /// stays in one of them.
    pub(crate) fn anchor(
        &self,
        owners: &DestinationList,
        record: Option<&RouteRecord>,
    ) -> Option<Slot> {
        let canary = record.and_then(|_| self.canary.find(owners).next());
        self.stable.find(owners).next().or(canary).cloned()
    }
}

impl Role<'_> {
    /// The destinations of a list that are in this role.
    pub(crate) fn find<'l>(&'l self, list: &'l DestinationList) -> impl Iterator<Item = &'l Slot> {
        list.slots.iter().filter(|slot| self.is(slot))
    }

    pub(crate) fn is(&self, slot: &Slot) -> bool {
        slot.id
            .as_ref()
            .is_some_and(|id| id.is_service(self.namespace, self.name))
    }

    /// A destination in this role, made from the owner's `anchor`: a copy of it that leads elsewhere.
    ///
    /// # Errors
    /// When the copy would inherit a subset, which selects no pod of the other version.
    pub(crate) fn made_from(&self, anchor: &Slot, route: &Route<'_>) -> Result<Slot, Refusal> {
        if anchor.view.subset.is_empty() {
            Ok(self.copy_of(anchor))
        } else {
            Err(Refusal::Subset {
                route: route.label(),
                from: anchor.label(),
            })
        }
    }

    /// The copy, whether it may be used or not: what it leads to is known in any case.
    pub(crate) fn copy_of(&self, anchor: &Slot) -> Slot {
        anchor.renamed(self.name)
    }

    /// The role in messages.
    pub(crate) fn label(&self) -> String {
        format!("SERVICE {}/{}", self.namespace, self.name)
    }
}
