//! Sessions in memory: Dispense, refused calls, deadlines, panics, shutdown, and dropped calls of the host half.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and one router must panic"
)]

#[path = "support/records.rs"]
mod records;

use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use gob::GobType;
use rollouts_rpc::host::{CallError, RouterClient};
use rollouts_rpc::testing::{FnRouter, MemoryHost};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, Router, RouterCall, RouterError, ServeConfig, Shutdown,
    TrafficRouter, Verification, WeightDestination,
};
use serde::Serialize;
use tokio::sync::Barrier;
use tokio::time::timeout;

use crate::records::Records;

const CONFIG: ServeConfig = ServeConfig::new();

fn named(name: &str) -> Rollout {
    Rollout::named("ns", name)
}

fn willing() -> impl TrafficRouter {
    FnRouter(|_| async { Ok(Verification::Verified) })
}

async fn serve(router: impl TrafficRouter) -> MemoryHost {
    MemoryHost::start(CONFIG, Router(router)).await.unwrap()
}

/// Returns the text of the error that the router returned.
#[track_caller]
fn router_error<T: std::fmt::Debug>(result: Result<T, CallError>) -> String {
    match result.unwrap_err() {
        CallError::Router(text) => text,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check_fault<T: std::fmt::Debug>(result: Result<T, CallError>, expect: &str) {
    match result.unwrap_err() {
        CallError::Refused(text) => assert_eq!(text, expect),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn ping_answers_before_and_after_a_dispense() {
    let host = serve(willing()).await;
    host.session().ping().await.unwrap();
    let _router = host.router().await.unwrap();
    host.session().ping().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_host_may_dispense_again() {
    let host = serve(willing()).await;
    let (first, second) = (host.router().await.unwrap(), host.router().await.unwrap());
    first.set_weight(&named("a"), 1, &[]).await.unwrap();
    second.set_weight(&named("a"), 2, &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_kind_of_plugin_is_not_dispensed() {
    let host = serve(willing()).await;
    let dispensed = host
        .session()
        .control::<_, u32>("Dispenser.Dispense", &"RpcStepPlugin".to_owned())
        .await;
    check_fault(dispensed, "unknown plugin type: RpcStepPlugin");
    host.router().await.unwrap();
}

async fn check_router_fault<A: GobType + Serialize + Sync>(
    method: &str,
    argument: A,
    expect: &str,
) {
    let host = serve(willing()).await;
    let router = host.router().await.unwrap();
    check_fault(router.call::<_, ()>(method, &argument).await, expect);
    // The next call on the stream is decoded.
    assert_eq!(router.type_name().await.unwrap(), "FnRouter");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_method_is_refused_and_its_argument_is_skipped() {
    check_router_fault("Plugin.Dance", 7_i64, "rpc: can't find method Plugin.Dance").await;
    check_router_fault("Control.Ping", true, "rpc: can't find service Control.Ping").await;
    check_router_fault(
        "Plugin",
        "x".to_owned(),
        "rpc: service/method request ill-formed: Plugin",
    )
    .await;
}

/// As in Go's net/rpc, whose decoder cannot go on.
#[tokio::test(start_paused = true)]
async fn a_reply_of_another_type_ends_the_stream() {
    let host = serve(willing()).await;
    let router = host.router().await.unwrap();
    let reply = router
        .call::<_, gob::Bytes>("Plugin.Type", &None::<OddArgument>)
        .await;
    let error = reply.unwrap_err();
    assert!(matches!(error, CallError::Reply(_)), "{error}");
    let next = router.type_name().await.unwrap_err();
    assert!(matches!(next, CallError::Shutdown), "{next}");
    host.session().ping().await.unwrap();
}

gob::gob_struct! {
    struct Odd as "OddArgs" {
        weight: String as "DesiredWeight",
    }
}

gob::gob_struct! {
    struct Verified as "VerifyWeightResponse" {
        verified: i32 as "Verified",
    }
}

gob::gob_interface! {
    enum OddArgument {
        Unknown(Odd) as "OddArgs",
        Misnamed(Odd) as "SetWeightAndVerifyWeightArgs",
        OfAnotherMethod(Odd) as "RemoveManagedRoutesArgs",
    }
}

#[tokio::test(start_paused = true)]
async fn an_argument_of_the_wrong_type_is_refused_and_skipped() {
    let odd = || Odd {
        weight: "heavy".into(),
    };
    let refused = "Plugin.SetWeight: invalid argument: ";
    for (argument, reason) in [
        (
            Some(OddArgument::Misnamed(odd())),
            "gob value does not fit at DesiredWeight: ",
        ),
        (
            Some(OddArgument::Unknown(odd())),
            "gob value does not fit: ",
        ),
        (
            Some(OddArgument::OfAnotherMethod(odd())),
            "it is RemoveManagedRoutesArgs",
        ),
        (None, "it is nil"),
    ] {
        let host = serve(willing()).await;
        let router = host.router().await.unwrap();
        match router
            .call::<_, ()>("Plugin.SetWeight", &argument)
            .await
            .unwrap_err()
        {
            CallError::Refused(text) => {
                assert!(text.starts_with(refused) && text.contains(reason), "{text}");
            }
            other => panic!("{other:?}"),
        }
        router.set_weight(&named("a"), 5, &[]).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_only_its_call() {
    let host = serve(FnRouter(|call| async move {
        match call {
            RouterCall::SetWeight(..) => panic!("index 3 of\n50%"),
            _ => Ok(Verification::Verified),
        }
    }))
    .await;
    let router = host.router().await.unwrap();
    for _ in 0..2 {
        check_fault(
            router.set_weight(&named("a"), 5, &[]).await,
            "SetWeight panicked: index 3 of 50\u{ff05}; the plugin's log says where",
        );
    }
    router.remove_managed_routes(&named("a")).await.unwrap();
    assert_eq!(host.quit().await.unwrap().unwrap(), Shutdown::HostQuit);
}

#[tokio::test(start_paused = true)]
async fn ten_calls_are_in_flight_at_once_and_200_are_answered() {
    // No call returns before ten are in flight.
    let barrier = Arc::new(Barrier::new(10));
    let host = serve(FnRouter(move |call| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            match call {
                RouterCall::SetWeight(rollout, desired, _) => Err(RouterError::from(format!(
                    "{} {}",
                    rollout.metadata.name, desired.value
                ))),
                _ => Ok(Verification::Verified),
            }
        }
    }))
    .await;
    let router = Arc::new(host.router().await.unwrap());
    let calls = (0..200).map(|weight| {
        let router = Arc::clone(&router);
        tokio::spawn(async move {
            let name = format!("rollout-{weight}");
            let call = router.set_weight(&named(&name), weight, &[]).await;
            assert_eq!(router_error(call), format!("{name} {weight}"));
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

/// Returns a router whose calls never return.
fn hanging() -> impl TrafficRouter {
    FnRouter(|_| std::future::pending())
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_answered_at_its_deadline() {
    let host = serve(hanging()).await;
    let router = host.router().await.unwrap();
    for call in [
        router.set_weight(&named("a"), 5, &[]).await,
        router
            .update_hash(&named("a"), &PodHashes::default(), &[])
            .await,
    ] {
        let text = router_error(call);
        assert!(text.contains("took longer than 5 s"), "{text}");
    }
    host.session().ping().await.unwrap();
}

/// Returns a router that acts according to the name of the Rollout.
fn named_action() -> impl TrafficRouter {
    FnRouter(|call| async move {
        let RouterCall::VerifyWeight(rollout, ..) = call else {
            return Ok(Verification::Verified);
        };
        match rollout.metadata.name.as_str() {
            "panics" => panic!("index 3"),
            "hangs" => std::future::pending().await,
            "refuses" => Err("no such table".into()),
            _ => Ok(Verification::Verified),
        }
    })
}

async fn check_verification(rollout: &str, expect: Verification, record: &str) {
    let (log, _guard) = Records::start();
    let host = serve(named_action()).await;
    let router = host.router().await.unwrap();
    let verification = router.verify_weight(&named(rollout), 5, &[]).await;
    assert_eq!(verification.unwrap(), expect, "{rollout}");
    log.check_errors(record);
}

#[tokio::test(start_paused = true)]
async fn a_failed_verification_is_not_verified_and_logged_as_an_error() {
    let refused = Verification::NotVerified;
    check_verification("works", Verification::Verified, "").await;
    check_verification("panics", refused, "VerifyWeight panicked: index 3").await;
    check_verification("hangs", refused, "VerifyWeight took longer than 5 s").await;
    check_verification("refuses", refused, "no such table").await;
}

async fn check_odd_verification(argument: Option<OddArgument>, record: &str) {
    let (log, _guard) = Records::start();
    let host = serve(willing()).await;
    let router = host.router().await.unwrap();
    let reply: Verified = router.call("Plugin.VerifyWeight", &argument).await.unwrap();
    assert_eq!(reply.verified, 0);
    log.check_errors(record);
    assert_eq!(router.type_name().await.unwrap(), "FnRouter");
}

#[tokio::test(start_paused = true)]
async fn verify_weight_with_an_argument_that_does_not_decode_is_not_verified() {
    let odd = || Odd {
        weight: "heavy".into(),
    };
    check_odd_verification(None, "it is nil").await;
    check_odd_verification(
        Some(OddArgument::Misnamed(odd())),
        "does not fit at DesiredWeight",
    )
    .await;
    check_odd_verification(
        Some(OddArgument::OfAnotherMethod(odd())),
        "it is RemoveManagedRoutesArgs",
    )
    .await;
}

#[tokio::test]
async fn ping_is_answered_while_calls_hang() {
    let host = serve(hanging()).await;
    let router = Arc::new(host.router().await.unwrap());
    // More calls than the plugin carries out at the same time.
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let router = Arc::clone(&router);
            tokio::spawn(async move { router.set_weight(&named("a"), 5, &[]).await })
        })
        .collect();
    host.session().ping().await.unwrap();
    assert_eq!(host.quit().await.unwrap().unwrap(), Shutdown::HostQuit);
    for call in calls {
        assert!(matches!(call.await.unwrap(), Err(CallError::Shutdown)));
    }
}

#[tokio::test(start_paused = true)]
async fn quit_is_answered_before_the_plugin_ends() {
    // `quit` fails if the connection ends before the reply.
    for _ in 0..50 {
        let host = serve(willing()).await;
        let _router = host.router().await.unwrap();
        assert_eq!(host.quit().await.unwrap().unwrap(), Shutdown::HostQuit);
    }
}

#[tokio::test(start_paused = true)]
async fn after_quit_the_plugin_ends_even_if_the_connection_stays_open() {
    let (session, plugin) = serve(willing()).await.into_parts();
    session.quit().await.unwrap();
    assert_eq!(plugin.await.unwrap().unwrap(), Shutdown::HostQuit);
    assert!(matches!(session.ping().await, Err(CallError::Shutdown)));
}

#[tokio::test(start_paused = true)]
async fn a_closed_connection_ends_the_plugin() {
    let host = serve(willing()).await;
    let _router = host.router().await.unwrap();
    assert_eq!(host.hang_up().await.unwrap().unwrap(), Shutdown::HostGone);
}

/// A router with background work that takes a moment to stop.
struct Resident(Arc<Mutex<Vec<&'static str>>>);

impl TrafficRouter for Resident {
    async fn set_weight(
        &self,
        _: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        Ok(())
    }

    async fn stop(&self) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.0.lock().unwrap().push("stopped");
    }
}

#[tokio::test(start_paused = true)]
async fn background_work_stops_before_the_reply_to_quit() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let host = serve(Resident(Arc::clone(&log))).await;
    let (session, plugin) = host.into_parts();
    session.quit().await.unwrap();
    log.lock().unwrap().push("replied");
    assert_eq!(plugin.await.unwrap().unwrap(), Shutdown::HostQuit);
    assert_eq!(log.lock().unwrap()[..2], ["stopped", "replied"]);
}

#[tokio::test(start_paused = true)]
async fn background_work_stops_when_the_connection_closes() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let host = serve(Resident(Arc::clone(&log))).await;
    assert_eq!(host.hang_up().await.unwrap().unwrap(), Shutdown::HostGone);
    assert_eq!(*log.lock().unwrap(), ["stopped"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_blocks_its_thread_is_answered_at_its_deadline() {
    let (free, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Mutex::new(Some(blocked));
    let router = FnRouter(move |_| {
        let first = blocked.lock().unwrap().take();
        if let Some(blocked) = first {
            // Until the end of the test.
            let _ = blocked.recv();
        }
        async { Ok(Verification::Verified) }
    });
    let config = CONFIG.with_call_deadline(Duration::from_millis(100));
    let host = MemoryHost::start(config, Router(router)).await.unwrap();
    let client = host.router().await.unwrap();
    let text = router_error(client.set_weight(&named("a"), 1, &[]).await);
    assert!(text.starts_with("SetWeight took longer"), "{text}");
    client.set_weight(&named("a"), 2, &[]).await.unwrap();
    drop(free);
    host.quit().await.unwrap().unwrap();
}

/// A router that records the threads of its calls.
struct Threads(Arc<Mutex<Vec<String>>>);

impl Threads {
    fn note(&self) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.lock().unwrap().push(thread);
    }
}

impl TrafficRouter for Threads {
    async fn set_weight(
        &self,
        _: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        self.note();
        Ok(())
    }

    async fn stop(&self) {
        self.note();
    }
}

#[tokio::test]
async fn a_session_and_its_calls_run_on_worker_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("worker")
        .enable_all()
        .build()
        .unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let router = Threads(Arc::clone(&seen));
    // As in a program, the thread blocks on the session.
    let (host, plugin) = tokio::io::duplex(64 * 1024);
    let serving = std::thread::spawn(move || {
        let served = rollouts_rpc::serve_connection(&CONFIG, plugin, Router(router));
        runtime.block_on(served)
    });
    let host = rollouts_rpc::host::HostSession::open(host).await.unwrap();
    let client = host.dispense_router().await.unwrap();
    client.set_weight(&named("a"), 1, &[]).await.unwrap();
    host.quit().await.unwrap();
    drop((client, host));
    tokio::task::spawn_blocking(|| serving.join().unwrap().unwrap())
        .await
        .unwrap();
    // SetWeight, Quit, and the end of the session.
    assert_eq!(*seen.lock().unwrap(), ["worker"; 3]);
}

/// A Rollout that is larger than all buffers between host and plugin.
fn big() -> Rollout {
    let mut rollout = Rollout::named("ns", "big");
    rollout.metadata.annotations = BTreeMap::from([("a".to_owned(), "x".repeat(2_000_000))]);
    rollout
}

/// Polls a call this many times, then drops it.
async fn drop_after(router: &RouterClient, polls: usize) {
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
async fn a_dropped_call_leaves_no_partial_message_on_the_stream() {
    for polls in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 1000] {
        let host = serve(willing()).await;
        let router = host.router().await.unwrap();
        drop_after(&router, polls).await;
        let rollout = Rollout::named("ns", "a");
        let next = router.set_weight(&rollout, 5, &[]);
        let next = timeout(Duration::from_secs(30), next).await;
        assert!(matches!(next, Ok(Ok(()))), "after {polls} polls: {next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_argument_that_gob_cannot_represent_fails_only_its_call() {
    let host = serve(willing()).await;
    let router = host.router().await.unwrap();
    let mut time = gob::Time::from_unix(1);
    time.nanos = 2_000_000_000;
    // First on a new stream, and then on one that already has the type definitions.
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
