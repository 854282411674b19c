//! The life of a session: dispensing, refusing, ending, and surviving what a router does wrong.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and one router has to panic"
)]

#[path = "support/records.rs"]
mod records;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gob::GobType;
use rollouts_rpc::host::CallError;
use rollouts_rpc::testing::{FnRouter, MemoryHost};
use rollouts_rpc::{
    DesiredWeight, PodHashes, Rollout, Router, RouterCall, RouterError, ServeConfig, Shutdown,
    TrafficRouter, Verification, WeightDestination,
};
use serde::Serialize;
use tokio::sync::Barrier;

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
    // The stream is in step: the next call is understood.
    assert_eq!(router.type_name().await.unwrap(), "FnRouter");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_method_is_refused_and_its_argument_skipped() {
    check_router_fault("Plugin.Dance", 7_i64, "rpc: can't find method Plugin.Dance").await;
    check_router_fault("Control.Ping", true, "rpc: can't find service Control.Ping").await;
    check_router_fault(
        "Plugin",
        "x".to_owned(),
        "rpc: service/method request ill-formed: Plugin",
    )
    .await;
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
    let refused = "Plugin.SetWeight: the argument is not what the method takes: ";
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
async fn a_panic_answers_its_own_call_and_no_other() {
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
            "SetWeight panicked: index 3 of 50\u{ff05}; the plugin's log has the place",
        );
    }
    router.remove_managed_routes(&named("a")).await.unwrap();
    assert_eq!(host.quit().await.unwrap().unwrap(), Shutdown::HostQuit);
}

#[tokio::test(start_paused = true)]
async fn ten_calls_are_in_flight_at_once_and_200_are_answered() {
    // Nobody passes before ten have arrived.
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
            match router
                .set_weight(&named(&name), weight, &[])
                .await
                .unwrap_err()
            {
                CallError::Router(text) => assert_eq!(text, format!("{name} {weight}")),
                other => panic!("{other:?}"),
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

/// A router that never comes back.
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
        match call.unwrap_err() {
            CallError::Router(text) => assert!(text.contains("took longer than 5 s"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    host.session().ping().await.unwrap();
}

/// Does what the Rollout is named after.
fn obedient() -> impl TrafficRouter {
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
    let host = serve(obedient()).await;
    let router = host.router().await.unwrap();
    let verification = router.verify_weight(&named(rollout), 5, &[]).await;
    assert_eq!(verification.unwrap(), expect, "{rollout}");
    log.check_errors(record);
}

#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_in_a_verification_is_not_verified_and_an_error_record() {
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
async fn an_argument_of_verify_weight_that_cannot_be_decoded_is_not_verified() {
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
    // More than the plugin takes on at once.
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
async fn after_quit_the_plugin_ends_even_if_the_host_stays() {
    let (session, plugin) = serve(willing()).await.into_parts();
    session.quit().await.unwrap();
    assert_eq!(plugin.await.unwrap().unwrap(), Shutdown::HostQuit);
    assert!(matches!(session.ping().await, Err(CallError::Shutdown)));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_hangs_up_ends_the_plugin() {
    let host = serve(willing()).await;
    let _router = host.router().await.unwrap();
    assert_eq!(host.hang_up().await.unwrap().unwrap(), Shutdown::HostGone);
}

/// Works between the calls, and needs a moment to end that.
struct Resident(Arc<Mutex<Vec<&'static str>>>);

impl TrafficRouter for Resident {
    fn type_name(&self) -> &'static str {
        "Resident"
    }

    async fn init(&self) -> Result<(), RouterError> {
        Ok(())
    }

    async fn update_hash(
        &self,
        _: &Rollout,
        _: &PodHashes,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        Ok(())
    }

    async fn set_weight(
        &self,
        _: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        Ok(())
    }

    async fn verify_weight(
        &self,
        _: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<Verification, RouterError> {
        Ok(Verification::Verified)
    }

    async fn remove_managed_routes(&self, _: &Rollout) -> Result<(), RouterError> {
        Ok(())
    }

    async fn stop(&self) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.0.lock().unwrap().push("stopped");
    }
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_between_the_calls_ends_before_the_reply_to_quit() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let host = serve(Resident(Arc::clone(&log))).await;
    let (session, plugin) = host.into_parts();
    session.quit().await.unwrap();
    log.lock().unwrap().push("replied");
    assert_eq!(plugin.await.unwrap().unwrap(), Shutdown::HostQuit);
    assert_eq!(log.lock().unwrap()[..2], ["stopped", "replied"]);
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_between_the_calls_ends_when_the_host_hangs_up() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let host = serve(Resident(Arc::clone(&log))).await;
    assert_eq!(host.hang_up().await.unwrap().unwrap(), Shutdown::HostGone);
    assert_eq!(*log.lock().unwrap(), ["stopped"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_call_that_blocks_its_thread_is_answered_at_its_deadline_all_the_same() {
    let (free, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Mutex::new(Some(blocked));
    let router = FnRouter(move |_| {
        let first = blocked.lock().unwrap().take();
        if let Some(blocked) = first {
            // Until the test is over.
            let _ = blocked.recv();
        }
        async { Ok(Verification::Verified) }
    });
    let config = CONFIG.with_call_deadline(Duration::from_millis(100));
    let host = MemoryHost::start(config, Router(router)).await.unwrap();
    let client = host.router().await.unwrap();
    match client.set_weight(&named("a"), 1, &[]).await.unwrap_err() {
        CallError::Router(text) => assert!(text.starts_with("SetWeight took longer"), "{text}"),
        other => panic!("{other:?}"),
    }
    client.set_weight(&named("a"), 2, &[]).await.unwrap();
    drop(free);
    host.quit().await.unwrap().unwrap();
}

/// Writes down the threads on which it is called and, at the end of the session, stopped.
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
async fn a_session_and_its_calls_run_on_the_workers() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("worker")
        .enable_all()
        .build()
        .unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let router = Threads(Arc::clone(&seen));
    // As in a program: the caller blocks on the session.
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
    // The call, Quit, and the end of the session itself.
    assert_eq!(*seen.lock().unwrap(), ["worker"; 3]);
}
