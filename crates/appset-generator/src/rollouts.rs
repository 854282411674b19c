//! The source that makes a set of every Rollout that the traffic router serves, joined with the RouteTables it selects.
//!
//! A set is there as long as its Rollout is, whatever state that is in: what an Application made of it deploys may be the
//! very workload.

use std::collections::BTreeMap;
use std::sync::Arc;

use gloo_types::{Document, DocumentError, NoSuchTable, ObjectKey, RouteTableDoc};
use rollout_types::{CanaryStrategy, RawJson, Rollout, RolloutStatus};
use route_planner::{DEFAULT_PLUGIN_NAMES, PluginConfig};
use serde_json::Value;
use strict_json::Block;

use crate::error::ConfigError;
use crate::field::hosts;
use crate::identity::Identity;
use crate::parameters;
use crate::query::{Output, Query, SourceQuery};
use crate::reach::{Reach, has_all, is_all};
use crate::{Failure, Field, ParameterSet};

/// The name by which requests choose this source.
pub(crate) const NAME: &str = "rollouts";
/// The source's key at the top.
const OWN: &str = "rollout";
/// The key for what is known of the RouteTables.
const GLOO: &str = "gloo";

/// Where Rollouts may be looked for, and the RouteTables that they select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollouts {
    cluster: String,
    reach: Reach,
    /// As the router's flag `--allowed-destination-namespaces`.
    destination_namespaces: Vec<String>,
}

/// The Rollouts of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutQuery {
    cluster: String,
    /// None when another cluster is asked for.
    namespaces: Vec<String>,
    table_namespaces: Vec<String>,
    labels: BTreeMap<String, String>,
    plugins: Vec<String>,
    destination_namespaces: Vec<String>,
    weights: bool,
    steps: bool,
}

