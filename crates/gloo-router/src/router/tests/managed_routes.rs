//! Tests of managed routes over the memory store: header routes, mirror routes and their MirrorPolicies, and errors that must
//! not prevent other work.

use rollouts_rpc::rollout::{CanaryStep, HeaderRoutingMatch, RouteMatch, StringMatch};
use route_planner::ANNOTATION;

use super::{faulty::Fault, *};

pub(super) fn header(value: &str) -> SetHeaderRoute {
    let header_value = StringMatch {
        exact: value.into(),
        ..StringMatch::default()
    };
    SetHeaderRoute {
        name: "hdr".into(),
        matches: vec![HeaderRoutingMatch {
            header_name: "x".into(),
            header_value,
        }],
    }
}

/// Returns a Rollout whose first and current step sets a header route.
pub(super) fn header_rollout(block: Value) -> Rollout {
    let mut rollout = rollout(block);
    rollout.metadata.resource_version = "1".into();
    rollout.status.current_step_index = Some(0);
    canary(&mut rollout).steps = vec![CanaryStep {
        set_header_route: Some(header("1")),
        ..CanaryStep::default()
    }];
    routing(&mut rollout).managed_routes = vec![managed("hdr")];
    rollout
}

impl Fixture {
    pub(super) async fn set_header(
        &self,
        rollout: &Rollout,
        route: &SetHeaderRoute,
    ) -> Result<(), String> {
        let outcome = self.router.set_header_route(rollout, route).await;
        outcome.map_err(|error| error_chain(error.as_error()))
    }

    async fn remove(&self, rollout: &Rollout) -> Result<(), String> {
        let outcome = self.router.remove_managed_routes(rollout).await;
        outcome.map_err(|error| error_chain(error.as_error()))
    }

    async fn end_pass(&self, rollout: &Rollout) {
        let _ = self.router.verify_weight(rollout, desired(0), &[]).await;
    }

    /// Returns the names of the routes of a table.
    fn routes(&self, key: &ObjectKey) -> Vec<String> {
        let table = self.store.table(key).unwrap();
        let routes = table["spec"]["http"].as_array().unwrap().clone();
        let name = |route: &Value| route["name"].as_str().unwrap_or("-").to_owned();
        routes.iter().map(name).collect()
    }
}

fn two_tables() -> Fixture {
    Fixture::new([shop(), table("other", vec![route_to("web")])])
}

fn select_both() -> Value {
    json!({"routeTableSelector": {"names": ["shop", "other"], "namespace": "mesh"}})
}

fn other() -> ObjectKey {
    ObjectKey::new("mesh", "other")
}

#[tokio::test]
async fn a_header_route_is_set_once_and_removed() {
    let fixture = Fixture::new([shop()]);
    let original = fixture.spec(&key());
    let rollout = header_rollout(select_shop());
    for _ in 0..2 {
        fixture.set_header(&rollout, &header("1")).await.unwrap();
        fixture.set_weight(&rollout, 0).await.unwrap();
        fixture.end_pass(&rollout).await;
    }
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
    assert_eq!(fixture.store.writes(), 1);
    for _ in 0..2 {
        fixture.remove(&rollout).await.unwrap();
        fixture.set_weight(&rollout, 0).await.unwrap();
    }
    assert_eq!(fixture.spec(&key()), original);
    assert_eq!(fixture.store.writes(), 2);
}

#[tokio::test]
async fn b15_set_weight_restores_a_lost_header_route() {
    let fixture = Fixture::new([shop()]);
    let rollout = header_rollout(select_shop());
    fixture.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
    fixture.store.put(shop()).unwrap();
    fixture.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
}

