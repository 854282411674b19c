//! Converts the controller's types to the planner's: a Rollout and a call become a configuration and an intent.

use std::collections::BTreeMap;

use gloo_types::ObjectKey;
use rollouts_rpc::{
    DesiredWeight, Rollout, WeightDestination,
    rollout::{
        CanaryStep, RolloutFacts, SetHeaderRoute, SetMirrorRoute, StringMatch, TrafficWeights,
    },
};
use route_planner::{
    AdditionalDestination, Admissible, AppliedWeights, DEFAULT_PLUGIN_NAMES, HeaderMatch,
    HeaderRoute, Intent, IntentKind, ManagedRoute, ManagedRouteUpdate, ManagedRoutes, MirrorRoute,
    PluginConfig, PodHashes, Progress, Recorded, RequestMatch, ServicePair, TextMatch, WeightSplit,
    mark, marked,
};

use crate::error::ShiftError;

/// What the administrator allows Rollouts to configure. Set with flags.
///
/// For a [`Target`](crate::Target) only `route_table_namespaces` and `cluster` have a meaning.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Names under which a Rollout may configure the plugin. A Rollout may have only one of them. By default
    /// [`DEFAULT_PLUGIN_NAMES`].
    pub plugin_names: Vec<String>,
    /// Namespaces whose RouteTables may be selected. Empty allows all.
    pub route_table_namespaces: Vec<String>,
    /// Namespaces in which destinations may be, besides the Rollout's own.
    pub destination_namespaces: Vec<String>,
    /// Whether header routes may be placed above routes of other owners (`headerRoutePlacement: top`).
    pub allow_top_placement: bool,
    /// Name of the Rollouts' cluster, if the RouteTables are in a management cluster. A program without Rollouts sets its own name,
    /// so that no plugin takes its marks for those of a Rollout.
    pub cluster: Option<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            plugin_names: DEFAULT_PLUGIN_NAMES.map(str::to_owned).to_vec(),
            route_table_namespaces: Vec::new(),
            destination_namespaces: Vec::new(),
            allow_top_placement: false,
            cluster: None,
        }
    }
}

impl Policy {
    /// Returns the name with which a Rollout marks tables.
    #[must_use]
    pub fn mark(&self, rollout: &ObjectKey) -> ObjectKey {
        mark(rollout, self.cluster.as_deref())
    }

    /// Returns the Rollout of a mark; `None` if it belongs to another cluster.
    #[must_use]
    pub fn marked(&self, mark: &ObjectKey) -> Option<ObjectKey> {
        let (rollout, cluster) = marked(mark);
        (cluster == self.cluster.as_deref()).then_some(rollout)
    }

    /// Checks that `config`, of `owner`, selects tables only in namespaces that are allowed.
    pub(crate) fn check(&self, owner: &ObjectKey, config: &PluginConfig) -> Result<(), ShiftError> {
        let allowed = &self.route_table_namespaces;
        let mut selected = config.route_tables().namespaces.iter();
        let foreign = selected.find(|it| !allowed.is_empty() && !allowed.contains(it));
        foreign.map_or(Ok(()), |namespace| {
            Err(ShiftError::NamespaceNotAllowed {
                rollout: owner.clone(),
                namespace: namespace.clone(),
            })
        })
    }
}

/// What one call asks for in the RouteTables of a Rollout.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    /// The Rollout. The intent has the name with which it marks tables.
    pub(crate) rollout: ObjectKey,
    pub(crate) config: PluginConfig,
    pub(crate) intent: Intent,
    /// Whether a step mirrors requests, so that MirrorPolicies may exist.
    pub(crate) has_mirrors: bool,
    /// The Rollout as the caller read it, if there is one.
    pub(crate) facts: Option<RolloutFacts>,
}

/// Returns namespace and name of a Rollout.
#[must_use]
pub fn key(rollout: &Rollout) -> ObjectKey {
    let metadata = &rollout.metadata;
    ObjectKey::new(&metadata.namespace, &metadata.name)
}

