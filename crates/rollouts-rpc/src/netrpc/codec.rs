//! net/rpc framing as a value: bytes in, calls out; replies in, bytes out. No input or output here.

use gob::{DecodeError, Decoder, EncodeError, Encoder, Limits};

use super::{Body, Fault, Service};
use crate::wire::{Request, Response};

/// Bytes of a method's name: more than any has. It is logged and sent back.
const MAX_METHOD_NAME: usize = 200;

/// The host's direction of a stream.
#[derive(Debug)]
pub(crate) struct CallDecoder {
    gob: Decoder,
    /// The header whose body is still to come.
    header: Option<Request>,
    /// Bytes that came since the last call was complete.
    bytes: usize,
}

/// One call, with its argument or the reason to refuse it.
#[derive(Debug)]
pub(crate) struct Incoming<C> {
    pub(crate) header: Request,
    pub(crate) call: Result<C, Fault>,
    /// About what it took on the wire: bytes that came along with it are counted here, not with the next.
    pub(crate) bytes: usize,
}

/// The plugin's direction of a stream.
#[derive(Debug)]
pub(crate) struct ReplyEncoder {
    gob: Encoder,
}

impl CallDecoder {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            gob: Decoder::new(limits),
            header: None,
            bytes: 0,
        }
    }

    pub(crate) fn handle_input(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.bytes += bytes.len();
        self.gob.handle_input(bytes)
    }

    /// Whether the stream could end here: no call has begun.
    pub(crate) fn is_between_calls(&self) -> bool {
        self.header.is_none() && self.gob.is_between_values()
    }

    /// The next complete call, or `None` when more bytes are needed.
    ///
    /// # Errors
    ///
    /// A stream that cannot be followed any further. A call whose argument is to blame comes before the error.
    pub(crate) fn poll_call<S: Service>(
        &mut self,
    ) -> Result<Option<Incoming<S::Call>>, DecodeError> {
        let Some(header) = self.poll_header()? else {
            return Ok(None);
        };
        match S::decode(&header.service_method, &mut self.gob) {
            Ok(Some(call)) => Ok(Some(self.incoming(header, call))),
            Ok(None) => {
                self.header = Some(header);
                Ok(None)
            }
            // After a fatal error the decoder returns it for every further value.
            Err(error) => {
                let fault = Fault::Argument {
                    method: header.service_method.clone(),
                    reason: error.to_string(),
                };
                Ok(Some(self.incoming(header, Err(fault))))
            }
        }
    }

    /// The header whose body comes next.
    fn poll_header(&mut self) -> Result<Option<Request>, DecodeError> {
        if let Some(header) = self.header.take() {
            return Ok(Some(header));
        }
        // A header of another type means that bodies and headers are out of step.
        let mut header = self.gob.poll_value::<Request>()?;
        if let Some(Request { service_method, .. }) = &mut header {
            service_method.truncate(service_method.floor_char_boundary(MAX_METHOD_NAME));
        }
        Ok(header)
    }

    fn incoming<C>(&mut self, header: Request, call: Result<C, Fault>) -> Incoming<C> {
        let bytes = std::mem::take(&mut self.bytes);
        Incoming {
            header,
            call,
            bytes,
        }
    }
}

impl ReplyEncoder {
    pub(crate) fn new() -> Self {
        Self {
            gob: Encoder::new(),
        }
    }

    /// The bytes of one reply, header and body together. An error must be one line and not empty.
    ///
    /// # Errors
    ///
    /// When gob has no form for the body; the stream can go on with another reply.
    pub(crate) fn encode<B: Body>(
        &mut self,
        call: &Request,
        outcome: Result<&B, &str>,
    ) -> Result<Vec<u8>, EncodeError> {
        let header = Response {
            service_method: call.service_method.clone(),
            seq: call.seq,
            error: outcome.err().map_or_else(String::new, str::to_owned),
        };
        let mut out = Vec::new();
        self.gob.atomically(&mut out, |gob, out| {
            gob.encode(&header, out)?;
            match outcome {
                Ok(body) => body.encode(gob, out),
                // Always present and always discarded, as Go does it.
                Err(_) => gob.encode(&(), out),
            }
        })?;
        Ok(out)
    }
}
