//! Serves the control stream: Ping, Quit and Dispense (go-plugin `rpc_server.go`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gob::{Decoder, EncodeError, Encoder, Limits};
use serde::de::IgnoredAny;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::warn;

use crate::kind::PluginKind;
use crate::netrpc::server::Serve;
use crate::netrpc::{Body, Decoded, Fault, LIMITS, Service};

/// How long the host has to close the connection after Quit or after a stream failed. It kills a plugin that does not exit within
/// 2 s.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// Serves the control stream.
pub(crate) struct Control {
    kind: PluginKind,
    ids: Arc<Mutex<DispensedIds>>,
    quit_requested: AtomicBool,
    quit_replied: Notify,
    service: Arc<dyn Serve>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ControlCall {
    Ping,
    Quit,
    /// The dispense name of the kind of plugin that the host wants.
    Dispense(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ControlReply {
    Alive,
    Bye,
    /// The id that the host's next stream starts with.
    Dispensed(u32),
}

impl Control {
    pub(crate) fn new(
        kind: PluginKind,
        ids: Arc<Mutex<DispensedIds>>,
        service: Arc<dyn Serve>,
    ) -> Self {
        Self {
            kind,
            service,
            ids,
            quit_requested: AtomicBool::new(false),
            quit_replied: Notify::new(),
        }
    }

    /// Returns whether the host called Quit. It may close the connection before [`quit_replied`](Self::quit_replied) returns.
    pub(crate) fn quit_requested(&self) -> bool {
        self.quit_requested.load(Ordering::Relaxed)
    }

    /// Waits until the reply to Quit was written.
    pub(crate) async fn quit_replied(&self) {
        self.quit_replied.notified().await;
    }

    fn dispense(&self, name: String) -> Result<ControlReply, Fault> {
        if name != self.kind.dispense_name() {
            return Err(Fault::UnknownPlugin(name));
        }
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let id = ids
            .issue(tokio::time::Instant::now().into_std())
            .ok_or(Fault::TooManyDispensed)?;
        Ok(ControlReply::Dispensed(id))
    }
}

impl Service for Control {
    type Call = ControlCall;
    type Reply = ControlReply;
    type CallInfo = ();

    const LIMITS: Limits = Limits {
        message_bytes: 64 << 10,
        ..LIMITS
    };

    fn decode(method: &str, stream: &mut Decoder) -> Decoded<ControlCall> {
        // Ping and Quit ignore their argument, a bool.
        Ok(match method {
            "Control.Ping" => stream.poll_value()?.map(|IgnoredAny| Ok(ControlCall::Ping)),
            "Control.Quit" => stream.poll_value()?.map(|IgnoredAny| Ok(ControlCall::Quit)),
            "Dispenser.Dispense" => stream
                .poll_value()?
                .map(|name| Ok(ControlCall::Dispense(name))),
            _ => stream
                .poll_value()?
                .map(|IgnoredAny| Err(Fault::not_found(method, &["Control", "Dispenser"]))),
        })
    }

    fn call_info(&self, _: &ControlCall) {}

    async fn call(&self, (): &(), call: ControlCall) -> Result<ControlReply, Fault> {
        match call {
            ControlCall::Ping => Ok(ControlReply::Alive),
            ControlCall::Quit => {
                // Before the stop, which takes its time: the host may close the connection meanwhile.
                self.quit_requested.store(true, Ordering::Relaxed);
                stop(self.service.as_ref()).await;
                Ok(ControlReply::Bye)
            }
            ControlCall::Dispense(name) => self.dispense(name),
        }
    }

    fn replied(&self, reply: &ControlReply) {
        if *reply == ControlReply::Bye {
            self.quit_replied.notify_one();
        }
    }
}

/// Stops the background work of the plugin, within a time after which the host still waits for the reply to Quit.
pub(crate) async fn stop(service: &dyn Serve) {
    if timeout(GRACE, service.stop()).await.is_err() {
        warn!("the background work did not stop in time");
    }
}

impl Body for ControlReply {
    fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Alive | Self::Bye => encoder.encode(&(), out),
            Self::Dispensed(id) => encoder.encode(id, out),
        }
    }
}

/// How long an id is valid, as in go-plugin.
pub(crate) const ID_EXPIRY: Duration = Duration::from_secs(5);

/// Most ids that wait for their stream. A controller dispenses once.
const MAX_WAITING: usize = 64;

/// The ids of Dispense replies that no stream has claimed yet (`mux_broker.go` in go-plugin).
#[derive(Debug, Default)]
pub(crate) struct DispensedIds {
    last: u32,
    waiting: HashMap<u32, Instant>,
}

impl DispensedIds {
    /// Returns a new id, or `None` if too many ids wait for their stream.
    pub(crate) fn issue(&mut self, now: Instant) -> Option<u32> {
        // Here, so that expired ids need no timer.
        self.waiting
            .retain(|_, issued| now.duration_since(*issued) < ID_EXPIRY);
        if self.waiting.len() >= MAX_WAITING {
            return None;
        }
        self.last = self.last.wrapping_add(1);
        self.waiting.insert(self.last, now);
        Some(self.last)
    }

    /// Returns whether a stream that starts with `id` may be served, and makes the id invalid for other streams.
    pub(crate) fn claim(&mut self, id: u32, now: Instant) -> bool {
        self.waiting
            .remove(&id)
            .is_some_and(|issued| now.duration_since(issued) < ID_EXPIRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_start_at_one_as_in_go() {
        let (mut ids, now) = (DispensedIds::default(), Instant::now());
        assert_eq!((ids.issue(now), ids.issue(now)), (Some(1), Some(2)));
    }

    #[test]
    fn an_id_is_claimed_once() {
        let (mut ids, now) = (DispensedIds::default(), Instant::now());
        ids.issue(now);
        assert!(ids.claim(1, now));
        assert!(!ids.claim(1, now));
    }

    #[test]
    fn an_id_that_was_not_issued_is_refused() {
        assert!(!DispensedIds::default().claim(0, Instant::now()));
    }

    #[test]
    fn an_id_expires() {
        let (mut ids, now) = (DispensedIds::default(), Instant::now());
        ids.issue(now);
        ids.issue(now);
        assert!(ids.claim(1, now + ID_EXPIRY - Duration::from_millis(1)));
        assert!(!ids.claim(2, now + ID_EXPIRY));
    }

    #[test]
    fn the_number_of_waiting_ids_is_bounded_and_recovers() {
        let (mut ids, now) = (DispensedIds::default(), Instant::now());
        assert!((0..MAX_WAITING).all(|_| ids.issue(now).is_some()));
        assert_eq!(ids.issue(now), None);
        assert!(ids.issue(now + ID_EXPIRY).is_some());
    }
}
