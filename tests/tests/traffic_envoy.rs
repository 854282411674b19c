//! Tests of the traffic lab: which routes Envoy accepts and rejects, that a reload loses no request, and that no process is left.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::eventually;
use e2e_tests::traffic::{HOST, NAMESPACE};
use envoy_routes::{DefaultRetries, Objects, Translation, translate};
use gloo_types::{RetryTimeoutPolicyDoc, RouteTableDoc};
use serde_json::{Value, json};
use tokio::time::sleep;
use traffic_lab::proof::Tally;
use traffic_lab::{
    Delays, Envoy, Gateway, LabError, Load, Pod, ServiceName, Target, World, envoy_binary,
};

const CHANGES: u32 = 50;
/// Number of requests that must be sent while routes and endpoints change.
const REQUESTS: usize = 100;
const RATE: u32 = 400;

fn translated(http: Value) -> Result<Translation> {
    let table = json!({
        "metadata": {"name": "shop", "namespace": NAMESPACE},
        "spec": {"hosts": [HOST], "http": http},
    });
    Ok(translate(&Objects {
        tables: &[RouteTableDoc::from_value(table)?],
        retries: DefaultRetries::Off,
        ..Objects::default()
    }))
}

/// Translates a table whose only route has this name and the destination `web`.
fn to_web(name: &str) -> Result<Translation> {
    let to = json!({"destinations": [{"ref": {"name": "web"}}]});
    translated(json!([{"name": name, "forwardTo": to}]))
}

fn target(gateway: std::net::SocketAddr) -> Target {
    Target {
        gateway,
        host: HOST.to_owned(),
        path: "/".to_owned(),
        headers: Vec::new(),
    }
}

/// Sends a request, and returns the name of the route that it matched.
async fn route(gateway: &Gateway) -> Result<String> {
    let sent = Load::send(&target(gateway.address()), RATE, 1).await;
    let sent = sent.first().context("no answer")?;
    Ok(sent.answer.route.clone())
}

