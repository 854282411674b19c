//! The end of a session of the plugin's binary: after it, no request is sent, and running work does not continue.
//!
//! The test is the host. Its fake API server delays a request of a repair until the session has ended.

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
/// How long the process may live after Quit while the host does not disconnect.
const GRACE: Duration = Duration::from_millis(500);
/// Timeout for events that must happen, far above their duration.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fake API server on loopback that can delay requests.
struct Api {
    objects: FakeApi,
    delayed: watch::Sender<Option<&'static str>>,
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
            delayed: watch::Sender::new(None),
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
            // This future is dropped here when the client disconnects.
            let mut delayed = self.delayed.subscribe();
            let is_free = |delayed: &Option<&str>| delayed.is_none_or(|it| !line.contains(it));
            delayed
                .wait_for(is_free)
                .await
                .expect("the sender is in `self`");
            let answer = self.objects.answer(Request::from_parts(head, body.into()));
            Ok::<_, hyper::Error>(answer.await.expect("it is not down"))
        });
        // A client may disconnect at any time.
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    /// Waits for a request whose method and path contain `part`.
    async fn wait_for_request(&self, part: &str) {
        let was_requested = || {
            self.requests
                .lock()
                .unwrap()
                .iter()
                .any(|it| it.contains(part))
        };
        let asked = timeout(PATIENCE, async {
            while !was_requested() {
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

    /// Returns the weights of the table's destinations.
    fn shares(&self) -> Vec<u64> {
        let table = self
            .objects
            .get(TABLES, &ObjectKey::new("shop", "web"))
            .unwrap();
        let list = table.pointer(DESTINATIONS).unwrap().as_array().unwrap();
        let weight = |it: &Value| it.get("weight").and_then(Value::as_u64);
        list.iter().filter_map(weight).collect()
    }

    /// Another client gives the canary more traffic.
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

/// A Rollout during an update, at the pause after `setWeight: 25`.
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

/// Sends Quit while the API server delays the request of a repair that contains `delayed`. Without one, the table is changed
/// after the reply. The host disconnects after the plugin's grace period.
async fn check(delayed: Option<&'static str>) {
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
    api.wait_for_request("routetables?&watch=true").await;

    if let Some(delayed) = delayed {
        api.delayed.send_replace(Some(delayed));
        api.take_requests();
        api.drift();
        api.wait_for_request(delayed).await;
    }
    drop(router);
    process.session().quit().await.unwrap();
    api.take_requests();
    if delayed.is_none() {
        api.drift();
    }
    // Delayed requests continue, if a client still waits for them.
    api.delayed.send_replace(None);
    sleep(GRACE).await;
    let ended = process.hang_up().await.unwrap();
    assert!(
        ended.status.success(),
        "{delayed:?}: {ended:?}: {:#?}",
        log.lock().unwrap()
    );
    assert_eq!(api.take_requests(), [""; 0], "{delayed:?}");
    // A PATCH may be carried out before the API server notices that its client has disconnected.
    if delayed != Some(PATCH) {
        assert_eq!(api.shares(), DRIFT, "{delayed:?}");
    }
}

/// D-19: the requests of a repair in their order, and the watch.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_after_quit_and_running_requests_are_cancelled() {
    for delayed in [
        None,
        Some("/rollouts/reviews"),
        Some("/leases/"),
        Some(PATCH),
    ] {
        check(delayed).await;
    }
}
