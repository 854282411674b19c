//! Tests of two clusters whose Rollouts have the same name, and whose tables are in one management cluster.

use gloo_types::RouteTableDoc;
use route_planner::{involved, managed_by};

use super::{managed_routes::header_rollout, *};

fn shared() -> Value {
    let to = |cluster: &str| {
        let to = json!([{"ref": {"name": "web", "namespace": "shop", "cluster": cluster}}]);
        json!({"name": cluster, "forwardTo": {"destinations": to}})
    };
    table("shop", vec![to("east"), to("west")])
}

fn policy(cluster: Option<&str>) -> Policy {
    Policy {
        plugin_names: vec!["solo-io/glooplatform".into()],
        cluster: cluster.map(str::to_owned),
        ..Policy::default()
    }
}

fn in_cluster(store: &Arc<Faulty>, cluster: Option<&str>) -> GlooRouter<Faulty> {
    GlooRouter::new(store.clone(), policy(cluster))
}

/// Returns the Rollouts of a cluster that have marks in the table.
fn owners(store: &Faulty, cluster: Option<&str>) -> Vec<String> {
    let table = RouteTableDoc::from_value(store.table(&key()).unwrap()).unwrap();
    let kept = table_keeper(policy(cluster)).compact(table);
    kept.owners.iter().map(ToString::to_string).collect()
}

fn routing_to(cluster: &str) -> Rollout {
    let mut block = select_shop();
    block["stableDestination"] = json!({"cluster": cluster});
    header_rollout(block)
}

async fn set(router: &GlooRouter<Faulty>, rollout: &Rollout, weight: i32) -> Result<(), String> {
    let set = router.set_weight(rollout, desired(weight), &[]);
    set.await.map_err(|error| error_chain(error.as_error()))
}

/// Returns all marks in the table.
fn marks(store: &Faulty) -> Vec<String> {
    let table = RouteTableDoc::from_value(store.table(&key()).unwrap()).unwrap();
    let involved = involved(&table).unwrap();
    involved.iter().map(ToString::to_string).collect()
}

/// Returns, for each route, the mark of a managed route or the weight of its second destination.
fn routes(store: &Faulty) -> Vec<String> {
    let table = store.table(&key()).unwrap();
    let routes = table["spec"]["http"].as_array().unwrap().iter();
    let shown = routes.map(|route| match managed_by(route) {
        Some(mark) => mark.to_string(),
        None => route["forwardTo"]["destinations"][1]["weight"].to_string(),
    });
    shown.collect()
}

/// Rule D-26, and section 9.
#[tokio::test]
async fn rollouts_of_two_clusters_share_a_table_without_affecting_each_other() {
    let fixture = Fixture::new([shared()]);
    let store = &fixture.store;
    let [east, west] = ["east", "west"].map(|it| (in_cluster(store, Some(it)), routing_to(it)));
    set(&east.0, &east.1, 25).await.unwrap();
    set(&west.0, &west.1, 50).await.unwrap();
    assert_eq!(marks(store), ["shop/web@east", "shop/web@west"]);
    assert_eq!(
        routes(store),
        ["shop/web@east", "25", "shop/web@west", "50"]
    );

    for cluster in ["east", "west"] {
        assert_eq!(owners(store, Some(cluster)), ["shop/web"]);
    }
    for cluster in [Some("north"), None] {
        assert!(owners(store, cluster).is_empty(), "{cluster:?}");
    }

    // A router removes only its own routes, also for a Rollout of the same name in the other cluster.
    for rollout in [&east.1, &west.1] {
        west.0.remove_managed_routes(rollout).await.unwrap();
    }
    assert_eq!(routes(store), ["shop/web@east", "25", "50"]);
    set(&west.0, &west.1, 0).await.unwrap();
    assert_eq!(marks(store), ["shop/web@east"]);
    assert_eq!(routes(store), ["shop/web@east", "25", "null"]);

    // A route is split by one of them at a time. A plugin without a cluster name is another one.
    let error = set(&west.0, &east.1, 50).await.unwrap_err();
    assert!(
        error.contains("is split by Rollout shop/web@east"),
        "{error}"
    );
    let without = in_cluster(store, None);
    let error = set(&without, &east.1, 50).await.unwrap_err();
    assert!(
        error.contains("is split by Rollout shop/web@east"),
        "{error}"
    );
}
