//! The Kubernetes store with prepared answers: the requests that it sends, and the results and errors of the answers.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::client::Body as HttpBody;
use kube::core::Status;
use serde_json::json;

use gloo_types::RouteTable;

use super::{connect::is_exempt, *};
use crate::{FIELD_MANAGER, RequestContext, SentRequest, with_context};

mod age;
mod histories;
mod informer;
mod overload;
mod watch;

/// Requests as `METHOD path body`, in order of arrival.
type Sent = Arc<Mutex<Vec<String>>>;

/// A store whose API server gives one of `answers` per request, and then 404. A JSON string is sent without quotes, for the
/// lines of a watch.
fn store(answers: Vec<(u16, Value)>) -> (KubeRouteStore, Sent) {
    let sent = Sent::default();
    let log = sent.clone();
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    let service = tower::service_fn(move |request: http::Request<HttpBody>| {
        let (log, answers) = (log.clone(), answers.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let line = format!(
                "{} {} {}",
                head.method,
                head.uri,
                String::from_utf8_lossy(&body)
            );
            log.lock().unwrap().push(line.trim_end().to_owned());
            let next = answers.lock().unwrap().next();
            let (code, answer) = next.unwrap_or_else(|| fails(404, "not found"));
            let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
            let body = match answer {
                Value::String(lines) => lines,
                answer => answer.to_string(),
            };
            Ok::<_, Infallible>(response.body(HttpBody::from(body.into_bytes())).unwrap())
        }
    });
    (
        KubeRouteStore::with_client(Client::new(service, "default"), Duration::from_secs(5)),
        sent,
    )
}

fn failure(code: u16, message: &str, details: Option<Value>) -> Value {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": "Because", "code": code});
    if let Some(details) = details {
        status["details"] = details;
    }
    status
}

/// An answer with an error.
fn fails(code: u16, message: &str) -> (u16, Value) {
    (code, failure(code, message, None))
}

fn web() -> ObjectKey {
    ObjectKey::new("mesh", "web")
}

fn table(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "networking.gloo.solo.io/v2", "kind": "RouteTable",
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": "7"},
        "spec": {"http": [{"name": "r", "futureField": {"z": 1, "a": 2}}]}})
}

fn by_name(names: &[&str], namespaces: &[&str]) -> RouteTableSelector {
    RouteTableSelector {
        names: names.iter().map(ToString::to_string).collect(),
        namespaces: namespaces.iter().map(ToString::to_string).collect(),
        ..RouteTableSelector::default()
    }
}

fn by_label(namespaces: &[&str]) -> RouteTableSelector {
    RouteTableSelector {
        labels: [("app".to_owned(), "shop".to_owned())].into(),
        ..by_name(&[], namespaces)
    }
}

async fn select(
    store: &KubeRouteStore,
    selector: RouteTableSelector,
) -> Result<Vec<RouteTableDoc>, StoreError> {
    let selection = store.select(&selector, Freshness::Live);
    selection.await.complete()
}

fn lines(sent: &Sent) -> Vec<String> {
    sent.lock().unwrap().clone()
}

#[tokio::test]
async fn a_named_table_is_read_by_name_with_unknown_fields_in_order() {
    let (store, sent) = store(vec![(200, table("mesh", "web"))]);
    let tables = select(&store, by_name(&["web"], &["mesh"])).await.unwrap();
    assert_eq!(
        lines(&sent),
        ["GET /apis/networking.gloo.solo.io/v2/namespaces/mesh/routetables/web"]
    );
    assert_eq!(
        tables[0].raw().to_string(),
        table("mesh", "web").to_string()
    );
}

