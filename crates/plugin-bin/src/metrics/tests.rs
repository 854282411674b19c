//! Tests of the metrics: what is counted, under which names, and how many series there are.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt as _;
use gloo_router::report::Lack;
use gloo_router::report::Reason;
use http::{Method, StatusCode};
use rollouts_rpc::rollout::{SetHeaderRoute, SetMirrorRoute};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, RouterError, TrafficRouter, Verification, WeightDestination,
};
use route_store::{ScopeStatus, with_context};
use serde_json::json;

use super::*;

/// A router with set answers, which may write during a call.
#[derive(Default)]
struct Fake {
    /// Whether SetWeight fails.
    fails: bool,
    verification: Option<Verification>,
    /// The verb of a request that each call sends, and the observer that counts it.
    sends: Option<(&'static str, Arc<Requests>)>,
    is_deferred: bool,
    /// Whether each call confirms the full weight.
    confirms: bool,
    is_slow: bool,
    panics: bool,
    is_stopped: Arc<AtomicBool>,
}

impl Fake {
    async fn answer(&self) -> Result<(), RouterError> {
        if let Some((verb, requests)) = &self.sends {
            requests.request(&sent(verb, "RouteTable", Outcome::Answered(200)));
        }
        if self.confirms {
            calls::confirming();
        }
        if self.is_deferred {
            calls::deferred();
        }
        if self.is_slow {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert!(!self.panics, "planted");
        if self.fails {
            return Err("no".into());
        }
        Ok(())
    }
}

impl TrafficRouter for Fake {
    fn type_name(&self) -> &str {
        "Fake"
    }

    async fn init(&self) -> Result<(), RouterError> {
        Ok(())
    }

    async fn update_hash(
        &self,
        _: &Rollout,
        _: &PodHashes,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        Ok(())
    }

    async fn set_weight(
        &self,
        _: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        self.answer().await
    }

