//! A real Envoy routes requests by the tables that the plugin wrote: shares, header routes and mirrors.
//!
//! Our host side makes the controller's calls. Every share has a bound of 5 standard deviations, and a control checks that a wrong
//! share is detected.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use e2e_tests::traffic::Shop;
use rollouts_rpc::{Rollout, WeightDestination};
use serde_json::{Value, json};
use traffic_lab::proof::{BOUND, Tally, sigma};

/// Number of requests that are split. The bound is then 2.4 points at weight 10, and 4 points at weight 50.
const COUNT: u64 = 4000;
/// Number of requests that must all have the same destination.
const EACH: u64 = 1000;

const TABLE: &str = "\
# The owner's comments survive.
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata: {name: shop, namespace: shop}
spec:
  hosts: [shop.example.com]
  http:
  - name: health
    matchers: [{uri: {exact: /healthz}}]
    directResponse: {status: 200}
  - name: checkout   # a fifth goes to another team
    matchers: [{uri: {prefix: /checkout}}]
    forwardTo:
      destinations:
      - {ref: {name: reviews}, weight: 80}
      - {ref: {name: legacy}, weight: 20}
  - name: reviews
    forwardTo: {destinations: [{ref: {name: reviews}}]}
";

/// Returns the Rollout `reviews` during its update, with `more` merged into its strategy and `plugin` into the plugin's block.
fn reviews(more: Value, plugin: Value) -> Result<Rollout> {
    let mut block = json!({"routeTableSelector": {"name": "shop"}});
    merge(&mut block, plugin);
    let mut strategy = json!({
        "stableService": "reviews",
        "canaryService": "reviews-canary",
        "steps": [{"setWeight": 25}, {"pause": {}}],
        "trafficRouting": {"plugins": {"solo-io/glooplatform": block}},
    });
    merge(&mut strategy, more);
    Ok(serde_json::from_value(json!({
        "metadata": {"name": "reviews", "namespace": "shop"},
        "spec": {"strategy": {"canary": strategy}},
        "status": {"stableRS": "v1", "currentPodHash": "v2", "currentStepIndex": 1},
    }))?)
}

