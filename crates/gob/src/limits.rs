//! How much a peer may send, and the count of what one value has used so far.

use crate::error::Fault;

/// Upper bounds on what a peer can make a decoder hold or do. Exceeding one ends the stream, with the exception of
/// `elements`.
///
/// There is no `Default`: what is generous depends on who may write to the stream. For scale, the first
/// call an Argo Rollouts controller makes on a stream is about 22 KB in 246 messages, with 245 types
/// nested 17 deep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in one message, and bytes of one value when it spans several messages.
    pub message_bytes: usize,
    /// Messages one value may span: an interface value sends the types it introduces as messages of their own.
    pub value_messages: usize,
    /// Types on one stream, counting those referred to but not yet defined.
    pub types: usize,
    /// Bytes of all type definitions on one stream.
    pub definition_bytes: usize,
    /// Fields of one struct type.
    pub fields: usize,
    /// Bytes in the name of a type, of a field or of an interface's registered type.
    pub name_bytes: usize,
    /// Structs, slices, arrays, maps and interfaces inside one another in a value. Decoding recurses, so each
    /// level takes call stack.
    pub depth: usize,
    /// Interface values inside one another.
    pub interface_depth: usize,
    /// Slice and array elements and map entries of one value that are decoded, in total; skipped ones do not
    /// count. An empty struct is a single byte on the wire however large it is in memory, so this is what bounds
    /// the memory a value can take. A value beyond it does not fit, like one of another type, and the stream
    /// goes on.
    pub elements: usize,
}

/// What the value being read may still use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget<'l> {
    pub(crate) limits: &'l Limits,
    used: Used,
}

/// What a value has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    depth: usize,
    interfaces: usize,
    elements: usize,
}

impl<'l> Budget<'l> {
    pub(crate) fn new(limits: &'l Limits) -> Self {
        Self::resume(limits, Used::default())
    }

    pub(crate) fn resume(limits: &'l Limits, used: Used) -> Self {
        Self { limits, used }
    }

    pub(crate) fn used(&self) -> Used {
        self.used
    }

    /// One level deeper. [`leave`](Self::leave) takes it back.
    pub(crate) fn enter(&mut self) -> Result<(), Fault> {
        self.used.depth += 1;
        at_most(self.used.depth, self.limits.depth, "levels in one value")
    }

    pub(crate) fn leave(&mut self) {
        self.used.depth -= 1;
    }

    pub(crate) fn enter_interface(&mut self) -> Result<(), Fault> {
        self.used.interfaces += 1;
        at_most(
            self.used.interfaces,
            self.limits.interface_depth,
            "interface values inside one another",
        )?;
        self.enter()
    }

    pub(crate) fn leave_interface(&mut self) {
        self.used.interfaces -= 1;
        self.leave();
    }

    /// Accounts for the announced elements before the first one is read.
    pub(crate) fn take_elements(&mut self, count: u64) -> Result<(), Fault> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.used.elements = self.used.elements.saturating_add(count);
        at_most(
            self.used.elements,
            self.limits.elements,
            "elements in one value",
        )
    }

    /// Checks the length of a registered name.
    pub(crate) fn check_name(&self, name: &[u8]) -> Result<(), Fault> {
        at_most(name.len(), self.limits.name_bytes, "bytes in one name")
    }
}

/// Fails with [`Fault::LimitExceeded`] when `used` is above `limit`.
pub(crate) fn at_most(used: usize, limit: usize, what: &'static str) -> Result<(), Fault> {
    if used > limit {
        Err(Fault::LimitExceeded { what, limit })
    } else {
        Ok(())
    }
}
