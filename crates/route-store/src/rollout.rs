//! The cached form of a Rollout: the fields that traffic depends on, in some hundred bytes.
//!
//! They are decoded through [`rollout_types::Rollout`], which skips the Pod template.

use std::collections::HashSet;
use std::error::Error;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};

use gloo_types::{ObjectKey, RouteTableSelector};
use rollout_types::{CanaryStep, ObjectMeta, Rollout};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Keep, Kept};

/// The label that assigns a Rollout to one of several controllers.
pub const INSTANCE_ID_LABEL: &str = "argo-rollouts.argoproj.io/controller-instance-id";

/// The cached form of a Rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutFacts {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`.
    pub version: Box<str>,
    /// The facts about traffic; `None` if the Rollout does not configure the plugin.
    pub traffic: Option<Box<TrafficFacts>>,
}

/// The facts about the traffic of a Rollout that configures the plugin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficFacts {
    /// `metadata.generation`.
    pub generation: i64,
    /// The oldest known generation with the current strategy. Changes of other fields, for example by an autoscaler, raise
    /// the generation too.
    pub strategy_since: i64,
    /// Hash of `spec.strategy`, to detect a change.
    strategy: u64,
    /// The tables that it selects; `None` if the plugin block is invalid.
    pub selector: Option<Arc<RouteTableSelector>>,
    /// `status.stableRS`.
    pub stable_hash: Box<str>,
    /// `status.currentPodHash`.
    pub current_hash: Box<str>,
    /// `status.currentStepIndex`.
    pub step_index: Option<i32>,
    /// `status.abort`.
    pub is_aborted: bool,
    /// `status.promoteFull`.
    pub is_promoted_fully: bool,
    /// Whether the controller has observed this generation (`status.observedGeneration`).
    pub is_observed: bool,
    /// The canary in `status.canary.weights`.
    pub recorded: Option<RecordedWeight>,
    /// `status.canary.currentExperiment`; empty without one.
    pub experiment: Box<str>,
    /// Whether a step mirrors requests.
    pub has_mirrors: bool,
    /// Its mirror steps with `percentage: 0`.
    pub zero_mirrors: ZeroMirrors,
    /// The label [`INSTANCE_ID_LABEL`].
    pub instance_id: Option<Box<str>>,
}

/// The last weight of the canary that the controller recorded in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedWeight {
    /// The weight.
    pub weight: i32,
    /// Pod template hash of the canary that had it.
    pub hash: Box<str>,
}

/// The mirror steps of a Rollout with `percentage: 0`, each by its index and the name of its route.
///
/// Gob drops pointers to zero values: in the controller's calls such a step looks like one without a percentage, which
/// mirrors all requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZeroMirrors(Box<[(usize, Box<str>)]>);

impl ZeroMirrors {
    /// Finds the steps in the `steps` of a Rollout from the API server.
    #[must_use]
    pub fn of(steps: &[CanaryStep]) -> Self {
        let zero = |step: &CanaryStep| {
            let route = step.set_mirror_route.as_ref();
            let route = route.filter(|route| route.percentage == Some(0))?;
            Some(route.name.as_str().into())
        };
        let steps = steps.iter().enumerate();
        Self(steps.filter_map(|(i, it)| Some((i, zero(it)?))).collect())
    }

    /// Returns whether the step at this index sets the route of this name to `percentage: 0`.
    #[must_use]
    pub fn contains(&self, index: usize, name: &str) -> bool {
        self.0.iter().any(|(at, of)| *at == index && **of == *name)
    }
}

/// The [`Keep`] of Rollouts, which decodes them to [`RolloutFacts`].
pub struct RolloutKeeper {
    read_block: ReadBlock,
    selectors: Mutex<HashSet<Arc<RouteTableSelector>>>,
}

/// The plugin block of a Rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginBlock {
    /// The Rollout does not configure the plugin.
    Absent,
    /// The block is invalid.
    Unusable,
    /// The block selects these tables.
    Selects(RouteTableSelector),
}

