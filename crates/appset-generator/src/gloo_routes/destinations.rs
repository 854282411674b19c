//! Where routes lead: which routes a request means by that, and what sets tell of it.

use gloo_types::{
    DestinationKind, DestinationReference, HttpRoute, ObjectReference, RouteTableSpec,
    effective_weights,
};
use strict_json::{Block, Problem};

use crate::Field;

/// What a request says about destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Destinations {
    stable: Option<Service>,
    /// One of these is enough; any kind without one.
    kinds: Vec<DestinationKind>,
    shown: bool,
    with_weights: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Service {
    name: String,
    /// The table's when absent.
    namespace: Option<String>,
}

impl Destinations {
    pub(super) fn read(parameters: &Block<'_>, by_table: bool) -> Result<Self, Problem> {
        let include = parameters.words("include", &["destinations", "weights"])?;
        if by_table && !include.is_empty() {
            return Err(Problem::Conflict {
                path: "include".to_owned(),
                other: "granularity",
            });
        }
        let service = parameters.block("stableService", &["name", "namespace"])?;
        let stable = match (
            service.object_name("name")?,
            service.object_name("namespace")?,
        ) {
            (Some(name), namespace) => Some(Service { name, namespace }),
            (None, Some(_)) => return Err(service.empty("name")),
            (None, None) => None,
        };
        let kinds = ["SERVICE", "VIRTUAL_DESTINATION", "EXTERNAL_SERVICE"];
        let kinds = parameters.words("destinationKinds", &kinds)?;
        Ok(Self {
            stable,
            kinds: kinds
                .into_iter()
                .map(|kind| kind.to_owned().into())
                .collect(),
            shown: !include.is_empty(),
            with_weights: include.contains(&"weights"),
        })
    }

    /// Whether it matters where routes lead.
    pub(super) fn select(&self) -> bool {
        self.stable.is_some() || !self.kinds.is_empty()
    }

    /// Whether a route of a table in `namespace` leads to what is asked for.
    pub(super) fn are_of(&self, route: &HttpRoute, spec: &RouteTableSpec, namespace: &str) -> bool {
        let all = spec.destinations_of(route);
        let is_stable = |service: &Service| {
            let wanted = service.namespace.as_deref().unwrap_or(namespace);
            objects(all).any(|(destination, object)| {
                destination.kind == DestinationKind::Service
                    && object.name == service.name
                    && object.namespace_from(namespace) == wanted
            })
        };
        let is_kind = |destination: &DestinationReference| self.kinds.contains(&destination.kind);
        self.stable.as_ref().is_none_or(is_stable)
            && (self.kinds.is_empty() || objects(all).any(|(destination, _)| is_kind(destination)))
    }

    /// The destinations of a route as a set has them, if it is to.
    pub(super) fn fields(
        &self,
        route: &HttpRoute,
        spec: &RouteTableSpec,
        namespace: &str,
    ) -> Option<(&'static str, Field)> {
        let all = spec.destinations_of(route);
        let weights = effective_weights(all);
        let fields = all.iter().zip(weights).filter_map(|(destination, weight)| {
            let object = destination.reference.as_ref()?;
            let own = [
                ("name", object.name.as_str().into()),
                ("namespace", object.namespace_from(namespace).into()),
                ("cluster", object.cluster.as_str().into()),
                ("port", port(destination).into()),
                ("kind", destination.kind.as_str().into()),
            ];
            let weight = self
                .with_weights
                .then(|| ("weight", weight.to_string().into()));
            Some(own.into_iter().chain(weight).collect())
        });
        self.shown
            .then(|| ("destinations", Field::List(fields.collect())))
    }
}

/// The destinations that are objects of a cluster, each with its reference.
fn objects(
    all: &[DestinationReference],
) -> impl Iterator<Item = (&DestinationReference, &ObjectReference)> {
    all.iter()
        .filter_map(|destination| Some((destination, destination.reference.as_ref()?)))
}

fn port(destination: &DestinationReference) -> String {
    let port = destination.port.as_ref();
    let number = port
        .and_then(|port| port.number)
        .map(|port| port.to_string());
    let name = || port.and_then(|port| port.name.clone());
    number.or_else(name).unwrap_or_default()
}
