//! The cached form of a Rollout: the fields that traffic depends on, in some hundred bytes.
//!
//! They are decoded through [`rollout_types::Rollout`], which skips the Pod template.

use std::collections::HashSet;
use std::error::Error;
use std::sync::{Arc, Mutex};

use gloo_types::{ObjectKey, RouteTableSelector};
use rollout_types::{CanaryStep, ObjectMeta, Rollout, RolloutFacts};
use serde::Deserialize;

use crate::{Keep, Kept, lock};

/// The label that assigns a Rollout to one of several controllers.
pub const INSTANCE_ID_LABEL: &str = "argo-rollouts.argoproj.io/controller-instance-id";

/// The cached form of a Rollout.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CachedRollout {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The facts that decide about its weight.
    pub facts: RolloutFacts,
    /// How it uses the plugin; `None` if it does not.
    pub plugin: Option<Box<PluginFacts>>,
}

/// What a Rollout configures the plugin with.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PluginFacts {
    /// The tables that it selects; `None` if the plugin block is invalid.
    pub selector: Option<Arc<RouteTableSelector>>,
    /// Whether a step mirrors requests.
    pub has_mirrors: bool,
    /// Its mirror steps with `percentage: 0`.
    pub zero_mirrors: ZeroMirrors,
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

/// The [`Keep`] of Rollouts, which decodes them to [`CachedRollout`].
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
        let mut selectors = lock(&self.selectors);
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

    fn plugin(&self, rollout: &Rollout) -> Option<PluginFacts> {
        let selector = match (self.read_block)(rollout) {
            PluginBlock::Absent => return None,
            PluginBlock::Unusable => None,
            PluginBlock::Selects(selector) => Some(self.intern(selector)),
        };
        let steps = rollout.steps();
        Some(PluginFacts {
            selector,
            has_mirrors: steps.iter().any(|step| step.set_mirror_route.is_some()),
            zero_mirrors: ZeroMirrors::of(steps),
        })
    }
}

impl Keep for RolloutKeeper {
    type Kind = Rollout;
    type Kept = CachedRollout;

    fn keep(&self, object: &str) -> Result<CachedRollout, Box<dyn Error + Send + Sync>> {
        /// A Rollout with an invalid spec or status.
        #[derive(Deserialize)]
        struct Unreadable {
            metadata: ObjectMeta,
        }

        let (plugin, rollout) = match serde_json::from_str::<Rollout>(object) {
            Ok(rollout) => (self.plugin(&rollout), rollout),
            // As with an invalid plugin block: an error would fail the whole list, and the block must not count as removed.
            Err(_) => {
                let Unreadable { metadata } = serde_json::from_str(object)?;
                let rollout = Rollout::default();
                let rollout = Rollout {
                    metadata,
                    ..rollout
                };
                (Some(PluginFacts::default()), rollout)
            }
        };
        Ok(CachedRollout {
            key: ObjectKey::new(&rollout.metadata.namespace, &rollout.metadata.name),
            facts: RolloutFacts::of(&rollout),
            plugin: plugin.map(Box::new),
        })
    }
}

impl PluginFacts {
    fn size(&self) -> usize {
        let zero_mirrors = self.zero_mirrors.0.iter();
        let zero_mirrors: usize = zero_mirrors.map(|it| size_of_val(it) + it.1.len()).sum();
        size_of::<Self>() + zero_mirrors
    }
}

impl Kept for CachedRollout {
    fn key(&self) -> &ObjectKey {
        &self.key
    }

    fn version(&self) -> &str {
        &self.facts.version
    }

    fn uid(&self) -> &str {
        &self.facts.uid
    }

    fn size(&self) -> usize {
        let key = self.key.namespace.len() + self.key.name.len();
        let plugin = self.plugin.as_ref().map_or(0, |it| it.size());
        size_of::<Self>() + key + self.facts.heap_size() + plugin
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

    fn keep(keeper: &RolloutKeeper, rollout: &Value) -> CachedRollout {
        keeper.keep(&rollout.to_string()).unwrap()
    }

    #[test]
    fn the_facts_of_a_rollout_take_some_hundred_bytes() {
        let kept = keep(&keeper(), &rollout("reviews"));
        assert_eq!(kept.key, ObjectKey::new("shop", "reviews"));
        let facts = &kept.facts;
        let texts = [&facts.uid, &facts.version, &facts.stable_hash];
        assert_eq!(texts.map(|it| &**it), ["u1", "7", "s1"]);
        assert_eq!((&*facts.current_hash, &*facts.experiment), ("c1", "exp"));
        let size = kept.size();
        assert!((200..=500).contains(&size), "{size}");
        let plugin = kept.plugin.unwrap();
        assert_eq!(plugin.selector.as_ref().unwrap().names, ["web"]);
        assert!(plugin.has_mirrors && plugin.zero_mirrors.contains(1, "copy"));
        assert!(!plugin.zero_mirrors.contains(2, "all"));
        assert!(!plugin.zero_mirrors.contains(1, "all"));
    }

    #[test]
    fn rollouts_without_the_plugin_are_kept_without_its_facts() {
        let mut other = rollout("reviews");
        other["spec"]["strategy"] = json!({"blueGreen": {}});
        let facts = keep(&keeper(), &other);
        assert_eq!(facts.plugin, None);
        assert!(facts.size() <= 200, "{}", facts.size());
    }

    #[test]
    fn an_invalid_rollout_or_plugin_block_is_kept_without_a_selector() {
        let mut odd = rollout("reviews");
        odd["spec"]["strategy"]["canary"]["steps"] = json!("none");
        let facts = keep(&keeper(), &odd);
        assert_eq!(facts.key, ObjectKey::new("shop", "reviews"));
        assert_eq!(facts.plugin.unwrap().selector, None);
        let mut unusable = rollout("reviews");
        unusable["spec"]["strategy"]["canary"]["trafficRouting"]["plugins"]["gloo"] = json!(7);
        let facts = keep(&keeper(), &unusable);
        assert_eq!(facts.plugin.unwrap().selector, None);
        assert!(keeper().keep("7").is_err());
    }

    #[test]
    fn equal_selectors_are_shared_and_unused_ones_are_dropped() {
        let keeper = keeper();
        let selector = |rollout: CachedRollout| rollout.plugin.unwrap().selector.unwrap();
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
