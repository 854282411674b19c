//! The directory store: what it reads, what it writes, and that the owner's text is kept.

use super::*;

const SHOP: &str = "\
# The shop, owned by team web.
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata: {name: shop, namespace: mesh, labels: {app: shop}}
spec:
  http:
  - name: root   # everything
    forwardTo: {destinations: [{ref: {name: web}}]}
";

const OTHER: &str = "kind: ConfigMap\nmetadata: {name: x}\n---\n";

struct Fixture {
    dir: tempfile::TempDir,
    store: DirRouteStore,
}

fn fixture(text: &str) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("shop.yaml"), text).unwrap();
    fs::write(dir.path().join("notes.txt"), "not: [yaml").unwrap();
    let store = DirRouteStore::new(dir.path());
    Fixture { dir, store }
}

impl Fixture {
    fn text(&self) -> String {
        fs::read_to_string(self.dir.path().join("shop.yaml")).unwrap()
    }

    async fn patch(&self, operations: Value) -> Result<RouteTableDoc, StoreError> {
        let patch: Patch = serde_json::from_value(operations).unwrap();
        self.store
            .patch(&ObjectKey::new("mesh", "shop"), &patch)
            .await
    }
}

#[tokio::test]
async fn selects_route_tables_and_nothing_else() {
    let fixture = fixture(&format!("{OTHER}{SHOP}"));
    let selector = RouteTableSelector {
        labels: [("app".to_owned(), "shop".to_owned())].into(),
        namespaces: vec!["mesh".to_owned()],
        ..RouteTableSelector::default()
    };
    let tables = fixture
        .store
        .select(&selector, Freshness::Live)
        .await
        .complete()
        .unwrap();
    let keys: Vec<String> = tables.iter().map(|table| table.key().to_string()).collect();
    assert_eq!(keys, ["mesh/shop"]);
}

#[tokio::test]
async fn an_unreadable_file_does_not_hide_other_files() {
    let fixture = fixture(SHOP);
    fs::write(fixture.dir.path().join("a.yaml"), "{broken").unwrap();
    fs::write(
        fixture.dir.path().join("b.yaml"),
        "kind: RouteTable\nmetadata: {name: 7}\n",
    )
    .unwrap();
    let selector = RouteTableSelector {
        names: vec!["shop".to_owned(), "gone".to_owned()],
        namespaces: vec!["mesh".to_owned()],
        ..RouteTableSelector::default()
    };
    let selection = fixture.store.select(&selector, Freshness::Live).await;
    assert_eq!(selection.tables.len(), 1);
    let errors: Vec<String> = selection.errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors[0].contains("a.yaml is no valid"), "{errors:?}");
    assert!(errors[1].contains("b.yaml is no valid"), "{errors:?}");
    assert!(errors[2].contains("mesh/gone not found"), "{errors:?}");

    let key = ObjectKey::new("mesh", "shop");
    fixture.store.read(&key).await.unwrap();
    fixture
        .patch(json!([{"op": "add", "path": "/spec/weight", "value": 1}]))
        .await
        .unwrap();
}

#[tokio::test]
async fn the_ports_of_a_service_are_read() {
    let fixture = fixture(
        "kind: Service\nmetadata: {name: a, namespace: shop}\nspec: {ports: [{port: 8080}, {name: x, port: 81}]}\n",
    );
    let ports = async |name| {
        let key = ObjectKey::new("shop", name);
        let ports = fixture.store.service_ports(&key).await.unwrap()?;
        Some(ports.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(
        ports("a").await,
        Some(vec!["8080".to_owned(), "x 81".to_owned()])
    );
    assert_eq!(ports("b").await, None);
}

#[tokio::test]
async fn the_owners_text_is_restored_with_the_owners_content() {
    let fixture = fixture(SHOP);
    fixture.patch(json!([{"op": "add", "path": "/spec/http/0/forwardTo/destinations/0/weight", "value": 75}])).await.unwrap();
    assert!(fixture.text().contains("weight: 75"), "{}", fixture.text());
    assert!(
        !fixture.text().contains("resourceVersion"),
        "{}",
        fixture.text()
    );
    fixture
        .patch(json!([{"op": "remove", "path": "/spec/http/0/forwardTo/destinations/0/weight"}]))
        .await
        .unwrap();
    assert_eq!(fixture.text(), SHOP);
}

#[tokio::test]
async fn other_documents_of_a_file_are_kept() {
    let fixture = fixture(&format!("{OTHER}{SHOP}"));
    fixture
        .patch(json!([{"op": "add", "path": "/spec/weight", "value": 1}]))
        .await
        .unwrap();
    assert_eq!(
        documents(&fixture.text()).unwrap()[0],
        json!({"kind": "ConfigMap", "metadata": {"name": "x"}})
    );
}

#[tokio::test]
async fn a_failed_test_is_a_conflict_and_the_file_is_unchanged() {
    let fixture = fixture(SHOP);
    let error = fixture
        .patch(json!([
            {"op": "add", "path": "/spec/weight", "value": 1},
            {"op": "test", "path": "/metadata/resourceVersion", "value": "0"},
        ]))
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Conflict(_)), "{error:?}");
    assert_eq!(fixture.text(), SHOP);
}

