//! Weight 0 is always written where possible: what is written while a part of a call fails, and what the error names.

use rollouts_rpc::rollout::{CanaryStep, SetMirrorRoute};
use route_store::Decision;

use super::{faulty::Fault, managed_routes::mirror_rollout, *};
use crate::error::Failures;

fn tables(names: &[&str]) -> Fixture {
    Fixture::new(names.iter().map(|name| table(name, vec![route_to("web")])))
}

fn select(names: &[&str]) -> Rollout {
    rollout(json!({"routeTableSelector": {"names": names, "namespace": "mesh"}}))
}

fn at(name: &str) -> ObjectKey {
    ObjectKey::new("mesh", name)
}

impl Fixture {
    /// Returns the canary's weight in a table.
    fn canary(&self, name: &str) -> u64 {
        let weights = self.weights(&at(name));
        let canary = weights.iter().find(|(name, _)| name == "web-canary");
        canary.map_or(0, |(_, weight)| weight.unwrap())
    }

    /// Sets the weight of one table with another router.
    async fn prepare(&self, name: &str, weight: i32) {
        let router = GlooRouter::new(self.store.clone(), self.router.policy.clone());
        let rollout = select(&[name]);
        let set = router.set_weight(&rollout, desired(weight), &[]);
        set.await.unwrap();
    }

