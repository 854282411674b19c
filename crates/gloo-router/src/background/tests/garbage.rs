//! Garbage collection.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_table_of_a_deleted_rollout_is_restored_after_30_s() {
    let fixture = Fixture::at_25().await;
    fixture.delete_rollout();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(fixture.shares(), [75, 25]);
    sleep(Duration::from_secs(11)).await;
    let mut table = fixture.table();
    table["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    table["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("generation");
    assert_eq!(table.to_string(), owners().to_string());
    let reports = fixture.world.reports.lock().unwrap();
    let said: Vec<String> = reports.iter().map(ToString::to_string).collect();
    assert!(
        said.iter().any(|it| it.contains("it is restored in 30 s")),
        "{said:?}"
    );
    assert!(
        said.iter()
            .any(|it| it.ends_with("Rollout shop/reviews was deleted")),
        "{said:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_recreated_rollout_keeps_its_table() {
    let fixture = Fixture::at_25().await;
    let before = fixture.world.store.writes();
    fixture.delete_rollout();
    sleep(Duration::from_secs(25)).await;
    fixture.show(rollout());
    sleep(Duration::from_secs(600)).await;
    assert_eq!(
        (fixture.writes_since(before), fixture.shares()),
        (0, vec![75, 25])
    );
    // The watch has not reported the new Rollout yet.
    fixture.delete_rollout();
    fixture.world.store.put_rollout(rollout()).unwrap();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(fixture.writes_since(before), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_collected_while_the_controller_is_not_the_leader() {
    let fixture = Fixture::at_25().await;
    fixture.world.is_leader.store(false, Ordering::Relaxed);
    fixture.delete_rollout();
    sleep(Duration::from_secs(300)).await;
    assert_eq!(fixture.shares(), [75, 25]);
    fixture.world.is_leader.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.shares(), [100]);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_without_the_plugin_is_restored_when_it_is_settled() {
    let fixture = Fixture::at_25().await;
    let plugins = "/spec/strategy/canary/trafficRouting/plugins";
    let without = with(rollout(), plugins, json!({}));
    fixture.show(without.clone());
    sleep(Duration::from_secs(600)).await;
    assert_eq!(fixture.shares(), [75, 25]);
    let rollout: Rollout = serde_json::from_value(without.clone()).unwrap();
    assert_eq!(
        PluginUse::of(&rollout, &[PLUGIN.into()]),
        PluginUse::UnsettledWithout
    );
    fixture.show(with(without, "/status/stableRS", json!("c1")));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.shares(), [100]);
}

/// The process started after the Rollout had selected another table.
#[tokio::test(start_paused = true)]
async fn a_table_that_is_no_longer_selected_is_restored_when_another_one_has_the_weight() {
    let fixture = Fixture::at_25().await;
    let split = fixture.table();
    let fixture = Fixture::new().await;
    fixture.world.store.put(split).unwrap();
    fixture
        .world
        .store
        .put(with(owners(), "/metadata/name", json!("other")))
        .unwrap();
    let selector = format!(
        "/spec/strategy/canary/trafficRouting/plugins/{}",
        PLUGIN.replace('/', "~1")
    );
    let block = json!({"routeTableSelector": {"name": "other", "namespace": "mesh"}});
    let other = with(rollout(), &selector, block);
    fixture.show(other.clone());
    "other".clone_into(&mut fixture.world.selected.lock().unwrap());
    sleep(Duration::from_secs(600)).await;
    assert_eq!(fixture.shares(), [75, 25]);
    fixture.set_weight(&other, 25).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.shares(), [100]);
}

/// The Rollout mirrors requests of both tables, and then selects only one of them.
#[tokio::test(start_paused = true)]
async fn a_table_that_is_no_longer_selected_loses_only_its_own_mirror_policies() {
    let plugins = "/spec/strategy/canary/trafficRouting/plugins";
    let selecting = |names: &[&str]| {
        let block = json!({"routeTableSelector": {"names": names, "namespace": "mesh"}});
        with(mirrors::mirroring(), plugins, json!({PLUGIN: block}))
    };
    let fixture = Fixture::with(owners(), selecting(&["web", "other"])).await;
    let store = &fixture.world.store;
    let other = with(owners(), "/metadata/name", json!("other"));
    store.put(other).unwrap();
    let rollout: Rollout = serde_json::from_value(selecting(&["web", "other"])).unwrap();
    let step = rollout.steps()[1].set_mirror_route.clone().unwrap();
    let set = fixture.router.set_mirror_route(&rollout, &step);
    set.await.unwrap();
    assert_eq!(store.policies().await.unwrap().len(), 2);

    // A new process does not remember which tables were selected.
    let split = store.tables().unwrap();
    let policies = store.policies().await.unwrap();
    let fixture = Fixture::with(owners(), selecting(&["other"])).await;
    let store = &fixture.world.store;
    for table in split {
        store.put(table.into_raw()).unwrap();
    }
    for policy in policies {
        store.put_policy(policy.into_raw()).unwrap();
    }
    "other".clone_into(&mut fixture.world.selected.lock().unwrap());
    fixture.set_weight(&selecting(&["other"]), 25).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.shares(), [100]);
    let left = store.policies().await.unwrap();
    let tables: Vec<&str> = left
        .iter()
        .map(|policy| &*policy.labels()["rollouts-plugin-trafficrouter-glooplatform/route-table"])
        .collect();
    assert_eq!(tables, ["other"]);
}

#[tokio::test(start_paused = true)]
async fn a_table_with_an_unreadable_annotation_is_not_changed() {
    let fixture = Fixture::at_25().await;
    let mut table = fixture.table();
    table["metadata"]["annotations"][ANNOTATION] = json!("{");
    fixture.world.store.put(table).unwrap();
    fixture.delete_rollout();
    let before = fixture.world.store.writes();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(fixture.writes_since(before), 0);
    let said = fixture.world.reports.lock().unwrap().clone();
    let mut said = said
        .iter()
        .filter(|it| matches!(it, Report::Unreadable { .. }));
    let message = said.next().unwrap().to_string();
    assert!(message.contains("RouteTable mesh/web"), "{message}");
    assert_eq!(said.next(), None);
}
