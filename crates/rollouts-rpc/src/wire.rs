//! Conversion between the domain types and the values that net/rpc carries.
//!
//! The wire types have the type and field names of Argo Rollouts' Go types, field by field. Every released controller depends on these
//! names, so they never change. Each file declares the wire types of one kind of plugin and keeps them private: the rest of the
//! crate decodes and encodes calls and replies through functions that take bytes and domain types.
//!
//! ```text
//! plugin:  bytes -> decode_call -> RouterCall     Reply -> Body::encode -> bytes
//! host:    RouterCall -> encode_call -> bytes     bytes -> RpcError, VerifyWeightResponse -> result
//! ```

pub(crate) mod metric;
pub(crate) mod router;
pub(crate) mod step;

use gob::{EncodeError, Encoder, WithRaw};

use crate::error::{PluginError, error_chain};
use crate::methods::{Method, Reply};
use crate::netrpc::{Body, Fault};
use crate::rollout::{RawRollout, Rollout};

gob::gob_struct! {
    pub(crate) struct RpcError as "RpcError" {
        /// Empty for success.
        error_string: String as "ErrorString",
    }
}

impl<T> From<&Result<T, PluginError>> for RpcError {
    fn from(outcome: &Result<T, PluginError>) -> Self {
        let error = outcome.as_ref().err();
        Self {
            error_string: error.map_or_else(String::new, error_text),
        }
    }
}

impl Body for Reply {
    fn encode(&self, encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Type(name) => encoder.encode(name, out),
            Self::Done(outcome) => encoder.encode(&RpcError::from(outcome), out),
            Self::Verified(verification) => {
                encoder.encode(&router::VerifyWeightResponse::from(*verification), out)
            }
            Self::Measured(Ok(measurement)) => encoder.encode(measurement, out),
            Self::Measured(Err(error)) => encoder.encode(&metric::failed_measurement(error), out),
            Self::Metadata(Ok(metadata)) => encoder.encode(metadata, out),
            Self::Metadata(Err(error)) => encoder.encode(&metric::failed_metadata(error), out),
            Self::Stepped(outcome) => encoder.encode(&step::StepResponse::from(outcome), out),
        }
    }
}

fn error_text(error: &PluginError) -> String {
    error_chain(error.as_error())
}

/// Result of a call as the host decodes it; `Err` holds the text of the error that the plugin returned.
#[cfg(feature = "host")]
pub(crate) type Outcome<T> = Result<T, String>;

#[cfg(feature = "host")]
impl RpcError {
    pub(crate) fn into_outcome(self) -> Outcome<()> {
        if self.error_string.is_empty() {
            Ok(())
        } else {
            Err(self.error_string)
        }
    }
}

/// Returns the fault of a call whose argument is nil or belongs to another method. `found` is the registered name of the argument.
fn other_argument(method: impl Method, found: Option<&'static str>) -> Fault {
    Fault::Argument {
        method: format!("Plugin.{}", method.name()),
        reason: format!("it is {}", found.unwrap_or("nil")),
    }
}

/// Largest Rollout that is kept in wire format, in bytes. It is more than the API server stores of one Rollout, and small enough to
/// keep one for each call in flight.
const MAX_RAW: usize = 2 << 20;

/// Converts a Rollout that a controller sent, and restores the zero values that gob dropped.
fn received(arrived: WithRaw<Rollout>) -> Box<Rollout> {
    let mut rollout = arrived.value.restore_zeros();
    rollout.raw = RawRollout(arrived.raw.filter(|raw| raw.size() <= MAX_RAW));
    Box::new(rollout)
}

/// Converts a Rollout to what a controller would send.
#[cfg(feature = "host")]
fn sent(rollout: Rollout) -> WithRaw<Rollout> {
    WithRaw {
        value: rollout.with_defaults(),
        raw: None,
    }
}
