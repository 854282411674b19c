//! Where the author's code runs: beside the session, so that it cannot stall it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::block_in_place;
use tokio_util::task::AbortOnDropHandle;

/// Most calls that have a thread, below the 512 threads of a runtime. A call that blocks for ever keeps its thread after its deadline,
/// and the session needs one to go on in.
const MAX_THREADS: usize = 400;

/// Where the calls of a plugin run.
#[derive(Clone, Debug)]
pub enum Workers {
    /// Each call takes the thread of the session, and the session goes on in another thread if that takes long: `std::fs`, clients
    /// that block and endless loops are what authors write. A call that is quick costs no switch of threads.
    Beside {
        /// The runtime of the author, for what a call spawns or waits for.
        author: Handle,
        /// Limits the calls that have a thread.
        threads: Arc<Semaphore>,
    },
    /// In the task of the session, for a session in memory and its tests.
    Session,
}

impl Workers {
    pub(crate) fn new(author: Handle) -> Self {
        let threads = Arc::new(Semaphore::new(MAX_THREADS));
        Self::Beside { author, threads }
    }

    /// Carries out `work`. It is dropped where it waits if the returned future is dropped. Returns `None` if the runtime has ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let Self::Beside { author, threads } = self else {
            return Some(work.await);
        };
        let thread = Arc::clone(threads).acquire_owned().await.ok()?;
        let work = Beside {
            author: author.clone(),
            work: Some(Box::pin(work)),
        };
        // A task of its own: the one that waits for it can be aborted while this one is blocked.
        let running = tokio::spawn(async move {
            let _thread = thread;
            work.await
        });
        AbortOnDropHandle::new(running).await.ok()
    }
}

/// Code of the author, in a worker of the session's runtime.
struct Beside<F> {
    author: Handle,
    /// `None` only while it is dropped.
    work: Option<Pin<Box<F>>>,
}

impl<F> Beside<F> {
    /// Runs code of the author. The tasks of the session go on in another thread meanwhile.
    fn enter<T>(author: &Handle, run: impl FnOnce() -> T) -> T {
        block_in_place(|| {
            let _entered = author.enter();
            run()
        })
    }
}

impl<F: Future> Future for Beside<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { author, work } = &mut *self;
        match work {
            Some(work) => Self::enter(author, || work.as_mut().poll(cx)),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Beside<F> {
    /// What the author's values do when they are dropped can block as well.
    fn drop(&mut self) {
        let work = self.work.take();
        Self::enter(&self.author, || drop(work));
    }
}
