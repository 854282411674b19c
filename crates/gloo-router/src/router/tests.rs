//! Tests of the router over a memory store: what SetWeight writes and refuses, and how it retries.

mod between_calls;
mod cached;
mod combined;
mod faulty;
mod guard;
mod managed_routes;
mod management_cluster;
mod partial_failures;
mod promotion_simulation;
mod races;
mod reports;
mod target;

use std::sync::Arc;

use futures::future::join;
use gloo_types::ObjectKey;
use rollouts_rpc::{
    error_chain,
    rollout::{CanaryStep, CanaryStrategy, ManagedRoute, RawJson, RolloutStatus, TrafficRouting},
};
use route_store::{RouteStore as _, StoreError};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::faulty::{Checked, Faulty};
use super::*;
use crate::report::{About, Report};

/// A router and its memory store.
struct Fixture {
    router: GlooRouter<Faulty>,
    store: Checked,
}

impl Fixture {
    fn new(tables: impl IntoIterator<Item = Value>) -> Self {
        Self::within(tables, &[])
    }

    fn within(tables: impl IntoIterator<Item = Value>, namespaces: &[&str]) -> Self {
        let store = Faulty::new(tables);
        let policy = Policy {
            plugin_names: vec!["solo-io/glooplatform".into()],
            route_table_namespaces: namespaces.iter().map(ToString::to_string).collect(),
            ..Policy::default()
        };
        let router = GlooRouter::new(store.clone(), policy);
        let store = Checked(store);
        Self { router, store }
    }

    fn with_call_timeout(self) -> Self {
        let router = self.router.with_call_timeout(Duration::from_secs(5));
        Self { router, ..self }
    }

    async fn set_weight(&self, rollout: &Rollout, weight: i32) -> Result<(), String> {
        let outcome: Result<(), RouterError> =
            self.router.set_weight(rollout, desired(weight), &[]).await;
        outcome.map_err(|error| error_chain(error.as_error()))
    }

    /// Checks that SetWeight with this plugin block fails with a text that contains `expect`, and writes nothing.
    async fn refuses(&self, block: Value, expect: &str) {
        let error = self
            .set_weight(&rollout(block.clone()), 25)
            .await
            .unwrap_err();
        assert!(error.contains(expect), "{block}: {error}");
        assert!(!error.contains(['\n', '%']), "{error}");
        assert_eq!(self.store.writes(), 0);
    }

    fn spec(&self, key: &ObjectKey) -> String {
        let table = self.store.table(key).unwrap();
        format!(
            "{} {:?}",
            table["spec"],
            table["metadata"].get("annotations")
        )
    }

    /// Returns name and weight of each destination of the first route.
    fn weights(&self, key: &ObjectKey) -> Vec<(String, Option<u64>)> {
        let table = self.store.table(key).unwrap();
        let destinations = table["spec"]["http"][0]["forwardTo"]["destinations"]
            .as_array()
            .unwrap()
            .clone();
        let weight = |destination: &Value| {
            (
                destination["ref"]["name"].as_str().unwrap().to_owned(),
                destination.get("weight").and_then(Value::as_u64),
            )
        };
        destinations.iter().map(weight).collect()
    }
}

fn key() -> ObjectKey {
    ObjectKey::new("mesh", "shop")
}

fn table(name: &str, routes: Vec<Value>) -> Value {
    json!({
        "apiVersion": "networking.gloo.solo.io/v2",
        "kind": "RouteTable",
        "metadata": {"name": name, "namespace": "mesh"},
        "spec": {"hosts": ["shop.example.com"], "http": routes},
    })
}

fn route_to(service: &str) -> Value {
    json!({"forwardTo": {"destinations": [{"ref": {"name": service, "namespace": "shop"}, "port": {"number": 80}}]}})
}

fn shop() -> Value {
    table("shop", vec![route_to("web")])
}

/// Returns the plugin block that selects [`shop`].
fn select_shop() -> Value {
    json!({"routeTableSelector": {"name": "shop", "namespace": "mesh"}})
}

