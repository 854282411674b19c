//! The `spec` of a RouteTable: HTTP, TCP and TLS routes with their matchers and actions.
//!
//! TCP and TLS routes have neither names nor labels. They are distinguished by a port or a server name (SNI).

use std::collections::BTreeMap;

use crate::declare::{open_enum, views};
use crate::destination::{
    DestinationReference, DestinationSelector, ObjectReference, ObjectSelector, WorkloadSelector,
};

views! {
    /// `spec` of a RouteTable; at least one of `http`, `tcp` and `tls` is set.
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
}

impl RouteTableSpec {
    /// The destinations of an HTTP route that forwards: those it lists or, if it lists none, the table's default.
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
        /// The route responds with status 500.
        default RouteReplacement = "ROUTE_REPLACEMENT",
        /// The whole delegation tree keeps its last valid configuration.
        FreezeConfig = "FREEZE_CONFIG",
    }
}

views! {
    /// What the developer portal shows about the table's API.
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
        /// Contact for the API.
        pub contact: Option<String>,
        /// License of the API.
        pub license: Option<String>,
        /// Stage of the API.
        pub lifecycle: Option<String>,
        /// Additional properties.
        pub custom_metadata: BTreeMap<String, String>,
    }

    /// One entry of `spec.http`. The first entry that matches a request is used.
    pub struct HttpRoute {
        /// Name, unique within the table; may be empty.
        pub name: String,
        /// Labels by which policies select the route.
        pub labels: BTreeMap<String, String>,
        /// Alternatives: one must match. Empty matches any request.
        pub matchers: Vec<HttpRequestMatcher>,
        /// Sends the request to destinations.
        pub forward_to: Option<ForwardToAction>,
        /// Delegates to other tables.
        pub delegate: Option<DelegateAction>,
        /// Responds with a redirect.
        pub redirect: Option<RedirectAction>,
        /// Responds without a destination.
        pub direct_response: Option<DirectResponseAction>,
        /// Resolves the request as GraphQL.
        pub graphql: Option<GraphqlAction>,
    }

    /// Conditions on a request. All that are set must match.
    pub struct HttpRequestMatcher {
        /// In the API, but not supported by Gloo.
        pub name: Option<String>,
        /// Path of the request.
        pub uri: Option<StringMatch>,
        /// All must match.
        pub headers: Vec<HeaderMatcher>,
        /// All must match.
        pub query_parameters: Vec<QueryParameterMatcher>,
        /// HTTP method.
        pub method: Option<String>,
        /// Port on which the request arrived, 0 to 65535.
        #[cfg_attr(feature = "crd", schemars(range(max = 65535)))]
        pub port: Option<u32>,
    }

    /// A match of a string. Exactly one of `exact`, `prefix`, `regex` and `suffix` is set.
    pub struct StringMatch {
        /// The whole string.
        pub exact: Option<String>,
        /// The start of the string.
        pub prefix: Option<String>,
        /// A regular expression in RE2 syntax that matches the whole string.
        pub regex: Option<String>,
        /// The end of the string. In the API, but not supported by Gloo.
        pub suffix: Option<String>,
        /// Whether case is ignored.
        pub ignore_case: Option<bool>,
    }

    /// A condition on one request header.
    pub struct HeaderMatcher {
        /// Name of the header.
        pub name: String,
        /// Value of the header. If absent, the header only has to be present.
        pub value: Option<String>,
        /// Whether the value is a regular expression.
        pub regex: Option<bool>,
        /// Whether the condition is negated.
        pub invert_match: Option<bool>,
    }

    /// A condition on one query parameter.
    pub struct QueryParameterMatcher {
        /// Name of the parameter.
        pub name: String,
        /// Value of the parameter.
        pub value: Option<String>,
        /// Whether the value is a regular expression.
        pub regex: Option<bool>,
    }

    /// Sends requests (HTTP) or connections (TCP) to destinations.
    pub struct ForwardToAction {
        /// At most 100. Absent and empty both mean the table's `defaultDestination`, but are different values here.
        #[cfg_attr(feature = "crd", schemars(length(max = 100)))]
        pub destinations: Option<Vec<DestinationReference>>,
        /// Replaces the matched path. HTTP only; excludes `regexRewrite`.
        pub path_rewrite: Option<String>,
        /// Rewrites the path by a pattern. HTTP only; excludes `pathRewrite`.
        pub regex_rewrite: Option<RegexRewrite>,
        /// Replaces the host. HTTP only; excludes `autoHostRewrite`.
        pub host_rewrite: Option<String>,
        /// Uses the host name of the destination. HTTP only. An explicit `false` differs from an absent value.
        pub auto_host_rewrite: Option<bool>,
    }

    /// A path rewrite by regular expression.
    pub struct RegexRewrite {
        /// The pattern.
        pub pattern: Option<RegexPattern>,
        /// The replacement of a match.
        pub substitution: Option<String>,
    }

    /// A regular expression, as Envoy's configuration has it.
    pub struct RegexPattern {
        /// Options of the engine.
        pub google_re2: Option<GoogleRe2>,
        /// A regular expression in RE2 syntax.
        pub regex: Option<String>,
    }

    /// Options of RE2.
    pub struct GoogleRe2 {
        /// A limit of the size of the program. Envoy ignores it.
        pub max_program_size: Option<u32>,
    }

    /// Delegates requests to other route tables.
    pub struct DelegateAction {
        /// Selects the tables.
        pub route_tables: Vec<ObjectSelector>,
        /// Restricts the routes of these tables.
        pub allowed_routes: Vec<RouteFilter>,
        /// How routes of several tables are ordered.
        pub sort_method: SortMethod,
    }
}

