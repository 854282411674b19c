//! Where the author's code runs: beside the session, so that it cannot stall it.

use std::future::Future;

use futures::future::{AbortHandle, Abortable};
use tokio::runtime::Handle;
use tracing::instrument::WithSubscriber as _;

/// Where the calls of a plugin run.
#[derive(Clone, Debug)]
pub enum Workers {
    /// Each call has a thread of this runtime for itself, from a pool. `std::fs`, clients that block and endless loops are what
    /// authors write, so the session must not share a thread with a call, and calls must not share one with each other.
    Threads(Handle),
    /// In the task of the session, for a session in memory and its tests.
    Session,
}

impl Workers {
    /// Carries out `work`. It is dropped where it waits if the returned future is dropped. Returns `None` if the runtime has ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let Self::Threads(runtime) = self else {
            return Some(work.await);
        };
        let (abort, registration) = AbortHandle::new_pair();
        let work = Abortable::new(work.with_current_subscriber(), registration);
        let on_thread = runtime.clone();
        let running = runtime.spawn_blocking(move || on_thread.block_on(work));
        let _aborts = AbortOnDrop(abort);
        running.await.ok()?.ok()
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
