//! Every message of this crate that a person sees, once, as a file to read from top to bottom.
//!
//! Each `after` matches all variants and returns the example that follows, so a new variant does not compile until it is listed.

use std::fmt;

use gloo_types::{ObjectKey, Rule};
use serde_json::json;

use crate::error::{ConfigError, ConfigProblem, PlanError, Refusal};
use crate::plan::{DestinationChange, Edit, OtherAnnotations, Skip, SkipReason, Warning};

fn list<M: fmt::Display>(first: M, after: impl Fn(&M) -> Option<M>) -> String {
    let all = std::iter::successors(Some(first), after);
    all.map(|it| format!("{it}\n")).collect()
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn route() -> String {
    text("route reviews")
}

fn stable() -> String {
    text("Service shop/reviews")
}

fn rollout() -> ObjectKey {
    ObjectKey::new("shop", "reviews")
}

fn after_problem(it: &ConfigProblem) -> Option<ConfigProblem> {
    Some(match it {
        ConfigProblem::MissingPlugin { .. } => {
            ConfigProblem::SeveralPlugins(text("solo-io/glooplatform"), text("acme/gloo"))
        }
        ConfigProblem::SeveralPlugins(..) => ConfigProblem::Json(text("the text ends too early")),
        ConfigProblem::Json(_) => ConfigProblem::NamespaceNotAllowed {
            path: text("stableDestination.namespace"),
            namespace: text("other"),
        },
        ConfigProblem::NamespaceNotAllowed { .. } => ConfigProblem::NoSelector,
        ConfigProblem::NoSelector => ConfigProblem::Key(strict_json::Problem::Empty {
            path: text("routeTableSelector.labels"),
            needed: "a label",
        }),
        ConfigProblem::Key(_) => return None,
    })
}

fn after_refusal(it: &Refusal) -> Option<Refusal> {
    use Refusal as R;
    let managed = || text("testers");
    Some(match it {
        R::NoService { .. } => R::SameDestination(stable()),
        R::SameDestination(_) => R::SwitchedService {
            role: "stable",
            service: text("reviews"),
        },
        R::SwitchedService { .. } => R::NoHash { role: "canary" },
        R::NoHash { .. } => R::NegativeWeight {
            service: text("reviews-canary"),
            weight: -1,
        },
        R::NegativeWeight { .. } => R::MaxWeight(0),
        R::MaxWeight(_) => R::NoStableRoute {
            stable: stable(),
            selectors: "routeTableSelector and routeSelector",
            found: text("route a forwards to Service shop/cart"),
        },
        R::NoStableRoute { .. } => R::Ambiguous {
            route: route(),
            destination: stable(),
            found: text("Service shop/reviews port 80, Service shop/reviews port 81"),
        },
        R::Ambiguous { .. } => R::NoShare {
            route: route(),
            stable: stable(),
            taken: 100,
        },
        R::NoShare { .. } => R::Subset {
            route: route(),
            from: text("Service shop/reviews version=v1"),
        },
        R::Subset { .. } => R::NoHttpRoutes,
        R::NoHttpRoutes => R::UnnamedManagedRoute,
        R::UnnamedManagedRoute => R::Match {
            managed: managed(),
            part: text("header x-user"),
            problem: text("RE2 does not accept its regex: look-ahead is not supported"),
        },
        R::Match { .. } => R::ExternalForTcp {
            route: text("route tcp[0]"),
            destination: text("ExternalService shop/reviews"),
        },
        R::ExternalForTcp { .. } => R::ExperimentPort {
            route: route(),
            service: text("Service shop/reviews-exp"),
            ports: text("http 8080, metrics 9090"),
            destination: text("Service shop/reviews port 80"),
        },
        R::ExperimentPort { .. } => R::Combination {
            managed: managed(),
            route: route(),
            problem: "both match the path, keep one of them",
        },
        R::Combination { .. } => R::NoRequest(managed()),
        R::NoRequest(_) => R::Percentage {
            managed: managed(),
            percentage: 101,
        },
        R::Percentage { .. } => R::OtherMirrorPolicy {
            route: text("testers"),
            policy: ObjectKey::new("shop", "audit"),
            selects: text("its label app=shop"),
        },
        R::OtherMirrorPolicy { .. } => R::StrayMirror {
            route: text("testers"),
            canary: text("Service shop/reviews-canary"),
        },
        R::StrayMirror { .. } => R::Malformed {
            route: route(),
            path: text("forwardTo.destinations[0].weight"),
            expected: "a whole number from 0 to 100",
        },
        R::Malformed { .. } => R::Replaced {
            route: route(),
            stable: stable(),
            by: text("Service shop/cart"),
        },
        R::Replaced { .. } => R::SplitByOther {
            route: route(),
            stable: stable(),
            rollout: text("shop/cart"),
        },
        R::SplitByOther { .. } => R::TopPlacement,
        R::TopPlacement => R::TooLarge {
            routes: 900,
            what: "operations of a JSON Patch",
            needed: 12_000,
            limit: 10_000,
        },
        R::TooLarge { .. } => R::Record {
            annotation: crate::ANNOTATION,
            reason: text("version 3 is not known"),
        },
        R::Record { .. } => return None,
    })
}

fn after_warning(it: &Warning) -> Option<Warning> {
    let (route, canary) = (route(), text("reviews-canary"));
    Some(match it {
        Warning::OwnerWeights { .. } => Warning::OwnerCanaryShare { route, canary },
        Warning::OwnerCanaryShare { .. } => Warning::OnlyCanary {
            route,
            canary,
            share: 50,
        },
        Warning::OnlyCanary { .. } => Warning::Repointed { route },
        Warning::Repointed { .. } => Warning::RouteGone { route },
        Warning::RouteGone { .. } => Warning::Rebuilt { route },
        Warning::Rebuilt { .. } => Warning::UnnamedService,
        Warning::UnnamedService => Warning::Unreached {
            route: text("testers"),
            by: text("testers-2"),
            rollout: ObjectKey::new("shop", "ratings"),
        },
        Warning::Unreached { .. } => Warning::OnlyManagedRoutes,
        Warning::OnlyManagedRoutes => return None,
    })
}

fn after_skip(it: &Skip) -> Option<Skip> {
    let reason = match &it.reason {
        SkipReason::NotSelected(_) => {
            SkipReason::ForwardsTo(vec![stable(), text("Service shop/cart")])
        }
        SkipReason::ForwardsTo(_) => SkipReason::Delegates(vec![text("RouteTable shop/child")]),
        SkipReason::Delegates(_) => SkipReason::Action("redirect"),
        SkipReason::Action(_) => SkipReason::SplitBy(text("shop/cart")),
        SkipReason::SplitBy(_) => return None,
    };
    Some(Skip {
        route: route(),
        reason,
    })
}

fn after_change(it: &DestinationChange) -> Option<DestinationChange> {
    use DestinationChange as C;
    let (index, destination) = (0, stable());
    Some(match it {
        C::SetWeight { .. } => C::Replace {
            index,
            destination,
            value: json!({}),
        },
        C::Replace { .. } => C::Remove { index, destination },
        C::Remove { .. } => C::Insert {
            index,
            destination,
            value: json!({"weight": 25}),
        },
        C::Insert { .. } => C::CreateList(vec![json!({})]),
        C::CreateList(_) => C::RemoveList,
        C::RemoveList => return None,
    })
}

fn after_edit(it: &Edit) -> Option<Edit> {
    let others = OtherAnnotations::None;
    let route = |expect, value| Edit::Route {
        index: 0,
        name: text("testers"),
        expect,
        value,
    };
    Some(match it {
        Edit::Destinations { .. } => route(None, Some(json!({}))),
        Edit::Route { expect: None, .. } => route(Some(json!({})), Some(json!({}))),
        Edit::Route { value: Some(_), .. } => route(Some(json!({})), None),
        Edit::Route { value: None, .. } => Edit::Annotation {
            expect: None,
            value: Some(text("{}")),
            others,
        },
        Edit::Annotation { value: Some(_), .. } => Edit::Annotation {
            expect: Some(text("{}")),
            value: None,
            others,
        },
        Edit::Annotation { value: None, .. } => return None,
    })
}

#[test]
fn every_message() {
    let missing = ConfigProblem::MissingPlugin {
        accepted: vec![text("solo-io/glooplatform"), text("acme/gloo")],
        found: Vec::new(),
    };
    let config = ConfigError {
        rollout: rollout(),
        problem: ConfigProblem::NoSelector,
    };
    let refused = PlanError::Refused {
        table: ObjectKey::new("gloo-mesh", "shop"),
        rollout: rollout(),
        refusal: Box::new(Refusal::TopPlacement),
    };
    let no_service = Refusal::NoService { role: "canary" };
    let weights = Warning::OwnerWeights {
        route: route(),
        rule: Rule::WeightSum(120),
    };
    let skip = Skip {
        route: route(),
        reason: SkipReason::NotSelected("routeSelector"),
    };
    let change = DestinationChange::SetWeight {
        index: 0,
        destination: stable(),
        from: None,
        to: Some(json!(75)),
    };
    let edit = Edit::Destinations {
        route: route(),
        path: Vec::new(),
        expect: json!({}),
        changes: vec![change.clone(), DestinationChange::RemoveList],
    };
    let parts = [
        ("A plugin block is refused", list(missing, after_problem)),
        ("The whole line", list(config, |_| None)),
        ("A table is not planned", list(no_service, after_refusal)),
        ("The whole line", list(refused, |_| None)),
        (
            "A table is planned with a warning",
            list(weights, after_warning),
        ),
        ("A route is skipped", list(skip, after_skip)),
        ("What a plan changes", list(edit, after_edit)),
        ("In a list of destinations", list(change, after_change)),
    ];
    let text: String = parts
        .map(|(head, lines)| format!("# {head}\n\n{lines}\n"))
        .concat();
    insta::assert_snapshot!(text);
}
