//! The controller's words in the planner's: a Rollout and a weight become a configuration and an intent.

mod managed;

use std::collections::BTreeMap;

use gloo_types::ObjectKey;
use rollouts_rpc::{
    DesiredWeight, Rollout, WeightDestination,
    rollout::{SetHeaderRoute, SetMirrorRoute, TrafficWeights},
};
use route_planner::{
    AdditionalDestination, Admissible, AppliedWeights, Intent, IntentKind, ManagedRoutes,
    PluginConfig, PodHashes, Progress, Recorded, ServicePair, WeightSplit, mark, marked,
};
use route_store::RolloutFacts;

pub(crate) use managed::{has_mirrors, is_ending};

use crate::error::{Outdated, ShiftError};

/// What a router may do for any Rollout. Set by the administrator with flags.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Names under which a Rollout may configure the plugin; the first that is there is read.
    pub plugin_names: Vec<String>,
    /// Namespaces whose RouteTables may be selected; empty allows all.
    pub route_table_namespaces: Vec<String>,
    /// Namespaces, beside the Rollout's own, in which destinations may be.
    pub destination_namespaces: Vec<String>,
    /// Whether header routes may be placed above routes of other owners (`headerRoutePlacement: top`).
    pub allow_top_placement: bool,
    /// The cluster of the Rollouts, where the RouteTables are in a management cluster.
    pub cluster: Option<String>,
}

impl Policy {
    /// The name under which a Rollout marks tables.
    pub(crate) fn mark(&self, rollout: &ObjectKey) -> ObjectKey {
        mark(rollout, self.cluster.as_deref())
    }

    /// The Rollout that marks tables with a name; `None` if it is of another cluster.
    pub(crate) fn marked(&self, mark: &ObjectKey) -> Option<ObjectKey> {
        let (rollout, cluster) = marked(mark);
        (cluster == self.cluster.as_deref()).then_some(rollout)
    }
}

/// What one Rollout wants of its RouteTables.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    /// The Rollout. The intent has the name under which it marks tables.
    pub(crate) rollout: ObjectKey,
    pub(crate) config: PluginConfig,
    pub(crate) intent: Intent,
    /// Whether a step mirrors requests, so that there may be MirrorPolicies.
    pub(crate) has_mirrors: bool,
    pub(crate) seen: Seen,
}

/// The Rollout as the caller saw it, as far as that tells whether traffic may move to the canary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) version: String,
    uid: String,
    stable_hash: String,
    current_hash: String,
    is_aborted: bool,
}

impl Seen {
    fn of(rollout: &Rollout) -> Self {
        let (metadata, status) = (&rollout.metadata, &rollout.status);
        Self {
            version: metadata.resource_version.clone(),
            uid: metadata.uid.clone(),
            stable_hash: status.stable_rs.clone(),
            current_hash: status.current_pod_hash.clone(),
            is_aborted: status.abort,
        }
    }

    /// What happened to the Rollout since, so that no traffic may move to the canary that the caller meant.
    pub(crate) fn outdated(&self, newer: &RolloutFacts) -> Option<Outdated> {
        if *self.uid != *newer.uid {
            return Some(Outdated::Gone);
        }
        let newer = newer.traffic.as_ref()?;
        if *self.stable_hash != *newer.stable_hash {
            Some(Outdated::StableVersion)
        } else if *self.current_hash != *newer.current_hash {
            Some(Outdated::CurrentVersion)
        } else if newer.is_aborted && !self.is_aborted {
            Some(Outdated::Abort)
        } else {
            None
        }
    }
}

/// Namespace and name of a Rollout.
pub(crate) fn key(rollout: &Rollout) -> ObjectKey {
    let metadata = &rollout.metadata;
    ObjectKey::new(&metadata.namespace, &metadata.name)
}

impl Request {
    /// Reads the plugin block of `rollout`, within what `policy` allows. `are_removed` tells that its managed routes were
    /// removed in the pass under way.
    ///
    /// # Errors
    /// When the Rollout is no canary, its plugin block cannot be used, or it reaches into a
    /// namespace that is not allowed.
    pub(crate) fn new(
        policy: &Policy,
        rollout: &Rollout,
        hashes: PodHashes,
        are_removed: bool,
        kind: IntentKind,
    ) -> Result<Self, ShiftError> {
        let key = key(rollout);
        let config = config(policy, rollout, &key)?;
        let services = rollout
            .services()
            .ok_or_else(|| ShiftError::NoCanary(key.clone()))?;
        let services = ServicePair {
            stable: services.stable.to_owned(),
            canary: services.canary.to_owned(),
            ping_pong: rollout.is_ping_pong(),
        };
        let intent = Intent {
            rollout: policy.mark(&key),
            services,
            hashes: Some(hashes),
            applied: rollout.status.canary.weights.as_ref().map(applied),
            kind,
            managed: managed::managed_routes(rollout, are_removed),
        };
        Ok(Self {
            rollout: key,
            config,
            intent,
            has_mirrors: has_mirrors(rollout),
            seen: Seen::of(rollout),
        })
    }
}

impl Request {
    /// The same without managed routes that are not there yet.
    pub(crate) fn without_new_routes(&self) -> Self {
        let mut request = self.clone();
        request.intent.managed.is_ending = true;
        request
    }

    /// The same where all traffic is on the canary. The controller records weight 0 already while a promotion is held.
    pub(crate) fn after_full_weight(mut self) -> Self {
        self.intent.applied = Some(AppliedWeights {
            stable: 0,
            canary: 100,
            additional: BTreeMap::new(),
        });
        self
    }

