//! Simulates promotions with a gateway: endpoints follow their Service's selector late, and the gateway receives routes and
//! endpoints on two paths, each with its own delay.
//!
//! The Pods of the old version end at once with `dynamicStableScale`, and after 30 s without it.

use std::fmt;

use super::guard::{NEW, OLD, pod, slice, status};
use super::*;

/// One step of the simulation.
const TICK: Duration = Duration::from_millis(250);
/// Time after which the gateway has received everything.
const PROPAGATED: Duration = Duration::from_secs(5);
/// Longest simulated time of a promotion.
const LONGEST: Duration = Duration::from_secs(60);
/// Time after which the controller calls again if the answer was "not verified".
const RETRY: Duration = Duration::from_secs(10);
/// How long old Pods live without `dynamicStableScale`.
const SCALE_DOWN_DELAY: Duration = Duration::from_secs(30);

const OLD_PODS: [&str; 2] = ["x", "y"];
const NEW_PODS: [&str; 2] = ["a", "b"];

/// The delays of a simulation, and what is promoted.
#[derive(Clone, Copy, Debug)]
struct World {
    /// The canary's weight when the promotion begins.
    weight: i32,
    is_dynamic: bool,
    /// Delay from the selector to the EndpointSlices.
    endpoints_lag: Duration,
    /// Delay from the EndpointSlices to the gateway.
    endpoints_delay: Duration,
    /// Delay from the RouteTable to the gateway.
    route_delay: Duration,
    guard: bool,
}

/// The share of requests at one time, in percent, by what happens to them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Served {
    new: u64,
    old: u64,
    failed: u64,
}

/// The result of a promotion.
#[derive(Debug, Default)]
struct Outcome {
    /// How often the share of the new version decreased.
    falls: usize,
    /// Failed requests, in percent of one second's requests.
    failed: u64,
    /// How long the table routed to a Service without any new Pod.
    misled: Duration,
    is_restored: bool,
}

/// The state of the API server at one time.
#[derive(Clone)]
struct Shown {
    routes: Vec<(String, Option<u64>)>,
    stable: Vec<&'static str>,
    canary: Vec<&'static str>,
}

impl Shown {
    fn endpoints(&self, service: &str) -> &[&'static str] {
        match service {
            "web" => &self.stable,
            _ => &self.canary,
        }
    }
}

/// Returns the state of the API server `delay` ago.
fn ago(history: &[Shown], delay: Duration) -> &Shown {
    let ticks = delay.as_millis() / TICK.as_millis();
    let ticks = usize::try_from(ticks).unwrap();
    let index = history.len().saturating_sub(ticks + 1);
    &history[index]
}

fn serve(world: &World, history: &[Shown], alive: &[&str]) -> Served {
    let routes = &ago(history, world.route_delay).routes;
    let endpoints = ago(history, world.endpoints_delay);
    let mut served = Served::default();
    for (service, weight) in routes {
        let pods = endpoints.endpoints(service);
        let share = weight.unwrap_or(100);
        for pod in pods {
            let part = share / pods.len() as u64;
            if !alive.contains(pod) {
                served.failed += part;
            } else if NEW_PODS.contains(pod) {
                served.new += part;
            } else {
                served.old += part;
            }
        }
        if pods.is_empty() {
            served.failed += share;
        }
    }
    served
}