/// Reads the plugin block of a Rollout.
pub type ReadBlock = Box<dyn Fn(&Rollout) -> PluginBlock + Send + Sync + 'static>;

impl RolloutKeeper {
    /// A keeper that reads plugin blocks with `read_block`.
    #[must_use]
    pub fn new(read_block: ReadBlock) -> Self {
        Self {
            read_block,
            selectors: Mutex::default(),
        }
    }

    /// Returns one shared selector for all equal ones. Unused selectors are dropped before the set grows.
    fn intern(&self, selector: RouteTableSelector) -> Arc<RouteTableSelector> {
        let mut selectors = self
            .selectors
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = selectors.get(&selector) {
            return Arc::clone(known);
        }
        if selectors.len() == selectors.capacity() {
            selectors.retain(|known| Arc::strong_count(known) > 1);
            selectors.shrink_to_fit();
        }
        let selector = Arc::new(selector);
        selectors.insert(Arc::clone(&selector));
        selector
    }

    fn traffic(&self, rollout: Rollout, strategy: u64) -> Option<TrafficFacts> {
        let selector = match (self.read_block)(&rollout) {
            PluginBlock::Absent => return None,
            PluginBlock::Unusable => None,
            PluginBlock::Selects(selector) => Some(self.intern(selector)),
        };
        let steps = rollout.steps();
        let recorded = rollout.status.canary.weights.as_ref();
        let recorded = recorded.map(|weights| RecordedWeight {
            weight: weights.canary.weight,
            hash: weights.canary.pod_template_hash.as_str().into(),
        });
        let generation = rollout.metadata.generation;
        let instance_id = rollout.metadata.labels.get(INSTANCE_ID_LABEL);
        Some(TrafficFacts {
            generation,
            strategy_since: generation,
            strategy,
            selector,
            step_index: rollout.status.current_step_index,
            is_aborted: rollout.status.abort,
            is_promoted_fully: rollout.status.promote_full,
            is_observed: rollout.status.has_observed(generation),
            recorded,
            has_mirrors: steps.iter().any(|step| step.set_mirror_route.is_some()),
            zero_mirrors: ZeroMirrors::of(steps),
            instance_id: instance_id.map(|id| id.as_str().into()),
            stable_hash: rollout.status.stable_rs.into(),
            current_hash: rollout.status.current_pod_hash.into(),
            experiment: rollout.status.canary.current_experiment.into(),
        })
    }
}

impl Keep for RolloutKeeper {
    type Kind = Rollout;
    type Kept = RolloutFacts;
    const PAGE: u32 = 250;

    fn keep(&self, object: &str) -> Result<RolloutFacts, Box<dyn Error + Send + Sync>> {
        let Ok(rollout) = serde_json::from_str::<Rollout>(object) else {
            return Ok(serde_json::from_str::<Unreadable>(object)?.into());
        };
        let outline = serde_json::from_str::<Outline<'_>>(object)?;
        let mut hasher = DefaultHasher::new();
        outline.spec.strategy.map(RawValue::get).hash(&mut hasher);
        let facts = RolloutFacts::new(&rollout.metadata);
        let traffic = self.traffic(rollout, hasher.finish());
        Ok(RolloutFacts {
            traffic: traffic.map(Box::new),
            ..facts
        })
    }
}

/// A Rollout with an invalid spec or status. It is kept as one with an invalid plugin block, because a decoding error would
/// fail the whole list, and the block must not count as removed.
#[derive(Deserialize)]
struct Unreadable {
    metadata: ObjectMeta,
}

impl From<Unreadable> for RolloutFacts {
    fn from(Unreadable { metadata }: Unreadable) -> Self {
        Self {
            traffic: Some(Box::new(TrafficFacts {
                generation: metadata.generation,
                strategy_since: metadata.generation,
                ..TrafficFacts::default()
            })),
            ..Self::new(&metadata)
        }
    }
}