/// The Rollout of most tests, as an API server has it.
fn rollout_object(block: Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"strategy": {"canary": {
            "stableService": "web",
            "canaryService": "web-canary",
            "trafficRouting": {"plugins": {"solo-io/glooplatform": block}},
        }}},
    })
}

fn rollout(block: Value) -> Rollout {
    serde_json::from_value(rollout_object(block)).unwrap()
}

fn canary(rollout: &mut Rollout) -> &mut CanaryStrategy {
    rollout.spec.strategy.canary.as_mut().unwrap()
}

fn routing(rollout: &mut Rollout) -> &mut TrafficRouting {
    canary(rollout).traffic_routing.as_mut().unwrap()
}

fn managed(name: &str) -> ManagedRoute {
    ManagedRoute { name: name.into() }
}

fn desired(value: i32) -> DesiredWeight {
    DesiredWeight { value, max: 100 }
}

fn named(weights: &[(&str, Option<u64>)]) -> Vec<(String, Option<u64>)> {
    weights
        .iter()
        .map(|(name, weight)| ((*name).to_owned(), *weight))
        .collect()
}

#[tokio::test]
async fn a_canary_moves_and_returns() {
    let fixture = Fixture::new([shop()]);
    let original = fixture.spec(&key());
    let rollout = rollout(select_shop());

    fixture.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(
        fixture.weights(&key()),
        named(&[("web", Some(75)), ("web-canary", Some(25))])
    );
    fixture.set_weight(&rollout, 100).await.unwrap();
    assert_eq!(fixture.weights(&key()), named(&[("web-canary", Some(100))]));
    fixture.set_weight(&rollout, 0).await.unwrap();
    assert_eq!(fixture.spec(&key()), original);
    assert_eq!(fixture.store.writes(), 3);
}

/// B51
#[tokio::test]
async fn a_repeated_call_writes_nothing() {
    let fixture = Fixture::new([shop()]);
    let rollout = rollout(select_shop());
    for _ in 0..3 {
        fixture.set_weight(&rollout, 25).await.unwrap();
    }
    assert_eq!(fixture.store.writes(), 1);
}

/// B49
#[tokio::test]
async fn after_a_conflict_the_table_is_read_and_planned_again() {
    let fixture = Fixture::new([shop()]);
    let rollout = rollout(select_shop());
    for _ in 0..2 {
        fixture
            .store
            .fail_next_patch(StoreError::Conflict("RouteTable mesh/shop".into()));
    }
    fixture.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(fixture.store.writes(), 1);
}

#[tokio::test]
async fn three_conflicts_are_an_error() {
    let fixture = Fixture::new([shop()]);
    for _ in 0..3 {
        fixture
            .store
            .fail_next_patch(StoreError::Conflict("RouteTable mesh/shop".into()));
    }
    fixture
        .refuses(
            select_shop(),
            "RouteTable mesh/shop changed while it was being written: try again",
        )
        .await;
}

