//! What goes over the wire, field by field under the names Go gave it.
//!
//! These names are frozen by every released controller. Nothing outside `from_wire`, `to_wire`, the
//! codec and the host half uses these types.

mod metric;
mod netrpc;
mod router;
mod step;

pub(crate) use metric::*;
pub(crate) use netrpc::{Request, Response};
pub(crate) use router::*;
pub(crate) use step::*;

use gob::Limits;

/// What a peer may send. A controller's first call is about 22 KB with 245 types nested 17 deep; the API server
/// takes no object above 3 MiB, and gob does not make it larger. Whatever an author of Rollouts can exceed
/// here ends a call, not the session.
pub(crate) const LIMITS: Limits = Limits {
    message_bytes: 4 << 20,
    value_messages: 8192,
    types: 4096,
    definition_bytes: 256 << 10,
    fields: 1024,
    name_bytes: 1024,
    depth: 64,
    interface_depth: 4,
    elements: 4096,
};