impl Request {
    /// Reads the plugin block of `rollout`, within what `policy` allows. `are_removed` tells that its managed routes were
    /// removed in the current pass.
    ///
    /// # Errors
    /// Returns `Err` if the Rollout has no canary strategy, its plugin block is invalid, or it refers to a namespace that is
    /// not allowed.
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
        let mut services = ServicePair::new(services.stable, services.canary);
        services.ping_pong = rollout.is_ping_pong();
        let mut intent = Intent::new(policy.mark(&key), services, kind);
        intent.hashes = Some(hashes);
        intent.applied = rollout.status.canary.weights.as_ref().map(applied);
        intent.managed = managed_routes(rollout, are_removed);
        Ok(Self {
            rollout: key,
            config,
            intent,
            has_mirrors: has_mirrors(rollout),
            facts: Some(RolloutFacts::of(rollout)),
        })
    }

    /// Returns the request without managed routes that do not exist yet.
    pub(crate) fn without_new_routes(mut self) -> Self {
        let update = &mut self.intent.managed.update;
        if *update == ManagedRouteUpdate::AsPlanned {
            *update = ManagedRouteUpdate::KeepExisting;
        }
        self
    }

    /// Returns the request with full canary weight as the recorded weight. While a promotion is held, the controller already
    /// records weight 0.
    pub(crate) fn after_full_weight(mut self) -> Self {
        self.intent.applied = Some(AppliedWeights {
            stable: 0,
            canary: 100,
            additional: BTreeMap::new(),
        });
        self
    }

    /// Returns the request with all traffic on the canary.
    pub(crate) fn with_all_to_canary(&self) -> Self {
        let max = match &self.intent.kind {
            IntentKind::SetWeight(split) => split.max,
            _ => 100,
        };
        let mut request = self.clone();
        request.intent.kind = IntentKind::SetWeight(WeightSplit::out_of(max, max));
        request
    }

    /// Returns the request that restores a table: no weight, no managed routes, Pods of one version.
    pub(crate) fn resting(&self) -> Self {
        let mut request = self.clone();
        request.intent.hashes = None;
        request.intent.managed = ManagedRoutes::default();
        request.intent.kind = IntentKind::SetWeight(WeightSplit::percent(0));
        request
    }
}

/// Converts the weights that the controller recorded.
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

/// Returns the weights that the controller may ask for with the current status of `rollout`.
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

/// Converts SetWeight.
pub(crate) fn weight(desired: DesiredWeight, additional: &[WeightDestination]) -> IntentKind {
    let additional = additional.iter().map(|destination| AdditionalDestination {
        service: destination.service_name.clone(),
        weight: destination.weight,
        ports: None,
    });
    let mut split = WeightSplit::out_of(desired.value, desired.max);
    split.additional = additional.collect();
    IntentKind::SetWeight(split)
}

/// Returns the managed routes that a step sets.
#[must_use]
pub fn managed_routes_of(step: &CanaryStep) -> Vec<ManagedRoute> {
    let header = step.set_header_route.as_ref().map(managed_header_route);
    let mirror = step.set_mirror_route.as_ref().map(managed_mirror_route);
    // Within one step, the controller sets the mirror route last.
    header.into_iter().chain(mirror).collect()
}

/// Reads the plugin block of `rollout`, within what `policy` allows.
///
/// # Errors
/// Returns `Err` if there is none, or it is invalid.
pub fn config(
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
    policy.check(key, &config)?;
    Ok(config)
}

/// Returns the managed routes that the steps of `rollout` ask for so far. `are_removed` tells that they were removed in the
/// current pass.
fn managed_routes(rollout: &Rollout, are_removed: bool) -> ManagedRoutes {
    let steps = rollout.steps();
    // The controller sets a route only while its step is current, so a deleted route would stay deleted otherwise.
    let so_far = rollout.status.step_index();
    let so_far = so_far.map_or(0, |index| index.saturating_add(1));
    let update = if are_removed || is_ending(rollout) {
        ManagedRouteUpdate::RemoveAll
    } else if so_far > steps.len() {
        // A rollback within `rollbackWindow` skips all steps, so their routes were never set. After the last step all traffic
        // goes to the canary, so a missing route changes nothing.
        ManagedRouteUpdate::KeepExisting
    } else {
        ManagedRouteUpdate::AsPlanned
    };
    ManagedRoutes {
        order: order(rollout, steps),
        in_force: in_force(steps.iter().take(so_far)),
        update,
    }
}

