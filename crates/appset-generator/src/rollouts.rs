//! The source `rollouts`: one set for each Rollout that uses the traffic router, joined with the RouteTables that it selects.
//!
//! A Rollout has its set in every state, because an Application that is made from the set may deploy the workload itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gloo_types::{Document, ObjectKey, RouteTable, RouteTableDoc, RouteTableSelector};
use rollout_types::{CanaryStrategy, RawJson, Rollout, RolloutStatus};
use route_planner::{DEFAULT_PLUGIN_NAMES, PluginConfig};
use serde_json::{Map, Value, json};
use strict_json::Block;

use crate::clusters::{
    ALL, Allowed, ByCluster, Clusters, GoOn, Place, Reach, Sets, example, in_each, objects_of,
};
use crate::error::ConfigError;
use crate::keys::Schema;
use crate::matching::LabelSelector;
use crate::set::{Fields, hosts};
use crate::{Failure, Field, ParameterSet};

/// The top-level key of a set that holds the RouteTables.
const GLOO: &str = "gloo";

/// The settings of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollouts {
    pub(crate) reach: Reach,
    /// The value of the router's flag `--allowed-destination-namespaces`.
    destination_namespaces: Vec<String>,
}

/// One request to the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutQuery {
    /// The namespaces of the Rollouts. Empty if the request names a cluster that the source does not read.
    places: Vec<Place>,
    /// The namespaces whose RouteTables may be read.
    readable: Vec<Place>,
    selector: LabelSelector,
    plugins: Vec<String>,
    destination_namespaces: Vec<String>,
    weights: bool,
    steps: bool,
}

/// The RouteTables of a cluster in which those of each Rollout are found.
struct Tables<'t> {
    readable: BTreeSet<&'t str>,
    /// The tables by namespace, and by each label. The label with an empty key is the name, and an empty label is in every table.
    found: BTreeMap<(&'t str, &'t str, &'t str), Vec<&'t RouteTableDoc>>,
    /// The hosts of the tables that were read, or why they cannot be read. Many Rollouts may select the same table.
    hosts: BTreeMap<&'t ObjectKey, Result<Vec<String>, String>>,
}

impl Rollouts {
    pub(crate) const SCHEMA: Schema = Schema {
        name: "rollouts",
        key: "rollouts",
        keys: &[
            Reach::KEYS[0],
            Reach::KEYS[1],
            Reach::KEYS[2],
            "destinationNamespaces",
        ],
        parameters: &[
            "namespaces",
            "selector",
            "pluginName",
            "include",
            "cluster",
            "outputKey",
        ],
        output_key: "rollout",
    };

    pub(crate) fn from_config(source: &Block<'_>, known: &Clusters) -> Result<Self, ConfigError> {
        Ok(Self {
            reach: Reach::from_config(source, known)?,
            destination_namespaces: source.object_names("destinationNamespaces")?,
        })
    }

    /// Reads the parameters of a request.
    pub(crate) fn query(
        &self,
        parameters: &Block<'_>,
        allowed: &Allowed<'_>,
    ) -> Result<RolloutQuery, Failure> {
        let asked = parameters.object_names("namespaces")?;
        let cluster = parameters.string("cluster")?;
        let places = self.reach.admit(cluster, &asked, allowed)?;
        let include = parameters.words("include", &["weights", "steps"])?;
        Ok(RolloutQuery {
            readable: self.reach.around(&places, allowed)?,
            places,
            selector: LabelSelector::read(&parameters.block("selector", &LabelSelector::KEYS)?)?,
            plugins: match parameters.string("pluginName")? {
                Some(name) => vec![name.to_owned()],
                None => DEFAULT_PLUGIN_NAMES.map(str::to_owned).to_vec(),
            },
            destination_namespaces: self.destination_namespaces.clone(),
            weights: include.contains(&"weights"),
            steps: include.contains(&"steps"),
        })
    }
}

impl RolloutQuery {
    /// Returns the namespaces whose Rollouts [`sets`](Self::sets) needs.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Returns the namespaces whose RouteTables [`sets`](Self::sets) needs. A Rollout may select tables in other namespaces.
    #[must_use]
    pub fn table_places(&self) -> &[Place] {
        &self.readable
    }