#[tokio::test]
async fn concurrent_writers_of_one_table_do_not_conflict() {
    let tables: Vec<String> = (0..20).map(|n| format!("web-{n}")).collect();
    let routes = tables.iter().map(|name| route_to(name));
    let fixture = Arc::new(Fixture::new([table("shop", routes.collect())]));
    let mut calls = JoinSet::new();
    for name in tables {
        let fixture = fixture.clone();
        calls.spawn(async move {
            let mut rollout = rollout(select_shop());
            rollout.metadata.name.clone_from(&name);
            let canary = canary(&mut rollout);
            canary.canary_service = format!("{name}-canary");
            canary.stable_service = name;
            fixture.set_weight(&rollout, 25).await
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
    assert_eq!(fixture.store.writes(), 20);
}

/// B34, B52
#[tokio::test]
async fn no_table_is_written_if_one_cannot_be_planned() {
    let other = table("aside", vec![route_to("other")]);
    let fixture = Fixture::new([shop(), other]);
    fixture
        .refuses(
            json!({"routeTableSelector": {"names": ["shop", "aside"], "namespace": "mesh"}}),
            "RouteTable mesh/aside: no selected route forwards to Service shop/web",
        )
        .await;
}

#[tokio::test]
async fn bad_configuration_is_refused() {
    let fixture = Fixture::new([shop()]);
    let here = |more: Value| {
        let mut block = select_shop();
        block
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        block
    };
    for (block, expect) in [
        (json!({}), "routeTableSelector is missing or empty"),
        (
            json!({"routeTableSelector": {}}),
            "routeTableSelector is missing or empty",
        ),
        (
            here(json!({"routeSelectors": {}})),
            "unknown key routeSelectors, did you mean routeSelector?",
        ),
        (here(json!({"routeSelector": "a"})), "routeSelector must be"),
        (
            here(json!({"stableDestination": {"namespace": "edge"}})),
            "ask your administrator to allow destinations in edge",
        ),
        (
            json!({"routeTableSelector": {"name": "gone", "namespace": "mesh"}}),
            "RouteTable mesh/gone not found",
        ),
        (
            json!({"routeTableSelector": {"labels": {"app": "gone"}}}),
            "selects no RouteTable (labels app=gone; namespaces shop)",
        ),
    ] {
        fixture.refuses(block, expect).await;
    }
}

#[tokio::test]
async fn the_error_for_a_missing_block_lists_the_existing_plugins() {
    let fixture = Fixture::new([shop()]);
    let mut rollout = rollout(json!({}));
    let nginx = ("argoproj-labs/nginx".to_owned(), RawJson::from(&json!({})));
    routing(&mut rollout).plugins = [nginx].into();
    let error = fixture.set_weight(&rollout, 25).await.unwrap_err();
    assert!(error.contains("it has argoproj-labs/nginx"), "{error}");

    canary(&mut rollout).traffic_routing = None;
    let error = fixture.set_weight(&rollout, 25).await.unwrap_err();
    assert_eq!(
        error,
        "Rollout shop/web has no trafficRouting: add trafficRouting.plugins"
    );

    rollout.spec.strategy.canary = None;
    let error = fixture.set_weight(&rollout, 25).await.unwrap_err();
    assert_eq!(
        error,
        "Rollout shop/web has no canary strategy: only canaries shift traffic"
    );
}

/// B31
#[tokio::test]
async fn a_namespace_that_is_not_allowed_is_not_read() {
    let fixture = Fixture::within([shop()], &["edge"]);
    fixture
        .refuses(
            select_shop(),
            "selects RouteTables in namespace mesh, which is not allowed: ask your administrator to allow it",
        )
        .await;
}

#[tokio::test]
async fn weights_out_of_range() {
    let fixture = Fixture::new([shop()]);
    let rollout = rollout(select_shop());
    let error = fixture.set_weight(&rollout, -1).await.unwrap_err();
    assert!(error.contains("negative"), "{error}");
    assert_eq!(fixture.store.writes(), 0);

    fixture.set_weight(&rollout, 120).await.unwrap();
    assert_eq!(fixture.weights(&key()), named(&[("web-canary", Some(100))]));
}

/// The CustomResourceDefinition admits each number, and the controller a negative one.
#[tokio::test]
async fn an_abort_needs_no_valid_maximum() {
    for max in [0, -5, i32::MIN] {
        let fixture = Fixture::new([shop()]);
        let mut rollout = rollout(select_shop());
        fixture.set_weight(&rollout, 25).await.unwrap();
        routing(&mut rollout).max_traffic_weight = Some(max);
        let set = |value| {
            fixture
                .router
                .set_weight(&rollout, DesiredWeight { value, max }, &[])
        };
        let more: Result<(), RouterError> = set(1).await;
        assert!(more.is_err(), "{max}");
        let none: Result<(), RouterError> = set(0).await;
        none.unwrap();
        assert_eq!(fixture.weights(&key()), named(&[("web", None)]), "{max}");
    }
}

/// B61
#[tokio::test]
async fn errors_of_several_tables_are_one_line() {
    let other = table("shop-2", vec![route_to("web")]);
    let fixture = Fixture::new([shop(), other]);
    for table in ["x", "y"] {
        fixture.store.fail_next_patch(StoreError::Rejected {
            what: format!("RouteTable mesh/{table}"),
            reason: "no".into(),
        });
    }
    let rollout =
        rollout(json!({"routeTableSelector": {"names": ["shop", "shop-2"], "namespace": "mesh"}}));
    let error = fixture.set_weight(&rollout, 25).await.unwrap_err();
    assert_eq!(
        error,
        "the change to RouteTable mesh/x was rejected: no; the change to RouteTable mesh/y was rejected: no"
    );
}

/// B48
#[tokio::test]
async fn verification_follows_the_table() {
    let fixture = Fixture::new([shop()]);
    let mut rollout = rollout(select_shop());
    let step = CanaryStep {
        set_weight: Some(25),
        ..CanaryStep::default()
    };
    canary(&mut rollout).steps = vec![step];
    rollout.status = RolloutStatus {
        stable_rs: "s1".into(),
        current_pod_hash: "c1".into(),
        current_step_index: Some(0),
        ..RolloutStatus::default()
    };
    let verify = async |weight| {
        fixture
            .router
            .verify_weight(&rollout, desired(weight), &[])
            .await
            .map_err(|error| error.to_string())
    };
    assert_eq!(verify(25).await, Ok(Verification::NotVerified));
    fixture.set_weight(&rollout, 25).await.unwrap();
    assert_eq!(verify(25).await, Ok(Verification::Verified));
    assert_eq!(verify(50).await, Ok(Verification::NotVerified));
    fixture.store.remove(&key());
    // The server answers "not verified" to the controller: `rollouts-rpc` has no errors of VerifyWeight.
    let error = verify(25).await.unwrap_err();
    assert!(error.contains("mesh/shop not found"), "{error}");
}

#[tokio::test]
async fn no_table_is_read_if_the_controller_does_not_wait() {
    let fixture = Fixture::new([]);
    let rollout = rollout(select_shop());
    let verification = fixture.router.verify_weight(&rollout, desired(25), &[]);
    assert_eq!(verification.await.unwrap(), Verification::NotImplemented);
}

/// Returns the requests of a call with their priorities. All must have the deadline of the call.
fn requests(fixture: &Fixture) -> Vec<String> {
    let end = tokio::time::Instant::now() + Duration::from_secs(5);
    let contexts = fixture.store.contexts().into_iter();
    let shown = contexts.map(|(request, context)| {
        assert_eq!(context.deadline, Some(end), "{request}");
        format!("{request}: {:?}", context.priority)
    });
    shown.collect()
}

#[tokio::test(start_paused = true)]
async fn requests_have_the_deadline_of_their_call_and_are_urgent_toward_stable() {
    let fixture = Fixture::new([shop()]).with_call_timeout();
    let mut rollout = rollout(select_shop());
    rollout.status = RolloutStatus {
        stable_rs: "s1".into(),
        current_pod_hash: "c1".into(),
        ..RolloutStatus::default()
    };
    let router = &fixture.router;
    for (weight, expect) in [
        (
            50,
            ["select shop: Call", "get shop: Call", "patch shop: Call"],
        ),
        // The plan increases no share.
        (
            25,
            [
                "select shop: Call",
                "get shop: Call",
                "patch shop: TowardStable",
            ],
        ),
        (
            0,
            [
                "select shop: TowardStable",
                "get shop: TowardStable",
                "patch shop: TowardStable",
            ],
        ),
    ] {
        fixture.set_weight(&rollout, weight).await.unwrap();
        assert_eq!(requests(&fixture), expect);
    }
    router.remove_managed_routes(&rollout).await.unwrap();
    let expect = ["select shop: TowardStable", "get shop: TowardStable"];
    assert_eq!(requests(&fixture), expect);
    router
        .verify_weight(&rollout, desired(100), &[])
        .await
        .unwrap();
    assert_eq!(requests(&fixture), ["select shop: Call", "get shop: Call"]);
    let header = SetHeaderRoute::default();
    router.set_header_route(&rollout, &header).await.unwrap();
    let mirror = SetMirrorRoute::default();
    router.set_mirror_route(&rollout, &mirror).await.unwrap();
    let call = ["select shop: Call", "get shop: Call"];
    assert_eq!(requests(&fixture), [call, call].concat());
}
