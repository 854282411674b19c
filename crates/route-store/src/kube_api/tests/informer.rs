//! An informer with prepared answers.

use futures::StreamExt as _;

use super::watch::{line, list, version};
use super::*;
use crate::ChangeKind;
use crate::kube_api::informer::{Informer, Unknown};

const HOUR: Duration = Duration::from_secs(3600);

type Tables = Informer<WholeDocuments<RouteTable>>;

/// An informer of an API server that gives `answers`.
fn informer(answers: Vec<(u16, Value)>) -> (Tables, Sent) {
    let (store, sent) = store(answers);
    let informer = Informer::new(Arc::new(store), WholeDocuments::default());
    (informer, sent)
}

fn names(informer: &Tables) -> String {
    let tables = informer.all();
    let names = tables.iter().map(|table| table.key().to_string());
    names.collect::<Vec<_>>().join(" ")
}

fn page(tables: Vec<Value>, at: &str, token: &str) -> (u16, Value) {
    let (code, mut page) = list(tables, at);
    page["metadata"]["continue"] = json!(token);
    (code, page)
}

#[tokio::test(start_paused = true)]
async fn a_list_is_applied_page_by_page_and_missing_objects_are_removed_at_its_end() {
    let expired = || fails(410, "too old");
    let at = |name: &str, at: &str| version(table("mesh", name), at);
    let answers = vec![
        list(vec![at("a", "1"), at("b", "2"), at("z", "3")], "10"),
        (200, json!(line("ERROR", expired().1))),
        page(vec![at("a", "1")], "20", "more"),
        expired(),
        // During the first try, b was deleted and z changed.
        page(vec![at("a", "1"), at("c", "25")], "30", "more"),
        page(vec![at("z", "26")], "30", ""),
        (200, json!("")),
    ];
    let (tables, _) = informer(answers);
    let mut changes = tables.subscribe();
    tables.watch_all();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(names(&tables), "mesh/a mesh/c mesh/z");
    let mut reported = Vec::new();
    while let Ok(change) = changes.try_recv() {
        reported.push(format!("{:?} {}", change.kind, change.key));
    }
    assert_eq!(
        reported,
        [
            "Applied mesh/a",
            "Applied mesh/b",
            "Applied mesh/z",
            "Applied mesh/c",
            "Applied mesh/z",
            "Deleted mesh/b"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn without_permission_for_all_namespaces_named_ones_are_watched() {
    let (tables, sent) = informer(vec![
        fails(403, "no"),
        list(vec![table("mesh", "web")], "10"),
        (200, json!("")),
    ]);
    tables.watch_all();
    tables.settled(None).await;
    let why = tables.check(Some("mesh"), HOUR).unwrap_err();
    assert!(matches!(why, Unknown::Failed(_)), "{why:?}");
    tables.watch("mesh");
    tables.settled(Some("mesh")).await;
    assert_eq!(tables.objects(Some("mesh"), HOUR).unwrap().len(), 1);
    tables.check(None, HOUR).unwrap();
    let sent = lines(&sent);
    assert!(sent[0].contains("/v2/routetables?"), "{sent:?}");
    assert!(
        sent[1].contains("/namespaces/mesh/routetables?"),
        "{sent:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_not_watched_if_all_namespaces_are() {
    let (tables, sent) = informer(vec![
        list(vec![table("mesh", "web")], "10"),
        (200, json!("")),
    ]);
    tables.watch_all();
    tables.settled(None).await;
    tables.watch("mesh");
    assert_eq!(tables.status().scopes.len(), 1);
    assert_eq!(tables.objects(Some("mesh"), HOUR).unwrap().len(), 1);
    assert!(lines(&sent).len() <= 2, "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_namespace_that_is_no_longer_watched_are_dropped() {
    let (tables, _) = informer(vec![
        list(vec![table("mesh", "web")], "10"),
        (200, json!("")),
    ]);
    let mut changes = tables.subscribe();
    tables.watch_only(&["mesh".to_owned()].into());
    tables.settled(Some("mesh")).await;
    assert_eq!(names(&tables), "mesh/web");
    tables.watch_only(&[].into());
    assert_eq!(names(&tables), "");
    let why = tables.objects(Some("mesh"), HOUR).unwrap_err();
    assert!(matches!(why, Unknown::NotWatched), "{why:?}");
    assert_eq!(changes.try_recv().unwrap().kind, ChangeKind::Applied);
    assert_eq!(changes.try_recv().unwrap().kind, ChangeKind::Deleted);
    let status = tables.status();
    assert_eq!((status.objects, status.bytes), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_endpoints_of_two_services_are_watched() {
    let slice = |pods: &[&str]| {
        let endpoint = |pod: &&str| json!({"targetRef": {"kind": "Pod", "uid": pod}});
        json!({
            "metadata": {
                "name": "web-x", "namespace": "shop", "resourceVersion": "7",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        })
    };
    let (store, sent) = store(vec![
        list(vec![slice(&["a"])], "10"),
        (
            200,
            json!(line("MODIFIED", version(slice(&["a", "b"]), "11"))),
        ),
    ]);
    let mut endpoints = Arc::new(store).follow_endpoints_of("shop", &["web", "web-canary"]);
    let known = endpoints.next().await.flatten().unwrap();
    let pods: Vec<_> = known.iter().map(|it| it.pod.as_deref()).collect();
    assert_eq!(pods, [Some("a"), Some("b")]);
    let sent = lines(&sent);
    assert!(
        sent[0].contains("/namespaces/shop/endpointslices?"),
        "{sent:?}"
    );
    assert!(sent[0].contains("web%2Cweb-canary"), "{sent:?}");
}

/// Returns the number of requests of an informer in ten seconds after its list, if the API server answers each with an
/// error, or refuses the connections.
async fn tries_in_ten_seconds(answers: bool) -> usize {
    let tries = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&tries);
    let service = tower::service_fn(move |_: http::Request<HttpBody>| {
        let mut tries = counted.lock().unwrap();
        *tries += 1;
        let (code, answer) = match *tries {
            1 => list(vec![], "10"),
            _ => fails(500, "etcd is down"),
        };
        let is_refused = !answers && *tries > 1;
        async move {
            if is_refused {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
            }
            let response = Response::builder().status(code);
            Ok(response
                .body(HttpBody::from(answer.to_string().into_bytes()))
                .unwrap())
        }
    });
    let store =
        KubeRouteStore::with_client(Client::new(service, "default"), Duration::from_secs(5));
    let tables = Tables::new(Arc::new(store), WholeDocuments::default());
    tables.watch_all();
    tokio::time::sleep(Duration::from_secs(10)).await;
    *tries.lock().unwrap()
}

/// The clock is paused, so the numbers do not depend on the machine.
#[tokio::test(start_paused = true)]
async fn pauses_are_longer_after_an_error_status_than_after_a_refused_connection() {
    let refused = tries_in_ten_seconds(false).await;
    assert!((20..=42).contains(&refused), "{refused}");
    let answered = tries_in_ten_seconds(true).await;
    assert!((4..=7).contains(&answered), "{answered}");
}