    /// Computes the sets from all `rollouts` in [`places`](Self::places) and all `tables` in [`table_places`](Self::table_places).
    ///
    /// # Errors
    /// Returns `Err` if a Rollout has a value of the wrong type, because it is then unknown whether it uses the router.
    pub fn sets(
        &self,
        rollouts: &ByCluster<Rollout>,
        tables: &ByCluster<RouteTable>,
        go_on: GoOn<'_>,
    ) -> Result<Vec<ParameterSet>, Failure> {
        in_each(self.places.iter().map(|place| &place.cluster), |cluster| {
            let rollouts = objects_of(rollouts, cluster);
            self.sets_of(cluster, rollouts, objects_of(tables, cluster), go_on)
        })
    }

    /// Computes the set of a Rollout with these labels, which the request selects.
    pub(crate) fn example(&self, labels: &Value) -> Result<Vec<ParameterSet>, Failure> {
        let plugins = self.plugins.iter().map(|name| (name.clone(), json!({})));
        let plugins: Map<_, _> = plugins.collect();
        let canary = json!({"trafficRouting": {"plugins": plugins}});
        let rollout = example("a", labels, json!({"strategy": {"canary": canary}}))?;
        let query = Self {
            places: vec![Place {
                cluster: "a".to_owned(),
                namespaces: Vec::new(),
            }],
            selector: LabelSelector::default(),
            ..self.clone()
        };
        query.sets(&rollout, &BTreeMap::new(), &|| Ok(()))
    }

    /// Computes the sets of one cluster, by key.
    fn sets_of(
        &self,
        cluster: &str,
        rollouts: &[Arc<Document<Rollout>>],
        tables: &[Arc<RouteTableDoc>],
        go_on: GoOn<'_>,
    ) -> Result<Sets, Failure> {
        let here = self.readable.iter().filter(|it| it.cluster == cluster);
        let readable = here.flat_map(|place| place.namespaces.iter().map(String::as_str));
        let mut tables = Tables::new(readable.collect(), tables);
        let mut sets = Sets::new();
        let selected = rollouts
            .iter()
            .filter(|it| self.selector.matches(it.labels()));
        for rollout in selected {
            go_on()?;
            let spec = rollout.spec().map_err(Failure::unreadable)?;
            let canary = spec.canary();
            let routing = canary.and_then(|canary| canary.traffic_routing.as_ref());
            let mut names = self.plugins.iter();
            let block = routing.and_then(|it| names.find_map(|name| it.plugins.get(name)));
            let (Some(canary), Some(block)) = (canary, block) else {
                continue;
            };
            let key = rollout.key();
            let (gloo, error) = match self.join(key, block, &mut tables) {
                Ok(gloo) => (gloo, String::new()),
                Err(why) => (gloo(&[], &[]), why),
            };
            let status = rollout.status().map_err(Failure::unreadable)?;
            let mut own = self.fields(cluster, rollout, canary, &status);
            own.push(("configError", error.into()));
            let parts = [cluster, &key.namespace, &key.name];
            let (key, mut set) = ParameterSet::of(Rollouts::SCHEMA.output_key, &parts, own)?;
            set.insert(GLOO, gloo)?;
            sets.insert(key, set);
        }
        Ok(sets)
    }

    /// Returns the RouteTables that the plugin's `block` selects, which is read as the router reads it, or why they are unknown.
    fn join(
        &self,
        rollout: &ObjectKey,
        block: &RawJson,
        tables: &mut Tables<'_>,
    ) -> Result<Field, String> {
        let allowed = &self.destination_namespaces;
        let config = PluginConfig::from_json(block.as_ref(), rollout, allowed);
        let config = config.map_err(|error| error.to_string())?;
        let selector = config.route_tables();
        let mut namespaces = selector.namespaces.iter();
        if let Some(foreign) = namespaces.find(|one| !tables.may_read(one)) {
            return Err(format!(
                "RouteTables in namespace {foreign} are not read: have it added to rollouts.namespaces and to the namespaces of the profile"
            ));
        }
        let selected = selector.pick(tables.candidates(selector));
        let selected = selected.map_err(|absent| absent.to_string())?;
        let (mut hosts, mut seen) = (Vec::new(), BTreeSet::new());
        for table in &selected {
            let read = tables.hosts.entry(table.key()).or_insert_with(|| {
                let spec = table.spec().map_err(|error| error.to_string())?;
                Ok(spec.hosts)
            });
            let of_table = read.as_ref().map_err(Clone::clone)?;
            let added = of_table.iter().filter(|host| seen.insert((*host).clone()));
            hosts.extend(added.cloned());
        }
        Ok(gloo(&selected, &hosts))
    }

