//! Values that are kept in wire format, and decoded later or never.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error, IgnoredAny},
    ser,
};

use crate::{
    GobType, Schema, SchemaRef, compatible,
    decode::{
        Decoder,
        value::{CAPTURE_ONLY, Captured, Reader},
        walk::{array_len, skip},
    },
    definition::{TypeRef, WireType},
    error::{DecodeError, Fault, ValueError},
    limits::Budget,
};

/// Any value in wire format, with its types. It can be decoded only from gob.
///
/// It does not depend on the stream that it came from. The stream's [`Limits`](crate::Limits) bound its size, except `elements`, which
/// bounds each [`decode`](Self::decode).
#[derive(Clone)]
pub struct Raw(Captured);

impl Raw {
    /// Decodes the value.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError::Mismatch`] if the value does not fit `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        Ok(self.0.reader().only(self.0.ty)?)
    }

    /// Decodes the value as Go does: compares the type that the peer defined with the type of `T` first.
    ///
    /// An unsigned number does not decode to a signed one then, bytes do not decode to a string, a struct without any known field does not
    /// decode, and a field of another type is an error also if it is zero and so absent. The types in interface values are not compared.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError::Mismatch`] if the type or the value does not fit `T`.
    pub fn decode_like_go<T: DeserializeOwned + GobType>(&self) -> Result<T, DecodeError> {
        compatible::check::<T>(self.0.ty, &self.0.types)?;
        self.decode()
    }

    /// Returns the size of the value in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.body.len()
    }

    /// Returns an iterator over the elements of a slice or an array.
    fn elements<T>(&self) -> Result<LazyElements<'_, T>, ValueError> {
        let mut reader = self.0.reader();
        let (elem, left) = match self.0.types.get(self.0.ty) {
            WireType::Slice { elem } => (*elem, reader.cursor.uint()?),
            WireType::Array { elem, len } => (*elem, array_len(*len, &mut reader.cursor)?),
            _ => return Err(ValueError::custom("expected a slice or an array")),
        };
        Ok(LazyElements {
            raw: self,
            reader,
            elem,
            index: 0,
            left,
            value: PhantomData,
        })
    }
}

impl Decoder {
    /// Returns the next value as [`poll_value`](Self::poll_value) does, if the peer defined a type that Go decodes to `T`. See
    /// [`Raw::decode_like_go`].
    ///
    /// # Errors
    ///
    /// Returns the errors of `poll_value`, and [`DecodeError::Mismatch`] if the type does not fit.
    pub fn poll_like_go<T: DeserializeOwned + GobType>(
        &mut self,
    ) -> Result<Option<T>, DecodeError> {
        let value = self.poll_value::<Raw>()?;
        value.map(|value| value.decode_like_go()).transpose()
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raw({} bytes)", self.0.body.len())
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(CAPTURE_ONLY, IgnoredAny)?;
        let captured = Captured::take();
        let captured = captured
            .ok_or_else(|| D::Error::custom("only a value in gob can be kept in wire format"));
        captured.map(Self)
    }
}

/// A value and its wire format, which also has the fields that `T` does not have.
#[derive(Clone, Debug, Default)]
pub struct WithRaw<T> {
    /// The value.
    pub value: T,
    /// The value in wire format; `None` if it was not decoded from gob.
    pub raw: Option<Raw>,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for WithRaw<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "$gob::WithRaw")]
        struct Captures<T>(T);

        let Captures(value) = Captures::deserialize(deserializer)?;
        Ok(Self {
            value,
            raw: Captured::take().map(Raw),
        })
    }
}

impl<T: Serialize> Serialize for WithRaw<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<T: GobType> GobType for WithRaw<T> {
    fn describe(schema: &mut Schema) -> SchemaRef {
        T::describe(schema)
    }
}

impl<T: PartialEq> PartialEq for WithRaw<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// A slice whose elements are decoded one at a time while they are read, for long lists of which a program reads a part or nothing.
///
/// The limit on elements applies to each element alone, so that a list of any length can be read in little memory.
#[derive(Clone)]
pub struct LazyVec<T>(Elems<T>);

#[derive(Clone)]
enum Elems<T> {
    Owned(Vec<T>),
    Arrived { raw: Raw, len: usize },
}

impl<T> LazyVec<T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Elems::Owned(elems) => elems.len(),
            Elems::Arrived { len, .. } => *len,
        }
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Clone + DeserializeOwned> LazyVec<T> {
    /// Iterates over the elements. An element that does not fit `T` is an error, and the iteration continues after it.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, DecodeError>> {
        let (owned, arrived, failed) = match &self.0 {
            Elems::Owned(elems) => (elems.as_slice(), None, None),
            Elems::Arrived { raw, .. } => match raw.elements() {
                Ok(elements) => (&[][..], Some(elements), None),
                Err(error) => (&[][..], None, Some(Err(error.into()))),
            },
        };
        // Not boxed: a boxed iterator is not `Send` in the future of an async function.
        let owned = owned.iter().cloned().map(Ok);
        owned.chain(arrived.into_iter().flatten()).chain(failed)
    }
}

impl<T> Default for LazyVec<T> {
    fn default() -> Self {
        Self(Elems::Owned(Vec::new()))
    }
}

impl<T> From<Vec<T>> for LazyVec<T> {
    fn from(elems: Vec<T>) -> Self {
        Self(Elems::Owned(elems))
    }
}

impl<T> fmt::Debug for LazyVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LazyVec({} elements)", self.len())
    }
}

impl<T: Clone + DeserializeOwned + PartialEq> PartialEq for LazyVec<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: GobType> GobType for LazyVec<T> {
    fn describe(schema: &mut Schema) -> SchemaRef {
        Vec::<T>::describe(schema)
    }
}

impl<T: Clone + DeserializeOwned + Serialize> Serialize for LazyVec<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use ser::SerializeSeq as _;
        let mut seq = serializer.serialize_seq(Some(self.len()))?;
        for element in self.iter() {
            seq.serialize_element(&element.map_err(ser::Error::custom)?)?;
        }
        seq.end()
    }
}

impl<'de, T> Deserialize<'de> for LazyVec<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Raw::deserialize(deserializer)?;
        let elements = raw.elements::<T>().map_err(D::Error::custom)?;
        let len = usize::try_from(elements.left).map_err(D::Error::custom)?;
        Ok(Self(Elems::Arrived { raw, len }))
    }
}

/// Decodes the elements of a list one at a time.
struct LazyElements<'r, T> {
    raw: &'r Raw,
    reader: Reader<'r, 'r>,
    elem: TypeRef,
    index: u64,
    left: u64,
    value: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Iterator for LazyElements<'_, T> {
    type Item = Result<T, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let index = self.index;
        self.index += 1;
        let begin = self.reader.cursor;
        self.reader.budget = Budget::new(&self.raw.0.limits);
        let value = T::deserialize(self.reader.value(self.elem));
        Some(value.map_err(|error| {
            self.reader.cursor = begin;
            if let Err(fault) = self.skip() {
                self.left = 0;
                return ValueError::from(fault).in_element(index).into();
            }
            error.in_element(index).into()
        }))
    }
}

impl<T> LazyElements<'_, T> {
    fn skip(&mut self) -> Result<(), Fault> {
        let mut budget = Budget::new(&self.raw.0.limits);
        skip(
            self.elem,
            &mut self.reader.cursor,
            self.reader.types,
            &mut budget,
        )
    }
}