    async fn verify_weight(
        &self,
        _: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<Verification, RouterError> {
        Ok(self.verification.unwrap_or(Verification::NotImplemented))
    }

    async fn set_header_route(&self, _: &Rollout, _: &SetHeaderRoute) -> Result<(), RouterError> {
        Ok(())
    }

    async fn set_mirror_route(&self, _: &Rollout, _: &SetMirrorRoute) -> Result<(), RouterError> {
        Ok(())
    }

    async fn remove_managed_routes(&self, _: &Rollout) -> Result<(), RouterError> {
        Ok(())
    }

    async fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

fn sent(verb: &'static str, kind: &'static str, outcome: Outcome) -> SentRequest {
    SentRequest {
        verb,
        kind,
        outcome,
        duration: Duration::from_millis(7),
    }
}

fn rollout(name: &str) -> Rollout {
    let rollout = json!({"metadata": {"namespace": "shop", "name": name}});
    serde_json::from_value(rollout).unwrap()
}

const WEIGHT: DesiredWeight = DesiredWeight {
    value: 25,
    max: 100,
};

/// Makes the calls of one pass.
async fn pass<R: TrafficRouter>(router: &R, rollout: &Rollout) {
    let hashes = PodHashes::default();
    router.remove_managed_routes(rollout).await.unwrap();
    router.update_hash(rollout, &hashes, &[]).await.unwrap();
    if router.set_weight(rollout, WEIGHT, &[]).await.is_ok() {
        router.verify_weight(rollout, WEIGHT, &[]).await.unwrap();
    }
}

/// Returns the value of a series, named without the prefix.
fn value(metrics: &Metrics, series: &str) -> Option<f64> {
    let text = metrics.to_open_metrics().unwrap();
    let mut lines = text.lines();
    let value = lines.find_map(|line| {
        let line = line.strip_prefix("gloo_router_").unwrap_or(line);
        line.strip_prefix(series)?.strip_prefix(' ')
    });
    value.map(|value| value.parse().unwrap())
}

#[tokio::test]
async fn the_layer_passes_the_end_on() {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let fake = Fake {
        is_stopped: is_stopped.clone(),
        ..Fake::default()
    };
    Metered::new(Arc::new(fake), Metrics::new(false))
        .stop()
        .await;
    assert!(is_stopped.load(Ordering::Relaxed));
}

/// Makes one pass and checks the result that is counted.
async fn check_pass(router: impl FnOnce(&Arc<Metrics>) -> Fake, expect: &str) {
    let metrics = Metrics::new(false);
    let router = Metered::new(Arc::new(router(&metrics)), metrics.clone());
    pass(&router, &rollout("reviews")).await;
    for result in [
        "steady",
        "confirmed",
        "read",
        "changed",
        "deferred",
        "failed",
    ] {
        let count = value(&metrics, &format!(r#"passes_total{{result="{result}"}}"#));
        assert_eq!(count, (result == expect).then_some(1.0), "{result}");
    }
}

#[tokio::test]
async fn a_pass_is_counted_by_its_result() {
    check_pass(|_| Fake::default(), "steady").await;
    for (verb, confirms, expect) in [
        ("get", false, "read"),
        ("get", true, "confirmed"),
        ("patch", false, "changed"),
    ] {
        let sends = |metrics: &Arc<Metrics>| Fake {
            sends: Some((verb, metrics.requests_to("local"))),
            confirms,
            ..Fake::default()
        };
        check_pass(sends, expect).await;
    }
    let is_deferred = true;
    check_pass(
        |_| Fake {
            is_deferred,
            ..Fake::default()
        },
        "deferred",
    )
    .await;
    let fails = true;
    check_pass(
        |_| Fake {
            fails,
            ..Fake::default()
        },
        "failed",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_their_outcome() {
    let metrics = Metrics::new(false);
    let rollout = rollout("reviews");
    let check = async |fake: Fake, code: &str| {
        let router = Metered::new(Arc::new(fake), metrics.clone());
        let call = router.set_weight(&rollout, WEIGHT, &[]);
        let call = tokio::time::timeout(Duration::from_secs(5), call);
        // The server catches a panic in the same way.
        let _ = std::panic::AssertUnwindSafe(call).catch_unwind().await;
        let series = format!(r#"calls_total{{method="SetWeight",code="{code}"}}"#);
        assert_eq!(value(&metrics, &series), Some(1.0), "{code}");
    };
    check(Fake::default(), "ok").await;
    let fails = true;
    check(
        Fake {
            fails,
            ..Fake::default()
        },
        "error",
    )
    .await;
    let is_slow = true;
    check(
        Fake {
            is_slow,
            ..Fake::default()
        },
        "timeout",
    )
    .await;
    let panics = true;
    check(
        Fake {
            panics,
            ..Fake::default()
        },
        "panic",
    )
    .await;
    let series = r#"call_duration_seconds_count{method="SetWeight"}"#;
    assert_eq!(value(&metrics, series), Some(4.0));
    assert_eq!(
        value(&metrics, r#"passes_total{result="failed"}"#),
        Some(3.0)
    );
}

#[tokio::test(start_paused = true)]
async fn the_lag_is_the_time_from_a_write_to_its_verification() {
    let metrics = Metrics::new(false);
    let sends = Some(("patch", metrics.requests_to("local")));
    let fake = |verification, sends| Fake {
        verification: Some(verification),
        sends,
        ..Fake::default()
    };
    let rollout = rollout("reviews");
    let mut router = Metered::new(
        Arc::new(fake(Verification::NotVerified, sends)),
        metrics.clone(),
    );
    pass(&router, &rollout).await;
    router.router = Arc::new(fake(Verification::NotVerified, None));
    tokio::time::advance(Duration::from_secs(10)).await;
    pass(&router, &rollout).await;
    assert_eq!(value(&metrics, "verify_lag_seconds_count"), Some(0.0));
    router.router = Arc::new(fake(Verification::Verified, None));
    tokio::time::advance(Duration::from_secs(10)).await;
    for _ in 0..2 {
        pass(&router, &rollout).await;
    }
    assert_eq!(value(&metrics, "verify_lag_seconds_count"), Some(1.0));
    assert_eq!(value(&metrics, "verify_lag_seconds_sum"), Some(20.0));
    assert!(router.passes.lock().unwrap().is_empty(), "nothing is kept");
}

#[tokio::test]
async fn requests_are_counted_by_cluster_and_writes_by_cause() {
    let metrics = Metrics::new(false);
    let tables = metrics.requests_to("tables");
    let write = |priority, kind| {
        let context = RequestContext {
            deadline: None,
            priority,
        };
        let tables = tables.clone();
        with_context(context, async move {
            tables.request(&sent("patch", kind, Outcome::Answered(200)));
        })
    };
    write(Priority::TowardStable, "RouteTable").await;
    write(Priority::Call, "RouteTable").await;
    write(Priority::Repair, "RouteTable").await;
    write(Priority::Collect, "MirrorPolicy").await;
    write(Priority::Event, "Event").await;
    tables.request(&sent("patch", "RouteTable", Outcome::Answered(409)));
    tables.request(&sent("get", "RouteTable", Outcome::Timeout));
    tables.conflict("RouteTable");
    tables.waited(Duration::from_millis(500));
    let check =
        |series: &str, expect: f64| assert_eq!(value(&metrics, series), Some(expect), "{series}");
    check(r#"writes_total{kind="RouteTable",cause="call"}"#, 2.0);
    check(r#"writes_total{kind="RouteTable",cause="repair"}"#, 1.0);
    check(r#"writes_total{kind="MirrorPolicy",cause="gc"}"#, 1.0);
    check(
        r#"api_requests_total{cluster="tables",verb="patch",kind="RouteTable",code="409"}"#,
        1.0,
    );
    check(
        r#"api_requests_total{cluster="tables",verb="get",kind="RouteTable",code="timeout"}"#,
        1.0,
    );
    check(r#"conflicts_total{kind="RouteTable"}"#, 1.0);
    check(r#"api_wait_seconds_total{cluster="tables"}"#, 0.5);
    check(r#"api_breaker_open{cluster="tables"}"#, 0.0);
    tables.breaker(true);
    check(r#"api_breaker_open{cluster="tables"}"#, 1.0);
    let text = metrics.to_open_metrics().unwrap();
    assert!(!text.contains(r#"writes_total{kind="Event""#), "{text}");
}

#[tokio::test]
async fn leadership_is_not_known_until_the_lease_is_read() {
    let metrics = Metrics::new(false);
    assert_eq!(value(&metrics, "leader"), Some(-1.0));
    for (leads, expect) in [(Some(true), 1.0), (Some(false), 0.0), (None, -1.0)] {
        metrics.background.leads(leads);
        assert_eq!(value(&metrics, "leader"), Some(expect));
    }
}

/// Counts the series, without comments.
fn series(text: &str) -> usize {
    text.lines().filter(|line| !line.starts_with('#')).count()
}

/// Records everything that a process can count: each kind of request with each answer, each outcome of each call.
async fn everything(metrics: &Arc<Metrics>, rollouts: usize) {
    let sends = Some(("patch", metrics.requests_to("local")));
    for number in 0..rollouts {
        let rollout = rollout(&format!("r{number}"));
        let router = Metered::new(Arc::new(Fake::default()), metrics.clone());
        pass(&router, &rollout).await;
    }
    let rollout = rollout("reviews");
    for fake in [
        Fake {
            sends,
            ..Fake::default()
        },
        Fake {
            fails: true,
            ..Fake::default()
        },
        Fake {
            is_deferred: true,
            ..Fake::default()
        },
    ] {
        let router = Metered::new(Arc::new(fake), metrics.clone());
        pass(&router, &rollout).await;
        let header = SetHeaderRoute::default();
        router.set_header_route(&rollout, &header).await.unwrap();
        let mirror = SetMirrorRoute::default();
        router.set_mirror_route(&rollout, &mirror).await.unwrap();
    }
    for method in [
        "RemoveManagedRoutes",
        "UpdateHash",
        "SetWeight",
        "VerifyWeight",
        "SetHeaderRoute",
        "SetMirrorRoute",
    ] {
        for code in ["ok", "error", "timeout", "panic"] {
            metrics
                .calls
                .get_or_create(&CallLabels { method, code })
                .inc();
        }
    }
    let local = [
        ("get", "Rollout"),
        ("list", "Rollout"),
        ("watch", "Rollout"),
        ("get", "Lease"),
        ("get", "Service"),
        ("list", "Pod"),
        ("list", "EndpointSlice"),
        ("watch", "EndpointSlice"),
        ("create", "Event"),
        ("patch", "Event"),
    ];
    let tables = [
        ("get", "RouteTable"),
        ("list", "RouteTable"),
        ("watch", "RouteTable"),
        ("patch", "RouteTable"),
        ("list", "MirrorPolicy"),
        ("watch", "MirrorPolicy"),
        ("create", "MirrorPolicy"),
        ("patch", "MirrorPolicy"),
        ("delete", "MirrorPolicy"),
        ("create", "Event"),
        ("patch", "Event"),
    ];
    for (cluster, requests) in [("local", &local[..]), ("tables", &tables[..])] {
        let observer = metrics.requests_to(cluster);
        observer.waited(Duration::from_secs(1));
        for &(verb, kind) in requests {
            for outcome in [200, 404, 409, 429, 500, 503].map(Outcome::Answered) {
                observer.request(&sent(verb, kind, outcome));
            }
            observer.request(&sent(verb, kind, Outcome::Timeout));
            observer.request(&sent(verb, kind, Outcome::Connection));
            observer.request(&sent(verb, kind, Outcome::Cancelled));
        }
    }
    for outcome in [
        "written",
        "fenced_lease",
        "fenced_rollout",
        "conflict",
        "unanswered",
        "failed",
    ] {
        metrics
            .background
            .repair(outcome, Duration::from_millis(300));
    }
    for reason in ["deleted", "never_seen", "plugin_removed", "deselected"] {
        metrics.background.restore(reason);
    }
    for lack in Lack::ALL {
        metrics.background.behind(lack.as_str(), 1);
    }
    for outcome in ["complete", "timeout", "broken", "ended"] {
        metrics.background.released(outcome, Duration::from_secs(7));
    }
    let count = metrics.count_events();
    for reason in Reason::ALL {
        for result in [
            EventResult::Posted,
            EventResult::Counted,
            EventResult::Throttled,
            EventResult::Dropped,
            EventResult::Failed,
        ] {
            count(reason.as_str(), result);
        }
    }
    for (cluster, kind) in [
        ("local", "Rollout"),
        ("tables", "RouteTable"),
        ("tables", "MirrorPolicy"),
    ] {
        let scope = ScopeStatus {
            namespace: None,
            is_in_use: true,
            age: Some(Duration::from_secs(5)),
            restarts: 1,
            problem: None,
        };
        metrics.export_watch(cluster, kind, move || InformerStatus {
            scopes: vec![scope.clone()],
            objects: 1000,
            bytes: 12_000_000,
        });
    }
    for kind in ["RouteTable", "MirrorPolicy"] {
        metrics.requests_to("tables").conflict(kind);
    }
}

#[tokio::test]
async fn there_are_fewer_than_600_series_with_10_000_rollouts() {
    let metrics = Metrics::new(false);
    everything(&metrics, 10_000).await;
    let text = metrics.to_open_metrics().unwrap();
    assert!(series(&text) < 600, "{} series\n{text}", series(&text));
    assert!(!text.contains("shop"), "no series names a Rollout");
}

#[tokio::test]
async fn with_rollouts_there_are_2000_series_more() {
    let metrics = Metrics::new(true);
    everything(&metrics, 10_000).await;
    let text = metrics.to_open_metrics().unwrap();
    assert!(text.contains(r#"gloo_router_canary_weight{namespace="shop",rollout="r7"} 25"#));
    assert!(series(&text) < 2600);
}

/// A metric that is declared but never counted has no series.
#[tokio::test]
async fn each_declared_metric_is_counted() {
    let metrics = Metrics::new(true);
    everything(&metrics, 1).await;
    let text = metrics.to_open_metrics().unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for name in types.filter_map(|line| line.split(' ').next()) {
        let has_series = text.lines().any(|line| line.starts_with(name));
        assert!(has_series, "{name} has no series");
    }
}

#[tokio::test]
async fn the_reference_lists_every_metric() {
    let metrics = Metrics::new(true);
    everything(&metrics, 1).await;
    let page = include_str!("../../../../docs/observability.md");
    let text = metrics.to_open_metrics().unwrap();
    for line in text.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|line| line.split_once(' '))
        {
            let total = if kind == "counter" { "_total" } else { "" };
            assert!(page.contains(&format!("`{name}{total}")), "{name}{total}");
        }
    }
}

#[tokio::test]
async fn the_accept_header_selects_the_format() {
    let metrics = Metrics::new(false);
    everything(&metrics, 1).await;
    let (status, text) = get(&metrics, &Method::GET, "/metrics", "");
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("# TYPE gloo_router_calls_total counter\ngloo_router_calls_total{"));
    assert!(
        !text.contains("# EOF") && !text.contains("# UNIT"),
        "{text}"
    );
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let (_, text) = get(&metrics, &Method::GET, "/metrics", accept);
    assert!(text.ends_with("# EOF\n"));
    let (status, _) = get(&metrics, &Method::GET, "/", "");
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = get(&metrics, &Method::POST, "/metrics", "");
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}

fn get(metrics: &Metrics, method: &Method, path: &str, accept: &str) -> (StatusCode, String) {
    let answer = serve::answer(metrics, method, path, accept);
    (answer.status(), answer.into_body())
}

#[tokio::test]
async fn a_taken_port_causes_only_a_warning() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    // It must return without a panic.
    serve(address, Metrics::new(false)).await;
}

/// Checks the series of a kind whose scopes are in use or not, with objects of this age in seconds.
#[track_caller]
fn check_synced(scopes: &[(bool, Option<u64>)], expect: Option<&str>) {
    let scopes = scopes.iter().map(|(is_in_use, age)| ScopeStatus {
        namespace: None,
        is_in_use: *is_in_use,
        age: age.map(Duration::from_secs),
        restarts: 0,
        problem: None,
    });
    let scopes: Vec<_> = scopes.collect();
    let metrics = Metrics::new(false);
    metrics.export_watch("local", "MirrorPolicy", move || InformerStatus {
        scopes: scopes.clone(),
        ..InformerStatus::default()
    });
    let text = metrics.to_open_metrics().unwrap();
    let series = r#"gloo_router_watch_synced{cluster="local",kind="MirrorPolicy"} "#;
    let shown = text.lines().find_map(|line| line.strip_prefix(series));
    assert_eq!(shown, expect);
}

/// Otherwise the alert on kinds without a watch would never end.
#[test]
fn a_kind_that_is_not_watched_is_neither_synced_nor_unsynced() {
    check_synced(&[], None);
    check_synced(&[(true, None)], Some("0"));
    check_synced(&[(true, Some(5)), (true, None)], Some("0"));
    check_synced(&[(true, Some(5)), (true, Some(100))], Some("0"));
    check_synced(&[(true, Some(5)), (true, Some(60))], Some("1"));
    // With permissions for single namespaces, the watch of all of them never opens.
    check_synced(&[(false, None), (true, Some(60))], Some("1"));
}

/// The values of a label that the page lists are those that the help of the metric lists.
#[tokio::test]
async fn the_help_lists_the_values_of_the_page() {
    let page = include_str!("../../../../docs/observability.md");
    let metrics = Metrics::new(true);
    // A metric without a series is not written.
    everything(&metrics, 1).await;
    let text = metrics.to_open_metrics().unwrap();
    let mut listed = 0;
    for row in page
        .lines()
        .filter(|line| line.starts_with("| `gloo_router_"))
    {
        let cells: Vec<&str> = row.split(" | ").collect();
        let name = cells[0].trim_matches(['|', ' ', '`']);
        let name = name.strip_suffix("_total").unwrap_or(name);
        let prefix = format!("# HELP {name} ");
        let Some(help) = text.lines().find_map(|line| line.strip_prefix(&prefix)) else {
            continue;
        };
        // A metric without labels has no values.
        let Some(meaning) = cells.get(3) else {
            continue;
        };
        let values = meaning.split('`').skip(1).step_by(2);
        let is_value = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let labels = cells[2];
        for value in values.filter(is_value).filter(|it| !labels.contains(it)) {
            assert!(help.contains(value), "{name} {value}: {help}");
            listed += 1;
        }
    }
    assert!(listed > 25, "{listed}");
}
