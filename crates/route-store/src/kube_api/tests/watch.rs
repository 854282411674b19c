//! A watch with prepared answers: its events, and the position at which it continues.

use bytes::Bytes;
use http_body_util::channel::Channel;

use super::*;
use crate::kube_api::watch::{Event, Scope, Source, Watch};

/// Returns one line of a watch.
pub(super) fn line(kind: &str, object: Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

pub(super) fn version(mut object: Value, version: &str) -> Value {
    object["metadata"]["resourceVersion"] = json!(version);
    object
}

pub(super) fn list(tables: Vec<Value>, version: &str) -> (u16, Value) {
    let list = json!({"metadata": {"resourceVersion": version}, "items": tables});
    (200, list)
}

/// A watch of the RouteTables of namespace mesh.
fn watch(store: KubeRouteStore) -> Watch<WholeDocuments<RouteTable>> {
    Watch::new(Source {
        store: Arc::new(store),
        keep: Arc::default(),
        scope: Scope::Namespace("mesh".to_owned()),
        labels: None,
    })
}

/// Returns the first `events` events of a watch of namespace mesh, and its requests.
async fn events_of(answers: Vec<(u16, Value)>, events: usize) -> Vec<String> {
    let (store, sent) = store(answers);
    let mut watch = watch(store);
    let mut lines = Vec::new();
    for _ in 0..events {
        let event = watch.next().await;
        for line in std::mem::take(&mut *sent.lock().unwrap()) {
            let (_, query) = line.split_once('?').unwrap();
            lines.push(format!("? {query}"));
        }
        lines.push(describe(event));
    }
    lines
}

fn describe(event: Result<Event<Document<RouteTable>>, StoreError>) -> String {
    match event {
        Ok(Event::Page {
            objects,
            version,
            is_first,
            proven,
        }) => {
            let names = objects.iter().map(|table| table.key().name.as_str());
            let names = names.collect::<Vec<_>>().join(" ");
            let first = if is_first { "first " } else { "" };
            let last = if proven.is_some() { "last " } else { "" };
            format!("{first}{last}page of {version}: {names}")
        }
        Ok(Event::Applied(table)) => format!("applied {}", table.raw()["metadata"]),
        Ok(Event::Deleted(table)) => {
            let version = table.resource_version().unwrap();
            format!("deleted {} at {version}", table.key())
        }
        Ok(Event::Opened) => "opened".to_owned(),
        Ok(Event::Proven(version, _)) => format!("proven at {version}"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_is_followed_by_every_change() {
    let mut changed = version(table("mesh", "b"), "11");
    changed["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
    let bookmark = json!({"kind": "RouteTable", "apiVersion": "networking.gloo.solo.io/v2",
        "metadata": {"resourceVersion": "13"}});
    let events = [
        line("ADDED", changed),
        line("DELETED", version(table("mesh", "a"), "12")),
        line("BOOKMARK", bookmark),
    ];
    let answers = vec![
        list(vec![table("mesh", "a")], "10"),
        (200, json!(events.concat())),
        (200, json!("")),
    ];
    insta::assert_debug_snapshot!(events_of(answers, 6).await, @r#"
    [
        "? &limit=250",
        "first last page of 10: a",
        "? &watch=true&timeoutSeconds=25&allowWatchBookmarks=true&resourceVersion=10",
        "opened",
        "applied {\"name\":\"b\",\"namespace\":\"mesh\",\"resourceVersion\":\"11\"}",
        "deleted mesh/a at 12",
        "proven at 13",
        "? &watch=true&timeoutSeconds=25&allowWatchBookmarks=true&resourceVersion=13",
        "opened",
    ]
    "#);
}

/// Checks the time from the end of a connection that lasted `seconds` until the next one is open.
async fn check_reopening(seconds: u64, expect: Duration) {
    let service = tower::service_fn(move |request: http::Request<HttpBody>| {
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let is_watch = request.uri().query().unwrap().contains("watch=true");
        async move {
            if is_watch {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    drop(sender);
                });
            } else {
                let list = list(vec![], "10").1.to_string();
                sender.send_data(list.into()).await.unwrap();
            }
            Ok::<_, Infallible>(Response::new(body))
        }
    });
    let client = Client::new(service, "default");
    let mut watch = watch(KubeRouteStore::with_client(client, Duration::from_secs(5)));
    for _list_and_opening in 0..2 {
        watch.next().await.unwrap();
    }
    let opened = Instant::now();
    assert_eq!(watch.next().await.unwrap(), Event::Opened);
    let ended = Duration::from_secs(seconds);
    assert_eq!(opened.elapsed().checked_sub(ended), Some(expect));
}

/// A change during the pause would be seen late.
#[tokio::test(start_paused = true)]
async fn only_a_connection_that_ends_at_once_is_followed_by_a_pause() {
    check_reopening(0, Duration::from_secs(1)).await;
    check_reopening(1, Duration::ZERO).await;
    check_reopening(25, Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_is_followed_by_a_list() {
    let expired = failure(410, "too old resource version", None);
    let answers = vec![
        list(vec![table("mesh", "a")], "10"),
        (200, json!(line("ERROR", expired.clone()))),
        list(vec![], "20"),
        (410, expired),
        list(vec![table("mesh", "b")], "30"),
    ];
    insta::assert_debug_snapshot!(events_of(answers, 6).await, @r#"
    [
        "? &limit=250",
        "first last page of 10: a",
        "? &watch=true&timeoutSeconds=25&allowWatchBookmarks=true&resourceVersion=10",
        "opened",
        "cannot watch routetables in namespace mesh: check that the API server or directory is reachable",
        "? &limit=250",
        "first last page of 20: ",
        "? &watch=true&timeoutSeconds=25&allowWatchBookmarks=true&resourceVersion=20",
        "cannot watch routetables in namespace mesh: check that the API server or directory is reachable",
        "? &limit=250",
        "first last page of 30: b",
    ]
    "#);
}

/// Checks what follows the list if its version expires after `seconds`, when a watch is opened or while it is open.
async fn check_expiry(seconds: u64, expect: &str) {
    let expired = failure(410, "too old resource version", None);
    let at_opening = vec![(410, expired.clone())];
    let while_open = vec![(200, json!(line("ERROR", expired)))];
    for expiry in [at_opening, while_open] {
        let is_open = expiry[0].0 == 200;
        let answers = [vec![list(vec![], "10")], expiry, vec![list(vec![], "20")]].concat();
        let (store, _) = store(answers);
        let mut watch = watch(store);
        watch.next().await.unwrap();
        tokio::time::advance(Duration::from_secs(seconds)).await;
        if is_open {
            watch.next().await.unwrap();
        }
        assert_eq!(
            describe(watch.next().await),
            expect,
            "{seconds} s, {is_open}"
        );
    }
}

/// A restarted API server has none of the old versions. A pause before the list would delay every repair.
#[tokio::test(start_paused = true)]
async fn only_a_version_that_expires_at_once_is_an_error() {
    let error = "cannot watch routetables in namespace mesh: check that the API server or directory is reachable";
    check_expiry(0, error).await;
    check_expiry(1, "first last page of 20: ").await;
    check_expiry(49, "first last page of 20: ").await;
}

/// A token expires after five minutes, so a slow client gets 410 between two pages.
#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_be_continued_starts_again() {
    let page = |name, token, version: &str| {
        let metadata = json!({"continue": token, "resourceVersion": version});
        let page = json!({"metadata": metadata, "items": [table("mesh", name)]});
        (200, page)
    };
    let answers = vec![
        page("a", "more", "10"),
        fails(500, "busy"),
        fails(410, "The provided continue parameter is too old"),
        page("a", "again", "20"),
        page("b", "", "20"),
    ];
    insta::assert_debug_snapshot!(events_of(answers, 5).await, @r#"
    [
        "? &limit=250",
        "first page of 10: a",
        "? &limit=250&continue=more",
        "cannot list routetables in namespace mesh: check that the API server or directory is reachable",
        "? &limit=250&continue=more",
        "cannot list routetables in namespace mesh: check that the API server or directory is reachable",
        "? &limit=250",
        "first page of 20: a",
        "? &limit=250&continue=again",
        "last page of 20: b",
    ]
    "#);
}

#[tokio::test(start_paused = true)]
async fn a_watch_continues_at_its_position_after_a_failure() {
    let cut = line("ADDED", version(table("mesh", "b"), "11")) + "{\"type\": 7}\n";
    let answers = vec![
        fails(403, "no"),
        list(vec![], "10"),
        fails(403, "no"),
        (200, json!(cut)),
        fails(500, "busy"),
        (200, json!("")),
        (200, json!("")),
    ];
    insta::assert_debug_snapshot!(events_of(answers, 8).await, @r#"
    [
        "? &limit=250",
        "not allowed to list routetables in namespace mesh: grant it on routetables.networking.gloo.solo.io (no)",
        "? &limit=250",
        "first last page of 10: ",
        "? &watch=true&timeoutSeconds=25&allowWatchBookmarks=true&resourceVersion=10",
        "not allowed to watch routetables in namespace mesh: grant it on routetables.networking.gloo.solo.io (no)",
        "? &watch=true&timeoutSeconds=25&allowWatchBookmarks=true&resourceVersion=10",
        "opened",
        "applied {\"name\":\"b\",\"namespace\":\"mesh\",\"resourceVersion\":\"11\"}",
        "cannot watch routetables in namespace mesh: check that the API server or directory is reachable",
        "? &watch=true&timeoutSeconds=25&allowWatchBookmarks=true&resourceVersion=11",
        "cannot watch routetables in namespace mesh: check that the API server or directory is reachable",
        "? &watch=true&timeoutSeconds=25&allowWatchBookmarks=true&resourceVersion=11",
        "opened",
    ]
    "#);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_kind_is_not_found() {
    let (store, _) = store(Vec::new());
    let error = watch(store).next().await.unwrap_err();
    assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
}

/// A connection can be dead although neither side has closed it.
#[tokio::test(start_paused = true)]
async fn a_watch_that_receives_nothing_times_out() {
    let senders = Arc::new(Mutex::new(Vec::new()));
    let service = tower::service_fn(move |request: http::Request<HttpBody>| {
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let senders = senders.clone();
        async move {
            if !request.uri().query().unwrap().contains("watch=true") {
                let list = list(vec![], "10").1.to_string();
                sender.send_data(list.into()).await.unwrap();
            } else {
                // The body does not end while its sender exists.
                senders.lock().unwrap().push(sender);
            }
            Ok::<_, Infallible>(Response::new(body))
        }
    });
    let store =
        KubeRouteStore::with_client(Client::new(service, "default"), Duration::from_secs(5));
    let mut watch = watch(store);
    assert!(matches!(
        watch.next().await.unwrap(),
        Event::Page {
            proven: Some(_),
            ..
        }
    ));
    assert_eq!(watch.next().await.unwrap(), Event::Opened);
    let error = watch.next().await.unwrap_err();
    assert!(
        matches!(error, StoreError::Timeout { verb: "watch", .. }),
        "{error:?}"
    );
    assert_eq!(watch.next().await.unwrap(), Event::Opened);
}

/// Each page takes four seconds, so the list is older at its end than the age from which on a watch is not opened again.
#[tokio::test(start_paused = true)]
async fn a_list_that_takes_long_is_followed_by_a_watch() {
    const PAGES: usize = 20;
    let pages = Arc::new(Mutex::new(1..=PAGES));
    let service = tower::service_fn(move |request: http::Request<HttpBody>| {
        let is_watch = request.uri().query().unwrap().contains("watch=true");
        let next = pages.lock().unwrap().next();
        async move {
            let body = match next {
                _ if is_watch => String::new(),
                Some(PAGES) | None => list(vec![], "10").1.to_string(),
                Some(_) => {
                    let metadata = json!({"continue": "more", "resourceVersion": "10"});
                    json!({"metadata": metadata, "items": []}).to_string()
                }
            };
            tokio::time::sleep(Duration::from_secs(4)).await;
            Ok::<_, Infallible>(Response::new(HttpBody::from(body.into_bytes())))
        }
    });
    let client = Client::new(service, "default");
    let mut watch = watch(KubeRouteStore::with_client(client, Duration::from_secs(5)));
    let begin = Instant::now();
    for page in 1..=PAGES {
        let Event::Page { proven, .. } = watch.next().await.unwrap() else {
            panic!("page {page} is no page");
        };
        let proven = proven.map(|moment| moment.monotonic);
        assert_eq!(proven, (page == PAGES).then_some(begin));
    }
    assert_eq!(watch.next().await.unwrap(), Event::Opened);
}

/// The content is as old as the request that was answered, not as the first one that failed.
#[tokio::test(start_paused = true)]
async fn a_list_that_failed_before_proves_the_content_as_of_its_last_try() {
    let (store, _) = store(vec![fails(500, "busy"), list(vec![], "10")]);
    let mut watch = watch(store);
    watch.next().await.unwrap_err();
    tokio::time::advance(Duration::from_secs(60)).await;
    let Event::Page { proven, .. } = watch.next().await.unwrap() else {
        panic!("no page");
    };
    assert_eq!(proven.map(|it| it.monotonic), Some(Instant::now()));
}
