//! Go's net/rpc: calls and replies as pairs of gob values, header and body.
//!
//! Facts from Go's `net/rpc/server.go` and `client.go`. A stream carries, in each direction, one
//! endless gob stream; replies may come in any order and are matched by sequence number.

#[cfg(feature = "host")]
pub(crate) mod client;
pub(crate) mod codec;
pub(crate) mod server;

use std::future::Future;
use std::time::Duration;

use gob::{Decoder, Encoder, Limits};

/// What a stream offers: which calls it understands and what it answers.
pub(crate) trait Service: Send + Sync + 'static {
    /// A call with its argument.
    type Call: Send + 'static;
    /// The body of a successful reply.
    type Reply: Body + Send + Sync + 'static;
    /// See [`ticket`](Self::ticket).
    type Ticket: Clone + Send + Sync + 'static;

    /// What the host may send.
    const LIMITS: Limits;

    /// Reads the argument of `method`, whatever the method: an argument that stays in the stream
    /// would be taken for the next call. `None` means that more bytes are needed.
    ///
    /// # Errors
    ///
    /// [`gob::DecodeError`] for an argument that is not what the method takes.
    fn decode(method: &str, stream: &mut Decoder) -> Decoded<Self::Call>;

    /// What is known of a call while it is carried out.
    fn ticket(&self, call: &Self::Call) -> Self::Ticket;

    /// Carries out a call. It may be dropped at the [`deadline`](Self::deadline), and does not panic.
    fn call(
        &self,
        ticket: &Self::Ticket,
        call: Self::Call,
    ) -> impl Future<Output = Result<Self::Reply, Fault>> + Send;

    /// How long a call may take; without one it takes as long as it takes.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Answers a call that was not answered by then.
    ///
    /// # Errors
    ///
    /// The fault, where the reply has no place for it.
    fn late(&self, _: &Self::Ticket) -> Result<Self::Reply, Fault> {
        Err(Fault::Ended)
    }

    /// Answers a call of `method` whose argument could not be decoded.
    fn refuse(_method: &str, fault: Fault) -> Result<Self::Reply, Fault> {
        Err(fault)
    }

    /// Stops the background work of the plugin.
    fn stop(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Told when a reply is on its way to the host.
    fn replied(&self, _reply: &Self::Reply) {}
}

/// `None` means that more bytes are needed.
pub(crate) type Decoded<C> = Result<Option<Result<C, Fault>>, gob::DecodeError>;

/// The body of a reply, which picks its own gob type.
pub(crate) trait Body {
    /// Appends the value, and its type's definition if the stream has not seen it.
    fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), gob::EncodeError>;
}

/// Why a call was not carried out: the `Error` text of a reply. Refusals by a plugin travel in the
/// body instead.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Fault {
    /// The method name has no dot (Go's wording, here and below).
    #[error("rpc: service/method request ill-formed: {0}")]
    IllFormed(String),
    #[error("rpc: can't find service {0}")]
    UnknownService(String),
    #[error("rpc: can't find method {0}")]
    UnknownMethod(String),
    /// The argument is well-formed gob of another type.
    #[error("{method}: the argument is not what the method takes: {reason}")]
    Argument { method: String, reason: String },
    #[error("unknown plugin type: {0}")]
    UnknownPlugin(String),
    #[error("too many dispensed plugins wait for their stream")]
    TooManyDispensed,
    #[error("{method} panicked: {message}; the plugin's log has the place")]
    Panicked {
        method: &'static str,
        message: String,
    },
    #[error(
        "{method} took longer than {seconds} s and was cut short; the plugin's log has its progress"
    )]
    Late { method: &'static str, seconds: f32 },
    #[error("the call was ended")]
    Ended,
    /// What the plugin answered.
    #[error("{method}: the answer cannot be sent")]
    Unsendable {
        method: String,
        #[source]
        source: gob::EncodeError,
    },
}

impl Fault {
    /// The fault of a method none of `services` has; Go looks for the service first.
    pub(crate) fn not_found(method: &str, services: &[&str]) -> Self {
        match method.rsplit_once('.') {
            None => Self::IllFormed(method.to_owned()),
            Some((service, _)) if services.contains(&service) => {
                Self::UnknownMethod(method.to_owned())
            }
            Some(_) => Self::UnknownService(method.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, expect: &str) {
        assert_eq!(
            Fault::not_found(method, &["Control", "Dispenser"]).to_string(),
            expect
        );
    }

    #[test]
    fn an_unknown_method_is_refused_in_gos_words() {
        check("Ping", "rpc: service/method request ill-formed: Ping");
        check("", "rpc: service/method request ill-formed: ");
        check("Plugin.Type", "rpc: can't find service Plugin.Type");
        check("Control.Sing", "rpc: can't find method Control.Sing");
        check("a.Control.Ping", "rpc: can't find service a.Control.Ping");
        check("Control.Ping.", "rpc: can't find service Control.Ping.");
    }
}