/// Why it is not known which RouteTables a Rollout means.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error(transparent)]
    Config(#[from] route_planner::ConfigError),
    #[error(
        "RouteTables of namespace {0} are not looked up: have it added to rollouts.namespaces and to the namespaces of the profile"
    )]
    Namespace(String),
    #[error(transparent)]
    Absent(#[from] NoSuchTable),
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl Rollouts {
    pub(crate) const KEYS: &[&str] = &["destinationNamespaces", Reach::KEY];

    pub(crate) fn from_config(source: &Block<'_>, cluster: &str) -> Result<Self, ConfigError> {
        Ok(Self {
            cluster: cluster.to_owned(),
            reach: Reach::from_config(source)?,
            destination_namespaces: source.object_names("destinationNamespaces")?,
        })
    }

    /// Where Rollouts, and the RouteTables that they select, may be looked for.
    pub(crate) fn namespaces(&self) -> &[String] {
        self.reach.namespaces()
    }

    /// What a request to this source asks for. `allowed` are the profile's namespaces.
    pub(crate) fn query(
        &self,
        given: &Value,
        allowed: Option<&[String]>,
    ) -> Result<Query, Failure> {
        let keys = ["cluster", "include", "namespaces", "pluginName", "selector"];
        let parameters = parameters::of_source(given, &keys)?;
        let asked = parameters.object_names("namespaces")?;
        let mut namespaces = self.reach.admit(&asked, allowed)?;
        if parameters
            .string("cluster")?
            .is_some_and(|asked| asked != self.cluster)
        {
            namespaces.clear();
        }
        let include = parameters.words("include", &["weights", "steps"])?;
        let query = RolloutQuery {
            cluster: self.cluster.clone(),
            namespaces,
            table_namespaces: self.reach.admit(&[], allowed)?,
            labels: parameters
                .block("selector", &["labels"])?
                .labels("labels")?,
            plugins: match parameters.string("pluginName")? {
                Some(name) => vec![name.to_owned()],
                None => DEFAULT_PLUGIN_NAMES.map(str::to_owned).to_vec(),
            },
            destination_namespaces: self.destination_namespaces.clone(),
            weights: include.contains(&"weights"),
            steps: include.contains(&"steps"),
        };
        Ok(Query {
            source: SourceQuery::Rollouts(query),
            output: Output::read(NAME, &parameters, Some(OWN), false)?,
        })
    }
}

impl RolloutQuery {
    /// The namespaces whose Rollouts have to be known; none when the request is about another cluster.
    #[must_use]
    pub fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// The namespaces whose RouteTables have to be known: a Rollout may select tables of another one than its own.
    #[must_use]
    pub fn table_namespaces(&self) -> &[String] {
        match self.namespaces.as_slice() {
            [] => &[],
            _ => &self.table_namespaces,
        }
    }

    /// The sets, from all `rollouts` of [`namespaces`](Self::namespaces) and all `tables` of
    /// [`table_namespaces`](Self::table_namespaces).
    ///
    /// # Errors
    /// When a Rollout contradicts its API, so that it cannot be told whether it is one of the router's.
    pub fn sets(
        &self,
        rollouts: &[Arc<Document<Rollout>>],
        tables: &[Arc<RouteTableDoc>],
    ) -> Result<Vec<ParameterSet>, Failure> {
        let mut sets = BTreeMap::new();
        for rollout in rollouts {
            if !has_all(rollout.labels(), &self.labels) {
                continue;
            }
            let spec = rollout.spec().map_err(Failure::unreadable)?;
            let Some(canary) = spec.canary() else {
                continue;
            };
            let plugins = canary.traffic_routing.as_ref().map(|it| &it.plugins);
            let mut names = self.plugins.iter();
            let Some(block) = plugins.and_then(|plugins| names.find_map(|name| plugins.get(name)))
            else {
                continue;
            };
            let key = rollout.key();
            let (gloo, error) = match self.join(key, block, tables) {
                Ok(gloo) => (gloo, String::new()),
                Err(error) => (gloo(&[], &[]), error.to_string()),
            };
            let identity = Identity::of(&[&self.cluster, &key.namespace, &key.name]);
            let status = rollout.status().map_err(Failure::unreadable)?;
            let mut own = self.fields(rollout, canary, &status);
            own.extend(identity.fields());
            own.insert("configError", error.into());
            let mut set = ParameterSet::default();
            set.insert(OWN, own.into_iter().collect())?;
            set.insert(GLOO, gloo)?;
            sets.insert(identity.key, set);
        }
        Ok(sets.into_values().collect())
    }

    /// What is known of the tables that the plugin's `block` selects, as the router reads it.
    fn join(
        &self,
        rollout: &ObjectKey,
        block: &RawJson,
        tables: &[Arc<RouteTableDoc>],
    ) -> Result<Field, JoinError> {
        let allowed = &self.destination_namespaces;
        let config = PluginConfig::from_json(block.as_ref(), rollout, allowed)?;
        let selector = config.route_tables();
        let known = &self.table_namespaces;
        let foreign = selector
            .namespaces
            .iter()
            .find(|one| !is_all(known) && !known.contains(one));
        if let Some(namespace) = foreign {
            return Err(JoinError::Namespace(namespace.clone()));
        }
        let mut selected = selector.pick(tables.iter().map(AsRef::as_ref))?;
        selected.sort_by_key(|table: &&RouteTableDoc| table.key());
        let mut hosts = Vec::new();
        for table in &selected {
            for host in table.spec()?.hosts {
                if !hosts.contains(&host) {
                    hosts.push(host);
                }
            }
        }
        Ok(gloo(&selected, &hosts))
    }

    fn fields(
        &self,
        rollout: &Document<Rollout>,
        canary: &CanaryStrategy,
        status: &RolloutStatus,
    ) -> BTreeMap<&'static str, Field> {
        let key = rollout.key();
        let services = canary.services(status);
        let is_fresh = rollout
            .generation()
            .is_some_and(|it| status.has_observed(it));
        let mut fields = BTreeMap::from([
            ("name", key.name.as_str().into()),
            ("namespace", key.namespace.as_str().into()),
            ("cluster", self.cluster.as_str().into()),
            ("labels", Field::texts(rollout.labels())),
            ("phase", status.phase.as_str().into()),
            ("inProgress", status.is_in_progress().into()),
            ("aborted", status.abort.into()),
            ("fresh", is_fresh.into()),
            ("stableService", services.stable.into()),
            ("canaryService", services.canary.into()),
            ("stableHash", status.stable_rs.as_str().into()),
            ("currentHash", status.current_pod_hash.as_str().into()),
        ]);
        let text =
            |number: Option<i32>| number.map(|number| number.to_string()).unwrap_or_default();
        if self.weights {
            let weights = status.canary.weights.as_ref();
            let weights = Field::from([
                (
                    "stable",
                    text(weights.map(|weights| weights.stable.weight)).into(),
                ),
                (
                    "canary",
                    text(weights.map(|weights| weights.canary.weight)).into(),
                ),
            ]);
            fields.insert("weights", weights);
        }
        if self.steps {
            let step = Field::from([
                ("index", text(status.current_step_index).into()),
                ("count", canary.steps.len().to_string().into()),
            ]);
            fields.insert("step", step);
        }
        fields
    }
}

fn gloo(tables: &[&RouteTableDoc], all: &[String]) -> Field {
    let tables = tables.iter().map(|table| {
        let key = table.key();
        Field::from([
            ("name", key.name.as_str().into()),
            ("namespace", key.namespace.as_str().into()),
        ])
    });
    let tables = ("routeTables", Field::List(tables.collect()));
    hosts(all).into_iter().chain([tables]).collect()
}

#[cfg(test)]
mod tests;
