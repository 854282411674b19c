//! Framing of net/rpc without I/O: turns bytes into calls, and replies into bytes.

use gob::{DecodeError, Decoder, EncodeError, Encoder, Limits};

use super::{Body, Fault, Service};

gob::gob_struct! {
    /// The header of a call.
    pub(super) struct Request as "Request" {
        pub(super) service_method: String as "ServiceMethod",
        pub(super) seq: u64 as "Seq",
    }

    /// The header of a reply.
    pub(super) struct Response as "Response" {
        pub(super) service_method: String as "ServiceMethod",
        pub(super) seq: u64 as "Seq",
        /// Empty if the call was carried out.
        pub(super) error: String as "Error",
    }
}

/// Longest method name in bytes, longer than any real one. The name is logged and sent back.
const MAX_METHOD_NAME: usize = 200;

/// Decodes the host's direction of a stream.
#[derive(Debug)]
pub(crate) struct CallDecoder {
    gob: Decoder,
    /// The header whose body has not arrived completely.
    header: Option<Request>,
    /// Bytes that arrived since the last complete call.
    bytes: usize,
    /// Bytes of the type definitions before the last complete call.
    defined: usize,
}

/// What an element of a list counts beside its bytes on the wire, of which it may have only one.
const ELEMENT: usize = 64;

/// How much larger a table of types is than its definitions.
const DEFINITIONS: usize = 4;

/// One call, with its argument or the fault to reply with.
#[derive(Debug)]
pub(crate) struct Incoming<C> {
    pub(super) header: Request,
    pub(crate) call: Result<C, Fault>,
    /// Approximate size in memory.
    pub(super) size: usize,
}

impl CallDecoder {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            gob: Decoder::new(limits),
            header: None,
            bytes: 0,
            defined: 0,
        }
    }

    pub(crate) fn handle_input(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.bytes += bytes.len();
        self.gob.handle_input(bytes)
    }

    /// Returns whether the stream is between two calls, so that it may end here.
    pub(crate) fn is_between_calls(&self) -> bool {
        self.header.is_none() && self.gob.is_between_values()
    }

    /// Returns the next complete call, or `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// Returns `Err` if the stream is corrupt. If an argument is corrupt, its call is returned first and the next poll fails.
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
            // After a fatal error the decoder returns it again for the next value.
            Err(error) => {
                let fault = Fault::Argument {
                    method: header.service_method.clone(),
                    reason: error.to_string(),
                };
                Ok(Some(self.incoming(header, Err(fault))))
            }
        }
    }

    /// Returns the header whose body comes next.
    fn poll_header(&mut self) -> Result<Option<Request>, DecodeError> {
        if let Some(header) = self.header.take() {
            return Ok(Some(header));
        }
        // A value of another type means that headers and bodies are out of step.
        let mut header = self.gob.poll_value::<Request>()?;
        if let Some(Request { service_method, .. }) = &mut header {
            service_method.truncate(service_method.floor_char_boundary(MAX_METHOD_NAME));
        }
        Ok(header)
    }

    fn incoming<C>(&mut self, header: Request, call: Result<C, Fault>) -> Incoming<C> {
        let unread = self.gob.unread_bytes();
        let mut size = std::mem::replace(&mut self.bytes, unread).saturating_sub(unread);
        size += ELEMENT * self.gob.last_elements();
        let defined = self.gob.definition_bytes();
        if defined != std::mem::replace(&mut self.defined, defined) {
            // The arguments are kept in wire format too, with the types that the stream had then.
            size += DEFINITIONS * defined;
        }
        Incoming { header, call, size }
    }
}

/// Returns the bytes of one reply, header and body together. An error must be one line and not empty.
///
/// # Errors
///
/// Returns `Err` if gob cannot represent the body. The stream is unchanged and can carry another reply.
pub(super) fn encode_reply<B: Body>(
    gob: &mut Encoder,
    call: &Request,
    outcome: Result<&B, &str>,
) -> Result<Vec<u8>, EncodeError> {
    let header = Response {
        service_method: call.service_method.clone(),
        seq: call.seq,
        error: outcome.err().map_or_else(String::new, str::to_owned),
    };
    let mut out = Vec::new();
    gob.atomically(&mut out, |gob, out| {
        gob.encode(&header, out)?;
        match outcome {
            Ok(body) => body.encode(gob, out),
            // As in Go, an error reply has a body too, and the host discards it.
            Err(_) => gob.encode(&(), out),
        }
    })?;
    Ok(out)
}
