//! Shifting without Rollouts.

use gloo_types::RouteTableSelector;
use route_planner::{Observation, PluginConfig, ServicePair};
use route_store::Priority;

use super::{faulty::Fault, *};

fn target(tables: &[&str]) -> Target {
    let tables = RouteTableSelector {
        names: tables.iter().map(ToString::to_string).collect(),
        namespaces: vec!["mesh".to_owned()],
        ..RouteTableSelector::default()
    };
    Target {
        owner: ObjectKey::new("shop", "tool"),
        services: ServicePair::new("web", "web-canary"),
        config: PluginConfig::new(tables),
    }
}

fn fixture() -> Fixture {
    let fixture = Fixture::new(["a", "b"].map(|name| table(name, vec![route_to("web")])));
    let policy = Policy {
        cluster: Some("tool".to_owned()),
        ..Policy::default()
    };
    let router = GlooRouter {
        policy,
        ..fixture.router
    };
    Fixture { router, ..fixture }
}

impl Fixture {
    async fn shift(&self, tables: &[&str], percent: u8) -> Result<(), String> {
        let shifted = self.router.shift_to(&target(tables), percent).await;
        shifted.map_err(|error| error_chain(&error))
    }

    /// Checks the canary's weight in both tables.
    #[track_caller]
    fn has(&self, expect: [Option<u64>; 2]) {
        let found = ["a", "b"].map(|name| {
            let weights = self.weights(&ObjectKey::new("mesh", name));
            let mut canary = weights.iter().filter(|(name, _)| name == "web-canary");
            canary.next().and_then(|(_, weight)| *weight)
        });
        assert_eq!(found, expect);
    }
}

#[tokio::test]
async fn all_tables_are_shifted_or_none() {
    let fixture = fixture();
    let before = fixture.spec(&ObjectKey::new("mesh", "a"));
    fixture.shift(&["a", "b"], 25).await.unwrap();
    fixture.has([Some(25), Some(25)]);
    let both = target(&["a", "b"]);
    let observed = fixture.router.observe(&both, 25).await.unwrap();
    assert_eq!(observed, Observation::Verified);
    let observed = fixture.router.observe(&both, 50).await.unwrap();
    assert!(
        matches!(observed, Observation::NotApplied { .. }),
        "{observed:?}"
    );

    fixture.store.fail("get b", Fault::Forbidden);
    let error = fixture.shift(&["a", "b"], 50).await.unwrap_err();
    assert!(error.contains("get b"), "{error}");
    fixture.has([Some(25), Some(25)]);
    // Less traffic is set where that is possible.
    fixture.shift(&["a", "b"], 0).await.unwrap_err();
    fixture.has([None, Some(25)]);
    assert_eq!(fixture.spec(&ObjectKey::new("mesh", "a")), before);
}

#[tokio::test]
async fn a_table_that_is_no_longer_selected_is_restored() {
    let fixture = fixture();
    fixture.shift(&["a", "b"], 25).await.unwrap();
    fixture.shift(&["a"], 50).await.unwrap();
    fixture.has([Some(50), None]);
    fixture.shift(&["a"], 0).await.unwrap();
    fixture.has([None, None]);
}

/// Requests toward stable have a reserve of their own.
#[tokio::test]
async fn a_shift_to_stable_has_its_priority() {
    let fixture = fixture();
    for (percent, expect) in [(25, Priority::Call), (0, Priority::TowardStable)] {
        fixture.shift(&["a"], percent).await.unwrap();
        let sent = fixture.store.contexts().into_iter();
        let priorities: Vec<Priority> = sent.map(|(_, context)| context.priority).collect();
        assert!(!priorities.is_empty());
        assert_eq!(priorities, vec![expect; priorities.len()]);
    }
}

#[tokio::test]
async fn what_cannot_be_in_force_is_refused() {
    let fixture = fixture();
    for (tables, percent, expect) in [
        (&["c"][..], 25, "RouteTable mesh/c"),
        (&[][..], 25, "selects no RouteTable"),
        (&["a"][..], 101, "101 is not a percentage"),
    ] {
        let error = fixture.shift(tables, percent).await.unwrap_err();
        assert!(error.contains(expect), "{error}");
    }
    assert_eq!(fixture.store.writes(), 0);
}

/// Changes a target or the policy of its router, and checks the error of a shift.
async fn check_refused(change: impl FnOnce(&mut Target, &mut Policy), expect: &str) {
    let (mut fixture, mut target) = (fixture(), target(&["a"]));
    change(&mut target, &mut fixture.router.policy);
    let error = fixture.router.shift_to(&target, 25).await.unwrap_err();
    assert_eq!(error_chain(&error), expect);
    let error = fixture.router.observe(&target, 25).await.unwrap_err();
    assert_eq!(error_chain(&error), expect);
    assert_eq!(fixture.store.writes(), 0);
}

#[tokio::test]
async fn names_that_no_object_can_have_are_refused() {
    let remedy = "use lower case letters, digits, - and .";
    let owner = |it: &mut Target, _: &mut Policy| it.owner.name = "a/b@c".to_owned();
    check_refused(
        owner,
        &format!("an owner cannot have the name \"a/b@c\": {remedy}"),
    )
    .await;
    let namespace = |it: &mut Target, _: &mut Policy| it.owner.namespace.clear();
    check_refused(
        namespace,
        &format!("a namespace cannot have the name \"\": {remedy}"),
    )
    .await;
    let service = |it: &mut Target, _: &mut Policy| it.services.canary = "Not A Name".to_owned();
    let expect = format!("a Service cannot have the name \"Not A Name\": {remedy}");
    check_refused(service, &expect).await;
    let cluster = |_: &mut Target, it: &mut Policy| it.cluster = Some("a@b".to_owned());
    check_refused(
        cluster,
        &format!("a cluster cannot have the name \"a@b\": {remedy}"),
    )
    .await;
}

#[tokio::test]
async fn tables_of_a_namespace_that_the_policy_does_not_allow_are_refused() {
    let expect = "Rollout shop/tool selects RouteTables in namespace mesh, which is not allowed: ask your administrator to allow it";
    let other =
        |_: &mut Target, it: &mut Policy| it.route_table_namespaces = vec!["edge".to_owned()];
    check_refused(other, expect).await;
}
