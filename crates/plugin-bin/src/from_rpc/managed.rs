//! The managed routes that a Rollout's steps ask for so far.

use rollouts_rpc::{
    Rollout,
    rollout::{CanaryStep, SetHeaderRoute, SetMirrorRoute, StringMatch},
};
use route_planner::{
    HeaderMatch, HeaderRoute, ManagedRoute, ManagedRoutes, MirrorRoute, RequestMatch, TextMatch,
};

/// What `rollout` says about its managed routes. `are_removed` tells that the pass under way has removed them.
pub(super) fn managed_routes(rollout: &Rollout, are_removed: bool) -> ManagedRoutes {
    let steps = rollout.steps();
    // The controller sets a route only while its step is current, so a lost one would stay lost.
    let so_far = rollout.status.step_index();
    let so_far = so_far.map_or(0, |index| index.saturating_add(1));
    ManagedRoutes {
        order: order(rollout, steps),
        in_force: in_force(steps.iter().take(so_far)),
        is_ending: are_removed || is_ending(rollout),
    }
}

/// Whether a step mirrors requests, so that there may be MirrorPolicies.
pub(crate) fn has_mirrors(rollout: &Rollout) -> bool {
    let mut steps = rollout.steps().iter();
    steps.any(|step| step.set_mirror_route.is_some())
}

pub(super) fn header_route(route: &SetHeaderRoute) -> ManagedRoute {
    let matches = route.matches.iter().map(|header| HeaderMatch {
        name: header.header_name.clone(),
        value: text_match(&header.header_value),
    });
    ManagedRoute::Header(HeaderRoute {
        name: route.name.clone(),
        matches: matches.collect(),
    })
}

pub(super) fn mirror_route(route: &SetMirrorRoute) -> ManagedRoute {
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
    let StringMatch {
        exact,
        prefix,
        regex,
    } = text.clone();
    TextMatch {
        exact,
        prefix,
        regex,
    }
}

/// The names in `managedRoutes`, then those that only steps have.
fn order(rollout: &Rollout, steps: &[CanaryStep]) -> Vec<String> {
    let listed = rollout.traffic_routing().into_iter();
    let listed = listed.flat_map(|routing| &routing.managed_routes);
    let mut order: Vec<String> = listed.map(|route| route.name.clone()).collect();
    for name in steps.iter().flat_map(names) {
        if !order.contains(name) {
            order.push(name.clone());
        }
    }
    order
}

/// The routes that are set by `steps` and neither replaced nor removed by a later one of them.
fn in_force<'a>(steps: impl Iterator<Item = &'a CanaryStep>) -> Vec<ManagedRoute> {
    let mut routes: Vec<ManagedRoute> = Vec::new();
    for step in steps {
        // Within one step the controller sets the mirror route last.
        let header = step.set_header_route.as_ref().map(header_route);
        let mirror = step.set_mirror_route.as_ref().map(mirror_route);
        for route in header.into_iter().chain(mirror) {
            routes.retain(|other| other.name() != route.name());
            routes.extend(Some(route).filter(|route| !route.is_removal()));
        }
    }
    routes
}

fn names(step: &CanaryStep) -> impl Iterator<Item = &String> {
    let header = step.set_header_route.as_ref().map(|route| &route.name);
    let mirror = step.set_mirror_route.as_ref().map(|route| &route.name);
    header.into_iter().chain(mirror)
}

/// Whether the controller has removed the managed routes or is about to, or has not come to the steps at all.
pub(crate) fn is_ending(rollout: &Rollout) -> bool {
    let status = &rollout.status;
    status.abort || status.promote_full || status.is_promoted() || rollout.revision() == Some(1)
}

#[cfg(test)]
mod tests {
    use rollouts_rpc::rollout::{
        CanaryStrategy, HeaderRoutingMatch, ManagedRoute as ManagedRouteName, REVISION_ANNOTATION,
        RouteMatch, TrafficRouting,
    };

    use super::*;

    /// A step `name=value` that sets a header route, `name` that removes it, `~name!` that mirrors, `~name` that no longer does, or another one.
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
    fn names_that_only_steps_have_come_last() {
        let order = managed_routes(&rollout("c=1 a=1 ~d c=2", Some(0)), false).order;
        assert_eq!(order, ["b", "a", "c", "d"]);
    }

    #[test]
    fn routes_are_not_brought_back_when_the_controller_wants_them_gone() {
        let ending = |change: &dyn Fn(&mut Rollout)| {
            let mut rollout = rollout("a=1", Some(0));
            rollout.status.stable_rs = "s".into();
            rollout.status.current_pod_hash = "c".into();
            change(&mut rollout);
            managed_routes(&rollout, false).is_ending
        };
        assert!(!ending(&|_| {}));
        assert!(ending(&|rollout| rollout.status.abort = true));
        assert!(ending(&|rollout| rollout.status.promote_full = true));
        assert!(ending(&|rollout| rollout.status.stable_rs = "c".into()));
        let revision = |revision: &str| {
            let revision = revision.to_owned();
            move |rollout: &mut Rollout| {
                let key = REVISION_ANNOTATION.to_owned();
                rollout.metadata.annotations.insert(key, revision.clone());
            }
        };
        assert!(ending(&revision("1")));
        assert!(!ending(&revision("2")));
        assert!(managed_routes(&rollout("a=1", Some(0)), true).is_ending);
    }
}