#[tokio::test]
async fn tables_with_labels_are_listed_page_by_page() {
    let page =
        |name, token| json!({"metadata": {"continue": token}, "items": [table("mesh", name)]});
    let (store, sent) = store(vec![(200, page("b", "more")), (200, page("a", ""))]);
    let tables = select(&store, by_label(&["mesh"])).await.unwrap();
    let keys: Vec<String> = tables.iter().map(|table| table.key().to_string()).collect();
    assert_eq!(keys, ["mesh/a", "mesh/b"]);
    let path = "GET /apis/networking.gloo.solo.io/v2/namespaces/mesh/routetables?&labelSelector=app%3Dshop&limit=250";
    assert_eq!(
        lines(&sent),
        [path.to_owned(), format!("{path}&continue=more")]
    );
}

#[tokio::test]
async fn a_name_may_exist_in_one_of_several_namespaces() {
    let (store, _) = store(vec![fails(404, "no"), (200, table("mesh", "web"))]);
    let selected = select(&store, by_name(&["web"], &["edge", "mesh"]));
    assert_eq!(selected.await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_name_in_no_namespace_is_an_error() {
    let (store, _) = store(vec![]);
    let selected = select(&store, by_name(&["web"], &["edge", "mesh"]));
    assert_eq!(
        selected.await.unwrap_err().to_string(),
        "RouteTable edge/web or mesh/web not found: create it or correct routeTableSelector"
    );
}

#[tokio::test]
async fn an_unreadable_table_does_not_hide_the_others() {
    let selector = RouteTableSelector {
        labels: [("app".to_owned(), "shop".to_owned())].into(),
        ..by_name(&["a", "b", "c"], &["mesh"])
    };
    let forbidden = || fails(403, "no");
    let (store, _) = store(vec![
        fails(404, "no"),
        forbidden(),
        (200, table("mesh", "c")),
        forbidden(),
    ]);
    let selection = store.select(&selector, Freshness::Live).await;
    let keys: Vec<String> = selection
        .tables
        .iter()
        .map(|table| table.key().to_string())
        .collect();
    assert_eq!(keys, ["mesh/c"]);
    let errors: Vec<String> = selection.errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "RouteTable mesh/a not found: create it or correct routeTableSelector",
            "not allowed to get RouteTable mesh/b: grant it on routetables.networking.gloo.solo.io (no)",
            "not allowed to list routetables in namespace mesh: grant it on routetables.networking.gloo.solo.io (no)",
        ]
    );
}

#[tokio::test]
async fn a_service_is_read_from_the_core_group() {
    let service = json!({"metadata": {"name": "exp", "namespace": "shop"}, "spec": {"ports": [{"port": 8080}]}});
    let (store, sent) = store(vec![(200, service), fails(403, "no")]);
    let key = ObjectKey::new("shop", "exp");
    assert_eq!(
        store.service_ports(&key).await.unwrap(),
        Some(vec![ServicePort::plain(8080)])
    );
    assert_eq!(lines(&sent), ["GET /api/v1/namespaces/shop/services/exp"]);
    assert_eq!(
        store.service_ports(&key).await.unwrap_err().to_string(),
        "not allowed to get Service shop/exp: grant it on services (no)"
    );
}

#[tokio::test]
async fn a_patch_is_a_json_patch_under_our_field_manager() {
    let (store, sent) = store(vec![(200, table("mesh", "web"))]);
    let patch: Patch = serde_json::from_value(
        json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}]),
    )
    .unwrap();
    store.patch(&web(), &patch).await.unwrap();
    assert_eq!(
        lines(&sent),
        [
            "PATCH /apis/networking.gloo.solo.io/v2/namespaces/mesh/routetables/web?\
          &fieldManager=rollouts-plugin-trafficrouter-glooplatform \
          [{\"op\":\"test\",\"path\":\"/metadata/resourceVersion\",\"value\":\"7\"}]"
        ]
    );
}

#[tokio::test]
async fn handing_a_table_back_uses_another_field_manager() {
    let answer = (200, table("mesh", "web"));
    let (mut store, sent) = store(vec![answer.clone(), answer]);
    let mut check = async |manager: &str| {
        store.access.field_manager = manager.to_owned();
        store.hand_back(&web(), &Patch(Vec::new())).await.unwrap();
        let line = lines(&sent).pop().unwrap();
        let expect = format!("?&fieldManager={manager}-at-rest ");
        assert!(line.contains(&expect), "{line}");
    };
    check(FIELD_MANAGER).await;
    check("own-program").await;
}

