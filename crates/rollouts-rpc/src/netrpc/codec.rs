//! net/rpc framing as a value: bytes in, calls out; replies in, bytes out. No input or output here.

use gob::{DecodeError, Decoder, EncodeError, Encoder};

use super::{Body, Fault, Service};
use crate::wire::{LIMITS, Request, Response};

/// The host's direction of a stream.
#[derive(Debug)]
pub(crate) struct CallDecoder {
    gob: Decoder,
    /// The header whose body is still to come.
    header: Option<Request>,
}

/// One call, with its argument or the reason to refuse it.
#[derive(Debug)]
pub(crate) struct Incoming<C> {
    pub(crate) header: Request,
    pub(crate) call: Result<C, Fault>,
}

/// The plugin's direction of a stream.
#[derive(Debug)]
pub(crate) struct ReplyEncoder {
    gob: Encoder,
}

impl CallDecoder {
    pub(crate) fn new() -> Self {
        Self {
            gob: Decoder::new(LIMITS),
            header: None,
        }
    }

    pub(crate) fn handle_input(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.gob.handle_input(bytes)
    }

    /// The next complete call, or `None` when more bytes are needed.
    ///
    /// # Errors
    ///
    /// A stream that cannot be followed any further.
    pub(crate) fn poll_call<S: Service>(
        &mut self,
    ) -> Result<Option<Incoming<S::Call>>, DecodeError> {
        let header = match self.header.take() {
            Some(header) => header,
            // A header of another type means that bodies and headers are out of step.
            None => match self.gob.poll_value()? {
                Some(header) => header,
                None => return Ok(None),
            },
        };
        match S::decode(&header.service_method, &mut self.gob) {
            Ok(Some(call)) => Ok(Some(Incoming { header, call })),
            Ok(None) => {
                self.header = Some(header);
                Ok(None)
            }
            Err(error) if error.is_fatal() => Err(error),
            Err(error) => {
                let fault = Fault::Argument {
                    method: header.service_method.clone(),
                    reason: error.to_string(),
                };
                Ok(Some(Incoming {
                    header,
                    call: Err(fault),
                }))
            }
        }
    }
}

impl ReplyEncoder {
    pub(crate) fn new() -> Self {
        Self {
            gob: Encoder::new(),
        }
    }

    /// The bytes of one reply, header and body together. `error` must be one line and not empty.
    pub(crate) fn encode<B: Body>(
        &mut self,
        call: Request,
        outcome: &Result<B, String>,
    ) -> Result<Vec<u8>, EncodeError> {
        let mut out = Vec::new();
        let error = outcome.as_ref().err().cloned().unwrap_or_default();
        let header = Response {
            service_method: call.service_method,
            seq: call.seq,
            error,
        };
        self.gob.encode(&header, &mut out)?;
        match outcome {
            Ok(body) => body.encode(&mut self.gob, &mut out)?,
            // Always present and always discarded, as Go does it.
            Err(_) => self.gob.encode(&(), &mut out)?,
        }
        Ok(out)
    }
}
