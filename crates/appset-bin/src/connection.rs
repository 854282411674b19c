//! The state of one connection: whether an answer is pending and until when, and whether the connection may be evicted.
//!
//! hyper limits the time until the head of the next request. No library limits the time of a whole answer, which a client may
//! read slowly, or chooses a connection to close when there are too many.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The state of a connection, which its task shares with the task that accepts connections.
#[derive(Debug, Default)]
pub(crate) struct Phase(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Until when the pending answer must be written.
    until: Option<Instant>,
    /// Whether a request was answered with 2xx.
    is_served: bool,
}

/// An answer is pending until this is dropped.
pub(crate) struct Pending(Arc<Phase>);

impl Phase {
    /// Begins an answer, for which there is this much time.
    pub(crate) fn begin(self: &Arc<Self>, limit: Duration) -> Pending {
        self.state().until = Some(Instant::now() + limit);
        Pending(Arc::clone(self))
    }

    /// Records that a request was answered with 2xx.
    pub(crate) fn served(&self) {
        self.state().is_served = true;
    }

    /// Completes when the time for the pending answer has passed. `timer` is set to it on each poll.
    pub(crate) async fn late(&self, mut timer: Pin<&mut Sleep>) {
        let late = poll_fn(|context| {
            let Some(until) = self.state().until else {
                return Poll::Pending;
            };
            if timer.deadline() != until {
                timer.as_mut().reset(until);
            }
            timer.as_mut().poll(context)
        });
        late.await;
    }

    /// Returns whether a request was answered with 2xx, which is why other connections are evicted before this one. Returns `None`
    /// if it must not be evicted because an answer is pending.
    pub(crate) fn evictable(&self) -> Option<bool> {
        let state = self.state();
        state.until.is_none().then_some(state.is_served)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.state().until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_clients_are_evicted_first_and_pending_answers_never() {
        let phase = Arc::new(Phase::default());
        assert_eq!(phase.evictable(), Some(false));
        let pending = phase.begin(Duration::from_secs(30));
        assert!(phase.evictable().is_none() && phase.state().until.is_some());
        drop(pending);
        assert_eq!(phase.evictable(), Some(false));
        let pending = phase.begin(Duration::from_secs(30));
        phase.served();
        assert_eq!(phase.evictable(), None);
        drop(pending);
        assert_eq!((phase.evictable(), phase.state().until), (Some(true), None));
    }
}