open_enum! {
    /// Order of the routes of several delegated tables.
    pub enum SortMethod {
        /// By the weight of the table, then in the order of the table.
        default TableWeight = "TABLE_WEIGHT",
        /// Most specific path first.
        RouteSpecificity = "ROUTE_SPECIFICITY",
    }
}

views! {
    /// A restriction of delegated routes.
    pub struct RouteFilter {
        /// The allowed functions of a cloud.
        pub cloud_provider: Option<CloudProviderFilter>,
    }

    /// The allowed functions of a cloud.
    pub struct CloudProviderFilter {
        /// The allowed functions of AWS.
        pub aws: Option<AwsFilter>,
    }

    /// Patterns of the allowed AWS accounts, roles, regions and functions. An empty list allows all.
    pub struct AwsFilter {
        /// Accounts.
        pub account_ids: Vec<String>,
        /// Roles.
        pub iam_roles: Vec<String>,
        /// Regions.
        pub regions: Vec<String>,
        /// Functions.
        pub lambda_functions: Vec<String>,
    }

    /// Responds with a redirect.
    pub struct RedirectAction {
        /// Host to redirect to.
        pub host_redirect: Option<String>,
        /// Path to redirect to.
        pub path_redirect: Option<String>,
        /// HTTP status of the response.
        pub response_code: RedirectCode,
    }
}

open_enum! {
    /// HTTP status of a redirect.
    pub enum RedirectCode {
        /// 301.
        default MovedPermanently = "MOVED_PERMANENTLY",
        /// 302.
        Found = "FOUND",
        /// 303.
        SeeOther = "SEE_OTHER",
        /// 307.
        TemporaryRedirect = "TEMPORARY_REDIRECT",
        /// 308.
        PermanentRedirect = "PERMANENT_REDIRECT",
    }
}

views! {
    /// Responds without a destination.
    pub struct DirectResponseAction {
        /// HTTP status, 100 to 599.
        #[cfg_attr(feature = "crd", schemars(range(min = 100, max = 599)))]
        pub status: u32,
        /// Body, at most 1 MiB.
        #[cfg_attr(feature = "crd", schemars(length(max = 1_048_576)))]
        pub body: Option<String>,
    }

    /// Resolves the request as GraphQL. Exactly one of the two schemas is set.
    pub struct GraphqlAction {
        /// A GraphQLSchema object.
        pub schema: Option<GraphqlSchemaReference>,
        /// A GraphQLStitchedSchema object.
        pub stitched_schema: Option<GraphqlSchemaReference>,
        /// Options of the resolution.
        pub options: Option<GraphqlOptions>,
    }

    /// Name of a GraphQL schema object.
    pub struct GraphqlSchemaReference {
        /// Name of the object.
        pub name: String,
        /// Namespace of the object.
        pub namespace: String,
        /// Cluster of the object.
        pub cluster_name: String,
    }

    /// Options of a GraphQL action.
    pub struct GraphqlOptions {
        /// Whether sensitive data may be logged.
        pub log_sensitive_info: Option<bool>,
    }

    /// One entry of `spec.tcp`.
    pub struct TcpRoute {
        /// Alternatives: one must match. Empty matches any connection.
        pub matchers: Vec<TcpMatcher>,
        /// Destinations of the connections: 1 to 100, without rewrites.
        pub forward_to: Option<ForwardToAction>,
    }

    /// A condition on a TCP connection.
    pub struct TcpMatcher {
        /// Port on which the connection arrived, 0 to 65535.
        #[cfg_attr(feature = "crd", schemars(range(max = 65535)))]
        pub port: Option<u32>,
    }

    /// One entry of `spec.tls`: TLS passthrough by server name (SNI).
    pub struct TlsRoute {
        /// Alternatives: one must match.
        pub matchers: Vec<TlsMatcher>,
        /// Destinations of the connections.
        pub forward_to: Option<TlsForwardToAction>,
    }

    /// A condition on a TLS connection.
    pub struct TlsMatcher {
        /// At least one server name. It may start with `*.`.
        pub sni_hosts: Vec<String>,
        /// Port on which the connection arrived, 0 to 65535.
        #[cfg_attr(feature = "crd", schemars(range(max = 65535)))]
        pub port: Option<u32>,
    }

    /// Sends TLS connections to destinations.
    pub struct TlsForwardToAction {
        /// 1 to 100 destinations.
        #[cfg_attr(feature = "crd", schemars(length(min = 1, max = 100)))]
        pub destinations: Option<Vec<DestinationReference>>,
    }
}