/// Returns the Rollout after its promotion.
fn promoted(rollout: &Rollout) -> Rollout {
    let mut rollout = rollout.clone();
    rollout.status.stable_rs = rollout.status.current_pod_hash.clone();
    rollout
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn shares(tally: &Tally, expected: &[(&str, f64)]) -> Result<()> {
    tally.check(expected).map(drop).map_err(anyhow::Error::msg)
}

/// Checks a control: the share of this version must be far outside of the bound.
fn check_wrong(tally: &Tally, version: &str, percent: f64) -> Result<()> {
    let off = sigma(tally.version(version), tally.requests(), percent);
    ensure!(tally.failed() == 0, "{tally:?}");
    ensure!(
        off.abs() > 4.0 * BOUND,
        "the control passes with {off:+.1} sigma: {tally:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_split_by_weight_beside_a_third_destination() -> Result<()> {
    let mut shop = Shop::open(TABLE, &["reviews", "reviews-canary", "legacy"]).await?;
    let rollout = reviews(json!({}), json!({}))?;
    shares(&shop.count("/", &[], EACH).await, &[("reviews", 100.0)])?;
    for weight in [10, 25, 50, 90] {
        shop.set_weight(&rollout, weight, &[]).await?;
        let canary = f64::from(weight);
        let expected = [("reviews-canary", canary), ("reviews", 100.0 - canary)];
        let counted = shop.count("/", &[], COUNT).await;
        shares(&counted, &expected).with_context(|| format!("weight {weight}"))?;
    }

    // The control: canary and stable are swapped.
    shop.serve_with_fault(|routes| {
        let exchanged = routes.replace("shop/reviews-canary", "@");
        exchanged
            .replace("shop/reviews\"", "shop/reviews-canary\"")
            .replace('@', "shop/reviews")
    })
    .await?;
    check_wrong(&shop.count("/", &[], COUNT).await, "reviews-canary", 90.0)?;

    shop.set_weight(&rollout, 25, &[]).await?;
    let expected = [
        ("reviews-canary", 20.0),
        ("reviews", 60.0),
        ("legacy", 20.0),
    ];
    shares(&shop.count("/checkout", &[], COUNT).await, &expected)?;
    // The control: the third destination is missing.
    shop.serve_with_fault(|routes| {
        let legacy = r#"{"name":"shop/legacy","weight":20}"#;
        let first = routes.replace(&format!("{legacy},"), "");
        first.replace(&format!(",{legacy}"), "")
    })
    .await?;
    check_wrong(&shop.count("/checkout", &[], COUNT).await, "legacy", 20.0)?;

    shop.set_weight(&rollout, 100, &[]).await?;
    let all = shop.count("/", &[], EACH).await;
    shares(&all, &[("reviews-canary", 100.0)])?;
    shop.close(&[&promoted(&rollout)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn subsets_of_one_service_get_their_shares() -> Result<()> {
    let table = TABLE.replace("legacy", "reviews");
    let table = table.replace("      - {ref: {name: reviews}, weight: 20}\n", "");
    let mut shop = Shop::without_pods(&table.replace(", weight: 80", "")).await?;
    let hash =
        |hash: &str| BTreeMap::from([("rollouts-pod-template-hash".to_owned(), hash.to_owned())]);
    let pods = [
        ("old", hash("v1")),
        ("new", hash("v2")),
        ("old", hash("v1")),
    ];
    shop.add_pods("reviews", &pods).await?;
    let services = json!({"stableService": "", "canaryService": ""});
    let rollout = reviews(services, json!({"subset": {"service": "reviews"}}))?;
    shop.set_weight(&rollout, 25, &[]).await?;
    let counted = shop.count("/", &[], COUNT).await;
    shares(&counted, &[("new", 25.0), ("old", 75.0)])?;

    // The control: both subsets select the old version.
    shop.serve_with_fault(|routes| {
        routes.replace(
            "?rollouts-pod-template-hash=v2",
            "?rollouts-pod-template-hash=v1",
        )
    })
    .await?;
    check_wrong(&shop.count("/", &[], COUNT).await, "new", 25.0)?;
    shop.close(&[&promoted(&rollout)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_experiment_and_a_second_rollout_get_their_shares() -> Result<()> {
    let table = TABLE.replace("legacy", "ratings");
    let services = [
        "reviews",
        "reviews-canary",
        "ratings",
        "ratings-canary",
        "trial",
    ];
    let mut shop = Shop::open(&table, &services).await?;
    let rollout = reviews(json!({}), json!({}))?;
    let experiment = WeightDestination {
        weight: 10,
        service_name: "trial".to_owned(),
        pod_template_hash: "v3".to_owned(),
    };
    shop.set_weight(&rollout, 25, &[experiment]).await?;
    let expected = [("reviews", 65.0), ("reviews-canary", 25.0), ("trial", 10.0)];
    shares(&shop.count("/", &[], COUNT).await, &expected)?;
    shop.set_weight(&rollout, 25, &[]).await?;

    let names = json!({"stableService": "ratings", "canaryService": "ratings-canary"});
    let mut ratings = reviews(names, json!({}))?;
    ratings.metadata.name = "ratings".to_owned();
    shop.set_weight(&ratings, 50, &[]).await?;
    let expected = [
        ("reviews", 60.0),
        ("reviews-canary", 20.0),
        ("ratings", 10.0),
        ("ratings-canary", 10.0),
    ];
    shares(&shop.count("/checkout", &[], COUNT).await, &expected)?;
    // The control: the shares from before the second Rollout are wrong now.
    let before = [
        ("reviews", 60.0),
        ("reviews-canary", 20.0),
        ("ratings", 20.0),
    ];
    let counted = shop.count("/checkout", &[], COUNT).await;
    ensure!(counted.check(&before).is_err(), "{counted:?}");
    check_wrong(&counted, "ratings", 20.0)
        .or_else(|_| check_wrong(&counted, "ratings-canary", 0.0))?;
    shop.close(&[&promoted(&rollout), &promoted(&ratings)])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn ping_pong_services_swap_their_shares() -> Result<()> {
    let table = TABLE.replace("name: reviews}", "name: ping}");
    let mut shop = Shop::open(&table, &["ping", "pong", "legacy"]).await?;
    let services = json!({
        "stableService": "", "canaryService": "",
        "pingPong": {"pingService": "ping", "pongService": "pong"},
    });
    let mut rollout = reviews(services, json!({}))?;
    let roles = |stable: &str| -> Result<_> {
        let status = json!({"canary": {"stablePingPong": stable}});
        let rollout: Rollout = serde_json::from_value(json!({"status": status}))?;
        Ok(rollout.status.canary)
    };
    for (stable, expected) in [
        ("ping", [("ping", 75.0), ("pong", 25.0)]),
        ("pong", [("ping", 25.0), ("pong", 75.0)]),
    ] {
        rollout.status.canary = roles(stable)?;
        shop.set_weight(&rollout, 25, &[]).await?;
        shares(&shop.count("/", &[], COUNT).await, &expected)?;
    }
    // The control: the shares of the swapped roles.
    let wrong = shop.count("/", &[], COUNT).await;
    check_wrong(&wrong, "ping", 75.0)?;
    rollout.status.canary = roles("ping")?;
    shop.close(&[&promoted(&rollout)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn header_routes_send_only_testers_to_the_canary() -> Result<()> {
    let mut shop = Shop::open(TABLE, &["reviews", "reviews-canary", "legacy"]).await?;
    let strategy = json!({
        "steps": [
            {"setHeaderRoute": {"name": "testers", "match": [
                {"headerName": "x-tester", "headerValue": {"exact": "yes"}},
                {"headerName": "user-agent", "headerValue": {"prefix": "ShopBeta/"}},
                {"headerName": "cookie", "headerValue": {"regex": "(.*; *)?beta=1(;.*)?"}},
            ]}},
            {"setWeight": 50},
            {"pause": {}},
        ],
        "trafficRouting": {"managedRoutes": [{"name": "testers"}]},
    });
    let mut rollout = reviews(strategy.clone(), json!({}))?;
    rollout.status.current_step_index = Some(0);
    let step = strategy
        .pointer("/steps/0/setHeaderRoute")
        .context("no step")?;
    let step = serde_json::from_value(step.clone())?;
    shop.set_header_route(&rollout, &step).await?;

    let canary = [
        "x-tester: yes",
        "user-agent: ShopBeta/1.2",
        "cookie: beta=1",
        "cookie: a=1; beta=1; c=2",
    ];
    let stable = [
        "x-tester: no",
        "x-tester: yes2",
        "user-agent: xShopBeta/1",
        "cookie: xbeta=12",
        "x-other: yes",
    ];
    for header in canary {
        let counted = shop.count("/any", &[header], EACH).await;
        shares(&counted, &[("reviews-canary", 100.0)]).context(header)?;
    }
    for header in stable {
        let counted = shop.count("/any", &[header], EACH).await;
        shares(&counted, &[("reviews", 100.0)]).context(header)?;
    }
    // The owner's route before the header routes still has precedence: no Pod answers.
    let health = shop.count("/healthz", &["x-tester: yes"], EACH).await;
    shares(&health, &[("", 100.0)])?;

    // Weights do not change the destination of testers.
    rollout.status.current_step_index = Some(1);
    shop.set_weight(&rollout, 50, &[]).await?;
    let counted = shop.count("/any", &["x-tester: yes"], EACH).await;
    shares(&counted, &[("reviews-canary", 100.0)])?;
    let counted = shop.count("/any", &[], COUNT).await;
    shares(&counted, &[("reviews-canary", 50.0), ("reviews", 50.0)])?;

    // The control: header routes after their source routes match no request.
    shop.serve_with_fault(reverse_routes).await?;
    let counted = shop.count("/any", &["x-tester: yes"], EACH).await;
    ensure!(
        counted.check(&[("reviews-canary", 100.0)]).is_err(),
        "{counted:?}"
    );
    shop.close(&[&promoted(&rollout)]).await
}

/// Reverses the routes of every host.
fn reverse_routes(routes: &str) -> String {
    let Ok(mut routes) = serde_json::from_str::<Value>(routes) else {
        return String::new();
    };
    let hosts = routes.pointer_mut("/virtual_hosts");
    for host in hosts.and_then(Value::as_array_mut).into_iter().flatten() {
        let routes = host.get_mut("routes").and_then(Value::as_array_mut);
        routes.into_iter().for_each(|routes| routes.reverse());
    }
    routes.to_string()
}

/// A mirror of 20 % of the requests, with a split of 75 to 25.
#[tokio::test(flavor = "multi_thread")]
async fn mirrors_copy_their_share_of_both_sides_of_the_split() -> Result<()> {
    let mut shop = Shop::open(TABLE, &["reviews", "reviews-canary", "legacy"]).await?;
    let strategy = json!({
        "steps": [
            {"setMirrorRoute": {"name": "copies", "percentage": 20, "match": [
                {"method": {"exact": "GET"}, "path": {"prefix": "/"}},
            ]}},
            {"setWeight": 25},
            {"pause": {}},
        ],
        "trafficRouting": {"managedRoutes": [{"name": "copies"}]},
    });
    let mut rollout = reviews(strategy.clone(), json!({}))?;
    rollout.status.current_step_index = Some(0);
    let step = strategy
        .pointer("/steps/0/setMirrorRoute")
        .context("no step")?;
    shop.set_mirror_route(&rollout, &serde_json::from_value(step.clone())?)
        .await?;
    rollout.status.current_step_index = Some(1);
    shop.set_weight(&rollout, 25, &[]).await?;

    let [stable, canary] = copies(&shop).await?;
    ensure!(
        stable.is_share() && canary.is_share(),
        "{stable:?} {canary:?}"
    );

    // The control: with a denominator of 100, only one side is mirrored.
    shop.serve_with_fault(|routes| {
        routes.replace(
            r#"{"numerator":200000,"denominator":"MILLION"}"#,
            r#"{"numerator":20,"denominator":"HUNDRED"}"#,
        )
    })
    .await?;
    let [stable, canary] = copies(&shop).await?;
    ensure!(
        !stable.is_share() || !canary.is_share(),
        "{stable:?} {canary:?}"
    );

    // At weight 0, requests to the mirror route succeed without Pods of the canary.
    shop.set_weight(&rollout, 0, &[]).await?;
    shop.end_pods("reviews-canary").await?;
    shares(&shop.count("/any", &[], EACH).await, &[("reviews", 100.0)])?;
    shop.close(&[&promoted(&rollout)]).await
}

/// The requests that one side of the split answered, and how many of them were mirrored.
#[derive(Debug)]
struct Copied {
    copies: usize,
    requests: usize,
}

impl Copied {
    fn is_share(&self) -> bool {
        sigma(self.copies, self.requests, 20.0).abs() <= BOUND
    }
}

/// Sends requests, and counts mirrored requests by the side that answered the original: stable, then canary.
async fn copies(shop: &Shop) -> Result<[Copied; 2]> {
    let (stable, canary) = (shop.pod("reviews")?, shop.pod("reviews-canary")?);
    let before = (stable.requests(), canary.requests(), canary.copies());
    let counted = shop.count("/any", &[], COUNT).await;
    shares(&counted, &[("reviews", 75.0), ("reviews-canary", 25.0)])?;
    let new = |now: BTreeSet<String>, before: &BTreeSet<String>| -> BTreeSet<String> {
        now.difference(before).cloned().collect()
    };
    let copies = new(canary.copies(), &before.2);
    let of = |requests: BTreeSet<String>| Copied {
        copies: requests.intersection(&copies).count(),
        requests: requests.len(),
    };
    let sides = [
        of(new(stable.requests(), &before.0)),
        of(new(canary.requests(), &before.1)),
    ];
    let requests: usize = sides.iter().map(|side| side.requests).sum();
    ensure!(
        requests == counted.requests(),
        "{requests} of {} requests reached a Pod once",
        counted.requests()
    );
    Ok(sides)
}
