//! The kinds of the Kubernetes API that this crate reads as untyped JSON.

use gloo_types::Resource;
use serde_json::Value;

macro_rules! resources {
    ($($(#[$doc:meta])* $name:ident = $kind:literal, $plural:literal in $group:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum $name {}

        impl Resource for $name {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = "v1";
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;

            type Spec = Value;
            type Status = Value;
        }
    )*};
}

resources! {
    /// `v1` Service.
    Service = "Service", "services" in "";
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice = "EndpointSlice", "endpointslices" in "discovery.k8s.io";
    /// `v1` Pod, of which only the metadata is read.
    Pod = "Pod", "pods" in "";
}

#[cfg(feature = "kube")]
resources! {
    /// `coordination.k8s.io/v1` Lease.
    LeaseObject = "Lease", "leases" in "coordination.k8s.io";
    /// `v1` Event. The controller's role has no permission for Events of `events.k8s.io`.
    CoreEvent = "Event", "events" in "";
}
