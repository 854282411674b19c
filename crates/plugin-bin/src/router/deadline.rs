//! How the time of a call is divided: reading leaves time to write, and writing leaves time to answer.

use std::{future::Future, time::Duration};

use route_store::{Priority, RequestContext};
use tokio::time::{Instant, timeout_at};

/// The part of the time after which nothing more is read beside the tables. A table that takes as long as one request may
/// take by default, 3 of 5 s, leaves some of it.
const READING: f32 = 0.7;

/// The part of the time after which no table is read or written. The answer has the rest.
const WRITING: f32 = 0.9;

/// When a call has to be answered; never for a command, which a person can interrupt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    begin: Instant,
    limit: Option<Duration>,
}

impl Deadline {
    /// The deadline of a call that begins now.
    pub(super) fn of_call(limit: Option<Duration>) -> Self {
        Self {
            begin: Instant::now(),
            limit,
        }
    }

    /// What the requests of the call share: they end before it does, and go in the order of `priority`.
    pub(super) fn context(self, priority: Priority) -> RequestContext {
        RequestContext {
            deadline: self.limit.map(|limit| self.begin + limit),
            priority,
        }
    }

    /// Waits for a request beside those for tables; `None` when there is no time left.
    pub(super) async fn reading<T>(self, request: impl Future<Output = T>) -> Option<T> {
        self.part(READING, request).await
    }

    /// Waits for requests that read or write tables; `None` when there is no time left.
    pub(super) async fn tables<T>(self, requests: impl Future<Output = T>) -> Option<T> {
        self.part(WRITING, requests).await
    }

    async fn part<T>(self, part: f32, work: impl Future<Output = T>) -> Option<T> {
        match self.limit {
            Some(limit) => timeout_at(self.begin + limit.mul_f32(part), work)
                .await
                .ok(),
            None => Some(work.await),
        }
    }
}
