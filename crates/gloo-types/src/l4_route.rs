//! TCP and TLS routes. They have neither names nor labels: a port or an SNI host distinguishes them.

use serde::Deserialize;

use crate::destination::DestinationReference;
use crate::http_route::ForwardToAction;

/// One entry of `spec.tcp`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TcpRoute {
    /// Alternatives: one must match. Empty matches any connection.
    #[serde(default)]
    pub matchers: Vec<TcpMatcher>,
    /// Where connections go; 1 to 100 destinations, no rewrites.
    pub forward_to: Option<ForwardToAction>,
}

/// A condition on a TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
pub struct TcpMatcher {
    /// Port the connection came in on.
    pub port: Option<u32>,
}

/// One entry of `spec.tls`: passthrough by SNI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TlsRoute {
    /// Alternatives: one must match.
    #[serde(default)]
    pub matchers: Vec<TlsMatcher>,
    /// Where connections go.
    pub forward_to: Option<TlsForwardToAction>,
}

/// A condition on a TLS connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TlsMatcher {
    /// Server names; at least one, a leading `*.` is allowed.
    #[serde(default)]
    pub sni_hosts: Vec<String>,
    /// Port the connection came in on.
    pub port: Option<u32>,
}

/// Sends TLS connections to destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
pub struct TlsForwardToAction {
    /// 1 to 100 destinations.
    #[cfg_attr(feature = "crd", schemars(length(max = 100)))]
    pub destinations: Option<Vec<DestinationReference>>,
}
