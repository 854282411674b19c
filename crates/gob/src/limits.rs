//! Limits on what a peer may send, and the part of them that one value has used.

use crate::error::Fault;

/// Upper bounds on the memory and work of a decoder. A stream that exceeds one is corrupt, except `elements`.
///
/// There is no `Default`, because the right limits depend on who may write to the stream. For scale: the first call of an Argo
/// Rollouts controller is about 22 KB in 246 messages, with 245 types nested 17 deep.
///
/// ```
/// use gob::Limits;
///
/// const LIMITS: Limits = Limits {
///     message_bytes: 64 << 10,
///     depth: 20,
///     ..Limits::STRICT
/// };
/// assert_eq!((LIMITS.depth, LIMITS.types), (20, Limits::STRICT.types));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in one message, and in one value that spans several messages.
    pub message_bytes: usize,
    /// Messages in one value: the new types in an interface value are sent as separate messages.
    pub value_messages: usize,
    /// Types on one stream, including those that are referred to but not defined yet.
    pub types: usize,
    /// Bytes of all type definitions on one stream.
    pub definition_bytes: usize,
    /// Fields of one struct type.
    pub fields: usize,
    /// Bytes in the name of a type, of a field or of an interface's registered type.
    pub name_bytes: usize,
    /// Nesting depth of structs, slices, arrays, maps and interfaces in a value. Decoding is recursive, so each level takes call stack.
    pub depth: usize,
    /// Nesting depth of interface values.
    pub interface_depth: usize,
    /// Slice elements, array elements and map entries that are decoded in one value, in total. Skipped ones do not count. An empty struct
    /// is one byte on the wire, whatever its size in memory, so this limit bounds the memory of a value. A value that exceeds it is a
    /// mismatch, and the stream continues.
    pub elements: usize,
}

impl Limits {
    /// For a peer that may be hostile: at most a few MiB for a stream, and 4096 elements for each value.
    pub const STRICT: Self = Self {
        message_bytes: 1 << 20,
        value_messages: 8192,
        types: 4096,
        definition_bytes: 256 << 10,
        fields: 1024,
        name_bytes: 1024,
        depth: 64,
        interface_depth: 4,
        elements: 4096,
    };
}

/// The limits, and what the current value has used of them.
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

    /// Returns the number of elements that were taken.
    pub(crate) fn elements(&self) -> usize {
        self.used.elements
    }

    /// Enters a level; [`leave`](Self::leave) leaves it.
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

    /// Counts elements before the first of them is read.
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

/// Returns [`Fault::LimitExceeded`] if `used` is above `limit`.
pub(crate) fn at_most(used: usize, limit: usize, what: &'static str) -> Result<(), Fault> {
    if used > limit {
        Err(Fault::LimitExceeded { what, limit })
    } else {
        Ok(())
    }
}
