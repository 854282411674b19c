//! Runs the work of calls on the processors: reading a request, computing an answer and writing it.
//!
//! Such work may take tens of milliseconds. On the threads that serve connections it would delay every other call and `/livez`,
//! and its deadline could not pass. So it runs on other threads, as much at a time as there are processors. One token uses at most
//! half of them, so that the work of another token waits for few others.

use std::sync::Arc;
use std::thread::available_parallelism;

use appset_generator::Failure;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tracing::Span;

use crate::by_key::ByKey;

/// The processors.
pub(crate) struct Compute {
    all: Arc<Semaphore>,
    of_each: usize,
    by_token: ByKey<String, Semaphore>,
}

impl Compute {
    pub(crate) fn new() -> Self {
        // With one processor, its threads share it.
        let processors = available_parallelism().map_or(2, |it| it.get().max(2));
        Self {
            all: Arc::new(Semaphore::new(processors)),
            of_each: processors / 2,
            by_token: ByKey::default(),
        }
    }

    /// Runs `work` for a call with this token, after the earlier work of the token.
    ///
    /// If the caller stops waiting, work that has begun goes on.
    ///
    /// # Errors
    /// Returns `Err` if the work does or panics.
    pub(crate) async fn run<T, E>(
        &self,
        token: &str,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Failure> + Send + 'static,
    {
        // The semaphores are never closed.
        let (key, new) = (token.to_owned(), || Semaphore::new(self.of_each));
        let own = self.by_token.get(&key, new).acquire_owned().await;
        let one = Arc::clone(&self.all).acquire_owned().await;
        let span = Span::current();
        let work = spawn_blocking(move || {
            let _permits = (own, one);
            span.in_scope(work)
        });
        work.await
            .unwrap_or_else(|_panic| Err(Failure::Internal.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn one_token_leaves_processors_to_others() {
        let compute = Arc::new(Compute::new());
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let mut busy = tokio::task::JoinSet::new();
        for _ in 0..compute.of_each * 3 {
            let (compute, released) = (Arc::clone(&compute), Arc::clone(&released));
            busy.spawn(async move {
                let wait = move || {
                    released.lock().unwrap().recv().unwrap();
                    Ok::<_, Failure>(())
                };
                compute.run("a", wait).await
            });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let other = compute.run("b", || Ok::<_, Failure>(7)).await;
        assert_eq!(other, Ok(7));
        for _ in 0..compute.of_each * 3 {
            release.send(()).unwrap();
        }
        while let Some(done) = busy.join_next().await {
            assert_eq!(done.unwrap(), Ok(()));
        }
    }

    #[tokio::test]
    async fn a_panic_is_a_failure() {
        let compute = Compute::new();
        let work = || -> Result<(), Failure> { panic!("planted") };
        assert_eq!(compute.run("a", work).await, Err(Failure::Internal));
        let next = compute.run("a", || Ok::<_, Failure>(1)).await;
        assert_eq!(next, Ok(1));
    }
}