/// Today's CRD refuses such a route. If a newer one does not, the testers keep their version until the route is corrected.
#[tokio::test]
async fn a_header_route_before_a_route_that_cannot_be_read_stays() {
    let named = |name: &str| {
        let mut route = route_to("web");
        route["name"] = name.into();
        route
    };
    let fixture = Fixture::new([table("shop", vec![named("r"), named("s")])]);
    let mut rollout = header_rollout(select_shop());
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "r", "hdr-2", "s"]);
    let mut broken = fixture.store.table(&key()).unwrap();
    broken["spec"]["http"][1]["forwardTo"] = json!({"destinations": 5});
    fixture.store.put(broken).unwrap();
    let before = fixture.spec(&key());
    let step = CanaryStep {
        set_weight: Some(25),
        ..CanaryStep::default()
    };
    canary(&mut rollout).steps.push(step);
    rollout.status.current_step_index = Some(1);
    let error = fixture.set_weight(&rollout, 25).await.unwrap_err();
    let expect = "route r cannot be read: forwardTo.destinations is not a list";
    assert!(error.contains(expect), "{error}");
    assert_eq!(fixture.spec(&key()), before);
}

#[tokio::test]
async fn b17_a_removed_header_route_stays_removed_until_the_next_pass() {
    let fixture = Fixture::new([shop()]);
    let mut rollout = header_rollout(select_shop());
    canary(&mut rollout).steps[0].set_weight = Some(25);
    rollout.status.stable_rs = "s1".into();
    rollout.status.current_pod_hash = "c1".into();
    fixture.remove(&rollout).await.unwrap();
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    fixture.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["-"]);
    let verified = fixture
        .router
        .verify_weight(&rollout, desired(25), &[])
        .await;
    assert_eq!(verified.unwrap(), Verification::Verified);

    fixture.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
}

/// A program that embeds the router may have a Rollout that no API server has stored.
#[tokio::test]
async fn a_rollout_without_a_version_has_no_pass_that_lasts() {
    let fixture = Fixture::new([shop()]);
    let mut rollout = header_rollout(select_shop());
    rollout.metadata.resource_version.clear();
    for _ in 0..2 {
        fixture.set_header(&rollout, &header("1")).await.unwrap();
        assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
        fixture.remove(&rollout).await.unwrap();
        assert_eq!(fixture.routes(&key()), ["-"]);
    }
}

#[tokio::test]
async fn an_unfinished_pass_does_not_affect_another_version() {
    let fixture = Fixture::new([shop()]);
    let mut rollout = header_rollout(select_shop());
    fixture.remove(&rollout).await.unwrap();
    rollout.metadata.resource_version = "2".into();
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
}

#[tokio::test]
async fn an_aborted_rollout_gets_no_header_route() {
    let fixture = Fixture::new([shop()]);
    let mut rollout = header_rollout(select_shop());
    rollout.status.abort = true;
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    fixture.set_weight(&rollout, 0).await.unwrap();
    assert_eq!(fixture.store.writes(), 0);
}

#[tokio::test]
async fn b13_absent_tables_have_nothing_to_remove() {
    let fixture = two_tables();
    let rollout = header_rollout(select_both());
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    fixture.store.remove(&key());
    fixture.remove(&rollout).await.unwrap();
    assert_eq!(fixture.routes(&other()), ["-"]);
    fixture.store.remove(&other());
    fixture.remove(&rollout).await.unwrap();
}

#[tokio::test]
async fn b52_a_failing_table_does_not_stop_the_removal_in_the_others() {
    let fixture = two_tables();
    let rollout = header_rollout(select_both());
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    fixture.store.fail_next_patch(StoreError::Rejected {
        what: "RouteTable mesh/other".into(),
        reason: "no".into(),
    });
    fixture.remove(&rollout).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["-"]);
    assert_eq!(fixture.routes(&other()), ["hdr", "-"]);
    fixture.remove(&rollout).await.unwrap();
    assert_eq!(fixture.routes(&other()), ["-"]);
}

#[tokio::test]
async fn t5_a_table_that_cannot_be_read_is_reported_by_set_weight_and_does_not_stop_the_others() {
    let fixture = two_tables();
    let rollout = header_rollout(select_both());
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    fixture
        .store
        .put(table("other", vec![json!("odd")]))
        .unwrap();
    fixture.remove(&rollout).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["-"]);
    let error = fixture.set_weight(&rollout, 0).await.unwrap_err();
    assert!(
        error.starts_with("RouteTable mesh/other: route http[0] cannot be read"),
        "{error}"
    );
}

