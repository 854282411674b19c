//! Repairs of MirrorPolicies.

use super::*;

/// Returns a Rollout during an update with a mirror step.
pub(super) fn mirroring() -> Value {
    let mut rollout = rollout();
    let mirror =
        json!({"name": "copies", "percentage": 35, "match": [{"method": {"exact": "GET"}}]});
    let canary = &mut rollout["spec"]["strategy"]["canary"];
    canary["steps"] = json!([{"setWeight": 25}, {"setMirrorRoute": mirror}, {"pause": {}}]);
    canary["trafficRouting"]["managedRoutes"] = json!([{"name": "copies"}]);
    with(rollout, "/status/currentStepIndex", json!(2))
}

#[tokio::test(start_paused = true)]
async fn a_deleted_mirror_policy_is_created_again() {
    let fixture = Fixture::with(owners(), mirroring()).await;
    let rollout: Rollout = serde_json::from_value(mirroring()).unwrap();
    let step = rollout.steps()[1].set_mirror_route.clone().unwrap();
    let set = fixture.router.set_mirror_route(&rollout, &step);
    set.await.unwrap();
    fixture.set_weight(&mirroring(), 25).await;
    sleep(Duration::from_secs(1)).await;
    let store = &fixture.world.store;
    let policies = store.policies().await.unwrap();
    let [policy] = &policies[..] else {
        panic!("{policies:?}")
    };

    store.delete_policy(policy).await.unwrap();
    let before = store.writes();
    let (key, kind) = (policy.key().clone(), ChangeKind::Deleted);
    fixture.world.policies.send(change(key, kind)).unwrap();
    sleep(milliseconds(99)).await;
    assert_eq!(fixture.writes_since(before), 0);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.writes_since(before), 1);
    assert_eq!(store.policies().await.unwrap().len(), 1);
    assert_eq!(fixture.outcomes(), [RepairOutcome::Written]);

    // Its own writes, and changes without drift, cause no write.
    for kind in [ChangeKind::Written, ChangeKind::Applied] {
        let key = policy.key().clone();
        fixture.world.policies.send(change(key, kind)).unwrap();
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.writes_since(before), 1);
}
