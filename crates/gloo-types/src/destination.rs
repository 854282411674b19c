//! Destinations of routes and their weights, and the selectors of objects that several parts of the API use.

use std::collections::BTreeMap;
use std::fmt;

use crate::declare::{open_enum, views};

views! {
    /// One destination of a `forwardTo` action, or a table's `defaultDestination`.
    pub struct DestinationReference {
        /// The object that gets the traffic. Excludes `awsLambda`.
        #[serde(rename = "ref")]
        pub reference: Option<ObjectReference>,
        /// An AWS Lambda function. Excludes `ref`.
        pub aws_lambda: Option<AwsLambdaReference>,
        /// Kind of the object; `SERVICE` if absent.
        pub kind: DestinationKind,
        /// Port of the object; required if it has several.
        pub port: Option<PortSelector>,
        /// Labels of the endpoints that get the traffic. For Kubernetes destinations only.
        pub subset: BTreeMap<String, String>,
        /// Share of the route's traffic in percent. Gloo treats 0 as absent; this crate distinguishes them, to restore a table
        /// exactly.
        pub weight: Option<u32>,
    }
}

impl DestinationReference {
    /// The weight, unless it is absent or 0: Gloo treats both as unset.
    pub fn set_weight(&self) -> Option<u32> {
        self.weight.filter(|weight| *weight > 0)
    }
}

/// `Kind name`, for messages.
impl fmt::Display for DestinationReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.reference, &self.aws_lambda) {
            (Some(reference), _) => write!(f, "{} {reference}", self.kind.word()),
            (None, Some(lambda)) => write!(f, "AWS Lambda {}", lambda.function),
            (None, None) => f.write_str("a destination without ref"),
        }
    }
}

views! {
    /// Reference to an object, which may be in another namespace or cluster.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct ObjectReference {
        /// Name of the object.
        pub name: String,
        /// Namespace of the object; empty means the namespace of the table.
        pub namespace: String,
        /// Cluster of the object; empty means the cluster of the table.
        pub cluster: String,
    }
}

impl ObjectReference {
    /// Namespace of the object, for a reference in a table of `table_namespace`.
    pub fn namespace_from<'a>(&'a self, table_namespace: &'a str) -> &'a str {
        match self.namespace.as_str() {
            "" => table_namespace,
            namespace => namespace,
        }
    }
}

/// The parts that are set, separated by `/`.
impl fmt::Display for ObjectReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.cluster.is_empty() {
            write!(f, "{}/", self.cluster)?;
        }
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

open_enum! {
    /// Kind of the object that a destination refers to.
    pub enum DestinationKind {
        /// A Kubernetes Service.
        default Service = "SERVICE",
        /// A Gloo VirtualDestination.
        VirtualDestination = "VIRTUAL_DESTINATION",
        /// A Gloo ExternalService; not for TCP routes.
        ExternalService = "EXTERNAL_SERVICE",
    }
}

impl DestinationKind {
    /// The kind of the object, as Kubernetes names it.
    pub fn word(&self) -> &str {
        Self::word_of(self.as_str())
    }

    /// As [`word`](Self::word), for a kind as RouteTables have it.
    pub fn word_of(kind: &str) -> &str {
        match kind {
            "" | "SERVICE" => "Service",
            "VIRTUAL_DESTINATION" => "VirtualDestination",
            "EXTERNAL_SERVICE" => "ExternalService",
            other => other,
        }
    }
}

views! {
    /// Selects a port by number or by name; exactly one is set.
    pub struct PortSelector {
        /// Port number, 1 to 65535.
        #[cfg_attr(feature = "crd", schemars(range(min = 1, max = 65535)))]
        pub number: Option<u32>,
        /// Port name.
        pub name: Option<String>,
    }
}

/// The number or the name.
impl fmt::Display for PortSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{number}"),
            None => f.write_str(self.name.as_deref().unwrap_or_default()),
        }
    }
}

