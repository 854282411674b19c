//! How much a peer may send, and the count of what one value has used so far.

use crate::error::Fault;

/// Declares [`Limits`] with a setter for each of them.
macro_rules! limits {
    ($($(#[doc = $doc:literal])* $field:ident, $with:ident;)*) => {
        /// Upper bounds on what a peer can make a decoder hold or do. Exceeding one ends the stream, with the exception
        /// of `elements`.
        ///
        /// There is no `Default`: what is generous depends on who may write to the stream. For scale, the first
        /// call an Argo Rollouts controller makes on a stream is about 22 KB in 246 messages, with 245 types
        /// nested 17 deep.
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
                /// Sets the limit of that name.
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
    /// Bytes in one message, and bytes of one value when it spans several messages.
    message_bytes, with_message_bytes;
    /// Messages one value may span: an interface value sends the types it introduces as messages of their own.
    value_messages, with_value_messages;
    /// Types on one stream, counting those referred to but not yet defined.
    types, with_types;
    /// Bytes of all type definitions on one stream.
    definition_bytes, with_definition_bytes;
    /// Fields of one struct type.
    fields, with_fields;
    /// Bytes in the name of a type, of a field or of an interface's registered type.
    name_bytes, with_name_bytes;
    /// Structs, slices, arrays, maps and interfaces inside one another in a value. Decoding recurses, so each
    /// level takes call stack.
    depth, with_depth;
    /// Interface values inside one another.
    interface_depth, with_interface_depth;
    /// Slice and array elements and map entries of one value that are decoded, in total; skipped ones do not
    /// count. An empty struct is a single byte on the wire however large it is in memory, so this is what bounds
    /// the memory a value can take. A value beyond it does not fit, like one of another type, and the stream
    /// goes on.
    elements, with_elements;
}

impl Limits {
    /// For a peer that may be hostile: a stream holds a few MiB at most, and 4096 elements of each value.
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

    /// For a peer or a file of one's own: mistakes are found, and data of some 100 MB passes.
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
