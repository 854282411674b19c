//! Managed routes over the memory store: set, brought back, removed, and what an error may not prevent.

use rollouts_rpc::rollout::{CanaryStep, HeaderRoutingMatch, StringMatch};

use super::*;

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

/// A Rollout whose first step, the current one, is a header route.
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

    /// Names of the routes of a table.
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
async fn b15_set_weight_brings_a_lost_header_route_back() {
    let fixture = Fixture::new([shop()]);
    let rollout = header_rollout(select_shop());
    fixture.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
    fixture.store.put(shop()).unwrap();
    fixture.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
}

#[tokio::test]
async fn b17_a_removed_header_route_stays_away_until_the_next_pass() {
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

#[tokio::test]
async fn a_pass_that_ended_early_does_not_count_for_another_version() {
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
        let expect = format!("RouteTable {table}: no selected route leads to SERVICE shop/web");
        assert!(error.contains(&expect), "{error}");
    }
}

/// The weight alone could be set in this table.
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
    // The owner adds the route, and the controller asks again without a change of the Rollout.
    fixture.store.put(shop()).unwrap();
    rollout.spec = header_rollout(select_shop()).spec;
    fixture.set_header(&rollout, &header("1")).await.unwrap();
    fixture.set_weight(&rollout, 0).await.unwrap();
    assert_eq!(fixture.routes(&key()), ["hdr", "-"]);
}