views! {
    /// Selects objects of a workspace. An empty field selects any.
    pub struct ObjectSelector {
        /// Labels that must all be present.
        pub labels: BTreeMap<String, String>,
        /// Name of the object.
        pub name: String,
        /// Namespace of the object.
        pub namespace: String,
        /// Cluster of the object.
        pub cluster: String,
        /// Workspace of the object.
        pub workspace: String,
    }

    /// Selects workloads.
    pub struct WorkloadSelector {
        /// Selects the workloads.
        pub selector: Option<ObjectSelector>,
        /// `KUBE` or `VM`.
        #[cfg_attr(feature = "crd", schemars(extend("enum" = ["KUBE", "VM"])))]
        pub kind: Option<String>,
        /// Port of the workload.
        pub port: Option<PortSelector>,
    }

    /// Selects destinations.
    pub struct DestinationSelector {
        /// Selects the objects.
        pub selector: Option<ObjectSelector>,
        /// Kind of the objects.
        pub kind: DestinationKind,
        /// Port of the objects.
        pub port: Option<PortSelector>,
    }
}

impl DestinationSelector {
    /// Whether a destination of a table in `table_namespace` may be selected. What is not known counts as selected: labels and
    /// workspace of the object, its cluster if the destination sets none, and its port if one side is a name.
    ///
    /// Source: `DestinationSelector` and `ObjectSelector` in `common/v2/selectors.proto` of `solo-io/solo-apis`. An absent
    /// namespace selects all namespaces of the workspace.
    pub fn may_select(&self, to: &DestinationReference, table_namespace: &str) -> bool {
        let Some(object) = &to.reference else {
            return false;
        };
        let any = ObjectSelector::default();
        let selector = self.selector.as_ref().unwrap_or(&any);
        let fits = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
        let number = |port: Option<&PortSelector>| port.and_then(|port| port.number);
        let numbers = (number(self.port.as_ref()), number(to.port.as_ref()));
        self.kind == to.kind
            && fits(&selector.name, &object.name)
            && fits(&selector.namespace, object.namespace_from(table_namespace))
            && (object.cluster.is_empty() || fits(&selector.cluster, &object.cluster))
            && !matches!(numbers, (Some(wanted), Some(found)) if wanted != found)
    }
}

views! {
    /// A Lambda function of an AWS CloudProvider.
    pub struct AwsLambdaReference {
        /// The CloudProvider object.
        pub cloud_provider: Option<ObjectReference>,
        /// Name of the function.
        pub function: String,
        /// Version or alias of the function.
        pub qualifier: String,
        /// How the function is invoked.
        pub options: Option<LambdaOptions>,
    }

    /// Options of the call of a Lambda function.
    pub struct LambdaOptions {
        /// `REQUEST_DEFAULT` or `REQUEST_DISABLE`.
        #[cfg_attr(feature = "crd", schemars(extend("enum" = ["REQUEST_DEFAULT", "REQUEST_DISABLE"])))]
        pub request_transformation: Option<String>,
        /// `RESPONSE_DEFAULT` or `RESPONSE_DISABLE`.
        #[cfg_attr(feature = "crd", schemars(extend("enum" = ["RESPONSE_DEFAULT", "RESPONSE_DISABLE"])))]
        pub response_transformation: Option<String>,
        /// `SYNC` or `ASYNC`.
        #[cfg_attr(feature = "crd", schemars(extend("enum" = ["SYNC", "ASYNC"])))]
        pub invocation_style: Option<String>,
    }
}

/// Computes the share of traffic, in percent, that each destination of a route gets.
///
/// A weight that is set is the share. Destinations without a weight, or with 0 (proto3 cannot distinguish the two), divide
/// the remainder to 100 equally: rounded down, and at least 1 each (Gloo API reference, `DestinationReference.weight`). The
/// sum is 100 if Gloo accepts the weights and the remainder divides evenly.
pub fn effective_weights(destinations: &[DestinationReference]) -> Vec<u32> {
    let weights: Vec<Option<u32>> = destinations.iter().map(|to| to.weight).collect();
    weight_shares(&weights)
}

/// As [`effective_weights`], for weights without their destinations.
pub fn weight_shares(weights: &[Option<u32>]) -> Vec<u32> {
    let set = |weight: &Option<u32>| weight.filter(|weight| *weight > 0);
    let sum: u64 = weights.iter().filter_map(set).map(u64::from).sum();
    let unset = weights
        .iter()
        .filter(|weight| set(weight).is_none())
        .count();
    let remainder = u32::try_from(100_u64.saturating_sub(sum)).unwrap_or(0);
    let share = u32::try_from(unset)
        .ok()
        .and_then(|unset| remainder.checked_div(unset))
        .unwrap_or(0);
    let weights = weights.iter();
    weights
        .map(|weight| set(weight).unwrap_or(share.max(1)))
        .collect()
}