/// Whether a step mirrors requests, so that MirrorPolicies may exist.
#[must_use]
pub fn has_mirrors(rollout: &Rollout) -> bool {
    let mut steps = rollout.steps().iter();
    steps.any(|step| step.set_mirror_route.is_some())
}

/// Converts a header step.
pub(crate) fn managed_header_route(route: &SetHeaderRoute) -> ManagedRoute {
    let matches = route.matches.iter().map(|header| HeaderMatch {
        name: header.header_name.clone(),
        value: text_match(&header.header_value),
    });
    ManagedRoute::Header(HeaderRoute {
        name: route.name.clone(),
        matches: matches.collect(),
    })
}

/// Converts a mirror step.
pub(crate) fn managed_mirror_route(route: &SetMirrorRoute) -> ManagedRoute {
    let matches = route.matches.iter().map(|request| RequestMatch {
        method: request.method.as_ref().map(text_match),
        path: request.path.as_ref().map(text_match),
        headers: request
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), text_match(value)))
            .collect(),
    });
    ManagedRoute::Mirror(MirrorRoute {
        name: route.name.clone(),
        matches: matches.collect(),
        percentage: route.percentage,
    })
}

fn text_match(text: &StringMatch) -> TextMatch {
    TextMatch {
        exact: text.exact.clone(),
        prefix: text.prefix.clone(),
        regex: text.regex.clone(),
    }
}

/// Returns the names in `managedRoutes`, followed by those that only steps have.
fn order(rollout: &Rollout, steps: &[CanaryStep]) -> Vec<String> {
    let listed = rollout.traffic_routing().into_iter();
    let listed = listed.flat_map(|routing| &routing.managed_routes);
    let mut order: Vec<String> = listed.map(|route| route.name.clone()).collect();
    for route in steps.iter().flat_map(managed_routes_of) {
        if !order.iter().any(|name| name == route.name()) {
            order.push(route.name().to_owned());
        }
    }
    order
}

/// Returns the routes that `steps` set and that no later step replaces or removes.
fn in_force<'a>(steps: impl Iterator<Item = &'a CanaryStep>) -> Vec<ManagedRoute> {
    let mut routes: Vec<ManagedRoute> = Vec::new();
    for step in steps {
        for route in managed_routes_of(step) {
            routes.retain(|other| other.name() != route.name());
            routes.extend(Some(route).filter(|route| !route.is_removal()));
        }
    }
    routes
}

/// Whether the controller has removed the managed routes, is about to remove them, or has not started the steps.
pub(crate) fn is_ending(rollout: &Rollout) -> bool {
    let status = &rollout.status;
    status.abort || status.promote_full || status.is_promoted() || rollout.revision() == Some(1)
}

#[cfg(test)]
mod tests {
    use rollouts_rpc::RouterCall;
    use rollouts_rpc::goplugin::handshake::PluginKind;
    use rollouts_rpc::rollout::{
        CanaryStrategy, HeaderRoutingMatch, ManagedRoute as ManagedRouteName, REVISION_ANNOTATION,
        RouteMatch, TrafficRouting,
    };
    use rollouts_rpc::testing::{CallStream, recordings};

    use super::*;

