//! The backend of a destination, which becomes an Envoy cluster, and the name of that cluster.

use std::collections::BTreeMap;
use std::fmt;

use gloo_types::{DestinationKind, DestinationReference, PortSelector};

use crate::{Reason, Refusal};

/// The endpoints to which a destination forwards. Two destinations with the same backend share a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Kind of the object.
    pub kind: DestinationKind,
    /// Cluster of the object; empty means the cluster of the table.
    pub cluster: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Port of the object; `None` means its only port.
    pub port: Option<Port>,
    /// Labels of the Pods; empty means all Pods.
    pub subset: BTreeMap<String, String>,
}

/// A port, by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// Its number.
    Number(u32),
    /// Its name.
    Name(String),
}

impl Backend {
    /// The backend of a destination in a table of `table_namespace`.
    pub(crate) fn of(to: &DestinationReference, table_namespace: &str) -> Result<Self, Refusal> {
        let Some(reference) = &to.reference else {
            return Err(match to.aws_lambda {
                Some(_) => Refusal::new("awsLambda", Reason::NotModelled),
                None => Refusal::new("", Reason::NotOne("ref, awsLambda")),
            });
        };
        if reference.name.is_empty() {
            return Err(Refusal::new("ref.name", Reason::Invalid(String::new())));
        }
        if let DestinationKind::Other(kind) = &to.kind {
            return Err(Refusal::new("kind", Reason::Invalid(kind.clone())));
        }
        Ok(Self {
            kind: to.kind.clone(),
            cluster: reference.cluster.clone(),
            namespace: reference.namespace_from(table_namespace).to_owned(),
            name: reference.name.clone(),
            port: to.port.as_ref().and_then(port),
            subset: to.subset.clone(),
        })
    }
}

fn port(selector: &PortSelector) -> Option<Port> {
    let number = selector.number.map(Port::Number);
    number.or_else(|| selector.name.clone().map(Port::Name))
}

/// The name of the cluster: `shop/reviews:8080`. A kind other than Service, a cluster and a subset are included:
/// `VIRTUAL_DESTINATION east/shop/reviews:http?track=canary`.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind != DestinationKind::Service {
            write!(f, "{} ", self.kind)?;
        }
        if !self.cluster.is_empty() {
            write!(f, "{}/", self.cluster)?;
        }
        write!(f, "{}/{}", self.namespace, self.name)?;
        match &self.port {
            Some(Port::Number(number)) => write!(f, ":{number}")?,
            Some(Port::Name(name)) => write!(f, ":{name}")?,
            None => {}
        }
        for (index, (key, value)) in self.subset.iter().enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            write!(f, "{separator}{key}={value}")?;
        }
        Ok(())
    }
}
