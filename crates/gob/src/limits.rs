//! Limits on what a peer may send, and the part of them that one value has used.

use crate::error::Fault;

/// Declares [`Limits`] with a setter for each of them.
macro_rules! limits {
    ($($(#[doc = $doc:literal])* $field:ident, $with:ident;)*) => {
        /// Upper bounds on the memory and work of a decoder. A stream that exceeds one is corrupt, except `elements`.
        ///
        /// There is no `Default`, because the right limits depend on who may write to the stream. For scale: the first call of an Argo
        /// Rollouts controller is about 22 KB in 246 messages, with 245 types nested 17 deep.
        ///
        /// ```
        /// use gob::Limits;
        ///
        /// const LIMITS: Limits = Limits::STRICT.with_message_bytes(64 << 10).with_depth(20);
        /// assert_eq!((LIMITS.depth, LIMITS.types), (20, Limits::STRICT.types));
        /// ```
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Limits {
            $($(#[doc = $doc])* pub $field: usize,)*
        }

        impl Limits {
            $(
                /// Sets the limit of this name.
                #[must_use]
                pub const fn $with(mut self, limit: usize) -> Self {
                    self.$field = limit;
                    self
                }
            )*
        }
    };
}

limits! {
    /// Bytes in one message, and in one value that spans several messages.
    message_bytes, with_message_bytes;
    /// Messages in one value: the new types in an interface value are sent as separate messages.
    value_messages, with_value_messages;
    /// Types on one stream, including those that are referred to but not defined yet.
    types, with_types;
    /// Bytes of all type definitions on one stream.
    definition_bytes, with_definition_bytes;
    /// Fields of one struct type.
    fields, with_fields;
    /// Bytes in the name of a type, of a field or of an interface's registered type.
    name_bytes, with_name_bytes;
    /// Nesting depth of structs, slices, arrays, maps and interfaces in a value. Decoding is recursive, so each level takes call stack.
    depth, with_depth;
    /// Nesting depth of interface values.
    interface_depth, with_interface_depth;
    /// Slice elements, array elements and map entries that are decoded in one value, in total. Skipped ones do not count. An empty struct
    /// is one byte on the wire, whatever its size in memory, so this limit bounds the memory of a value. A value that exceeds it is a
    /// mismatch, and the stream continues.
    elements, with_elements;
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

    /// For a trusted peer or file, with values up to about 100 MB. It still detects mistakes.
    pub const GENEROUS: Self = Self {
        message_bytes: 256 << 20,
        value_messages: 1 << 16,
        types: 1 << 16,
        definition_bytes: 16 << 20,
        fields: 1 << 16,
        name_bytes: 64 << 10,
        depth: 200,
        interface_depth: 50,
        elements: 64 << 20,
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