#[test]
fn answers_become_errors() {
    let conflict = "RouteTable mesh/web changed while it was being written: try again";
    let causes = json!({"name": "web", "kind": "RouteTable", "causes": [{"field": "spec"}]});
    for (code, message, details, expect) in [
        (
            404,
            "gone",
            None,
            "RouteTable mesh/web not found: create it or correct routeTableSelector",
        ),
        (409, "modified", None, conflict),
        (
            422,
            "the server rejected our request due to an error in our request",
            None,
            conflict,
        ),
        (
            422,
            "the server rejected our request",
            Some(json!({})),
            conflict,
        ),
        (
            422,
            "spec: at least one of http, tcp, tls",
            Some(causes),
            "the change to RouteTable mesh/web was rejected: spec: at least one of http, tcp, tls",
        ),
        (
            403,
            "admission webhook \"gloo\" denied the request: no",
            None,
            "the change to RouteTable mesh/web was rejected: admission webhook \"gloo\" denied the request: no",
        ),
        (
            403,
            "routetables is forbidden",
            None,
            "not allowed to patch RouteTable mesh/web: grant it on routetables.networking.gloo.solo.io (routetables is forbidden)",
        ),
        (
            500,
            "boom",
            None,
            "cannot patch RouteTable mesh/web: check that the API server or directory is reachable",
        ),
    ] {
        let call = Call::on::<RouteTable>("patch", &web());
        let status: Status = serde_json::from_value(failure(code, message, details)).unwrap();
        let error = call.failed(kube::Error::Api(Box::new(status)));
        assert_eq!(error.to_string(), expect);
    }
}

