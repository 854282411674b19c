//! Mirror routes over the memory store: the policy behind them comes after the route and goes before it.

use rollouts_rpc::rollout::{CanaryStep, RouteMatch, StringMatch};
use route_planner::ANNOTATION;

use super::{faulty::Fault, *};

fn mirror(percentage: i32) -> SetMirrorRoute {
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

fn store_and_router() -> (Arc<Faulty>, GlooRouter<Faulty>) {
    let Fixture { router, store } = Fixture::new([shop()]);
    (store, router)
}

fn text(outcome: Result<(), RouterError>) -> String {
    error_chain(outcome.unwrap_err().as_error())
}

#[tokio::test]
async fn b18_the_policy_comes_after_its_route_and_goes_before_it() {
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
async fn set_weight_brings_route_and_policy_back() {
    let (store, router) = store_and_router();
    let rollout = mirror_rollout(select_shop());
    router.set_weight(&rollout, desired(25), &[]).await.unwrap();
    assert_eq!(store.taken(), ["table", "create"]);
    store.put(shop()).unwrap();
    router.set_weight(&rollout, desired(25), &[]).await.unwrap();
    assert_eq!(store.taken(), ["table"]);
}

#[tokio::test]
async fn a_policy_whose_route_is_gone_is_removed_all_the_same() {
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
async fn a_policy_of_another_rollout_or_of_somebody_else_stays() {
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

/// The error of a mirror step, which SetWeight reports (T-20).
async fn refused(router: &GlooRouter<Faulty>, rollout: &Rollout) -> String {
    let route = mirror(30);
    router.set_mirror_route(rollout, &route).await.unwrap();
    text(router.set_weight(rollout, desired(25), &[]).await)
}

#[tokio::test]
async fn missing_rights_are_an_error_and_nothing_is_written() {
    let (store, router) = store_and_router();
    store.fail("list policies", Fault::Forbidden);
    let rollout = mirror_rollout(select_shop());
    let error = refused(&router, &rollout).await;
    assert!(
        error.starts_with("Rollout shop/web: mirror routes need MirrorPolicies: "),
        "{error}"
    );
    assert!(error.contains("not allowed to list policies"), "{error}");
    // Nothing can be there to remove.
    router.remove_managed_routes(&rollout).await.unwrap();
    assert_eq!(store.taken(), [""; 0]);
}

#[tokio::test]
async fn a_policy_of_somebody_else_is_named_before_anything_is_written() {
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

/// SetMirrorRoute and SetWeight for a step whose percentage did not arrive, with what the live Rollout says.
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
    // The next step sets a weight, and the controller waits until it is in force.
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
