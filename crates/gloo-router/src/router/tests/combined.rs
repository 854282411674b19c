//! Calls of several Rollouts for one table at once: those that wait are carried by the patch of one of them.

use futures::{FutureExt as _, future::join_all};
use tokio::time::{sleep, timeout};

use route_store::RolloutReader as _;

use super::{faulty::Fault, *};

/// A table with a route to each of these Services.
fn routes(services: &[String]) -> Value {
    table("shop", services.iter().map(|name| route_to(name)).collect())
}

/// The Rollout between a Service and its canary.
fn rollout_of(service: &str) -> Rollout {
    let mut rollout = rollout(select_shop());
    rollout.metadata.name = service.to_owned();
    let canary = canary(&mut rollout);
    canary.stable_service = service.to_owned();
    canary.canary_service = format!("{service}-canary");
    rollout
}

fn services(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("web-{n}")).collect()
}

/// Sets these weights at once. Each patch takes a second, on a paused clock. Returns the answers.
async fn set(fixture: &Fixture, weights: &[(String, i32)]) -> Vec<Result<(), String>> {
    fixture.store.fail("patch shop", Fault::Slowness);
    let calls = weights
        .iter()
        .map(async |(service, weight)| fixture.set_weight(&rollout_of(service), *weight).await);
    join_all(calls).await
}

/// Returns the canary's share of each route.
fn shares(fixture: &Fixture) -> Vec<u64> {
    let table = fixture.store.table(&key()).unwrap();
    let routes = table["spec"]["http"].as_array().unwrap().iter();
    let share = |route: &Value| {
        let canary = route.pointer("/forwardTo/destinations/1/weight");
        canary.and_then(Value::as_u64).unwrap_or_default()
    };
    routes.map(share).collect()
}

/// The number of patches that were sent, with those that failed.
fn patches(fixture: &Fixture) -> usize {
    let sent = fixture.store.contexts();
    sent.iter().filter(|(it, _)| it == "patch shop").count()
}

#[tokio::test(start_paused = true)]
async fn two_patches_carry_thirty_weights_there_and_back() {
    let services = services(30);
    let fixture = Fixture::new([routes(&services)]);
    let original = fixture.spec(&key());
    let all = |weight| {
        services
            .iter()
            .map(|it| (it.clone(), weight))
            .collect::<Vec<_>>()
    };
    for (weight, expect) in [(25, 25), (60, 60), (0, 0)] {
        let answers = set(&fixture, &all(weight)).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(shares(&fixture), [expect; 30]);
        assert_eq!(patches(&fixture), 2, "for weight {weight}");
    }
    assert_eq!(fixture.spec(&key()), original);
}

#[tokio::test(start_paused = true)]
async fn a_single_weight_waits_for_nobody() {
    let fixture = Fixture::new([routes(&services(2))]);
    let rollout = rollout_of("web-0");
    let set = fixture.set_weight(&rollout, 25).now_or_never();
    assert_eq!(set, Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_is_rejected_is_split() {
    let services = services(3);
    let fixture = Fixture::new([routes(&services)]);
    let weights: Vec<_> = services.iter().map(|it| (it.clone(), 25)).collect();
    let later = async {
        // The first one was sent alone.
        sleep(Duration::from_millis(1500)).await;
        fixture.store.fail_next_patch(StoreError::Rejected {
            what: "RouteTable mesh/shop".into(),
            reason: "admission webhook denied the request".into(),
        });
    };
    let (answers, ()) = join(set(&fixture, &weights), later).await;
    assert_eq!(answers, [Ok(()), Ok(()), Ok(())]);
    assert_eq!(shares(&fixture), [25; 3]);
    // One alone, two together, and these two alone.
    assert_eq!(patches(&fixture), 4);
}

/// The caller gives up while its weight is on the way in the patch of another Rollout, and asks for weight 0.
#[tokio::test(start_paused = true)]
async fn a_later_call_waits_for_the_patch_that_carries_the_earlier_one() {
    let services = services(3);
    let fixture = Fixture::new([routes(&services)]);
    let weights: Vec<_> = services[..2].iter().map(|it| (it.clone(), 25)).collect();
    let given_up = async {
        let rollout = rollout_of("web-2");
        let early = fixture.set_weight(&rollout, 25);
        let early = timeout(Duration::from_millis(1500), early).await;
        assert!(early.is_err());
        fixture.set_weight(&rollout, 0).await
    };
    let (answers, last) = join(set(&fixture, &weights), given_up).await;
    assert_eq!((answers, last), (vec![Ok(()), Ok(())], Ok(())));
    assert_eq!(shares(&fixture), [25, 25, 0]);
    // One alone, two together, and weight 0.
    assert_eq!(patches(&fixture), 3);
}

/// A Rollout is aborted while its weight waits for the patch of another one, or is about to ride with it.
#[tokio::test(start_paused = true)]
async fn a_weight_that_has_waited_is_refused_if_its_rollout_was_aborted() {
    let services = services(3);
    let fixture = Fixture::new([routes(&services)]);
    let object = |service: &str, status: Value| {
        let mut object = races::object(&status);
        object["metadata"]["name"] = json!(service);
        object["spec"]["strategy"]["canary"]["stableService"] = json!(service);
        let canary = format!("{service}-canary");
        object["spec"]["strategy"]["canary"]["canaryService"] = json!(canary);
        object
    };
    let mut called = Vec::new();
    for service in &services {
        fixture
            .store
            .put_rollout(object(service, json!({})))
            .unwrap();
        let live = fixture
            .store
            .rollout(&ObjectKey::new("shop", service))
            .await;
        called.push(races::read(live.unwrap().unwrap().into_raw()));
    }
    fixture.store.fail("patch shop", Fault::Slowness);
    let calls = called.iter().map(|rollout| fixture.set_weight(rollout, 25));
    let aborts = async {
        sleep(Duration::from_millis(500)).await;
        for service in &services[1..] {
            let aborted = object(service, json!({"abort": true}));
            fixture.store.put_rollout(aborted).unwrap();
        }
    };
    let (answers, ()) = join(join_all(calls), aborts).await;
    let refused = |answer: &Result<(), String>| {
        let refusal = "no traffic is moved to the canary";
        answer.as_ref().is_err_and(|error| error.contains(refusal))
    };
    let refused: Vec<bool> = answers.iter().map(refused).collect();
    assert_eq!(refused, [false, true, true], "{answers:?}");
    assert_eq!(shares(&fixture), [25, 0, 0]);
}