#[derive(Deserialize)]
struct Outline<'a> {
    #[serde(borrow, default)]
    spec: SpecOutline<'a>,
}

#[derive(Default, Deserialize)]
struct SpecOutline<'a> {
    #[serde(borrow, default)]
    strategy: Option<&'a RawValue>,
}

impl RolloutFacts {
    fn new(metadata: &ObjectMeta) -> Self {
        Self {
            key: ObjectKey::new(&metadata.namespace, &metadata.name),
            uid: metadata.uid.as_str().into(),
            version: metadata.resource_version.as_str().into(),
            traffic: None,
        }
    }

    /// Returns whether a step mirrors requests.
    #[must_use]
    pub fn has_mirrors(&self) -> bool {
        self.traffic.as_ref().is_some_and(|it| it.has_mirrors)
    }
}

impl TrafficFacts {
    fn size(&self) -> usize {
        let recorded = self.recorded.as_ref().map_or(0, |it| it.hash.len());
        let zero_mirrors = self.zero_mirrors.0.iter();
        let zero_mirrors: usize = zero_mirrors.map(|it| size_of_val(it) + it.1.len()).sum();
        let hashes = self.stable_hash.len() + self.current_hash.len() + recorded;
        let instance_id = self.instance_id.as_ref().map_or(0, |id| id.len());
        size_of::<Self>() + hashes + self.experiment.len() + zero_mirrors + instance_id
    }
}

