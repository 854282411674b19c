//! Go's net/rpc: each call and each reply is a pair of gob values, a header and a body.
//!
//! A stream carries one gob stream in each direction, for the whole session. Replies arrive in any order, and their sequence number
//! says which call they belong to (`net/rpc/server.go` and `client.go` in Go).

#[cfg(feature = "host")]
pub(crate) mod client;
pub(crate) mod codec;
pub(crate) mod server;

use std::future::Future;
use std::time::Duration;

use gob::{Decoder, Encoder, Limits};

/// Limits on what a peer may send. The first call of a controller is about 22 KB, with 245 types nested 17 deep. The API server
/// accepts no object above 3 MiB, and gob does not make it larger. A value that the author of a Rollout can make too large fails its
/// call and not the session.
pub(crate) const LIMITS: Limits = Limits {
    message_bytes: 4 << 20,
    ..Limits::STRICT
};

/// Decodes and carries out the calls on a stream.
pub(crate) trait Service: Send + Sync + 'static {
    /// A call with its argument.
    type Call: Send + 'static;
    /// The body of a successful reply.
    type Reply: Body + Send + Sync + 'static;
    /// What [`deadline_exceeded`](Self::deadline_exceeded) has to know of a call.
    type CallInfo: Clone + Send + Sync + 'static;

    /// Limits on what the host may send.
    const LIMITS: Limits = LIMITS;

    /// Decodes the argument of `method`, also of an unknown method: otherwise the argument would be decoded as the next header.
    /// `None` means that more bytes are needed.
    ///
    /// # Errors
    ///
    /// Returns [`gob::DecodeError`] if the argument is not what the method takes.
    fn decode(method: &str, stream: &mut Decoder) -> Decoded<Self::Call>;

    /// Describes a call before it is carried out.
    fn call_info(&self, call: &Self::Call) -> Self::CallInfo;

    /// Carries out a call. The future may be dropped at the [`deadline`](Self::deadline). It does not panic.
    fn call(
        &self,
        info: &Self::CallInfo,
        call: Self::Call,
    ) -> impl Future<Output = Result<Self::Reply, Fault>> + Send;

    /// Returns how long a call may take; `None` is no limit.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Returns the reply to a call that exceeded its deadline.
    ///
    /// # Errors
    ///
    /// Returns the fault if the method's reply has no field for an error.
    fn deadline_exceeded(&self, _: &Self::CallInfo) -> Result<Self::Reply, Fault> {
        Err(Fault::Ended)
    }

    /// Returns the reply to a call of `method` that was not carried out because of `fault`.
    fn refuse(_method: &str, fault: Fault) -> Result<Self::Reply, Fault> {
        Err(fault)
    }

    /// Stops the background work of the plugin.
    fn stop(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Called after a reply was written to the stream.
    fn replied(&self, _reply: &Self::Reply) {}
}

/// A decoded call, or the fault to reply with. `None` means that more bytes are needed.
pub(crate) type Decoded<C> = Result<Option<Result<C, Fault>>, gob::DecodeError>;

/// The body of a reply.
pub(crate) trait Body {
    /// Appends the value, and the definition of its type if the stream does not have it yet.
    fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), gob::EncodeError>;
}

/// Why a call was not carried out: the `Error` text in the header of a reply. An error that the plugin returned is in the body of
/// the reply instead.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Fault {
    /// The method name has no dot. This text and the next two are Go's.
    #[error("rpc: service/method request ill-formed: {0}")]
    IllFormed(String),
    #[error("rpc: can't find service {0}")]
    UnknownService(String),
    #[error("rpc: can't find method {0}")]
    UnknownMethod(String),
    /// The argument is valid gob, but not of the type that the method takes.
    #[error("{method}: invalid argument: {reason}")]
    Argument { method: String, reason: String },
    #[error("unknown plugin type: {0}")]
    UnknownPlugin(String),
    #[error("too many dispensed plugins wait for their stream")]
    TooManyDispensed,
    #[error("{method} panicked: {message}; the plugin's log says where")]
    Panicked {
        method: &'static str,
        message: String,
    },
    #[error(
        "{method} took longer than {seconds} s and was aborted; the plugin's log shows its progress"
    )]
    DeadlineExceeded { method: &'static str, seconds: f32 },
    #[error("the call was ended")]
    Ended,
    /// The plugin's reply has no representation in gob.
    #[error("{method}: the reply cannot be encoded")]
    Unsendable {
        method: String,
        #[source]
        source: gob::EncodeError,
    },
}

impl Fault {
    /// Returns the fault of a method that none of `services` has. Like Go, it checks the service first.
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
