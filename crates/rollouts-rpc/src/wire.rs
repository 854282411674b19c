//! What goes over the wire, field by field under the names Go gave it.
//!
//! These names are frozen by every released controller. Nothing outside `from_wire`, `to_wire`, the
//! codec and the host half uses these types.

mod metric;
mod netrpc;
mod rollout;
mod router;
mod step;

pub(crate) use metric::*;
pub(crate) use netrpc::{Request, Response};
pub(crate) use rollout::*;
pub(crate) use router::*;
pub(crate) use step::*;

use gob::Limits;

/// What a peer may send. A controller's first call is about 22 KB with 245 types nested 17 deep;
/// etcd keeps objects below 1.5 MiB, and gob does not make them larger.
pub(crate) const LIMITS: Limits = Limits {
    message_bytes: 16 << 20,
    value_messages: 8192,
    types: 4096,
    definition_bytes: 4 << 20,
    fields: 1024,
    name_bytes: 1024,
    depth: 64,
    interface_depth: 4,
    elements: 1 << 16,
};