impl Kept for RolloutFacts {
    fn key(&self) -> &ObjectKey {
        &self.key
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn follows(&mut self, before: &Self) {
        if let (Some(now), Some(then)) = (&mut self.traffic, &before.traffic)
            && self.uid == before.uid
            && now.strategy == then.strategy
        {
            now.strategy_since = then.strategy_since;
        }
    }

    fn size(&self) -> usize {
        let key = self.key.namespace.len() + self.key.name.len();
        let traffic = self.traffic.as_ref().map_or(0, |it| it.size());
        size_of::<Self>() + key + self.uid.len() + self.version.len() + traffic
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn keeper() -> RolloutKeeper {
        RolloutKeeper::new(Box::new(|rollout| {
            let plugins = rollout.traffic_routing().map(|routing| &routing.plugins);
            let block = plugins.and_then(|plugins| plugins.get("gloo"));
            let Some(block) = block else {
                return PluginBlock::Absent;
            };
            match serde_json::from_slice::<Value>(&block.0) {
                Ok(Value::String(name)) => PluginBlock::Selects(RouteTableSelector {
                    names: vec![name],
                    namespaces: vec![rollout.metadata.namespace.clone()],
                    ..RouteTableSelector::default()
                }),
                _ => PluginBlock::Unusable,
            }
        }))
    }

    fn rollout(name: &str) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "shop", "uid": "u1", "resourceVersion": "7", "generation": 3,
                "labels": {INSTANCE_ID_LABEL: "blue"},
            },
            "spec": {
                "template": {"spec": {"containers": [{"image": "registry.example.com/reviews:2"}]}},
                "strategy": {"canary": {
                    "trafficRouting": {"plugins": {"gloo": "web"}},
                    "steps": [
                        {"setWeight": 25},
                        {"setMirrorRoute": {"name": "copy", "percentage": 0, "match": [{}]}},
                        {"setMirrorRoute": {"name": "all", "match": [{}]}},
                    ],
                }},
            },
            "status": {
                "stableRS": "s1", "currentPodHash": "c1", "currentStepIndex": 1, "observedGeneration": "3",
                "canary": {
                    "currentExperiment": "exp",
                    "weights": {"canary": {"weight": 25, "podTemplateHash": "c1"}},
                },
            },
        })
    }

    fn keep(keeper: &RolloutKeeper, rollout: &Value) -> RolloutFacts {
        keeper.keep(&rollout.to_string()).unwrap()
    }

    #[test]
    fn the_facts_of_a_rollout_take_some_hundred_bytes() {
        let facts = keep(&keeper(), &rollout("reviews"));
        assert_eq!(facts.key, ObjectKey::new("shop", "reviews"));
        assert_eq!((&*facts.uid, &*facts.version), ("u1", "7"));
        let size = facts.size();
        assert!((200..=500).contains(&size), "{size}");
        let traffic = facts.traffic.unwrap();
        assert_eq!((traffic.generation, traffic.strategy_since), (3, 3));
        assert_eq!(traffic.selector.as_ref().unwrap().names, ["web"]);
        assert_eq!(
            (&*traffic.stable_hash, &*traffic.current_hash),
            ("s1", "c1")
        );
        assert_eq!((traffic.step_index, traffic.is_observed), (Some(1), true));
        let recorded = traffic.recorded.as_ref().unwrap();
        assert_eq!((recorded.weight, &*recorded.hash), (25, "c1"));
        assert_eq!(&*traffic.experiment, "exp");
        assert_eq!(traffic.instance_id.as_deref(), Some("blue"));
        assert!(traffic.has_mirrors && traffic.zero_mirrors.contains(1, "copy"));
        assert!(!traffic.zero_mirrors.contains(2, "all"));
        assert!(!traffic.zero_mirrors.contains(1, "all"));
    }

    #[test]
    fn rollouts_without_the_plugin_are_kept_without_traffic_facts() {
        let mut other = rollout("reviews");
        other["spec"]["strategy"] = json!({"blueGreen": {}});
        let facts = keep(&keeper(), &other);
        assert_eq!(facts.traffic, None);
        assert!(facts.size() <= 160, "{}", facts.size());
    }

    #[test]
    fn an_invalid_rollout_or_plugin_block_is_kept_without_a_selector() {
        let mut odd = rollout("reviews");
        odd["spec"]["strategy"]["canary"]["steps"] = json!("none");
        let facts = keep(&keeper(), &odd);
        assert_eq!(facts.key, ObjectKey::new("shop", "reviews"));
        assert_eq!(facts.traffic.unwrap().selector, None);
        let mut unusable = rollout("reviews");
        unusable["spec"]["strategy"]["canary"]["trafficRouting"]["plugins"]["gloo"] = json!(7);
        let facts = keep(&keeper(), &unusable);
        assert_eq!(facts.traffic.unwrap().selector, None);
        assert!(keeper().keep("7").is_err());
    }

    #[test]
    fn strategy_since_is_the_oldest_generation_with_the_same_strategy() {
        let keeper = keeper();
        let before = keep(&keeper, &rollout("reviews"));
        let since = |change: &dyn Fn(&mut Value)| {
            let mut after = rollout("reviews");
            after["metadata"]["generation"] = json!(4);
            change(&mut after);
            let mut after = keep(&keeper, &after);
            after.follows(&before);
            after.traffic.unwrap().strategy_since
        };
        assert_eq!(since(&|it| it["spec"]["replicas"] = json!(9)), 3);
        assert_eq!(since(&|it| it["metadata"]["uid"] = json!("u2")), 4);
        let steps = "/spec/strategy/canary/steps/0/setWeight";
        assert_eq!(since(&|it| *it.pointer_mut(steps).unwrap() = json!(30)), 4);
    }

    #[test]
    fn equal_selectors_are_shared_and_unused_ones_are_dropped() {
        let keeper = keeper();
        let selector = |facts: RolloutFacts| facts.traffic.unwrap().selector.unwrap();
        let first = selector(keep(&keeper, &rollout("a")));
        let second = selector(keep(&keeper, &rollout("b")));
        assert!(Arc::ptr_eq(&first, &second));
        for name in 0..1000 {
            let mut other = rollout("a");
            let block = "/spec/strategy/canary/trafficRouting/plugins/gloo";
            *other.pointer_mut(block).unwrap() = json!(name.to_string());
            keep(&keeper, &other);
        }
        assert!(keeper.selectors.lock().unwrap().len() < 10);
    }
}
