//! Calls beside the work outside of calls: every request takes a random time, on a paused clock, so that each seed is another
//! order of events. After an abort was answered, no later revision may have a share of the canary.
//!
//! [`explore`] does the same for whole histories.

mod by_hand;
mod explore;
mod history;
mod process;
mod world;

use std::collections::BTreeMap;

use futures::future::join_all;
use tokio::time::{sleep, timeout};

use super::*;
use crate::collect::Part;
use crate::report::RepairOutcome;

/// Whether the controller of this process is the leader, as a Lease would say.
pub(super) struct Leader;

impl Fence for Leader {
    async fn allows(&self) -> Option<bool> {
        Some(true)
    }
}

/// A Rollout at its step of 25 %.
pub(super) fn object(status: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "generation": 1},
        "spec": {"strategy": {"canary": {
            "stableService": "web",
            "canaryService": "web-canary",
            "steps": [{"setWeight": 25}, {"pause": {}}],
            "trafficRouting": {"plugins": {"solo-io/glooplatform": select_shop()}},
        }}},
        "status": {"stableRS": "s1", "currentPodHash": "c1", "currentStepIndex": 1},
    });
    json_patch::merge(&mut object["status"], status);
    object
}

pub(super) fn read(object: Value) -> Rollout {
    serde_json::from_value(object).unwrap()
}

/// Plays one order of events. Returns what is wrong with it.
async fn play(seed: u64) -> Option<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let fixture = Fixture::new([shop()]).with_call_timeout();
    let original = fixture.spec(&key());
    let running = object(&json!({}));
    fixture.store.put_rollout(running.clone()).unwrap();
    let nothing_to_resume = BTreeSet::new();
    fixture
        .router
        .background
        .standing()
        .begin_resuming(nothing_to_resume);
    fixture.set_weight(&read(running), 25).await.unwrap();

    // The owner applies the original manifest again.
    fixture.store.put(shop()).unwrap();
    fixture.store.delay(Some(random.fork()));
    let rollout = ObjectKey::new("shop", "web");
    let mut pause = |most: u64| sleep(Duration::from_millis(random.u64(0..=most)));
    let repairs: Vec<_> = (0..2).map(|_| pause(400)).collect();
    let (before_abort, before_call) = (pause(1500), pause(100));

    let (router, store) = (&fixture.router, &fixture.store);
    let part = Part {
        rollout,
        table: key(),
    };
    let repairs = repairs.into_iter().map(|pause| async {
        pause.await;
        let repair = router.repair(&part, &Leader);
        let repaired = timeout(Duration::from_secs(5), repair).await.ok();
        repaired.and_then(|it| it.outcome)
    });
    let abort = async {
        before_abort.await;
        let aborted = object(&json!({"abort": true}));
        store.put_rollout(aborted.clone()).unwrap();
        before_call.await;
        let aborted = read(aborted);
        router.remove_managed_routes(&aborted).await.unwrap();
        let answer = fixture.set_weight(&aborted, 0).await;
        (answer, store.writes())
    };
    let (outcomes, (answer, writes)) = join(join_all(repairs), abort).await;
    let outcomes: Vec<RepairOutcome> = outcomes.into_iter().flatten().collect();
    if let Err(error) = answer {
        return Some(format!("seed {seed}: the abort fails: {error}"));
    }
    let later = store.writes() - writes;
    (fixture.spec(&key()) != original).then(|| {
        format!(
            "seed {seed}: {later} writes after the answer, repairs {outcomes:?}: {}",
            fixture.spec(&key())
        )
    })
}

#[tokio::test(start_paused = true)]
async fn no_order_of_a_repair_and_an_abort_leaves_traffic_on_the_canary() {
    let mut wrong = BTreeMap::new();
    for seed in 0..2000 {
        if let Some(problem) = play(seed).await {
            wrong.insert(seed, problem);
        }
    }
    assert_eq!(wrong.values().next(), None, "{} of 2000", wrong.len());
}
