//! The Service, for the port that its clients use.

use gloo_types::Resource;
use serde_json::Value;

/// `v1` Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Service {}

impl Resource for Service {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Service";
    const PLURAL: &'static str = "services";

    type Spec = Value;
    type Status = Value;
}

/// The first port of a Service.
pub(crate) fn first_port(service: &Value) -> Option<u32> {
    let port = service.pointer("/spec/ports/0/port")?.as_u64()?;
    u32::try_from(port).ok()
}