#[tokio::test]
async fn the_version_changes_with_the_content() {
    let fixture = fixture(SHOP);
    let version = |table: RouteTableDoc| table.resource_version().map(str::to_owned);
    let key = ObjectKey::new("mesh", "shop");
    let before = version(fixture.store.read(&key).await.unwrap());
    let again = version(fixture.store.read(&key).await.unwrap());
    let after = version(
        fixture
            .patch(json!([{"op": "add", "path": "/spec/weight", "value": 1}]))
            .await
            .unwrap(),
    );
    assert_eq!(before, again);
    assert_ne!(before, after);
    assert_eq!(after, version(fixture.store.read(&key).await.unwrap()));
}

#[track_caller]
fn check(error: &StoreError, expect: &str) {
    let text = error.to_string();
    assert!(text.ends_with(expect), "{text}");
}

#[tokio::test]
async fn errors_name_the_file_the_table_or_the_directory() {
    let fixture = fixture("kind: RouteTable\nmetadata: [");
    let key = ObjectKey::new("mesh", "shop");
    let error = fixture.store.read(&key).await.unwrap_err();
    check(
        &error,
        "shop.yaml is no valid Kubernetes object: correct it",
    );

    let empty = DirRouteStore::new(tempfile::tempdir().unwrap().path().join("gone"));
    let error = empty.read(&key).await.unwrap_err();
    check(
        &error,
        "gone: check that the API server or directory is reachable",
    );
    fs::write(fixture.dir.path().join("shop.yaml"), "{}").unwrap();
    let error = fixture.store.read(&key).await.unwrap_err();
    check(
        &error,
        "RouteTable mesh/shop not found: create it or correct routeTableSelector",
    );
}

fn policy() -> Value {
    json!({"apiVersion": "trafficcontrol.policy.gloo.solo.io/v2", "kind": "MirrorPolicy",
        "metadata": {"name": "copy", "namespace": "mesh"}, "spec": {"config": {"percentage": 50.0}}})
}

#[tokio::test]
async fn a_policy_is_created_changed_and_deleted() {
    let fixture = fixture(SHOP);
    let created = fixture.store.create_policy(&policy()).await.unwrap();
    assert_eq!(fixture.store.policies().await.unwrap().len(), 1);
    let again = fixture.store.create_policy(&policy()).await.unwrap_err();
    assert!(matches!(again, StoreError::Conflict(_)), "{again}");

    let patch = json!([{"op": "replace", "path": "/spec/config/percentage", "value": 10.0}]);
    let patch = serde_json::from_value(patch).unwrap();
    let changed = fixture
        .store
        .patch_policy(created.key(), &patch)
        .await
        .unwrap();
    assert_eq!(
        changed.spec().unwrap().config.unwrap().percentage,
        Some(10.0)
    );

    let outdated = fixture.store.delete_policy(&created).await.unwrap_err();
    assert!(matches!(outdated, StoreError::Conflict(_)), "{outdated}");
    fixture.store.delete_policy(&changed).await.unwrap();
    assert_eq!(fixture.store.policies().await.unwrap(), []);
    let gone = fixture.store.delete_policy(&changed).await.unwrap_err();
    assert!(matches!(gone, StoreError::NotFound { .. }), "{gone}");
    assert_eq!(
        fs::read_dir(fixture.dir.path()).unwrap().count(),
        2,
        "no file is left behind"
    );
    assert_eq!(fixture.text(), SHOP);
}

#[tokio::test]
async fn deleting_a_policy_keeps_a_table_in_the_same_file() {
    let fixture = fixture(&format!(
        "{}---\n{SHOP}",
        serde_saphyr::to_string(&policy()).unwrap()
    ));
    let policies = fixture.store.policies().await.unwrap();
    fixture.store.delete_policy(&policies[0]).await.unwrap();
    assert_eq!(
        documents(&fixture.text()).unwrap(),
        documents(SHOP).unwrap()
    );
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_stays_a_link_to_the_changed_file() {
    let fixture = fixture(SHOP);
    let elsewhere = tempfile::tempdir().unwrap();
    let (link, file) = (
        fixture.dir.path().join("shop.yaml"),
        elsewhere.path().join("owner.yaml"),
    );
    fs::rename(&link, &file).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let host = json!([{"op": "add", "path": "/spec/hosts", "value": ["a.example"]}]);
    fixture.patch(host).await.unwrap();
    assert!(link.is_symlink());
    assert!(fs::read_to_string(&file).unwrap().contains("a.example"));
    fixture
        .patch(json!([{"op": "remove", "path": "/spec/hosts"}]))
        .await
        .unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), SHOP);
}
