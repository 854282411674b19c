//! Calls in the encoding of a Go host, with arguments that no Go host sends.

use std::collections::BTreeMap;

use gob::{Encoder, GobType};
use serde::Serialize;

gob::gob_struct! {
    struct Request as "Request" {
        service_method: String as "ServiceMethod",
        seq: u64 as "Seq",
    }

    pub(crate) struct RemoveManagedRoutesArgs as "RemoveManagedRoutesArgs" {
        pub(crate) rollout: Rollout as "Rollout",
    }

    pub(crate) struct Rollout as "Rollout" {
        pub(crate) object_meta: ObjectMeta as "ObjectMeta",
        pub(crate) spec: RolloutSpec as "Spec",
    }

    pub(crate) struct ObjectMeta as "ObjectMeta" {
        pub(crate) name: String as "Name",
        pub(crate) annotations: BTreeMap<String, String> as "Annotations",
        /// A field that the plugin skips.
        pub(crate) managed_fields: Vec<String> as "ManagedFields",
    }

    pub(crate) struct RolloutSpec as "RolloutSpec" {
        pub(crate) strategy: RolloutStrategy as "Strategy",
    }

    pub(crate) struct RolloutStrategy as "RolloutStrategy" {
        pub(crate) canary: Option<CanaryStrategy> as "Canary",
    }

    pub(crate) struct CanaryStrategy as "CanaryStrategy" {
        pub(crate) steps: Vec<CanaryStep> as "Steps",
    }

    pub(crate) struct CanaryStep as "CanaryStep" {
        pub(crate) set_weight: Option<i32> as "SetWeight",
    }
}

gob::gob_interface! {
    pub(crate) enum Argument {
        RemoveManagedRoutes(RemoveManagedRoutesArgs) as "RemoveManagedRoutesArgs",
    }
}

/// Encodes the host's direction of one stream.
pub(crate) struct Calls {
    gob: Encoder,
    seq: u64,
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self {
            gob: Encoder::new(),
            seq: 0,
        }
    }

    /// Returns the bytes of the next call.
    pub(crate) fn call<A: GobType + Serialize>(&mut self, method: &str, argument: &A) -> Vec<u8> {
        let header = Request {
            service_method: method.to_owned(),
            seq: self.seq,
        };
        self.seq += 1;
        let mut bytes = Vec::new();
        self.gob.encode(&header, &mut bytes).unwrap();
        self.gob.encode(argument, &mut bytes).unwrap();
        bytes
    }

    /// Returns the bytes of a RemoveManagedRoutes call.
    pub(crate) fn remove(&mut self, rollout: Rollout) -> Vec<u8> {
        let argument = Argument::RemoveManagedRoutes(RemoveManagedRoutesArgs { rollout });
        self.call("Plugin.RemoveManagedRoutes", &Some(argument))
    }
}

/// Returns a Rollout of about this size.
pub(crate) fn heavy(bytes: usize) -> Rollout {
    let annotation = ("note".to_owned(), "x".repeat(bytes));
    Rollout {
        object_meta: ObjectMeta {
            annotations: [annotation].into(),
            ..ObjectMeta::default()
        },
        ..Rollout::default()
    }
}

/// Returns a Rollout with this many steps of one byte each.
pub(crate) fn stepped(steps: usize) -> Rollout {
    let canary = CanaryStrategy {
        steps: vec![CanaryStep::default(); steps],
    };
    Rollout {
        spec: RolloutSpec {
            strategy: RolloutStrategy {
                canary: Some(canary),
            },
        },
        ..Rollout::default()
    }
}
