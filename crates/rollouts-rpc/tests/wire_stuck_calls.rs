//! A plugin whose author blocks threads: the session, its deadlines and the other calls go on.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::future::pending;
use std::hint::spin_loop;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use rollouts_rpc::goplugin::env::PluginEnv;
use rollouts_rpc::host::{HostSession, RouterClient};
use rollouts_rpc::{
    DesiredWeight, Rollout, Router, ServeConfig, ServeError, Shutdown, TrafficRouter,
    WeightDestination,
};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// What the code of an author does with its thread until the test ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Habit {
    Sleeps,
    Spins,
    Blocks,
    /// It waits, and blocks when it is dropped.
    BlocksAtTheEnd,
}

/// Ends what is stuck when the test ends.
#[derive(Default)]
struct Release {
    is_over: AtomicBool,
    lock: Mutex<bool>,
    changed: Condvar,
}

impl Release {
    async fn stick(&self, habit: Habit) {
        match habit {
            Habit::BlocksAtTheEnd => {
                let _blocks = BlocksWhenDropped(self);
                pending::<()>().await;
            }
            Habit::Sleeps | Habit::Spins | Habit::Blocks => self.take_the_thread(habit),
        }
    }

    fn take_the_thread(&self, habit: Habit) {
        match habit {
            Habit::Sleeps => {
                while !self.is_over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            Habit::Spins => {
                while !self.is_over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            }
            Habit::Blocks | Habit::BlocksAtTheEnd => {
                let over = self.lock.lock().unwrap();
                let _over = self.changed.wait_while(over, |is_over| !*is_over).unwrap();
            }
        }
    }

    fn release(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        *self.lock.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

struct BlocksWhenDropped<'a>(&'a Release);

impl Drop for BlocksWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.take_the_thread(Habit::Blocks);
    }
}

/// A router whose calls for the Rollout `stuck` do not return.
struct Stuck {
    release: Arc<Release>,
    habit: Habit,
    stop: Stop,
}

#[derive(Clone, Copy, Debug)]
enum Stop {
    Returns,
    Sticks,
    Panics,
}

impl TrafficRouter for Stuck {
    async fn set_weight(
        &self,
        rollout: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> rollouts_rpc::Result {
        if rollout.metadata.name == "stuck" {
            self.release.stick(self.habit).await;
        }
        Ok(())
    }

    async fn stop(&self) {
        match self.stop {
            Stop::Returns => {}
            Stop::Sticks => self.release.stick(self.habit).await,
            Stop::Panics => panic!("cannot stop"),
        }
    }
}

fn rollout(name: &str) -> Rollout {
    Rollout::named("shop", name)
}

/// A plugin that is served, and its host.
struct Served {
    release: Arc<Release>,
    session: HostSession,
    serving: JoinHandle<Result<Shutdown, ServeError>>,
    _socket: TempDir,
}

impl Served {
    async fn start(habit: Habit, stop: Stop, deadline: Duration) -> Self {
        let release = Arc::new(Release::default());
        let plugin = Stuck {
            release: Arc::clone(&release),
            habit,
            stop,
        };
        let dir = tempfile::tempdir().unwrap();
        let env = PluginEnv::from_vars([
            ("ARGO_ROLLOUTS_RPC_PLUGIN", "trafficrouter"),
            ("PLUGIN_PROTOCOL_VERSIONS", "1"),
            ("TMPDIR", dir.path().to_str().unwrap()),
        ]);
        let (announce, line) = oneshot::channel();
        let config = ServeConfig::new().with_call_deadline(deadline);
        let serving = tokio::spawn(async move {
            let announce = |line: &str| {
                announce.send(line.to_owned()).unwrap();
                Ok(())
            };
            rollouts_rpc::serve(&config, &env, announce, Router(plugin)).await
        });
        let line = line.await.unwrap();
        let socket = line.split('|').nth(3).unwrap();
        let session = HostSession::open(UnixStream::connect(socket).await.unwrap())
            .await
            .unwrap();
        Self {
            release,
            session,
            serving,
            _socket: dir,
        }
    }

    async fn quit(self) {
        self.session.quit().await.unwrap();
        drop(self.session);
        assert_eq!(self.serving.await.unwrap().unwrap(), Shutdown::HostQuit);
        self.release.release();
    }
}

/// Calls for other Rollouts, pings, deadlines and Quit while `calls` calls are stuck, with one worker thread.
async fn check(habit: Habit, calls: usize, stop: Stop) {
    let served = Served::start(habit, stop, Duration::from_secs(2)).await;
    let router: RouterClient = served.session.dispense_router().await.unwrap();
    let name = rollout("stuck");
    let stuck = join_all((0..calls).map(|_| router.set_weight(&name, 10, &[])));
    let others = async {
        for _ in 0..5 {
            served.session.ping().await.unwrap();
            router.set_weight(&rollout("other"), 10, &[]).await.unwrap();
        }
    };
    // The calls of others end first: those that are stuck get their answer from the deadline.
    let stuck = match select(pin!(others), stuck).await {
        Either::Left(((), stuck)) => stuck.await,
        Either::Right((answers, _)) if answers.is_empty() => answers,
        Either::Right(_) => panic!("{habit:?}: the other calls waited for those that are stuck"),
    };
    for answer in stuck {
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("took longer than 2 s"), "{error}");
    }
    served.quit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_call_that_blocks_its_thread_delays_nobody_else() {
    for habit in [Habit::Sleeps, Habit::Spins, Habit::BlocksAtTheEnd] {
        check(habit, 1, Stop::Returns).await;
    }
    // More than the runtime has threads for its tasks.
    check(Habit::Blocks, 20, Stop::Returns).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn quit_is_answered_although_the_plugin_does_not_stop() {
    check(Habit::Blocks, 1, Stop::Sticks).await;
    check(Habit::Sleeps, 0, Stop::Panics).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_that_block_for_ever_leave_the_session_a_thread() {
    let served = Served::start(Habit::Blocks, Stop::Returns, Duration::from_millis(20)).await;
    let router: RouterClient = served.session.dispense_router().await.unwrap();
    let name = rollout("stuck");
    // A runtime has 512 threads at most.
    for answer in join_all((0..600).map(|_| router.set_weight(&name, 10, &[]))).await {
        answer.unwrap_err();
    }
    served.session.ping().await.unwrap();
    served.quit().await;
}

/// Nothing but this call has woken a thread of the session, so no other one waits for bytes of the host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_blocks_alone_does_not_keep_the_thread_of_the_session() {
    let served = Served::start(Habit::Blocks, Stop::Returns, Duration::from_secs(60)).await;
    let router: RouterClient = served.session.dispense_router().await.unwrap();
    for _ in 0..5 {
        router.set_weight(&rollout("other"), 10, &[]).await.unwrap();
        sleep(Duration::from_millis(20)).await;
    }
    let name = rollout("stuck");
    let stuck = router.set_weight(&name, 10, &[]);
    let ping = async {
        sleep(Duration::from_millis(100)).await;
        served.session.ping().await.unwrap();
        // Each further call that blocks leaves the session a thread too.
        for _ in 0..5 {
            let more = router.set_weight(&name, 10, &[]);
            let more = timeout(Duration::from_millis(100), more).await;
            assert!(more.is_err(), "it is stuck");
            served.session.ping().await.unwrap();
        }
    };
    let (ping, stuck) = (pin!(ping), pin!(stuck));
    let first = timeout(Duration::from_secs(30), select(ping, stuck)).await;
    let first = first.expect("a ping is not answered");
    assert!(matches!(first, Either::Left(_)));
    served.release.release();
}