#[tokio::test]
async fn configuration_errors_are_left_to_set_weight() {
    let fixture = Fixture::new([shop()]);
    let rollout = header_rollout(json!({"routeTableSelectors": {}}));
    fixture.remove(&rollout).await.unwrap();
    let error = fixture.set_weight(&rollout, 0).await.unwrap_err();
    assert!(error.contains("unknown key routeTableSelectors"), "{error}");
}

#[tokio::test]
async fn b19_a_header_route_needs_a_route_in_one_of_the_tables() {
    let fixture = Fixture::new([shop(), table("other", vec![route_to("other")])]);
    let rollout = header_rollout(select_both());
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
    assert_eq!(fixture.routes(&other()), ["-"]);

    fixture
        .store
        .put(table("shop", vec![route_to("other")]))
        .unwrap();
    // T-20
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    let error = fixture.set_weight(&rollout, 0).await.unwrap_err();
    for table in ["mesh/other", "mesh/shop"] {
        let expect = format!("RouteTable {table}: no selected route forwards to Service shop/web");
        assert!(error.contains(&expect), "{error}");
    }
}

/// The table admits the weight, but no header route.
#[tokio::test]
async fn t20_a_refused_header_route_is_reported_by_set_weight_of_its_step() {
    let tcp_only = json!({
        "kind": "RouteTable",
        "metadata": {"name": "shop", "namespace": "mesh"},
        "spec": {"tcp": [{"matchers": [{"port": 1}], "forwardTo": {"destinations": [{"ref": {"name": "web", "namespace": "shop"}}]}}]},
    });
    let fixture = Fixture::new([tcp_only]);
    let mut block = select_shop();
    block["tcpRoutes"] = json!([{"port": 1}]);
    let mut rollout = header_rollout(block);
    for _ in 0..2 {
        fixture.set_header(&rollout, &header("1")).await.unwrap();
        let error = fixture.set_weight(&rollout, 0).await.unwrap_err();
        assert!(
            error.contains("header and mirror routes need http routes"),
            "{error}"
        );
    }
    // The owner adds the route, and the controller calls again without a change of the Rollout.
    fixture.store.put(shop()).unwrap();
    rollout.spec = header_rollout(select_shop()).spec;
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    fixture.set_weight(&rollout, 0).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
}

pub(super) fn mirror(percentage: i32) -> SetMirrorRoute {
    let path = StringMatch {
        prefix: "/".into(),
        ..StringMatch::default()
    };
    SetMirrorRoute {
        name: "mir".into(),
        matches: vec![RouteMatch {
            path: Some(path),
            ..RouteMatch::default()
        }],
        percentage: Some(percentage),
    }
}

pub(super) fn mirror_rollout(block: Value) -> Rollout {
    let mut rollout = rollout(block);
    rollout.status.current_step_index = Some(0);
    canary(&mut rollout).steps = vec![CanaryStep {
        set_mirror_route: Some(mirror(30)),
        ..CanaryStep::default()
    }];
    routing(&mut rollout).managed_routes = vec![managed("mir")];
    rollout
}

fn store_and_router() -> (Checked, GlooRouter<Faulty>) {
    let Fixture { router, store } = Fixture::new([shop()]);
    (store, router)
}

fn text(outcome: Result<(), RouterError>) -> String {
    error_chain(outcome.unwrap_err().as_error())
}

#[tokio::test]
async fn b18_the_policy_is_created_after_its_route_and_deleted_before_it() {
    let (store, router) = store_and_router();
    let original = store.table(&key()).unwrap()["spec"].clone();
    let rollout = mirror_rollout(select_shop());
    let nothing: [&str; 0] = [];

    router
        .set_mirror_route(&rollout, &mirror(30))
        .await
        .unwrap();
    assert_eq!(store.taken(), ["table", "create"]);
    router
        .set_mirror_route(&rollout, &mirror(30))
        .await
        .unwrap();
    router.set_weight(&rollout, desired(0), &[]).await.unwrap();
    assert_eq!(store.taken(), nothing);

    router
        .set_mirror_route(&rollout, &mirror(40))
        .await
        .unwrap();
    assert_eq!(store.taken(), ["patch"]);
    router.set_weight(&rollout, desired(25), &[]).await.unwrap();
    assert_eq!(store.taken(), ["table", "patch"], "the step says 30");

    router.remove_managed_routes(&rollout).await.unwrap();
    assert_eq!(store.taken(), ["delete", "table"]);
    router.remove_managed_routes(&rollout).await.unwrap();
    assert_eq!(store.taken(), nothing);
    router.set_weight(&rollout, desired(0), &[]).await.unwrap();
    let table = store.table(&key()).unwrap();
    assert_eq!(table["spec"], original);
    assert_eq!(
        table["metadata"]
            .get("annotations")
            .map(|all| &all[ANNOTATION]),
        None
    );
}

