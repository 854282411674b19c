//! The `spec` of a RouteTable.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::destination::{
    DestinationReference, DestinationSelector, ObjectReference, WorkloadSelector,
};
use crate::http_route::HttpRoute;
use crate::l4_route::{TcpRoute, TlsRoute};
use crate::open_enum::open_enum;

/// `spec` of a RouteTable; at least one of `http`, `tcp` and `tls` is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RouteTableSpec {
    /// Host names of a root table; unset in a delegated one.
    pub hosts: Vec<String>,
    /// Gateways of a root table.
    pub virtual_gateways: Vec<ObjectReference>,
    /// Workloads whose outgoing traffic is routed.
    #[cfg_attr(feature = "crd", schemars(length(max = 10000)))]
    pub workload_selectors: Vec<WorkloadSelector>,
    /// Destinations whose traffic is routed; root tables only.
    pub apply_to_destinations: Vec<DestinationSelector>,
    /// Destination of every http `forwardTo` that lists none.
    pub default_destination: Option<DestinationReference>,
    /// HTTP routes in order of precedence.
    #[cfg_attr(feature = "crd", schemars(length(max = 10000)))]
    pub http: Vec<HttpRoute>,
    /// TCP routes; in-mesh traffic only.
    #[cfg_attr(feature = "crd", schemars(length(max = 10000)))]
    pub tcp: Vec<TcpRoute>,
    /// TLS passthrough routes.
    #[cfg_attr(feature = "crd", schemars(length(max = 10000)))]
    pub tls: Vec<TlsRoute>,
    /// Priority among delegated tables, higher first. Not a traffic weight.
    pub weight: i32,
    /// Description for the developer portal.
    pub portal_metadata: Option<PortalMetadata>,
    /// What Gloo does with an invalid route; root tables only.
    pub failure_mode: FailureMode,
    /// Annotations of the generated VirtualService; root tables only.
    pub virtual_service_annotations: BTreeMap<String, String>,
}

impl RouteTableSpec {
    /// The destinations of an HTTP route that forwards: its own or, where it lists none, the table's default.
    pub fn destinations_of<'a>(&'a self, route: &'a HttpRoute) -> &'a [DestinationReference] {
        let action = route.forward_to.as_ref();
        match action.and_then(|action| action.destinations.as_deref()) {
            None | Some([]) => self.default_destination.as_slice(),
            Some(own) => own,
        }
    }
}

open_enum! {
    /// What Gloo does with an invalid route.
    pub enum FailureMode {
        /// The route answers 500.
        default RouteReplacement = "ROUTE_REPLACEMENT",
        /// The whole delegation tree keeps its last good configuration.
        FreezeConfig = "FREEZE_CONFIG",
    }
}

/// What the developer portal shows about the table's API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct PortalMetadata {
    /// Identifier of the API product; no spaces.
    pub api_product_id: String,
    /// Name of the API product.
    pub api_product_display_name: Option<String>,
    /// Version of the API.
    pub api_version: String,
    /// Title of the API.
    pub title: Option<String>,
    /// Description of the API.
    pub description: Option<String>,
    /// Link to the terms of service.
    pub terms_of_service: Option<String>,
    /// Who answers for the API.
    pub contact: Option<String>,
    /// License of the API.
    pub license: Option<String>,
    /// Stage of the API.
    pub lifecycle: Option<String>,
    /// More properties.
    pub custom_metadata: BTreeMap<String, String>,
}