    /// The same with all traffic on the canary.
    pub(crate) fn with_all_to_canary(&self) -> Self {
        let max = match &self.intent.kind {
            IntentKind::SetWeight(split) => split.max,
            _ => 100,
        };
        let mut request = self.clone();
        request.intent.kind = IntentKind::SetWeight(WeightSplit {
            desired: max,
            max,
            additional: Vec::new(),
        });
        request
    }

    /// What puts a table back: no weight, no managed routes, one version of pods.
    pub(crate) fn resting(&self) -> Self {
        let weight = WeightSplit {
            desired: 0,
            max: 100,
            additional: Vec::new(),
        };
        Self {
            rollout: self.rollout.clone(),
            config: self.config.clone(),
            intent: Intent {
                hashes: None,
                managed: ManagedRoutes::default(),
                kind: IntentKind::SetWeight(weight),
                ..self.intent.clone()
            },
            has_mirrors: self.has_mirrors,
            seen: self.seen.clone(),
        }
    }
}

/// The weights that the controller recorded as set.
fn applied(weights: &TrafficWeights) -> AppliedWeights {
    let additional = weights.additional.iter();
    AppliedWeights {
        stable: weights.stable.weight,
        canary: weights.canary.weight,
        additional: additional
            .map(|destination| (destination.service_name.clone(), destination.weight))
            .collect(),
    }
}

/// The weights that the controller may ask for while `rollout` is as it is.
#[must_use]
pub fn admissible(rollout: &Rollout) -> Admissible {
    let status = &rollout.status;
    let steps = rollout.steps().iter();
    let steps: Vec<Option<i32>> = steps.map(|step| step.set_weight).collect();
    let weights = status.canary.weights.as_ref();
    Admissible::new(&Progress {
        stable_hash: &status.stable_rs,
        current_hash: &status.current_pod_hash,
        is_aborted: status.abort,
        is_promoted_fully: status.promote_full,
        is_dynamic: rollout.canary().is_some_and(|it| it.dynamic_stable_scale),
        max: rollout.max_traffic_weight(),
        recorded: weights.map(|weights| Recorded {
            weight: weights.canary.weight,
            hash: &weights.canary.pod_template_hash,
        }),
        steps: &steps,
        step: status.step_index().unwrap_or(0),
    })
}

/// SetWeight in the planner's words.
pub(crate) fn weight(desired: DesiredWeight, additional: &[WeightDestination]) -> IntentKind {
    let additional = additional.iter().map(|destination| AdditionalDestination {
        service: destination.service_name.clone(),
        weight: destination.weight,
        port: None,
    });
    IntentKind::SetWeight(WeightSplit {
        desired: desired.value,
        max: desired.max,
        additional: additional.collect(),
    })
}

/// SetHeaderRoute in the planner's words.
pub(crate) fn header_route(route: &SetHeaderRoute) -> IntentKind {
    IntentKind::SetManagedRoute(managed::header_route(route))
}

/// SetMirrorRoute in the planner's words.
pub(crate) fn mirror_route(route: &SetMirrorRoute) -> IntentKind {
    IntentKind::SetManagedRoute(managed::mirror_route(route))
}

/// The plugin block of `rollout`, within what `policy` allows.
///
/// # Errors
/// When there is none, or it cannot be used.
pub(crate) fn config(
    policy: &Policy,
    rollout: &Rollout,
    key: &ObjectKey,
) -> Result<PluginConfig, ShiftError> {
    let canary = rollout.canary();
    let canary = canary.ok_or_else(|| ShiftError::NoCanary(key.clone()))?;
    let routing = canary.traffic_routing.as_ref();
    let routing = routing.ok_or_else(|| ShiftError::NoTrafficRouting(key.clone()))?;
    let config = PluginConfig::for_rollout(
        &routing.plugins,
        &policy.plugin_names,
        key,
        &policy.destination_namespaces,
    )?
    .allow_top_placement(policy.allow_top_placement);
    let allowed = &policy.route_table_namespaces;
    let selected = &config.route_tables().namespaces;
    let foreign = selected
        .iter()
        .find(|namespace| !allowed.is_empty() && !allowed.contains(namespace));
    match foreign {
        Some(namespace) => Err(ShiftError::NamespaceNotAllowed {
            rollout: key.clone(),
            namespace: namespace.clone(),
        }),
        None => Ok(config),
    }
}

#[cfg(test)]
mod tests {
    use rollouts_rpc::RouterCall;
    use rollouts_rpc::goplugin::handshake::PluginKind;
    use rollouts_rpc::testing::{CallStream, recordings};

    use super::*;

    /// What a release wrote for a Rollout at its step `setWeight: 25`, after one with `setWeight: 0`.
    #[test]
    fn every_released_controllers_status_admits_the_weights_around_its_step() {
        for recording in recordings(PluginKind::TrafficRouter) {
            let calls = CallStream::default().decode(recording.stream).unwrap();
            let rollout = calls.into_iter().find_map(|call| match call {
                RouterCall::SetWeight(rollout, ..) => Some(rollout),
                _ => None,
            });
            let admissible = admissible(&rollout.unwrap());
            let weights: Vec<i32> = (0..=100).filter(|it| admissible.contains(*it)).collect();
            assert_eq!(weights, [0, 25]);
        }
    }

    #[test]
    fn the_weights_of_the_status_are_known_by_service() {
        let destination = |weight, service: &str| WeightDestination {
            weight,
            service_name: service.into(),
            ..WeightDestination::default()
        };
        let weights = TrafficWeights {
            canary: destination(20, "web-canary"),
            stable: destination(75, "web"),
            additional: vec![destination(5, "exp")],
            verified: true,
        };
        let expect = AppliedWeights {
            stable: 75,
            canary: 20,
            additional: [("exp".to_owned(), 5)].into(),
        };
        assert_eq!(applied(&weights), expect);
    }
}
