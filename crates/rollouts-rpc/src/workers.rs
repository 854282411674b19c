//! Where the author's code runs: beside the session, so that it cannot stall it.
//!
//! A call begins in a thread of the session, because most calls are done in microseconds, and a switch to another thread and back
//! costs as much as the rest of such a call. If it takes long, a watchdog lets the session go on in another thread. When a call that
//! waits is woken, the session leaves the thread to it first.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::block_in_place;
use tokio_util::task::AbortOnDropHandle;

/// Threads of the session's runtime. All but one can be in calls that have just begun.
pub(crate) const SESSION_THREADS: usize = 4;

/// Most calls that have a thread, below the 512 threads of a runtime. A call that blocks forever keeps its thread after its deadline,
/// and the session needs one to go on in.
const MAX_CALLS: usize = 400;

/// A call that takes longer than this, and at most twice as long, does not delay the session any more.
const PATIENCE: Duration = Duration::from_millis(2);

/// The watchdog sleeps when there was no call for so many times its patience. To wake it costs as much as a call.
const ROUNDS: u32 = 50;

/// Where the calls of a plugin run.
#[derive(Clone, Debug)]
pub enum Workers {
    /// In tasks of their own on the threads of the session's runtime. Authors write `std::fs`, clients that block and endless loops.
    Pool(Arc<Pool>),
    /// In the task of the session, for a session in memory and its tests.
    Inline,
}

impl Workers {
    /// `author` is the runtime for what a call spawns or waits for.
    pub(crate) fn new(author: Handle) -> Self {
        Self::Pool(Arc::new(Pool {
            author,
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            watched: CallWatch::start(),
        }))
    }

    /// Carries out `work`. It is dropped where it waits if the returned future is dropped. Returns `None` if the runtime has ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let Self::Pool(pool) = self else {
            return Some(work.await);
        };
        let permit = Arc::clone(&pool.calls).acquire_owned().await.ok()?;
        let work = PoolCall {
            pool: Arc::clone(pool),
            has_begun: false,
            work: Some(Box::pin(work)),
        };
        // A task of its own: the one that waits for it can be aborted while this one is blocked.
        let running = tokio::spawn(async move {
            let _permit = permit;
            work.await
        });
        AbortOnDropHandle::new(running).await.ok()
    }
}

/// What the calls of a plugin share.
#[derive(Debug)]
pub struct Pool {
    author: Handle,
    calls: Arc<Semaphore>,
    watched: Arc<CallWatch>,
}

/// A call in the runtime of the session.
struct PoolCall<F> {
    pool: Arc<Pool>,
    has_begun: bool,
    /// `None` after its end.
    work: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for PoolCall<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self {
            pool,
            has_begun,
            work,
        } = &mut *self;
        let mut run = || {
            let _entered = pool.author.enter();
            let Some(running) = work else {
                return Poll::Pending;
            };
            let polled = running.as_mut().poll(cx);
            if polled.is_ready() {
                *work = None;
            }
            polled
        };
        // A task that was woken from elsewhere may run while another one waits in the slot of its worker, from which no other worker
        // can take it. A task that begins does not.
        let begins = !std::mem::replace(has_begun, true);
        match begins.then(|| pool.watched.begin()).flatten() {
            Some(_watched) => run(),
            None => block_in_place(run),
        }
    }
}

impl<F> Drop for PoolCall<F> {
    /// What the author's values do when they are dropped can block as well.
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            block_in_place(|| {
                let _entered = self.pool.author.enter();
                drop(work);
            });
        }
    }
}

/// The calls that have just begun, in threads that the session may need.
#[derive(Debug)]
struct CallWatch {
    /// The number of the call in each place; 0 in a free one.
    places: [AtomicU64; SESSION_THREADS - 1],
    next: AtomicU64,
    session: OnceLock<Handle>,
    is_asleep: AtomicBool,
    watchdog: OnceLock<Thread>,
}

/// A call in its place, which it leaves when this is dropped.
struct TakenPlace<'a>(&'a AtomicU64);

impl Drop for TakenPlace<'_> {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}

impl CallWatch {
    fn start() -> Arc<Self> {
        let watched = Arc::new(Self {
            places: Default::default(),
            next: AtomicU64::new(1),
            session: OnceLock::new(),
            is_asleep: AtomicBool::new(false),
            watchdog: OnceLock::new(),
        });
        let watchdog = thread::Builder::new().name("watchdog".to_owned());
        let watches = Arc::downgrade(&watched);
        // Without it there are no places, and each call lets the session go on elsewhere before it begins.
        if let Ok(watchdog) = watchdog.spawn(move || watch(&watches)) {
            let _ = watched.watchdog.set(watchdog.thread().clone());
        }
        watched
    }

    /// Takes a place for a call; `None` if there is none.
    fn begin(&self) -> Option<TakenPlace<'_>> {
        let watchdog = self.watchdog.get()?;
        self.session.get_or_init(Handle::current);
        let number = self.next.fetch_add(1, SeqCst);
        let place = self.places.iter().find(|place| {
            let taken = place.compare_exchange(0, number, SeqCst, SeqCst);
            taken.is_ok()
        })?;
        if self.is_asleep.swap(false, SeqCst) {
            watchdog.unpark();
        }
        Some(TakenPlace(place))
    }
}

impl Drop for CallWatch {
    fn drop(&mut self) {
        if let Some(watchdog) = self.watchdog.get() {
            watchdog.unpark();
        }
    }
}

/// Wakes another thread of the session's runtime while a call keeps its own: the threads that wait do not look for work or for bytes of
/// the connection by themselves.
fn watch(watched: &Weak<CallWatch>) {
    // The calls of the last round, and those for which it has woken a thread.
    let mut before = [0; SESSION_THREADS - 1];
    let mut helped = [0; SESSION_THREADS - 1];
    let (mut counted, mut quiet) = (0, 0);
    while let Some(watched) = watched.upgrade() {
        let places = watched.places.iter().zip(&mut before).zip(&mut helped);
        for ((place, before), helped) in places {
            let now = place.load(SeqCst);
            let takes_long = now != 0 && now == *before && now != *helped;
            if takes_long && let Some(session) = watched.session.get() {
                session.spawn(async {});
                *helped = now;
            }
            *before = now;
        }
        let count = watched.next.load(SeqCst);
        quiet = if count == counted { quiet + 1 } else { 0 };
        counted = count;
        if quiet < ROUNDS {
            drop(watched);
            thread::sleep(PATIENCE);
            continue;
        }
        quiet = 0;
        watched.is_asleep.store(true, SeqCst);
        // A call that has begun before this does not wake it.
        let is_quiet = watched.next.load(SeqCst) == counted;
        drop(watched);
        if is_quiet {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a plugin at rest would wake up 500 times in a second.
    #[test]
    fn the_watchdog_sleeps_without_calls() {
        let watched = CallWatch::start();
        for _ in 0..1000 {
            if watched.is_asleep.load(SeqCst) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("it is awake after ten seconds");
    }
}