    fn fields(
        &self,
        cluster: &str,
        rollout: &Document<Rollout>,
        canary: &CanaryStrategy,
        status: &RolloutStatus,
    ) -> Fields {
        let key = rollout.key();
        let services = canary.services(status);
        let generation = rollout.generation();
        let is_fresh = generation.is_some_and(|it| status.has_observed(it));
        let mut fields = vec![
            ("name", (&key.name).into()),
            ("namespace", (&key.namespace).into()),
            ("cluster", cluster.into()),
            ("labels", Field::texts(rollout.labels())),
            ("phase", status.phase.as_str().into()),
            ("inProgress", status.is_in_progress().into()),
            ("aborted", status.abort.into()),
            ("fresh", is_fresh.into()),
            ("stableService", services.stable.into()),
            ("canaryService", services.canary.into()),
            ("stableHash", status.stable_rs.as_str().into()),
            ("currentHash", status.current_pod_hash.as_str().into()),
        ];
        let text = |number: Option<i32>| {
            Field::from(number.map(|number| number.to_string()).unwrap_or_default())
        };
        if self.weights {
            let weights = status.canary.weights.as_ref();
            let stable = text(weights.map(|weights| weights.stable.weight));
            let canary = text(weights.map(|weights| weights.canary.weight));
            fields.push(("weights", [("stable", stable), ("canary", canary)].into()));
        }
        if self.steps {
            let count = canary.steps.len().to_string().into();
            let step = [("index", text(status.current_step_index)), ("count", count)];
            fields.push(("step", step.into()));
        }
        fields
    }
}

impl<'t> Tables<'t> {
    fn new(readable: BTreeSet<&'t str>, tables: &'t [Arc<RouteTableDoc>]) -> Self {
        let mut found = BTreeMap::<_, Vec<_>>::new();
        for table in tables {
            let key = table.key();
            let labels = table.labels().iter();
            let labels = labels.map(|(key, value)| (key.as_str(), value.as_str()));
            for (label, value) in labels.chain([("", key.name.as_str()), ("", "")]) {
                let tables = found.entry((key.namespace.as_str(), label, value));
                tables.or_default().push(table.as_ref());
            }
        }
        Self {
            readable,
            found,
            hosts: BTreeMap::new(),
        }
    }

    fn may_read(&self, namespace: &str) -> bool {
        self.readable.contains(namespace) || self.readable.contains(ALL)
    }

    /// Returns tables, in the order of their keys, that include all that `selector` selects.
    fn candidates(&self, selector: &RouteTableSelector) -> Vec<&'t RouteTableDoc> {
        let mut tables = BTreeMap::new();
        for namespace in &selector.namespaces {
            let with = |label, value| {
                let found = self.found.get(&(namespace.as_str(), label, value));
                found.map(Vec::as_slice).unwrap_or_default()
            };
            let labels = selector.labels.iter();
            let labels = labels.map(|(key, value)| with(key.as_str(), value.as_str()));
            let labelled = labels.min_by_key(|tables| tables.len());
            let labelled = labelled.or_else(|| selector.by_label().then(|| with("", "")));
            let named = selector.names.iter().map(|name| with("", name));
            let found = named.chain(labelled).flatten();
            tables.extend(found.map(|table| (table.key(), *table)));
        }
        tables.into_values().collect()
    }
}

/// Returns the field under [`GLOO`].
fn gloo(tables: &[&RouteTableDoc], all: &[String]) -> Field {
    let tables = tables.iter().map(|table| {
        let ObjectKey { namespace, name } = table.key();
        Field::from([("name", name.into()), ("namespace", namespace.into())])
    });
    let tables = ("routeTables", Field::List(tables.collect()));
    hosts(all).into_iter().chain([tables]).collect()
}

#[cfg(test)]
mod tests;
