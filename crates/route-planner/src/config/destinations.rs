//! The keys that describe the Rollout's destinations if they are not simply Services of its own namespace.

use std::collections::BTreeMap;

use gloo_types::ObjectKey;
use strict_json::Problem;

use crate::config_reader::Block;
use crate::destinations::Port;
use crate::error::ConfigProblem;

/// What the configuration says about the destinations in both roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DestinationConfig {
    pub(crate) stable: RoleConfig,
    /// Unset fields inherit from `stable`, except for name and subset.
    pub(crate) canary: RoleConfig,
    pub(crate) pods: Option<PodSubset>,
}

/// The destination in one role. An unset field is not compared, and stays as the owner wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleConfig {
    /// `SERVICE` when absent.
    pub(crate) kind: Option<String>,
    /// The Service of that role when absent.
    pub(crate) name: Option<String>,
    /// The Rollout's namespace when absent.
    pub(crate) namespace: Option<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) port: Option<Port>,
    pub(crate) subset: Option<BTreeMap<String, String>>,
}

/// One Service for both roles, which are distinguished by a subset with the hash of their Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodSubset {
    pub(crate) service: String,
    /// The label of pods that holds the hash.
    pub(crate) label: String,
}

const SERVICE: &str = "SERVICE";

impl DestinationConfig {
    /// Reads the keys. Namespaces other than the Rollout's must be `allowed`.
    pub(super) fn read(
        block: &Block<'_>,
        rollout: &ObjectKey,
        allowed: &[String],
    ) -> Result<Self, ConfigProblem> {
        let check = |path: String, namespace: Option<&String>| match namespace {
            Some(namespace) if *namespace != rollout.namespace && !allowed.contains(namespace) => {
                Err(ConfigProblem::NamespaceNotAllowed {
                    path,
                    namespace: namespace.clone(),
                })
            }
            _ => Ok(()),
        };
        let legacy = RoleConfig {
            kind: kind(block, "destinationKind")?,
            namespace: block.object_name("destinationNamespace")?,
            ..RoleConfig::default()
        };
        check("destinationNamespace".to_owned(), legacy.namespace.as_ref())?;
        let mut roles = Vec::new();
        for key in ["stableDestination", "canaryDestination"] {
            let block = block.block(key)?;
            let role = RoleConfig::read(&block)?;
            check(block.path("namespace"), role.namespace.as_ref())?;
            roles.push(role);
        }
        let canary = roles.pop().unwrap_or_default();
        let stable = roles.pop().unwrap_or_default();

        let pods = PodSubset::read(block)?;
        if pods.is_some() {
            let fixed = [
                (
                    "destinationKind",
                    legacy.kind.as_deref() != Some(SERVICE) && legacy.kind.is_some(),
                ),
                (
                    "stableDestination.kind",
                    stable.kind.as_deref() != Some(SERVICE) && stable.kind.is_some(),
                ),
                ("stableDestination.name", stable.name.is_some()),
                ("stableDestination.subset", stable.subset.is_some()),
                ("canaryDestination", canary != RoleConfig::default()),
            ];
            if let Some((path, _)) = fixed.into_iter().find(|(_, set)| *set) {
                return Err(Problem::Conflict {
                    path: path.to_owned(),
                    other: "subset",
                }
                .into());
            }
        }
        let stable = stable.or(&legacy);
        let canary = canary.or(&stable);
        for (path, role) in [
            ("stableDestination", &stable),
            ("canaryDestination", &canary),
        ] {
            let kind = role.kind.as_deref().unwrap_or(SERVICE);
            if role.subset.is_some() && kind != SERVICE {
                return Err(Problem::Value {
                    path: format!("{path}.kind"),
                    found: kind.to_owned(),
                    expected: "SERVICE beside a subset".into(),
                }
                .into());
            }
        }
        Ok(Self {
            stable,
            canary,
            pods,
        })
    }
}

impl RoleConfig {
    fn read(block: &Block<'_>) -> Result<Self, Problem> {
        let port = block.block("port")?;
        let port = match (port.port("number")?, port.string("name")?) {
            (Some(_), Some(_)) => {
                return Err(Problem::Conflict {
                    path: port.path("number"),
                    other: "name",
                });
            }
            (Some(number), None) => Some(Port::Number(number)),
            (None, Some("") | None) => None,
            (None, Some(name)) => Some(Port::Name(name.to_owned())),
        };
        let subset = block.labels("subset")?;
        Ok(Self {
            kind: kind(block, "kind")?,
            name: block.object_name("name")?,
            namespace: block.object_name("namespace")?,
            cluster: block.object_name("cluster")?,
            port,
            subset: (!subset.is_empty()).then_some(subset),
        })
    }

    /// Unset fields inherit from `other`, except for name and subset.
    fn or(self, other: &Self) -> Self {
        Self {
            kind: self.kind.or_else(|| other.kind.clone()),
            namespace: self.namespace.or_else(|| other.namespace.clone()),
            cluster: self.cluster.or_else(|| other.cluster.clone()),
            port: self.port.or_else(|| other.port.clone()),
            ..self
        }
    }
}

impl PodSubset {
    fn read(block: &Block<'_>) -> Result<Option<Self>, Problem> {
        let subset = block.block("subset")?;
        let label = subset
            .label_text("label")?
            .filter(|label| !label.is_empty());
        match (subset.object_name("service")?, label) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(subset.empty("service")),
            (Some(service), label) => Ok(Some(Self {
                service,
                // The label that Argo Rollouts sets on every Pod.
                label: label.unwrap_or_else(|| "rollouts-pod-template-hash".to_owned()),
            })),
        }
    }
}

fn kind(block: &Block<'_>, key: &str) -> Result<Option<String>, Problem> {
    let kind = block.one_of(key)?;
    Ok(kind.map(str::to_owned))
}
