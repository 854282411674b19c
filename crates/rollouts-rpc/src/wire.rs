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
pub(crate) const LIMITS: Limits = Limits::STRICT
    .with_message_bytes(4 << 20)
    .with_value_messages(8192)
    .with_types(4096)
    .with_definition_bytes(256 << 10)
    .with_fields(1024)
    .with_name_bytes(1024)
    .with_depth(64)
    .with_interface_depth(4)
    .with_elements(4096);
