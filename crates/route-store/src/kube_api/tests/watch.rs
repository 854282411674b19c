//! A watch against canned answers: what it hears of, and where it goes on.

use bytes::Bytes;
use http_body_util::channel::Channel;

use super::*;

/// Makes one line of a watch.
fn line(kind: &str, object: Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn version(mut object: Value, version: &str) -> Value {
    object["metadata"]["resourceVersion"] = json!(version);
    object
}

fn list(tables: Vec<Value>, version: &str) -> (u16, Value) {
    let list = json!({"metadata": {"resourceVersion": version}, "items": tables});
    (200, list)
}

/// What a watch of namespace mesh hears of, and what it asked for.
async fn heard(answers: Vec<(u16, Value)>, events: usize) -> Vec<String> {
    let (store, sent) = store(answers);
    let mut watch = store.watch::<RouteTable>("mesh");
    let mut heard = Vec::new();
    for _ in 0..events {
        let event = watch.next().await;
        for line in std::mem::take(&mut *sent.lock().unwrap()) {
            let (_, query) = line.split_once('?').unwrap();
            heard.push(format!("? {query}"));
        }
        heard.push(match event {
            Ok(Event::Listed(tables)) => {
                let names = tables.iter().map(|table| table.key().name.as_str());
                format!("listed {}", names.collect::<Vec<_>>().join(" "))
            }
            Ok(Event::Applied(table)) => format!("applied {}", table.raw()["metadata"]),
            Ok(Event::Deleted(key)) => format!("deleted {key}"),
            Ok(Event::Quiet) => "quiet".to_owned(),
            Err(error) => error.to_string(),
        });
    }
    heard
}

#[tokio::test(start_paused = true)]
async fn all_objects_and_then_every_change() {
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
    insta::assert_debug_snapshot!(heard(answers, 7).await, @r#"
    [
        "? &limit=250",
        "listed a",
        "? &watch=true&timeoutSeconds=60&allowWatchBookmarks=true&resourceVersion=10",
        "quiet",
        "applied {\"name\":\"b\",\"namespace\":\"mesh\",\"resourceVersion\":\"11\"}",
        "deleted mesh/a",
        "quiet",
        "quiet",
        "? &watch=true&timeoutSeconds=60&allowWatchBookmarks=true&resourceVersion=13",
        "quiet",
    ]
    "#);
}

#[tokio::test(start_paused = true)]
async fn changes_that_were_missed_are_listed() {
    let expired = failure(410, "too old resource version", None);
    let answers = vec![
        list(vec![table("mesh", "a")], "10"),
        (200, json!(line("ERROR", expired.clone()))),
        list(vec![], "20"),
        (410, expired),
        list(vec![table("mesh", "b")], "30"),
    ];
    insta::assert_debug_snapshot!(heard(answers, 6).await, @r#"
    [
        "? &limit=250",
        "listed a",
        "? &watch=true&timeoutSeconds=60&allowWatchBookmarks=true&resourceVersion=10",
        "quiet",
        "cannot watch routetables in namespace mesh: check that the API server or directory is reachable",
        "? &limit=250",
        "listed ",
        "? &watch=true&timeoutSeconds=60&allowWatchBookmarks=true&resourceVersion=20",
        "cannot watch routetables in namespace mesh: check that the API server or directory is reachable",
        "? &limit=250",
        "listed b",
    ]
    "#);
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_it_goes_on_where_it_was() {
    let cut = line("ADDED", version(table("mesh", "b"), "11")) + "{\"type\": 7}\n";
    let answers = vec![
        (403, failure(403, "no", None)),
        list(vec![], "10"),
        (403, failure(403, "no", None)),
        (200, json!(cut)),
        (500, failure(500, "busy", None)),
        (200, json!("")),
        (200, json!("")),
    ];
    insta::assert_debug_snapshot!(heard(answers, 9).await, @r#"
    [
        "? &limit=250",
        "not allowed to list routetables in namespace mesh: grant it on routetables.networking.gloo.solo.io (no)",
        "? &limit=250",
        "listed ",
        "? &watch=true&timeoutSeconds=60&allowWatchBookmarks=true&resourceVersion=10",
        "not allowed to watch routetables in namespace mesh: grant it on routetables.networking.gloo.solo.io (no)",
        "? &watch=true&timeoutSeconds=60&allowWatchBookmarks=true&resourceVersion=10",
        "quiet",
        "applied {\"name\":\"b\",\"namespace\":\"mesh\",\"resourceVersion\":\"11\"}",
        "cannot watch routetables in namespace mesh: check that the API server or directory is reachable",
        "? &watch=true&timeoutSeconds=60&allowWatchBookmarks=true&resourceVersion=11",
        "cannot watch routetables in namespace mesh: check that the API server or directory is reachable",
        "? &watch=true&timeoutSeconds=60&allowWatchBookmarks=true&resourceVersion=11",
        "quiet",
        "quiet",
    ]
    "#);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_api_server_does_not_know() {
    let (store, _) = store(Vec::new());
    let error = store.watch::<RouteTable>("mesh").next().await.unwrap_err();
    assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
}

/// A connection may be dead without anybody having closed it.
#[tokio::test(start_paused = true)]
async fn a_connection_on_which_nothing_arrives_ends() {
    let senders = Arc::new(Mutex::new(Vec::new()));
    let service = tower::service_fn(move |request: http::Request<HttpBody>| {
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let senders = senders.clone();
        async move {
            if !request.uri().query().unwrap().contains("watch=true") {
                let list = list(vec![], "10").1.to_string();
                sender.send_data(list.into()).await.unwrap();
            } else {
                // As long as it is kept the body has no end.
                senders.lock().unwrap().push(sender);
            }
            Ok::<_, Infallible>(Response::new(body))
        }
    });
    let store =
        KubeRouteStore::with_client(Client::new(service, "default"), Duration::from_secs(5));
    let mut watch = store.watch::<RouteTable>("mesh");
    assert_eq!(watch.next().await.unwrap(), Event::Listed(vec![]));
    assert_eq!(watch.next().await.unwrap(), Event::Quiet);
    let error = watch.next().await.unwrap_err();
    assert!(
        matches!(error, StoreError::Timeout { verb: "watch", .. }),
        "{error:?}"
    );
    assert_eq!(watch.next().await.unwrap(), Event::Quiet);
}