#[tokio::test]
async fn a_refused_connection_is_unreachable() {
    let service = tower::service_fn(|_: http::Request<HttpBody>| async {
        Err::<Response<HttpBody>, _>(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
    });
    let store =
        KubeRouteStore::with_client(Client::new(service, "default"), Duration::from_secs(5));
    let error = store.read(&web()).await.unwrap_err();
    assert!(
        matches!(error, StoreError::Unreachable { verb: "get", .. }),
        "{error:?}"
    );
}

/// Reads a table, and returns the error.
async fn refused(store: &KubeRouteStore) -> String {
    store.read(&web()).await.unwrap_err().to_string()
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_ends_at_its_timeout() {
    let store = silent(Duration::from_secs(2));
    assert_eq!(
        refused(&store).await,
        "no answer to get RouteTable mesh/web within 2 s: check the API server or raise the request timeout"
    );
}

#[tokio::test]
async fn an_invalid_route_table_is_named() {
    let (store, _) = store(vec![(200, json!({"kind": "RouteTable", "metadata": "?"}))]);
    assert_eq!(
        refused(&store).await,
        "RouteTable mesh/web is no valid RouteTable: correct it"
    );
}

#[tokio::test]
async fn a_missing_kubeconfig_is_named() {
    let store = KubeRouteStore::new(KubeAccess {
        kubeconfig: Some("/nowhere/config".into()),
        ..KubeAccess::default()
    });
    let error = store.read(&web()).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(
        source.to_string(),
        "kubeconfig /nowhere/config: it cannot be read: No such file or directory: correct it, or name another context"
    );
}

#[test]
fn no_proxy_names_hosts_domains_and_networks() {
    #[track_caller]
    fn check(server: &'static str, no_proxy: &str, exempt: bool) {
        assert_eq!(is_exempt(&Uri::from_static(server), no_proxy), exempt);
    }
    check("https://10.0.0.1:6443", "", false);
    check("https://10.0.0.1:6443", "10.0.0.1", true);
    check("https://10.0.0.1:6443", "localhost,10.0.0.0/8", true);
    check("https://11.0.0.1:6443", "10.0.0.0/8", false);
    check("https://c1.example.com", ".example.com", true);
    check("https://c1.example.com", "c2.example.com", false);
    check("https://c1.example.com", "*", true);
}

fn policy() -> Value {
    json!({"apiVersion": "trafficcontrol.policy.gloo.solo.io/v2", "kind": "MirrorPolicy",
        "metadata": {"name": "copy", "namespace": "mesh", "resourceVersion": "9"}, "spec": {}})
}

#[tokio::test]
async fn policies_of_all_namespaces_are_listed() {
    let (store, sent) = store(vec![(200, json!({"items": [policy()]}))]);
    assert_eq!(store.policies().await.unwrap().len(), 1);
    assert_eq!(
        lines(&sent),
        ["GET /apis/trafficcontrol.policy.gloo.solo.io/v2/mirrorpolicies?&limit=250"]
    );
}

#[tokio::test]
async fn a_policy_is_created_under_our_field_manager_and_deleted_at_the_version_that_was_read() {
    let (store, sent) = store(vec![
        (201, policy()),
        (200, json!({"kind": "Status", "status": "Success"})),
    ]);
    let created = store.create_policy(&policy()).await.unwrap();
    store.delete_policy(&created).await.unwrap();
    let path = "/apis/trafficcontrol.policy.gloo.solo.io/v2/namespaces/mesh/mirrorpolicies";
    assert_eq!(
        lines(&sent),
        [
            format!("POST {path}?&fieldManager={FIELD_MANAGER} {}", policy()),
            format!("DELETE {path}/copy? {{\"preconditions\":{{\"resourceVersion\":\"9\"}}}}"),
        ]
    );
}

#[tokio::test]
async fn a_forbidden_create_names_the_missing_permission() {
    let (store, _) = store(vec![fails(403, "no")]);
    let error = store.create_policy(&policy()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "not allowed to create MirrorPolicy mesh/copy: \
         grant it on mirrorpolicies.trafficcontrol.policy.gloo.solo.io (no)"
    );
}

/// Reads a table from `answers`. Returns the result, the milliseconds that it took, and the number of tries.
async fn tried(answers: Vec<(u16, Value)>) -> (String, u128, usize) {
    let (store, sent) = store(answers);
    let start = Instant::now();
    let outcome = store.read(&web()).await;
    let took = start.elapsed().as_millis();
    let shown = match outcome {
        Ok(table) => table.key().to_string(),
        Err(error) => format!("{:#}", anyhow::Error::from(error)),
    };
    (shown, took, lines(&sent).len())
}

fn overloaded(seconds: u32) -> (u16, Value) {
    let details = json!({"retryAfterSeconds": seconds});
    (429, failure(429, "too many requests", Some(details)))
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_api_server_is_retried_after_the_pause_that_it_asks_for() {
    let answers = vec![overloaded(1), overloaded(2), (200, table("mesh", "web"))];
    assert_eq!(tried(answers).await, ("mesh/web".to_owned(), 3000, 3));
}

#[tokio::test(start_paused = true)]
async fn a_request_to_an_overloaded_api_server_has_three_tries() {
    let (shown, _, times) = tried(vec![overloaded(0); 9]).await;
    insta::assert_snapshot!(shown, @"cannot get RouteTable mesh/web: check that the API server or directory is reachable: the API server answered 429: too many requests");
    assert_eq!(times, 3);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_does_not_fit_is_not_started() {
    let (_, took, times) = tried(vec![overloaded(60); 9]).await;
    assert_eq!((took, times), (0, 1));
}

#[tokio::test]
async fn an_error_of_the_api_server_is_one_line() {
    let status = failure(
        500,
        "etcdserver:\n  leader changed",
        Some(json!({"causes": []})),
    );
    let (shown, _, times) = tried(vec![(500, status)]).await;
    insta::assert_snapshot!(shown, @"cannot get RouteTable mesh/web: check that the API server or directory is reachable: the API server answered 500: etcdserver: leader changed");
    assert_eq!(times, 1);
    let (shown, ..) = tried(vec![(502, json!("<html>Bad Gateway</html>"))]).await;
    insta::assert_snapshot!(shown, @"cannot get RouteTable mesh/web: check that the API server or directory is reachable: the API server answered 502: <html>Bad Gateway</html>");
}

/// Records the reports of a store, one line each.
#[derive(Debug, Default)]
struct Reports(Mutex<Vec<String>>);

impl Reports {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Reports {
    fn request(&self, request: &SentRequest) {
        let SentRequest {
            verb,
            kind,
            outcome,
            duration,
        } = request;
        self.add(format!("{verb} {kind} {outcome} {duration:?}"));
    }

    fn waited(&self, time: Duration) {
        self.add(format!("waited {time:?}"));
    }

    fn breaker(&self, is_open: bool) {
        self.add(format!("breaker {is_open}"));
    }

    fn conflict(&self, kind: &'static str) {
        self.add(format!("conflict {kind}"));
    }
}

#[tokio::test(start_paused = true)]
async fn every_try_and_every_conflict_is_reported() {
    let conflict = fails(409, "modified");
    let (store, _) = store(vec![overloaded(0), (200, table("mesh", "web")), conflict]);
    let reports = Arc::new(Reports::default());
    let store = store.with_observer(reports.clone());
    store.read(&web()).await.unwrap();
    store.patch(&web(), &Patch(Vec::new())).await.unwrap_err();
    assert_eq!(
        reports.lines(),
        [
            "get RouteTable 429 0ns",
            "get RouteTable 200 0ns",
            "patch RouteTable 409 0ns",
            "conflict RouteTable",
        ]
    );
}

/// An API server that never answers.
fn silent(timeout: Duration) -> KubeRouteStore {
    let service = tower::service_fn(|_: http::Request<HttpBody>| {
        std::future::pending::<Result<Response<HttpBody>, Infallible>>()
    });
    KubeRouteStore::with_client(Client::new(service, "default"), timeout)
}

#[tokio::test(start_paused = true)]
async fn a_request_ends_before_the_deadline_of_its_call() {
    let reports = Arc::new(Reports::default());
    let store = silent(Duration::from_secs(3)).with_observer(reports.clone());
    let check = async |left: Option<u64>, expect: &[&str]| {
        let deadline = left.map(|left| Instant::now() + Duration::from_millis(left));
        let context = RequestContext {
            deadline,
            ..RequestContext::default()
        };
        let key = web();
        let error = with_context(context, store.read(&key)).await.unwrap_err();
        assert!(error.is_unavailable());
        assert_eq!(reports.lines(), expect);
    };
    check(None, &["get RouteTable timeout 3s"]).await;
    check(Some(5000), &["get RouteTable timeout 3s"]).await;
    check(Some(1100), &["get RouteTable timeout 1s"]).await;
    check(Some(100), &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_is_reported() {
    let reports = Arc::new(Reports::default());
    let store = silent(Duration::from_secs(3)).with_observer(reports.clone());
    let key = web();
    let read = tokio::time::timeout(Duration::from_secs(1), store.read(&key));
    read.await.unwrap_err();
    assert_eq!(reports.lines(), ["get RouteTable cancelled 1s"]);
}

#[tokio::test]
async fn events_are_written_to_the_core_group() {
    let (store, sent) = store(vec![(201, json!({})), (200, json!({}))]);
    let key = ObjectKey::new("shop", "reviews.1");
    let event = json!({"metadata": {"namespace": "shop", "name": "reviews.1"}});
    store.create_event(&key, &event).await.unwrap();
    store.patch_event(&key, &json!({"count": 2})).await.unwrap();
    let manager = format!("fieldManager={FIELD_MANAGER}");
    assert_eq!(
        lines(&sent),
        [
            format!("POST /api/v1/namespaces/shop/events?&{manager} {event}"),
            format!(r#"PATCH /api/v1/namespaces/shop/events/reviews.1?&{manager} {{"count":2}}"#),
        ]
    );
}