    /// The status that each release wrote for a Rollout at its step `setWeight: 25`, after one with `setWeight: 0`.
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
    fn recorded_weights_are_converted_by_service() {
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

    /// Parses a step: `name=value` sets a header route, `name` removes it, `~name!` mirrors, `~name` stops mirroring, and
    /// `pause` is another kind of step.
    fn step(text: &str) -> CanaryStep {
        let mut step = CanaryStep::default();
        match text.split_once('=') {
            _ if text == "pause" => {}
            _ if text.starts_with('~') => {
                let name = text.trim_start_matches('~');
                let entries = name.trim_end_matches('!').len() != name.len();
                step.set_mirror_route = Some(SetMirrorRoute {
                    name: name.trim_end_matches('!').into(),
                    matches: if entries {
                        vec![RouteMatch::default()]
                    } else {
                        vec![]
                    },
                    percentage: None,
                });
            }
            Some((name, value)) => {
                let header_value = StringMatch {
                    exact: value.into(),
                    ..StringMatch::default()
                };
                step.set_header_route = Some(SetHeaderRoute {
                    name: name.into(),
                    matches: vec![HeaderRoutingMatch {
                        header_name: "x".into(),
                        header_value,
                    }],
                });
            }
            None => {
                step.set_header_route = Some(SetHeaderRoute {
                    name: text.into(),
                    matches: vec![],
                });
            }
        }
        step
    }

    fn rollout(steps: &str, index: Option<i32>) -> Rollout {
        let managed = |name: &str| ManagedRouteName { name: name.into() };
        let mut rollout = Rollout::default();
        rollout.spec.strategy.canary = Some(CanaryStrategy {
            steps: steps.split(' ').map(step).collect(),
            traffic_routing: Some(TrafficRouting {
                managed_routes: vec![managed("b"), managed("a")],
                ..TrafficRouting::default()
            }),
            ..CanaryStrategy::default()
        });
        rollout.status.current_step_index = index;
        rollout
    }

    #[track_caller]
    fn check(steps: &str, index: Option<i32>, expect: &str) {
        let managed = managed_routes(&rollout(steps, index), false);
        let shown = managed.in_force.iter().map(|route| {
            let values: String = match route {
                ManagedRoute::Header(route) => {
                    let values = route.matches.iter();
                    values.map(|header| header.value.exact.as_str()).collect()
                }
                ManagedRoute::Mirror(route) => format!("~{}", route.matches.len()),
            };
            format!("{}={values}", route.name())
        });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), expect);
    }

    #[test]
    fn steps_so_far_add_up() {
        check("pause a=1 pause b=2", Some(0), "");
        check("pause a=1 pause b=2", Some(1), "a=1");
        check("pause a=1 pause b=2", Some(3), "a=1 b=2");
        check("pause a=1 pause b=2", Some(4), "a=1 b=2");
        check("a=1", None, "");
        check("a=1", Some(-1), "");
        check("a=1", Some(i32::MAX), "a=1");
    }

    #[test]
    fn later_steps_replace_and_remove_by_name() {
        check("a=1 b=2 a=3", Some(2), "b=2 a=3");
        check("a=1 b=2 a", Some(2), "b=2");
        check("a=1 b=2 a", Some(1), "a=1 b=2");
        check("a=1 ~a", Some(1), "");
        check("a=1 ~a! b=2", Some(2), "a=~1 b=2");
        check("~a! a=2", Some(1), "a=2");
        check("~a! ~b! ~a", Some(2), "b=~1");
        check("c", Some(0), "");
    }

    #[test]
    fn names_that_only_steps_have_are_last() {
        let order = managed_routes(&rollout("c=1 a=1 ~d c=2", Some(0)), false).order;
        assert_eq!(order, ["b", "a", "c", "d"]);
    }

    #[test]
    fn routes_are_not_restored_while_the_controller_removes_them_or_after_the_last_step() {
        use ManagedRouteUpdate::{AsPlanned, KeepExisting, RemoveAll};
        let update = |change: &dyn Fn(&mut Rollout)| {
            let mut rollout = rollout("a=1", Some(0));
            rollout.status.stable_rs = "s".into();
            rollout.status.current_pod_hash = "c".into();
            change(&mut rollout);
            managed_routes(&rollout, false).update
        };
        let check = |change: &dyn Fn(&mut Rollout), expect| assert_eq!(update(change), expect);
        check(&|_| {}, AsPlanned);
        check(&|rollout| rollout.status.abort = true, RemoveAll);
        check(&|rollout| rollout.status.promote_full = true, RemoveAll);
        check(&|rollout| rollout.status.stable_rs = "c".into(), RemoveAll);
        let after_the_last_step =
            |rollout: &mut Rollout| rollout.status.current_step_index = Some(1);
        check(&after_the_last_step, KeepExisting);
        let revision = |revision: &str| {
            let revision = revision.to_owned();
            move |rollout: &mut Rollout| {
                let key = REVISION_ANNOTATION.to_owned();
                rollout.metadata.annotations.insert(key, revision.clone());
            }
        };
        check(&revision("1"), RemoveAll);
        check(&revision("2"), AsPlanned);
        assert_eq!(
            managed_routes(&rollout("a=1", Some(0)), true).update,
            RemoveAll
        );
    }
}
