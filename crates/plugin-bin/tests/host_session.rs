//! The end of a session, in a process of the plugin: no request is sent after it, and what was under way does not go on.
//!
//! The test is the host, and its fake API server keeps a request of a repair until the session has ended.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers are test code too"
)]

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gloo_types::ObjectKey;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::host::PluginProcess;
use rollouts_rpc::{PodHashes, Rollout};
use route_store::fake_api::FakeApi;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const TABLES: &str = "routetables";
/// How long the process goes on after Quit at most, while the host does not hang up.
const GRACE: Duration = Duration::from_millis(500);
/// Far above what anything takes that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fake API server on loopback, which keeps some requests.
struct Api {
    objects: FakeApi,
    kept: watch::Sender<Option<&'static str>>,
    /// The requests so far, as `method path?query`.
    requests: Mutex<Vec<String>>,
    kubeconfig: PathBuf,
    _directory: TempDir,
}

impl Api {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let server = format!("http://{}", listener.local_addr().unwrap());
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": server}}],
            "users": [{"name": "anyone", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "anyone"}}],
            "current-context": "fake",
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let api = Arc::new(Self {
            objects: FakeApi::default(),
            kept: watch::Sender::new(None),
            requests: Mutex::default(),
            kubeconfig,
            _directory: directory,
        });
        let serving = Arc::clone(&api);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&serving).serve(stream));
            }
        });
        api
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let service = service_fn(async |request: Request<Incoming>| {
            let (head, body) = request.into_parts();
            let line = format!("{} {}", head.method, head.uri);
            self.requests.lock().unwrap().push(line.clone());
            let body = body.collect().await?.to_bytes();
            // Dropped here when the client hangs up.
            let mut kept = self.kept.subscribe();
            let is_free = |kept: &Option<&str>| kept.is_none_or(|it| !line.contains(it));
            kept.wait_for(is_free)
                .await
                .expect("the sender is in `self`");
            let answer = self.objects.answer(Request::from_parts(head, body.into()));
            Ok::<_, hyper::Error>(answer.await.expect("it is not down"))
        });
        // A client may hang up at any time.
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    /// Waits for a request whose method and path contain `part`.
    async fn is_asked(&self, part: &str) {
        let is_asked = || {
            self.requests
                .lock()
                .unwrap()
                .iter()
                .any(|it| it.contains(part))
        };
        let asked = timeout(PATIENCE, async {
            while !is_asked() {
                sleep(Duration::from_millis(5)).await;
            }
        });
        asked
            .await
            .unwrap_or_else(|_| panic!("no {part}: {:#?}", self.requests.lock().unwrap()));
    }

    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    /// The weights of the table's destinations.
    fn shares(&self) -> Vec<u64> {
        let table = self
            .objects
            .get(TABLES, &ObjectKey::new("shop", "web"))
            .unwrap();
        let list = table.pointer(DESTINATIONS).unwrap().as_array().unwrap();
        let weight = |it: &Value| it.get("weight").and_then(Value::as_u64);
        list.iter().filter_map(weight).collect()
    }

    /// Somebody else gives the canary more traffic.
    fn drift(&self) {
        let mut table = self
            .objects
            .get(TABLES, &ObjectKey::new("shop", "web"))
            .unwrap();
        for (place, weight) in DRIFT.into_iter().enumerate() {
            let destination = format!("{DESTINATIONS}/{place}/weight");
            *table.pointer_mut(&destination).unwrap() = json!(weight);
        }
        self.objects.put(TABLES, table);
    }
}

const PATCH: &str = "PATCH ";
const DESTINATIONS: &str = "/spec/http/0/forwardTo/destinations";
const DRIFT: [u64; 2] = [40, 60];

fn table() -> Value {
    let to = json!({"ref": {"name": "reviews", "namespace": "shop"}, "port": {"number": 80}});
    json!({
        "apiVersion": "networking.gloo.solo.io/v2",
        "kind": "RouteTable",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"hosts": ["shop.example.com"], "http": [{"name": "all", "forwardTo": {"destinations": [to]}}]},
    })
}

/// In an update, at the pause after `setWeight: 25`.
fn rollout() -> Value {
    json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "metadata": {"name": "reviews", "namespace": "shop"},
        "spec": {"replicas": 4, "strategy": {"canary": {
            "stableService": "reviews",
            "canaryService": "reviews-canary",
            "trafficRouting": {"plugins": {"solo-io/glooplatform": {"routeTableSelector": {"name": "web"}}}},
            "steps": [{"setWeight": 25}, {"pause": {}}],
        }}},
        "status": {"stableRS": "s1", "currentPodHash": "c1", "currentStepIndex": 1, "abort": false},
    })
}

/// The host says Quit while the API server keeps the request of a repair that `kept` is a part of. Without one, the table is
/// changed after the reply. The host hangs up later than the plugin may live.
async fn check(kept: Option<&'static str>) {
    let api = Api::start().await;
    api.objects.put(TABLES, table());
    api.objects.put("rollouts", rollout());
    let mut command = Command::new(env!(
        "CARGO_BIN_EXE_rollouts-plugin-trafficrouter-glooplatform"
    ));
    command.env("KUBECONFIG", &api.kubeconfig);
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&log);
    let on_log = move |line| lines.lock().unwrap().push(line);
    let process = PluginProcess::start(command, PluginKind::TrafficRouter, on_log);
    let process = process.await.unwrap();
    let router = process.session().dispense_router().await.unwrap();
    router.init_plugin().await.unwrap();
    let live = api
        .objects
        .get("rollouts", &ObjectKey::new("shop", "reviews"))
        .unwrap();
    let live: Rollout = serde_json::from_value(live).unwrap();
    let hashes = PodHashes {
        canary: "c1".into(),
        stable: "s1".into(),
    };
    router.update_hash(&live, &hashes, &[]).await.unwrap();
    router.set_weight(&live, 25, &[]).await.unwrap();
    assert_eq!(api.shares(), [75, 25]);
    api.is_asked("routetables?&watch=true").await;

    if let Some(kept) = kept {
        api.kept.send_replace(Some(kept));
        api.take_requests();
        api.drift();
        api.is_asked(kept).await;
    }
    drop(router);
    process.session().quit().await.unwrap();
    api.take_requests();
    if kept.is_none() {
        api.drift();
    }
    // What is kept may go on, if anyone still waits for it.
    api.kept.send_replace(None);
    sleep(GRACE).await;
    let ended = process.hang_up().await.unwrap();
    assert!(
        ended.status.success(),
        "{kept:?}: {ended:?}: {:#?}",
        log.lock().unwrap()
    );
    assert_eq!(api.take_requests(), [""; 0], "{kept:?}");
    // A PATCH may be carried out before the API server notices that its client has hung up.
    if kept != Some(PATCH) {
        assert_eq!(api.shares(), DRIFT, "{kept:?}");
    }
}

/// D-19: the requests of a repair in their order, and the watch.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_after_quit_and_what_is_under_way_is_cancelled() {
    for kept in [
        None,
        Some("/rollouts/reviews"),
        Some("/leases/"),
        Some(PATCH),
    ] {
        check(kept).await;
    }
}