    async fn refuses_weight(&self, rollout: &Rollout, weight: i32, expect: &[&str]) {
        let error = self.set_weight(rollout, weight).await.unwrap_err();
        for part in expect {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

/// Breaks one of the [`TROUBLED`] tables in its own way.
fn break_table(fixture: &Fixture, name: &str) {
    let store = &fixture.store;
    match name {
        "gone" => store.remove(&at("gone")),
        "odd" => drop(store.put(table("odd", vec![json!("odd")]))),
        "elsewhere" => drop(store.put(table("elsewhere", vec![route_to("other")]))),
        "forbidden" => store.fail("get forbidden", Fault::Forbidden),
        "slow" => store.fail("get slow", Fault::Timeout),
        "locked" => store.fail("patch locked", Fault::Forbidden),
        _ => {}
    }
}

const TROUBLED: [&str; 8] = [
    "a",
    "gone",
    "odd",
    "elsewhere",
    "forbidden",
    "slow",
    "locked",
    "z",
];

#[tokio::test]
async fn t1_weight_0_is_written_to_every_table_that_can_be_written() {
    let fixture = tables(&TROUBLED);
    let rollout = select(&TROUBLED);
    fixture.set_weight(&rollout, 25).await.unwrap();
    for name in TROUBLED {
        break_table(&fixture, name);
    }
    // T-3
    let named = [
        "RouteTable mesh/gone not found",
        "RouteTable mesh/odd: route http[0] cannot be read",
        "RouteTable mesh/elsewhere: ",
        "not allowed to get forbidden",
        "no answer to get slow",
        "not allowed to patch locked",
    ];
    fixture.refuses_weight(&rollout, 0, &named).await;
    assert_eq!((fixture.canary("a"), fixture.canary("z")), (0, 0));
}

#[tokio::test]
async fn t1_no_share_grows_while_a_table_cannot_be_planned() {
    for bad in ["gone", "odd", "elsewhere", "forbidden", "slow"] {
        let fixture = tables(&["a", bad]);
        let rollout = select(&["a", bad]);
        break_table(&fixture, bad);
        fixture.refuses_weight(&rollout, 25, &[bad]).await;
        assert_eq!(fixture.store.writes(), 0, "{bad}");
    }
}

#[tokio::test]
async fn t1_one_call_lowers_one_table_while_another_may_not_grow() {
    let fixture = tables(&["high", "low", "gone"]);
    fixture.prepare("high", 50).await;
    fixture.prepare("low", 10).await;
    fixture.store.remove(&at("gone"));
    let rollout = select(&["high", "low", "gone"]);
    fixture.refuses_weight(&rollout, 25, &["mesh/gone"]).await;
    assert_eq!((fixture.canary("high"), fixture.canary("low")), (25, 10));
}

#[tokio::test]
async fn t1_nothing_grows_after_a_failed_write_that_lowers_a_share() {
    let fixture = tables(&["high", "low"]);
    fixture.prepare("high", 50).await;
    fixture.prepare("low", 10).await;
    fixture.store.fail("patch high", Fault::Forbidden);
    let rollout = select(&["high", "low"]);
    fixture.refuses_weight(&rollout, 25, &["patch high"]).await;
    assert_eq!((fixture.canary("high"), fixture.canary("low")), (50, 10));
}

#[tokio::test]
async fn t1_a_table_does_not_grow_after_it_is_planned_again() {
    let fixture = tables(&["a", "gone"]);
    let rollout = select(&["a", "gone"]);
    fixture.set_weight(&rollout, 50).await.unwrap();
    fixture.store.remove(&at("gone"));
    // The owner reapplies the table right before it is written.
    let original = table("a", vec![route_to("web")]);
    fixture.store.put_before_next_patch(original);
    fixture.refuses_weight(&rollout, 25, &["mesh/gone"]).await;
    assert_eq!(fixture.canary("a"), 0);
}

#[tokio::test(start_paused = true)]
async fn t6_a_table_that_does_not_answer_is_named_and_the_others_are_written() {
    let fixture = tables(&["a", "silent", "z"]).with_call_timeout();
    let rollout = select(&["a", "silent", "z"]);
    fixture.set_weight(&rollout, 25).await.unwrap();
    fixture.store.fail("patch silent", Fault::Silence);
    let late = "RouteTable mesh/silent: not written in time: check the API server or raise the call timeout";
    let error = fixture.set_weight(&rollout, 0).await.unwrap_err();
    assert_eq!(error, late);
    assert_eq!((fixture.canary("a"), fixture.canary("z")), (0, 0));
}

/// Written sequentially, six tables would take six seconds, and the call has five.
#[tokio::test(start_paused = true)]
async fn t6_slow_tables_are_written_concurrently() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let fixture = tables(&names).with_call_timeout();
    let rollout = select(&names);
    fixture.set_weight(&rollout, 25).await.unwrap();
    for name in names {
        fixture
            .store
            .fail(&format!("patch {name}"), Fault::Slowness);
    }
    fixture.set_weight(&rollout, 0).await.unwrap();
    assert!(names.iter().all(|name| fixture.canary(name) == 0));
}

#[tokio::test(start_paused = true)]
async fn t6_a_slow_list_of_policies_leaves_time_to_write() {
    let fixture = Fixture::new([shop()]).with_call_timeout();
    let rollout = mirror_rollout(select_shop());
    fixture.set_weight(&rollout, 25).await.unwrap();
    fixture.store.fail("list policies", Fault::Silence);
    fixture.store.fail("patch shop", Fault::Slowness);
    let named = ["MirrorPolicies: not read in time"];
    fixture.refuses_weight(&rollout, 0, &named).await;
    assert_eq!(fixture.canary("shop"), 0);
}

#[tokio::test]
async fn a_rollout_that_cannot_be_read_does_not_stop_weight_0() {
    let fixture = Fixture::new([shop()]);
    let mut rollout = rollout(select_shop());
    fixture.set_weight(&rollout, 25).await.unwrap();
    let mirror = SetMirrorRoute {
        name: "mir".into(),
        matches: vec![rollouts_rpc::rollout::RouteMatch::default()],
        percentage: None,
    };
    canary(&mut rollout).steps = vec![CanaryStep {
        set_mirror_route: Some(mirror),
        ..CanaryStep::default()
    }];
    fixture.store.fail("get rollout", Fault::Timeout);
    let named = ["Rollout shop/web: no answer to get rollout"];
    fixture.refuses_weight(&rollout, 50, &named).await;
    assert_eq!(fixture.canary("shop"), 25);
    fixture.refuses_weight(&rollout, 0, &named).await;
    assert_eq!(fixture.canary("shop"), 0);
}

#[tokio::test]
async fn policies_that_cannot_be_read_do_not_stop_weight_0() {
    let fixture = Fixture::new([shop()]);
    let rollout = mirror_rollout(select_shop());
    fixture.set_weight(&rollout, 25).await.unwrap();
    fixture.store.fail("list policies", Fault::Timeout);
    let named = ["no answer to list policies"];
    fixture.refuses_weight(&rollout, 50, &named).await;
    assert_eq!(fixture.canary("shop"), 25);
    fixture.refuses_weight(&rollout, 0, &named).await;
    assert_eq!(fixture.canary("shop"), 0);
}

#[tokio::test]
async fn t5_set_weight_retries_and_reports_a_failed_removal() {
    for fault in ["list policies", "delete policy"] {
        let fixture = Fixture::new([shop()]);
        let mut rollout = mirror_rollout(select_shop());
        fixture.set_weight(&rollout, 25).await.unwrap();
        rollout.status.abort = true;
        fixture.store.fail(fault, Fault::Forbidden);
        let router = &fixture.router;
        router.remove_managed_routes(&rollout).await.unwrap();
        let named = format!("not allowed to {fault}");
        fixture.refuses_weight(&rollout, 0, &[&named]).await;
        assert_eq!(fixture.canary("shop"), 0);

        fixture.store.heal();
        fixture.set_weight(&rollout, 0).await.unwrap();
        assert_eq!(fixture.store.policies().await.unwrap(), []);
        let taken = fixture.store.taken();
        fixture.set_weight(&rollout, 0).await.unwrap();
        assert_eq!(fixture.store.taken(), [""; 0], "after {taken:?}");
    }
}

#[tokio::test]
async fn a_removal_with_unread_policies_is_tried_again_unless_none_can_exist() {
    for (fault, has_route, has_policy, is_unfinished) in [
        (Fault::Forbidden, true, false, true),
        (Fault::Forbidden, false, true, false),
        (Fault::Timeout, true, false, false),
        (Fault::Timeout, false, true, true),
        (Fault::Timeout, false, false, false),
    ] {
        let fixture = Fixture::new([shop()]);
        let mut rollout = mirror_rollout(select_shop());
        fixture.set_weight(&rollout, 25).await.unwrap();
        if !has_route {
            fixture.store.put(shop()).unwrap();
        }
        if !has_policy {
            for policy in fixture.store.policies().await.unwrap() {
                fixture.store.delete_policy(&policy).await.unwrap();
            }
        }
        rollout.status.abort = true;
        fixture.store.fail("list policies", fault);
        let router = &fixture.router;
        router.remove_managed_routes(&rollout).await.unwrap();
        let unfinished = router.memory.unfinished(&rollout);
        let case = (fault, has_route, has_policy);
        assert_eq!(!unfinished.is_empty(), is_unfinished, "{case:?}");
    }
}

#[tokio::test]
async fn a_table_that_is_no_longer_selected_is_named_until_it_is_restored() {
    let fixture = tables(&["a", "left"]);
    let original = fixture.spec(&at("left"));
    fixture
        .set_weight(&select(&["a", "left"]), 25)
        .await
        .unwrap();
    fixture.store.fail("patch left", Fault::Timeout);
    let named = ["RouteTable mesh/left is no longer selected and not restored yet: no answer"];
    fixture.refuses_weight(&select(&["a"]), 25, &named).await;
    fixture.refuses_weight(&select(&["a"]), 50, &named).await;
    assert_eq!(fixture.canary("a"), 50);
    fixture.store.heal();
    fixture.set_weight(&select(&["a"]), 50).await.unwrap();
    assert_eq!(fixture.spec(&at("left")), original);
}

#[tokio::test]
async fn an_unreadable_table_still_counts_as_selected() {
    let fixture = tables(&["a", "b"]);
    let rollout = select(&["a", "b"]);
    fixture.set_weight(&rollout, 25).await.unwrap();
    fixture.store.fail("select b", Fault::Timeout);
    fixture.refuses_weight(&rollout, 25, &["select b"]).await;
    assert_eq!(fixture.canary("b"), 25);
}

#[tokio::test]
async fn a_table_that_loses_its_label_is_restored_even_if_none_is_selected() {
    let labelled = |labels: Value| {
        let mut table = shop();
        table["metadata"]["labels"] = labels;
        table
    };
    let fixture = Fixture::new([labelled(json!({"app": "web"}))]);
    let block = json!({"routeTableSelector": {"labels": {"app": "web"}, "namespace": "mesh"}});
    let rollout = rollout(block);
    fixture.set_weight(&rollout, 25).await.unwrap();
    let mut table = fixture.store.table(&key()).unwrap();
    table["metadata"]["labels"] = json!({});
    fixture.store.put(table).unwrap();
    let named = ["selects no RouteTable"];
    fixture.refuses_weight(&rollout, 25, &named).await;
    assert_eq!(fixture.canary("shop"), 0);
}

#[tokio::test]
async fn no_state_is_kept_at_rest() {
    let fixture = Fixture::new([shop()]);
    let rollout = rollout(select_shop());
    for weight in [25, 0] {
        fixture
            .router
            .remove_managed_routes(&rollout)
            .await
            .unwrap();
        fixture.set_weight(&rollout, weight).await.unwrap();
        let verified = fixture.router.verify_weight(&rollout, desired(weight), &[]);
        verified.await.unwrap();
    }
    assert!(fixture.router.memory.is_empty());
}

/// Checks the port of the experiment's destination in the request.
async fn check_port(fixture: &Fixture, expect: Result<Option<u32>, &str>) {
    let experiment = WeightDestination {
        weight: 5,
        service_name: "exp".into(),
        ..WeightDestination::default()
    };
    let kind = from_rpc::weight(desired(0), &[experiment]);
    let rollout = rollout(select_shop());
    let router = &fixture.router;
    let mut request = router.request(&rollout, kind).unwrap();
    let deadline = Deadline::of_call(None);
    let selected = router.selected(&request, Decision::Plan, deadline).await;
    let selected = router.for_weights(&mut request, selected, deadline).await;
    let IntentKind::SetWeight(split) = request.intent.kind else {
        panic!("{request:?}");
    };
    let port = Failures::check(selected.failures).map(|()| {
        let ports = split.additional[0].ports.as_ref()?;
        Some(ports.own[0].number)
    });
    match (port, expect) {
        (Ok(port), Ok(expect)) => assert_eq!(port, expect),
        (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
        (port, _) => panic!("{port:?}"),
    }
}

#[tokio::test]
async fn t18_the_port_of_an_experiment_is_that_of_its_service() {
    let fixture = Fixture::new([shop()]);
    check_port(&fixture, Ok(None)).await;
    fixture.store.fail("get service", Fault::Forbidden);
    check_port(&fixture, Ok(None)).await;
    fixture.store.fail("get service", Fault::Timeout);
    check_port(&fixture, Err("Rollout shop/web: no answer to get service")).await;
    fixture.store.heal();
    let service = json!({"metadata": {"name": "exp", "namespace": "shop"}, "spec": {"ports": [{"port": 8080}]}});
    fixture.store.put_service(service).unwrap();
    for _ in 0..2 {
        check_port(&fixture, Ok(Some(8080))).await;
        assert_eq!(fixture.store.services_read(), 4);
    }
}

#[tokio::test]
async fn t18_an_unreadable_service_keeps_its_port() {
    let mut known = shop();
    known["spec"]["http"][0]["forwardTo"]["destinations"] = json!([
        {"ref": {"name": "exp"}, "port": {"number": 1}},
        {"ref": {"name": "exp", "namespace": "shop"}, "port": {"number": 9090}},
    ]);
    let fixture = Fixture::new([known]);
    fixture.store.fail("get service", Fault::Timeout);
    check_port(&fixture, Ok(Some(9090))).await;
}

#[tokio::test]
async fn t18_the_stable_service_is_read_only_if_it_has_to_tell() {
    let fixture = Fixture::new([shop()]);
    let service = |name: &str, ports: Value| json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"ports": ports}});
    let several = json!([{"name": "metrics", "port": 9090}, {"name": "http", "port": 8080}]);
    fixture.store.put_service(service("exp", several)).unwrap();
    for reads in [2, 3] {
        // Without the stable Service it is asked for again.
        check_port(&fixture, Ok(Some(9090))).await;
        assert_eq!(fixture.store.services_read(), reads);
    }
    fixture
        .store
        .put_service(service("web", json!([{"port": 80, "targetPort": "http"}])))
        .unwrap();
    for _ in 0..2 {
        check_port(&fixture, Ok(Some(9090))).await;
        assert_eq!(fixture.store.services_read(), 4);
    }
    // After the experiment, another one may have a Service of this name.
    let rollout = rollout(select_shop());
    let ended = fixture.router.set_weight(&rollout, desired(10), &[]);
    ended.await.unwrap();
    fixture
        .store
        .put_service(service("exp", json!([{"port": 7000}])))
        .unwrap();
    check_port(&fixture, Ok(Some(7000))).await;
}