async fn gateway() -> Result<Gateway> {
    Ok(Gateway::new(Envoy::start(&envoy_binary()?).await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn set_routes_waits_until_envoy_uses_the_routes() -> Result<()> {
    let mut gateway = gateway().await?;
    for index in 0..CHANGES {
        let name = index.to_string();
        gateway.set_routes(&to_web(&name)?).await?;
        ensure!(route(&gateway).await? == format!("shop/shop/{name}"));
        // Equal routes are no change.
        gateway.set_routes(&to_web(&name)?).await?;
    }
    // The control: Envoy does not notice a file that is written in place.
    let before = route(&gateway).await?;
    let routes = to_web("in-place")?.route_configuration;
    gateway.envoy().write_routes_in_place(&routes)?;
    sleep(Duration::from_millis(500)).await;
    ensure!(route(&gateway).await? == before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_and_untranslated_routes_are_errors() -> Result<()> {
    let mut gateway = gateway().await?;
    gateway.set_routes(&to_web("good")?).await?;

    let lambda = json!({"destinations": [{"awsLambda": {"function": "f"}}]});
    let refused = gateway
        .set_routes(&translated(json!([{"forwardTo": lambda}]))?)
        .await;
    ensure!(
        matches!(refused, Err(LabError::Untranslated(_))),
        "{refused:?}"
    );
    let lookahead = json!([{"uri": {"regex": "/(?!a).*"}}]);
    let routes = json!([{"matchers": lookahead, "directResponse": {"status": 200}}]);
    let refused = gateway.set_routes(&translated(routes)?).await;
    let Err(LabError::Refused(reason)) = refused else {
        anyhow::bail!("{refused:?}")
    };
    ensure!(reason.contains("(?!"), "{reason}");
    ensure!(route(&gateway).await? == "shop/shop/good");
    Ok(())
}

/// Endpoints and routes change under load, and Pods end after the gateway has received the change.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_loses_no_request_and_a_pod_that_ends_too_early_does() -> Result<()> {
    let web = ServiceName::new(NAMESPACE, "web");
    let start = async || Pod::start("1", BTreeMap::new()).await;
    let mut gateway = gateway().await?;
    gateway.set_routes(&to_web("0")?).await?;
    let mut pod = start().await?;
    gateway.set_endpoints(&web, vec![pod.endpoint()]).await?;
    let load = Load::start(&target(gateway.address()), RATE);
    let mut changes = 0;
    // On a fast machine all changes end before the load has sent enough requests.
    while changes < CHANGES || load.sent().len() <= REQUESTS {
        let next = start().await?;
        gateway.set_endpoints(&web, vec![next.endpoint()]).await?;
        gateway.set_routes(&to_web(&changes.to_string())?).await?;
        std::mem::replace(&mut pod, next).end().await;
        changes += 1;
    }
    let tally = Tally::of(&load.stop().await);
    ensure!(tally.failed() == 0, "{tally:?} of {changes} changes");

    // The control: the Pod ends before the gateway receives the change.
    let load = Load::start(&target(gateway.address()), RATE);
    pod.end().await;
    sleep(Duration::from_millis(500)).await;
    let tally = Tally::of(&load.stop().await);
    ensure!(tally.failed() > 0, "{tally:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_arrive_late_and_in_order() -> Result<()> {
    let world = World::new(gateway().await?, Delays::default());
    world.publish_routes(to_web("first")?)?;
    world.delivered().await?;
    let routes = Duration::from_millis(1500);
    world.set_delays(Delays {
        routes,
        ..Delays::default()
    });
    world.publish_routes(to_web("slow")?)?;
    world.set_delays(Delays::default());
    world.publish_routes(to_web("quick")?)?;
    ensure!(route(&*world.gateway().await).await? == "shop/shop/first");
    world.delivered().await?;
    ensure!(route(&*world.gateway().await).await? == "shop/shop/quick");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_worlds_of_one_gateway_have_separate_routes_and_delays() -> Result<()> {
    let first = World::new(gateway().await?, Delays::default());
    let second = first.with_same_gateway(Delays::default());
    let of_other = |name: &str| {
        let mut routes = to_web(name)?;
        let text = routes.route_configuration.to_string();
        let text = text.replace(HOST, "other.example.com");
        routes.route_configuration = serde_json::from_str(&text)?;
        anyhow::Ok(routes)
    };
    first.publish_routes(to_web("first")?)?;
    second.publish_routes(of_other("second")?)?;
    first.delivered().await?;
    second.delivered().await?;
    first.set_delays(Delays {
        routes: Duration::from_secs(3600),
        ..Delays::default()
    });
    first.publish_routes(to_web("late")?)?;
    second.publish_routes(of_other("changed")?)?;
    second.delivered().await?;
    ensure!(route(&*first.gateway().await).await? == "shop/shop/first");
    let other = Target {
        host: "other.example.com".to_owned(),
        ..target(second.address())
    };
    let sent = Load::send(&other, RATE, 1).await;
    let route = sent.first().context("no answer")?.answer.route.clone();
    ensure!(route == "shop/shop/changed", "{route}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_panic_no_envoy_is_left() -> Result<()> {
    let id = Arc::new(Mutex::new(None));
    let started = Arc::clone(&id);
    let test = tokio::spawn(async move {
        let envoy = Envoy::start(&envoy_binary().unwrap()).await.unwrap();
        *started.lock().unwrap() = envoy.id();
        panic!("a failing test");
    });
    ensure!(test.await.is_err(), "it did not panic");
    let id = id.lock().unwrap().context("no Envoy was started")?;
    eventually("Envoy is gone", async || {
        // A process that has exited has no program, even before its parent reads its status.
        let program = fs::read_link(format!("/proc/{id}/exe"));
        ensure!(program.is_err(), "{program:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_hide_a_stopped_pod_and_delegated_routes_match() -> Result<()> {
    let object = |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    let to_web = json!({"destinations": [{"ref": {"name": "web"}}]});
    let below_shop = json!([{"uri": {"prefix": "/shop"}}]);
    let delegate = json!({"routeTables": [{"name": "team"}]});
    let tables = [
        json!({"hosts": [HOST], "http": [{"matchers": below_shop, "delegate": delegate}]}),
        json!({"http": [{"name": "cart", "labels": {"retry": "yes"}, "matchers": [{"uri": {"prefix": "/shop/cart"}}], "forwardTo": to_web}]}),
    ];
    let tables = ["root", "team"].into_iter().zip(tables);
    let tables: Result<Vec<_>, _> = tables
        .map(|(name, spec)| RouteTableDoc::from_value(object(name, spec)))
        .collect();
    let tables = tables?;
    let routes = json!([{"route": {"labels": {"retry": "yes"}}}]);
    let retries = json!({"attempts": 30, "retryOn": "connect-failure"});
    let policy = json!({"applyToRoutes": routes, "config": {"retries": retries}});
    let policies = [RetryTimeoutPolicyDoc::from_value(object(
        "retries", policy,
    ))?];

    let mut gateway = gateway().await?;
    let (live, gone) = (
        Pod::start("1", BTreeMap::new()).await?,
        Pod::start("1", BTreeMap::new()).await?,
    );
    let endpoints = vec![live.endpoint(), gone.endpoint()];
    let web = ServiceName::new(NAMESPACE, "web");
    gateway.set_endpoints(&web, endpoints).await?;
    gone.end().await;
    let mut tally = async |policies: &[RetryTimeoutPolicyDoc], path: &str| {
        let translation = translate(&Objects {
            tables: &tables,
            retry_timeout_policies: policies,
            retries: DefaultRetries::Off,
            ..Objects::default()
        });
        gateway.set_routes(&translation).await?;
        let target = Target {
            path: path.to_owned(),
            ..target(gateway.address())
        };
        anyhow::Ok(Tally::of(&Load::send(&target, RATE, 100).await))
    };
    let with_policy = tally(&policies, "/shop/cart/1").await?;
    ensure!(with_policy.version("1") == 100, "{with_policy:?}");
    // The controls: without the policy, and a path that only the other table has.
    let without = tally(&[], "/shop/cart/1").await?;
    ensure!(without.failed() > 20, "{without:?}");
    let elsewhere = tally(&policies, "/shop/other").await?;
    ensure!(elsewhere.failed() == 100, "{elsewhere:?}");
    Ok(())
}
