//! What the host half survives: callers that lose interest, and arguments that gob cannot carry.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::task::Poll;
use std::time::Duration;

use rollouts_rpc::host::{CallError, RouterClient};
use rollouts_rpc::testing::{FnRouter, MemoryHost};
use rollouts_rpc::{Rollout, Router, ServeConfig, Verification};
use tokio::time::timeout;

async fn serve() -> (MemoryHost, RouterClient) {
    let willing = FnRouter(|_| async { Ok(Verification::Verified) });
    let host = MemoryHost::start(ServeConfig::new(), Router(willing))
        .await
        .unwrap();
    let router = host.router().await.unwrap();
    (host, router)
}

/// Too big for any buffer on the way.
fn big() -> Rollout {
    let mut rollout = Rollout::named("ns", "big");
    rollout.metadata.annotations = BTreeMap::from([("a".to_owned(), "x".repeat(2_000_000))]);
    rollout
}

/// Polls the call so many times, then drops it.
async fn give_up(router: &RouterClient, polls: usize) {
    let rollout = big();
    let call = router.set_weight(&rollout, 5, &[]);
    let mut call = std::pin::pin!(call);
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context)));
        if polled.await.is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_half_way_leaves_the_stream_whole() {
    for polls in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 1000] {
        let (_host, router) = serve().await;
        give_up(&router, polls).await;
        let rollout = Rollout::named("ns", "a");
        let next = router.set_weight(&rollout, 5, &[]);
        let next = timeout(Duration::from_secs(30), next).await;
        assert!(matches!(next, Ok(Ok(()))), "after {polls} polls: {next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_argument_that_gob_cannot_carry_costs_its_call_only() {
    let (_host, router) = serve().await;
    let mut time = gob::Time::from_unix(1);
    time.nanos = 2_000_000_000;
    // On a stream on which nothing was sent yet, and on one where everything was.
    for _ in 0..2 {
        let refused = router.call::<_, ()>("Plugin.SetWeight", &time).await;
        assert!(
            matches!(refused, Err(CallError::Argument(_))),
            "{refused:?}"
        );
        router
            .set_weight(&Rollout::named("ns", "a"), 5, &[])
            .await
            .unwrap();
    }
}
