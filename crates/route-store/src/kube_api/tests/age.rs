//! The age of a cache: what the API server has proven, whatever the streams and the clocks of this process do.

use super::*;
use crate::FRESH;
use crate::fake_api::FakeApi;
use crate::kube_api::informer::Informer;

type Tables = Informer<WholeDocuments<RouteTable>>;

const SHORT: Duration = Duration::from_secs(3);

fn put(api: &FakeApi, namespace: &str, host: &str) {
    let mut table = table(namespace, "web");
    table["spec"] = json!({"hosts": [host]});
    api.put("routetables", table);
}

/// An API server with the table mesh/web, and an informer of all namespaces that has listed it.
async fn synced() -> (FakeApi, Tables) {
    let api = FakeApi::default();
    put(&api, "mesh", "a");
    let tables = Tables::new(Arc::new(api.store()), WholeDocuments::default());
    tables.watch_all();
    tokio::time::sleep(SHORT).await;
    (api, tables)
}

/// Returns the host of mesh/web if the cache is fresh.
fn fresh(tables: &Tables) -> Option<String> {
    let table = tables.find(&web(), FRESH).ok()??;
    let host = table.raw().pointer("/spec/hosts/0")?.as_str()?;
    Some(host.to_owned())
}

/// Checks that the cache is fresh for ten minutes without a change, and returns the numbers of watches and lists in this time.
async fn ten_quiet_minutes(lacks_bookmarks: bool, namespaces: &[&str]) -> (usize, usize) {
    let (api, tables) = synced().await;
    if !namespaces.is_empty() {
        tables.watch_only(&namespaces.iter().map(ToString::to_string).collect());
        tokio::time::sleep(SHORT).await;
    }
    api.behave(|api| api.lacks_bookmarks = lacks_bookmarks);
    api.requests();
    for _ in 0..600 {
        assert_eq!(fresh(&tables).as_deref(), Some("a"));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let requests = api.requests();
    let watches = requests.iter().filter(|it| it.starts_with("watch"));
    let watches = watches.count();
    (watches, requests.len() - watches)
}

/// Each watch without an event is accompanied by a list of one object. Without bookmarks there is also a whole list after each
/// second one.
#[tokio::test(start_paused = true)]
async fn a_quiet_cache_is_fresh_all_the_time() {
    assert_eq!(ten_quiet_minutes(false, &[]).await, (24, 24));
    assert_eq!(ten_quiet_minutes(true, &[]).await, (24, 24 + 12));
    // They ask together.
    let of_namespaces = ten_quiet_minutes(false, &["mesh", "shop", "web"]).await;
    assert_eq!(of_namespaces, (3 * 24, 24));
}

/// C-2, C-3
#[tokio::test(start_paused = true)]
async fn watches_that_open_and_end_prove_nothing() {
    let (api, tables) = synced().await;
    api.behave(|api| api.is_frozen = true);
    put(&api, "mesh", "b");
    tokio::time::sleep(FRESH).await;
    for _ in 0..600 {
        assert_eq!(fresh(&tables), None);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    api.behave(|api| api.is_frozen = false);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(fresh(&tables).as_deref(), Some("b"));
}

/// Lets this process stand still for ten minutes. What a watch sent before is in its buffers, and so is its end.
async fn freeze(api: &FakeApi) {
    api.behave(|api| api.is_buffered = true);
    put(api, "mesh", "b");
    tokio::time::sleep(Duration::from_millis(1)).await;
    api.end_watches();
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Nothing of this reaches the process.
    api.behave(|api| api.is_frozen = true);
    put(api, "mesh", "c");
    api.behave(|api| api.is_buffered = false);
    tokio::time::advance(Duration::from_secs(600)).await;
}

/// C-2
#[tokio::test(start_paused = true)]
async fn what_was_buffered_while_the_process_stood_still_proves_nothing() {
    let (api, tables) = synced().await;
    freeze(&api).await;
    for _ in 0..200 {
        assert_eq!(fresh(&tables), None);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let last = tables.get(&web()).unwrap();
    assert_eq!(
        last.raw()["spec"]["hosts"],
        json!(["b"]),
        "the buffer is read"
    );
    api.behave(|api| api.is_frozen = false);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(fresh(&tables).as_deref(), Some("c"));
}

fn namespaces(tables: &Tables) -> Vec<Option<String>> {
    let scopes = tables.status().scopes.into_iter();
    scopes.map(|scope| scope.namespace).collect()
}

/// C-5
#[tokio::test(start_paused = true)]
async fn watches_of_single_namespaces_end_when_the_wider_one_has_listed() {
    let api = FakeApi::default();
    put(&api, "mesh", "a");
    put(&api, "shop", "a");
    let tables = Tables::new(Arc::new(api.store()), WholeDocuments::default());
    tables.watch_only(&["mesh".to_owned(), "shop".to_owned()].into());
    tokio::time::sleep(SHORT).await;
    assert_eq!(
        namespaces(&tables),
        [Some("mesh".to_owned()), Some("shop".to_owned())]
    );
    let mut changes = tables.subscribe();
    api.behave(|api| api.list_delay = Duration::from_secs(1));
    tables.watch_all();
    for _ in 0..20 {
        assert_eq!(tables.check(Some("mesh"), FRESH).ok(), Some(()));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(namespaces(&tables), [None]);
    assert!(changes.try_recv().is_err(), "no object was gone in between");
    // And the other way round.
    tables.watch_only(&["mesh".to_owned()].into());
    tokio::time::sleep(SHORT).await;
    assert_eq!(namespaces(&tables), [Some("mesh".to_owned())]);
    assert_eq!(tables.all().len(), 1);
}
