//! The primitives of gob: unsigned and signed integers, floats, and bytes with a count.
//!
//! Source: Go `encoding/gob` doc.go, "Encoding Details".

use crate::error::Fault;

/// Reads primitives from the start of a byte slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of unread bytes.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn uint(&mut self) -> Result<u64, Fault> {
        match self.rest.split_first() {
            Some((&small, rest)) if small < 0x80 => {
                self.rest = rest;
                Ok(u64::from(small))
            }
            Some((&head, rest)) => self.long_uint(head, rest),
            None => Err(Fault::Truncated),
        }
    }

    // Like Go, this accepts more bytes than a number needs.
    fn long_uint(&mut self, head: u8, rest: &'a [u8]) -> Result<u64, Fault> {
        let width = usize::from(head.wrapping_neg());
        if width > size_of::<u64>() {
            return Err(Fault::BadInteger { head });
        }
        let (digits, rest) = rest.split_at_checked(width).ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(digits
            .iter()
            .fold(0, |value, &digit| value << 8 | u64::from(digit)))
    }

    #[inline]
    pub(crate) fn int(&mut self) -> Result<i64, Fault> {
        self.uint().map(to_int)
    }

    #[inline]
    pub(crate) fn float(&mut self) -> Result<f64, Fault> {
        self.uint().map(|bits| f64::from_bits(bits.swap_bytes()))
    }

    /// Reads a byte count and that many bytes: a string, a `[]byte`, or the output of a `GobEncoder`.
    #[inline]
    pub(crate) fn counted(&mut self) -> Result<&'a [u8], Fault> {
        let count = self.uint()?;
        let count = usize::try_from(count).map_err(|_| Fault::Truncated)?;
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads the zero byte before a top-level value that is not a struct.
    pub(crate) fn singleton_marker(&mut self) -> Result<(), Fault> {
        match self.uint()? {
            0 => Ok(()),
            _ => Err(Fault::BadSingleton),
        }
    }
}

#[inline]
fn to_int(bits: u64) -> i64 {
    let magnitude = (bits >> 1).cast_signed();
    if bits & 1 == 1 { !magnitude } else { magnitude }
}

/// Appends an unsigned integer in its shortest form.
pub(crate) fn put_uint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.extend(value.to_le_bytes().first());
        return;
    }
    let bytes = value.to_be_bytes();
    let digits = || bytes.iter().copied().skip_while(|&digit| digit == 0);
    out.push((0..digits().count()).fold(0u8, |head, _| head.wrapping_sub(1)));
    out.extend(digits());
}

/// Appends a signed integer, with the sign in the lowest bit.
pub(crate) fn put_int(out: &mut Vec<u8>, value: i64) {
    put_uint(out, (value << 1 ^ value >> 63).cast_unsigned());
}

/// Appends a float: its IEEE 754 bits in reverse byte order, so that round numbers are short.
pub(crate) fn put_float(out: &mut Vec<u8>, value: f64) {
    put_uint(out, value.to_bits().swap_bytes());
}

/// Appends a byte count and the bytes.
pub(crate) fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    put_uint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