#[tokio::test]
async fn a_step_without_match_removes_the_policy_too() {
    let (store, router) = store_and_router();
    let rollout = mirror_rollout(select_shop());
    router
        .set_mirror_route(&rollout, &mirror(30))
        .await
        .unwrap();
    store.taken();
    let none = SetMirrorRoute {
        matches: vec![],
        ..mirror(30)
    };
    router.set_mirror_route(&rollout, &none).await.unwrap();
    assert_eq!(store.taken(), ["delete", "table"]);
}

#[tokio::test]
async fn set_weight_restores_route_and_policy() {
    let (store, router) = store_and_router();
    let rollout = mirror_rollout(select_shop());
    router.set_weight(&rollout, desired(25), &[]).await.unwrap();
    assert_eq!(store.taken(), ["table", "create"]);
    store.put(shop()).unwrap();
    router.set_weight(&rollout, desired(25), &[]).await.unwrap();
    assert_eq!(store.taken(), ["table"]);
}

#[tokio::test]
async fn a_policy_without_its_route_is_removed() {
    let (store, router) = store_and_router();
    let rollout = mirror_rollout(select_shop());
    router
        .set_mirror_route(&rollout, &mirror(30))
        .await
        .unwrap();
    store.remove(&key());
    store.taken();
    router.remove_managed_routes(&rollout).await.unwrap();
    assert_eq!(store.taken(), ["delete"]);
}

#[tokio::test]
async fn policies_of_other_rollouts_and_owners_stay() {
    let (store, router) = store_and_router();
    let [mine, mut other] = [select_shop(), select_shop()].map(mirror_rollout);
    other.metadata.name = "other".into();
    for rollout in [&mine, &other] {
        let set = router.set_mirror_route(rollout, &mirror(30)).await;
        set.unwrap();
    }
    let theirs = json!({"metadata": {"name": "theirs", "namespace": "mesh"}, "spec": {}});
    store.put_policy(theirs).unwrap();
    let before = store.policies().await.unwrap().len();
    router.remove_managed_routes(&other).await.unwrap();
    router.remove_managed_routes(&mine).await.unwrap();
    let left = store.policies().await.unwrap();
    let left: Vec<_> = left.iter().map(|it| it.key().name.as_str()).collect();
    assert_eq!((before, left), (3, vec!["theirs"]));
}

/// Returns the error of a mirror step, which SetWeight reports (T-20).
async fn refused(router: &GlooRouter<Faulty>, rollout: &Rollout) -> String {
    let route = mirror(30);
    router.set_mirror_route(rollout, &route).await.unwrap();
    text(router.set_weight(rollout, desired(25), &[]).await)
}

#[tokio::test]
async fn a_missing_permission_is_an_error_and_nothing_is_written() {
    let (store, router) = store_and_router();
    store.fail("list policies", Fault::Forbidden);
    let rollout = mirror_rollout(select_shop());
    let error = refused(&router, &rollout).await;
    assert!(
        error.starts_with("Rollout shop/web: mirror routes need MirrorPolicies: "),
        "{error}"
    );
    assert!(error.contains("not allowed to list policies"), "{error}");
    // No policy can exist that would have to be removed.
    router.remove_managed_routes(&rollout).await.unwrap();
    assert_eq!(store.taken(), [""; 0]);
}

