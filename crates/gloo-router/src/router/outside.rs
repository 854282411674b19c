//! Writes for a Rollout outside of calls, and how a call takes over from them.
//!
//! A repair has compared its intent with the Rollout, and its patch is on the way. If a call found the table as it should be and
//! returned now, the patch would change it afterwards, and nothing would change it back. So a call withdraws what is not sent
//! yet, and looks again when the rest has ended.

use std::collections::HashMap;
use std::sync::Mutex;

use gloo_types::ObjectKey;
use route_store::{Permit, with_permit};
use tokio::sync::watch;

use crate::lock;

/// The writes that are under way, by Rollout.
#[derive(Debug, Default)]
pub(super) struct OutsideWrites(Mutex<HashMap<ObjectKey, Vec<Under>>>);

/// A write in progress: it may send requests until `permit` is withdrawn, and has ended when the sender of `end` is dropped.
#[derive(Debug)]
struct Under {
    number: u64,
    permit: Permit,
    end: watch::Receiver<()>,
}

/// The writes from which a call has taken over.
#[derive(Debug)]
pub(super) struct TakenOver(Vec<watch::Receiver<()>>);

impl OutsideWrites {
    /// Runs `work`, which writes for `rollout`. Before it sends anything it must check that no call has begun.
    pub(super) async fn run<F: Future>(&self, rollout: &ObjectKey, work: F) -> F::Output {
        let permit = Permit::default();
        let _running = self.begin(rollout, permit.clone());
        with_permit(permit, work).await
    }

    /// Notes a write for `rollout` that may be sent until `permit` is withdrawn. It has ended when the returned value is dropped.
    pub(super) fn begin(&self, rollout: &ObjectKey, permit: Permit) -> Running<'_> {
        let (sender, end) = watch::channel(());
        let mut writes = lock(&self.0);
        let of_rollout = writes.entry(rollout.clone()).or_default();
        let number = of_rollout.last().map_or(0, |last| last.number + 1);
        of_rollout.push(Under {
            number,
            permit,
            end,
        });
        Running {
            writes: self,
            rollout: rollout.clone(),
            number,
            _end: sender,
        }
    }

    /// Withdraws the requests for `rollout` that are not sent yet. Returns the writes that have to end.
    pub(super) fn take_over(&self, rollout: &ObjectKey) -> TakenOver {
        let writes = lock(&self.0);
        let of_rollout = writes.get(rollout).map(Vec::as_slice);
        let under = of_rollout.unwrap_or_default().iter();
        TakenOver(
            under
                .map(|under| {
                    under.permit.withdraw();
                    under.end.clone()
                })
                .collect(),
        )
    }
}

impl TakenOver {
    /// Whether there was no write.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until all have ended.
    pub(super) async fn ended(mut self) {
        for end in &mut self.0 {
            // Nothing is sent, so this ends when the sender is dropped.
            let _ = end.changed().await;
        }
    }
}

/// Removes a write that has ended or was dropped.
#[derive(Debug)]
pub(super) struct Running<'w> {
    writes: &'w OutsideWrites,
    rollout: ObjectKey,
    number: u64,
    /// Dropped after the write was removed.
    _end: watch::Sender<()>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut writes = lock(&self.writes.0);
        if let Some(under) = writes.get_mut(&self.rollout) {
            under.retain(|under| under.number != self.number);
            if under.is_empty() {
                writes.remove(&self.rollout);
            }
        }
    }
}
