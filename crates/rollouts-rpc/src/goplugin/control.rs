//! The control stream: Ping, Quit and Dispense (go-plugin `rpc_server.go`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use gob::{Decoder, EncodeError, Encoder, Limits};
use serde::de::IgnoredAny;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::broker::Broker;
use super::handshake::PluginKind;
use crate::netrpc::{Body, Decoded, Fault, Service};
use crate::wire::LIMITS;

/// Answers for the process as a whole.
pub(crate) struct Control {
    kind: PluginKind,
    broker: Arc<Mutex<Broker>>,
    quit_asked: AtomicBool,
    quit_answered: Notify,
    stop: Stop,
}

/// Ends what the plugin does by itself between the calls.
pub(crate) type Stop = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ControlCall {
    Ping,
    Quit,
    /// The kind of plugin the host wants, by its dispense name.
    Dispense(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ControlReply {
    Alive,
    Bye,
    /// The id the host's next stream will start with.
    Dispensed(u32),
}

impl Control {
    pub(crate) fn new(kind: PluginKind, broker: Arc<Mutex<Broker>>, stop: Stop) -> Self {
        Self {
            kind,
            stop,
            broker,
            quit_asked: AtomicBool::new(false),
            quit_answered: Notify::new(),
        }
    }

    /// Whether the host has said Quit. It may hang up before this side has noticed its own reply.
    pub(crate) fn quit_asked(&self) -> bool {
        self.quit_asked.load(Ordering::Relaxed)
    }

    /// Waits until the reply to Quit is on its way.
    pub(crate) async fn quit_answered(&self) {
        self.quit_answered.notified().await;
    }

    fn dispense(&self, name: String) -> Result<ControlReply, Fault> {
        if name != self.kind.dispense_name() {
            return Err(Fault::UnknownPlugin(name));
        }
        let mut broker = self.broker.lock().unwrap_or_else(PoisonError::into_inner);
        let id = broker
            .issue(Instant::now().into_std())
            .ok_or(Fault::TooManyDispensed)?;
        Ok(ControlReply::Dispensed(id))
    }
}

impl Service for Control {
    type Call = ControlCall;
    type Reply = ControlReply;
    type Ticket = ();

    const LIMITS: Limits = LIMITS.with_message_bytes(64 << 10);

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

    fn ticket(&self, _: &ControlCall) {}

    async fn call(&self, (): &(), call: ControlCall) -> Result<ControlReply, Fault> {
        match call {
            ControlCall::Ping => Ok(ControlReply::Alive),
            ControlCall::Quit => {
                self.quit_asked.store(true, Ordering::Relaxed);
                (self.stop)().await;
                Ok(ControlReply::Bye)
            }
            ControlCall::Dispense(name) => self.dispense(name),
        }
    }

    fn replied(&self, reply: &ControlReply) {
        if *reply == ControlReply::Bye {
            self.quit_answered.notify_one();
        }
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