async fn promote(world: World) -> Outcome {
    let fixture = Fixture::new([shop()]);
    let fixture = Fixture {
        router: fixture.router.with_promotion_guard(world.guard),
        ..fixture
    };
    for (pods, hash) in [(OLD_PODS, OLD), (NEW_PODS, NEW)] {
        for name in pods {
            fixture.store.put_pod(pod(name, hash)).unwrap();
        }
    }
    let show = |service: &str, pods: &[&str]| {
        fixture
            .store
            .put_endpoint_slice(slice(service, pods))
            .unwrap();
    };
    let with_scale = |mut rollout: Rollout| {
        canary(&mut rollout).dynamic_stable_scale = world.is_dynamic;
        rollout
    };
    let (mut stable, canary_pods) = (OLD_PODS.to_vec(), NEW_PODS.to_vec());
    show("web", &stable);
    show("web-canary", &canary_pods);
    let updating = with_scale(status(OLD, NEW, NEW));
    fixture.set_weight(&updating, world.weight).await.unwrap();
    if world.is_dynamic && world.weight < 100 {
        // The weight follows the canary's Pods until the promotion.
        fixture.set_weight(&updating, 100).await.unwrap();
    }
    let promoted = with_scale(status(NEW, NEW, NEW));
    let live = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
        "status": {
            "stableRS": NEW, "currentPodHash": NEW,
            "canary": {"weights": {"canary": {"podTemplateHash": NEW}}},
        },
    });
    fixture.store.put_rollout(live).unwrap();

    // The gateway has received the state before the promotion.
    let mut history = vec![Shown {
        routes: fixture.weights(&key()),
        stable: stable.clone(),
        canary: canary_pods.clone(),
    }];
    let mut writes = fixture.store.writes();
    let mut outcome = Outcome::default();
    let mut best = 0;
    let mut next_pass = Some(Duration::ZERO);
    let mut time = Duration::ZERO;
    let is_over = |time: Duration, now: &Shown| {
        let is_propagated = time > world.endpoints_lag + PROPAGATED;
        time >= LONGEST || is_propagated && now.routes == named(&[("web", None)])
    };
    while !is_over(time, history.last().unwrap()) {
        if time == world.endpoints_lag {
            stable = NEW_PODS.to_vec();
            show("web", &stable);
        }
        // With `dynamicStableScale`, old Pods end right after the pass.
        let old_until = if world.is_dynamic {
            TICK
        } else {
            SCALE_DOWN_DELAY
        };
        let alive: Vec<&str> = if time < old_until {
            [OLD_PODS, NEW_PODS].concat()
        } else {
            NEW_PODS.to_vec()
        };
        if next_pass.is_some_and(|next| time >= next) {
            fixture.set_weight(&promoted, 0).await.unwrap();
            let verified: Result<_, RouterError> = fixture
                .router
                .verify_weight(&promoted, desired(0), &[])
                .await;
            let is_asked_again = verified.is_ok_and(|it| it == Verification::NotVerified);
            next_pass = is_asked_again.then(|| time + RETRY);
        }
        let mut now = history.last().unwrap().clone();
        now.stable.clone_from(&stable);
        if fixture.store.writes() != writes {
            writes = fixture.store.writes();
            now.routes = fixture.weights(&key());
        }
        let misled = now.routes.iter().any(|(service, _)| {
            let pods = now.endpoints(service);
            !pods.iter().any(|pod| NEW_PODS.contains(pod))
        });
        if misled {
            outcome.misled += TICK;
        }
        history.push(now);
        let served = serve(&world, &history, &alive);
        outcome.failed += served.failed;
        if served.new < best {
            outcome.falls += 1;
        }
        best = best.max(served.new);
        tokio::time::sleep(TICK).await;
        time += TICK;
    }
    outcome.failed /= 4;
    outcome.is_restored = fixture.weights(&key()) == named(&[("web", None)]);
    outcome
}

/// Chooses random delays: the first is up to 30 s, and the others are so short that `settle` covers them.
fn world(random: &mut fastrand::Rng, guard: bool) -> World {
    let ticks = |count: u64| TICK * u32::try_from(count).unwrap();
    World {
        weight: *random.choice(&[100, 40]).unwrap(),
        is_dynamic: random.bool(),
        endpoints_lag: ticks(random.u64(0..=120)),
        endpoints_delay: ticks(random.u64(0..=18)),
        route_delay: ticks(random.u64(0..=8)),
        guard,
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            falls,
            failed,
            misled,
            ..
        } = self;
        write!(
            f,
            "{falls} falls, {failed} % of a second failed, {} s without new Pods",
            misled.as_secs_f32()
        )
    }
}

/// D-28. Also measures 200 promotions with and without the guard.
#[tokio::test(start_paused = true)]
async fn the_share_of_the_new_version_never_falls_and_no_request_fails() {
    let mut sums = [Duration::ZERO; 2];
    let mut failed = [0; 2];
    for seed in 0..200 {
        for (index, guard) in [true, false].into_iter().enumerate() {
            let world = world(&mut fastrand::Rng::with_seed(seed), guard);
            let outcome = promote(world).await;
            assert!(outcome.is_restored, "{world:?}");
            if guard {
                assert_eq!(
                    (outcome.falls, outcome.failed, outcome.misled),
                    (0, 0, Duration::ZERO),
                    "{world:?}: {outcome}"
                );
            }
            sums[index] += outcome.misled;
            failed[index] += outcome.failed;
        }
    }
    println!(
        "200 promotions, time without new Pods with and without the guard: {sums:?}, failed: {failed:?}"
    );
    assert!(sums[1] > Duration::from_secs(1000) && failed[1] > 0);
}