#[tokio::test]
async fn t18_later_calls_keep_the_port_of_an_experiment() {
    let fixture = Fixture::new([shop()]);
    let service = json!({"metadata": {"name": "exp", "namespace": "shop"}, "spec": {"ports": [{"port": 8080}]}});
    fixture.store.put_service(service).unwrap();
    let experiment = [WeightDestination {
        weight: 5,
        service_name: "exp".into(),
        ..WeightDestination::default()
    }];
    let rollout = rollout(select_shop());
    for weight in [0, 0, 10] {
        let set = fixture
            .router
            .set_weight(&rollout, desired(weight), &experiment);
        set.await.unwrap();
        let table = fixture.store.table(&key()).unwrap();
        let destinations = table["spec"]["http"][0]["forwardTo"]["destinations"].clone();
        let added = destinations.as_array().unwrap().last().unwrap().clone();
        assert_eq!(added["port"], json!({"number": 8080}), "{destinations}");
    }
    assert_eq!(fixture.store.writes(), 2);
    assert_eq!(fixture.store.services_read(), 1);
}

/// Sets 25 %, and then 0 by a new process, for a Rollout with these plugins. Checks that the table is restored and what the error
/// contains.
async fn check_unusable(plugins: Value, namespaces: &[&str], expect: &str) {
    let fixture = tables(&["a"]);
    let original = fixture.spec(&at("a"));
    fixture.set_weight(&select(&["a"]), 25).await.unwrap();
    let table = fixture.store.table(&at("a")).unwrap();
    let fixture = Fixture::within([table], namespaces);
    let mut rollout = select(&["a"]);
    routing(&mut rollout).plugins = serde_json::from_value(plugins.clone()).unwrap();
    let grows = fixture.set_weight(&rollout, 50).await.unwrap_err();
    assert!(grows.contains(expect), "{plugins}: {grows}");
    assert_eq!(fixture.canary("a"), 25, "{plugins}");
    let error = fixture.set_weight(&rollout, 0).await.unwrap_err();
    let restored = "; weight 0 is set without the block: restored RouteTable mesh/a";
    assert!(
        error.contains(expect) && error.ends_with(restored),
        "{plugins}: {error}"
    );
    assert_eq!(fixture.spec(&at("a")), original, "{plugins}");
}

#[tokio::test]
async fn o2_weight_0_is_set_whatever_the_block_says() {
    const PLUGIN: &str = "solo-io/glooplatform";
    let block = json!({"routeTableSelector": {"name": "a", "namespace": "mesh"}});
    let missing = "trafficRouting.plugins has no solo-io/glooplatform";
    check_unusable(
        json!({PLUGIN: {"routeTableSelector": {"nmae": "a"}}}),
        &[],
        "unknown key",
    )
    .await;
    check_unusable(
        json!({PLUGIN: {}}),
        &[],
        "routeTableSelector is missing or empty",
    )
    .await;
    check_unusable(json!({PLUGIN: null}), &[], "plugin configuration").await;
    // The plugin is registered under another name, or the block was removed.
    check_unusable(json!({"acme/gloo": block}), &[], missing).await;
    check_unusable(json!({}), &[], missing).await;
    // The administrator restricts the namespaces of tables or destinations while the canary has traffic.
    check_unusable(json!({PLUGIN: block}), &["shop"], "which is not allowed").await;
    let mut foreign = block.clone();
    foreign["canaryDestination"] = json!({"namespace": "other"});
    check_unusable(json!({PLUGIN: foreign}), &[], "allow destinations in other").await;
}
