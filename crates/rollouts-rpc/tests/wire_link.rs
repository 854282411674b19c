//! The host half and the plugin half over a link with latency, small pieces, and cuts, in paused time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use rollouts_rpc::host::{CallError, HostSession};
use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{
    Rollout, Router, RouterCall, ServeConfig, SessionError, Shutdown, Verification,
    serve_connection,
};
use tokio::io::{
    AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Longer than any session that ends.
const FOREVER: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
struct Link {
    /// Time from one end to the other.
    latency: Duration,
    /// Bytes that arrive together.
    piece: usize,
    /// Bytes in each direction after which the link is cut.
    cut: usize,
}

const GOOD: Link = Link {
    latency: Duration::from_millis(1),
    piece: 4096,
    cut: usize::MAX,
};

type Served = JoinHandle<Result<Shutdown, SessionError>>;

impl Link {
    /// Serves a plugin at one end, and returns the host's end and the plugin's task.
    fn serve(self) -> (DuplexStream, Served) {
        let ((host, near), (far, plugin)) = (duplex(1 << 16), duplex(1 << 16));
        let ((from_host, to_host), (from_plugin, to_plugin)) = (split(near), split(far));
        tokio::spawn(async move {
            // As in a socket, both directions end together.
            tokio::select! {
                () = self.carry(from_host, to_plugin) => {}
                () = self.carry(from_plugin, to_host) => {}
            }
        });
        let router = FnRouter(|call| async move {
            match call {
                RouterCall::RemoveManagedRoutes(_) => std::future::pending().await,
                RouterCall::UpdateHash(..) => Err("no".into()),
                _ => Ok(Verification::Verified),
            }
        });
        let served =
            async move { serve_connection(&ServeConfig::new(), plugin, Router(router)).await };
        (host, tokio::spawn(served))
    }

    async fn carry(self, mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>) {
        let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(64);
        let sending = async move {
            let (mut buffer, mut left) = (vec![0; self.piece], self.cut);
            while let Ok(read @ 1..) = from.read(&mut buffer).await {
                let piece = buffer.iter().take(read.min(left)).copied().collect();
                left = left.saturating_sub(read);
                if sender
                    .send((Instant::now() + self.latency, piece))
                    .await
                    .is_err()
                    || left == 0
                {
                    return;
                }
            }
        };
        let receiving = async move {
            while let Some((at, piece)) = pieces.recv().await {
                sleep_until(at).await;
                if to.write_all(&piece).await.is_err() {
                    return;
                }
            }
        };
        tokio::join!(sending, receiving);
    }
}

fn named(name: &str) -> Rollout {
    Rollout::named("ns", name)
}

/// A Rollout that is larger than the yamux window.
fn big() -> Rollout {
    let mut rollout = named("big");
    rollout.metadata.annotations = BTreeMap::from([("a".to_owned(), "x".repeat(600_000))]);
    rollout
}

#[tokio::test(start_paused = true)]
async fn calls_arrive_with_any_latency_and_in_pieces_of_any_size() {
    for (milliseconds, piece) in [(0, 4096), (1, 11), (50, 4096), (50, 1000), (2000, 65_536)] {
        let latency = Duration::from_millis(milliseconds);
        let link = Link {
            latency,
            piece,
            ..GOOD
        };
        let (host, served) = link.serve();
        let whole = async {
            let host = HostSession::open(host).await?;
            let router = host.dispense_router().await?;
            router.init_plugin().await?;
            router.set_weight(&big(), 5, &[]).await?;
            assert_eq!(
                router.verify_weight(&named("a"), 5, &[]).await?,
                Verification::Verified
            );
            let refused = router
                .update_hash(&named("a"), &Default::default(), &[])
                .await;
            assert_eq!(refused.unwrap_err().to_string(), "no");
            host.ping().await?;
            host.quit().await
        };
        let ended = timeout(FOREVER, whole).await;
        assert!(matches!(ended, Ok(Ok(()))), "{link:?}: {ended:?}");
        assert_eq!(
            served.await.unwrap().unwrap(),
            Shutdown::HostQuit,
            "{link:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_does_not_delay_other_calls() {
    let (host, _served) = Link {
        latency: Duration::from_millis(100),
        ..GOOD
    }
    .serve();
    let host = HostSession::open(host).await.unwrap();
    let router = host.dispense_router().await.unwrap();
    let begun = Instant::now();
    let rollout = named("a");
    let hanging = async {
        let late = router.remove_managed_routes(&rollout).await.unwrap_err();
        (late, begun.elapsed())
    };
    let others = async {
        for weight in 0..10 {
            router.set_weight(&named("b"), weight, &[]).await.unwrap();
        }
        begun.elapsed()
    };
    let ((late, took), others) = tokio::join!(hanging, others);
    assert!(late.to_string().contains("took longer than 5 s"), "{late}");
    let way = Duration::from_millis(200);
    assert!(
        took >= Duration::from_secs(5) && took < Duration::from_secs(5) + 2 * way,
        "{took:?}"
    );
    assert!(others < 20 * way, "{others:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_survives_an_hour_without_calls() {
    let (host, served) = GOOD.serve();
    let host = HostSession::open(host).await.unwrap();
    let router = host.dispense_router().await.unwrap();
    sleep(Duration::from_secs(3600)).await;
    host.ping().await.unwrap();
    router.set_weight(&named("a"), 5, &[]).await.unwrap();
    host.quit().await.unwrap();
    assert_eq!(served.await.unwrap().unwrap(), Shutdown::HostQuit);
}

#[tokio::test(start_paused = true)]
async fn both_ends_notice_a_cut_link() {
    for cut in (1..4000).step_by(97) {
        let (host, served) = Link { cut, ..GOOD }.serve();
        let whole = async {
            let host = HostSession::open(host).await?;
            let router = host.dispense_router().await?;
            loop {
                router.set_weight(&named("a"), 5, &[]).await?;
            }
        };
        let ended: Result<Result<(), CallError>, _> = timeout(FOREVER, whole).await;
        assert!(
            matches!(ended, Ok(Err(CallError::Shutdown))),
            "after {cut} bytes: {ended:?}"
        );
        let served = timeout(FOREVER, served).await;
        let served = served
            .unwrap_or_else(|_| panic!("after {cut} bytes the plugin continues"))
            .unwrap();
        assert!(
            matches!(
                served,
                Ok(Shutdown::HostGone) | Err(SessionError::NotEstablished)
            ),
            "after {cut} bytes: {served:?}"
        );
    }
}