#[tokio::test]
async fn a_foreign_policy_is_reported_before_anything_is_written() {
    let (store, router) = store_and_router();
    let theirs = json!({"metadata": {"name": "theirs", "namespace": "mesh"}, "spec": {}});
    store.put_policy(theirs).unwrap();
    let error = refused(&router, &mirror_rollout(select_shop())).await;
    assert!(
        error.contains("would be mirrored by MirrorPolicy mesh/theirs too"),
        "{error}"
    );
    assert_eq!(store.taken(), [""; 0]);
}

/// Makes SetMirrorRoute and SetWeight for a step that has lost its percentage, and checks the policy. `live` is the step of
/// the live Rollout.
async fn check_percentage(live: Option<Value>, expect: Option<&str>) {
    let (store, router) = store_and_router();
    if let Some(route) = live {
        let steps = json!([{"setMirrorRoute": route}]);
        store
            .put_rollout(
                json!({"kind": "Rollout", "metadata": {"namespace": "shop", "name": "web"},
                "spec": {"strategy": {"canary": {"steps": steps}}}}),
            )
            .unwrap();
    }
    let mut rollout = mirror_rollout(select_shop());
    let step = canary(&mut rollout).steps.first_mut().unwrap();
    let route = step.set_mirror_route.as_mut().unwrap();
    route.percentage = None;
    let route = route.clone();
    router.set_mirror_route(&rollout, &route).await.unwrap();
    router.set_weight(&rollout, desired(25), &[]).await.unwrap();
    // The next step sets a weight, and the controller waits until it is verified.
    canary(&mut rollout).steps.push(CanaryStep {
        set_weight: Some(25),
        ..CanaryStep::default()
    });
    rollout.status.current_step_index = Some(1);
    rollout.status.stable_rs = "s1".into();
    rollout.status.current_pod_hash = "c1".into();
    let verified = router.verify_weight(&rollout, desired(25), &[]).await;
    assert_eq!(verified.unwrap(), Verification::Verified);
    let policies = store.policies().await.unwrap();
    let percentages = policies
        .iter()
        .map(|policy| policy.raw()["spec"]["config"]["percentage"].to_string());
    assert_eq!(percentages.collect::<Vec<_>>(), Vec::from_iter(expect));
}

/// Neither an unreadable Rollout, whose mirror step may have lost a percentage of 0, nor unreadable MirrorPolicies remove
/// managed routes that exist, whether the weight grows or shrinks.
#[tokio::test]
async fn managed_routes_stay_while_something_cannot_be_read() {
    for fault in ["get rollout", "list policies"] {
        let (store, router) = store_and_router();
        let mut rollout = mirror_rollout(select_shop());
        let mut steps = header_rollout(select_shop()).steps().to_vec();
        steps.append(&mut canary(&mut rollout).steps);
        let mirror = steps[1].set_mirror_route.as_mut().unwrap();
        mirror.percentage = None;
        canary(&mut rollout).steps = steps;
        rollout.status.current_step_index = Some(1);
        router.set_weight(&rollout, desired(25), &[]).await.unwrap();
        let routes = || {
            let table = store.table(&key()).unwrap();
            let routes = table["spec"]["http"].as_array().unwrap().clone();
            let name = |route: &Value| route["name"].as_str().unwrap_or("-").to_owned();
            routes.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(routes(), ["mir", "hdr", "-"]);
        store.fail(fault, Fault::Timeout);
        for weight in [50, 10] {
            let error = text(router.set_weight(&rollout, desired(weight), &[]).await);
            assert!(error.contains(fault), "{error}");
            assert_eq!(routes(), ["mir", "hdr", "-"], "{fault}, weight {weight}");
        }
        let spec = store.table(&key()).unwrap()["spec"]["http"].clone();
        assert_eq!(spec[0]["forwardTo"], spec[2]["forwardTo"], "{spec}");
    }
}

#[tokio::test]
async fn a_mirror_step_with_percentage_0_copies_nothing() {
    check_percentage(Some(json!({"name": "mir", "percentage": 0})), None).await;
}

#[tokio::test]
async fn a_mirror_step_without_percentage_copies_all_requests() {
    check_percentage(Some(json!({"name": "mir"})), Some("100")).await;
    check_percentage(
        Some(json!({"name": "another", "percentage": 0})),
        Some("100"),
    )
    .await;
    check_percentage(None, Some("100")).await;
}
