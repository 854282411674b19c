//! Runs the work of calls on the processors: reading a request, computing an answer and writing it.
//!
//! Such work may take tens of milliseconds. On the threads that serve connections it would delay every other call and `/livez`,
//! and its deadline could not pass. So it runs on other threads, and begins in one of as many places as there are processors. One
//! token has at most half as many computations.
//!
//! A computation that turns out to be long gives its place back. From then on the kernel shares the processors among the long
//! computations and the places, so that any number of tokens with long ones leave the places to the others.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use appset_generator::Failure;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tracing::Span;

use crate::by_key::ByKey;

/// The time for which a computation has a place.
const SHORT: Duration = Duration::from_millis(10);

/// The processors.
pub(crate) struct Compute {
    places: Arc<Semaphore>,
    of_each: usize,
    by_token: ByKey<String, Semaphore>,
}

/// What a computation that runs has.
pub(crate) struct Turn {
    place: Cell<Option<OwnedSemaphorePermit>>,
    began: Instant,
    /// Lives as long as a caller waits for the outcome.
    caller: Weak<()>,
}

impl Turn {
    /// Gives the place back.
    pub(crate) fn leave(&self) {
        self.place.take();
    }

    /// Gives the place back if the computation is long.
    ///
    /// # Errors
    /// Returns `Err` if nobody waits for the outcome: the caller has left, or the deadline has passed.
    pub(crate) fn go_on(&self) -> Result<(), Failure> {
        if self.began.elapsed() > SHORT {
            self.leave();
        }
        match self.caller.strong_count() {
            0 => Err(Failure::Internal),
            _ => Ok(()),
        }
    }
}

/// The maximum number of computations at a time.
const MOST: usize = 4;

impl Compute {
    pub(crate) fn new() -> Self {
        // With one processor, its threads share it. A request takes up to a hundred times the memory of its text while it is read.
        let processors = available_parallelism().map_or(2, |it| it.get().clamp(2, MOST));
        Self {
            places: Arc::new(Semaphore::new(processors)),
            of_each: processors / 2,
            by_token: ByKey::default(),
        }
    }

    /// Runs `work` for a call with this token, after the earlier work of the token.
    ///
    /// If the caller stops waiting, work that has begun ends when it asks [`Turn::go_on`].
    ///
    /// # Errors
    /// Returns `Err` if the work does or panics.
    pub(crate) async fn run<T, E>(
        &self,
        token: &str,
        work: impl FnOnce(&Turn) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Failure> + Send + 'static,
    {
        // The semaphores are never closed.
        let (key, new) = (token.to_owned(), || Semaphore::new(self.of_each));
        let own = self.by_token.get(&key, new).acquire_owned().await;
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let caller = Arc::new(());
        let turn = Turn {
            place: Cell::new(place),
            began: Instant::now(),
            caller: Arc::downgrade(&caller),
        };
        let span = Span::current();
        let work = spawn_blocking(move || {
            let _own = own;
            span.in_scope(|| work(&turn))
        });
        work.await
            .unwrap_or_else(|_panic| Err(Failure::Internal.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

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
                let wait = move |_: &Turn| {
                    released.lock().unwrap().recv().unwrap();
                    Ok::<_, Failure>(())
                };
                compute.run("a", wait).await
            });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let other = compute.run("b", |_| Ok::<_, Failure>(7)).await;
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
        let work = |_: &Turn| -> Result<(), Failure> { panic!("planted") };
        assert_eq!(compute.run("a", work).await, Err(Failure::Internal));
        let next = compute.run("a", |_| Ok::<_, Failure>(1)).await;
        assert_eq!(next, Ok(1));
    }

    /// Many tokens compute until nobody waits for them.
    #[tokio::test]
    async fn long_work_leaves_its_place_and_ends_with_its_caller() {
        let compute = Arc::new(Compute::new());
        let (ended, end) = mpsc::channel();
        let mut callers = tokio::task::JoinSet::new();
        let many = compute.of_each * 4;
        for token in 0..many {
            let (compute, ended) = (Arc::clone(&compute), ended.clone());
            callers.spawn(async move {
                let work = move |turn: &Turn| -> Result<(), Failure> {
                    while turn.go_on().is_ok() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    ended.send(()).unwrap();
                    Ok(())
                };
                compute.run(&token.to_string(), work).await
            });
        }
        tokio::time::sleep(SHORT * 20).await;
        let other = compute.run("b", |_| Ok::<_, Failure>(7)).await;
        assert_eq!(other, Ok(7));
        assert!(end.try_recv().is_err());
        callers.shutdown().await;
        for _ in 0..many {
            end.recv_timeout(Duration::from_secs(10)).unwrap();
        }
    }
}
