//! The independent `gobwire` crate decodes the same values from every recording.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::fs;
use std::path::{Path, PathBuf};

use gob::{DecodeError, Decoder};
use gobwire::{Dynamic, Progress, StructType, Type, Value};
use serde::Deserialize;
use serde::de::{Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};

use crate::support::LIMITS;

/// Any value. A struct and a map are the same here, and so are numbers of different types.
#[derive(PartialEq)]
enum Any {
    Nil,
    Scalar(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    /// Sorted by key, because Go sends maps in any order.
    Map(BTreeMap<String, Self>),
    Interface(String, Box<Self>),
}

impl Debug for Any {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Scalar(text) => f.write_str(text),
            Self::Bytes(bytes) => write!(f, "b\"{}\"", bytes.escape_ascii()),
            Self::List(items) => items.fmt(f),
            Self::Map(fields) => fields.fmt(f),
            Self::Interface(name, value) => write!(f, "{name}({value:?})"),
        }
    }
}

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor)
    }
}

struct AnyVisitor;

macro_rules! scalars {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, value: $type) -> Result<Any, E> {
            Ok(Any::Scalar(format!("{value:?}")))
        })*
    };
}

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Any;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    scalars! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Any, E> {
        Ok(Any::Bytes(bytes.to_vec()))
    }

    fn visit_none<E>(self) -> Result<Any, E> {
        Ok(Any::Nil)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Any, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Any::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Any, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = entries.next_entry::<Any, Any>()? {
            map.insert(format!("{key:?}"), value);
        }
        Ok(Any::Map(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, interface: A) -> Result<Any, A::Error> {
        let (name, value) = interface.variant::<String>()?;
        Ok(Any::Interface(name, value.newtype_variant()?))
    }
}

/// Converts a value of gobwire. `structs` are the enclosing struct types, to which a recursive type refers.
fn theirs<'t>(ty: &'t Type, value: &Value, structs: &mut Vec<&'t StructType>) -> Any {
    let scalar = |value: &dyn Debug| Any::Scalar(format!("{value:?}"));
    match (ty, value) {
        (_, Value::Bool(value)) => scalar(value),
        (_, Value::Int(value)) => scalar(value),
        (_, Value::Uint(value)) => scalar(value),
        (_, Value::Float(value)) => scalar(value),
        (_, Value::String(value)) => scalar(value),
        (_, Value::Complex(real, imaginary)) => Any::List(vec![scalar(real), scalar(imaginary)]),
        (_, Value::Bytes(bytes) | Value::Marshaled(bytes)) => Any::Bytes(bytes.clone()),
        (_, Value::Interface(None)) => Any::Nil,
        (_, Value::Interface(Some(inside))) => {
            let value = theirs(&inside.ty, &inside.value, &mut Vec::new());
            Any::Interface(inside.name.clone(), Box::new(value))
        }
        (Type::Slice(elem) | Type::Array(elem, _), Value::Slice(items) | Value::Array(items)) => {
            Any::List(
                items
                    .iter()
                    .map(|item| theirs(elem, item, structs))
                    .collect(),
            )
        }
        (Type::Map(key, elem), Value::Map(entries)) => {
            let entries = entries.iter().map(|(k, v)| {
                let key = theirs(key, k, structs);
                (format!("{key:?}"), theirs(elem, v, structs))
            });
            Any::Map(entries.collect())
        }
        (Type::Struct(ty), Value::Struct(values)) => fields(ty, values, structs),
        (Type::Ref(outwards), Value::Struct(values)) => {
            let depth = structs.len() - outwards;
            let mut around = structs[..depth].to_vec();
            let ty = around.pop().unwrap();
            fields(ty, values, &mut around)
        }
        unlike => panic!("{unlike:?}"),
    }
}

fn fields<'t>(
    ty: &'t StructType,
    values: &[Option<Value>],
    structs: &mut Vec<&'t StructType>,
) -> Any {
    structs.push(ty);
    let present = ty.fields.iter().zip(values);
    let present = present.filter_map(|((name, ty), value)| {
        Some((format!("{name:?}"), theirs(ty, value.as_ref()?, structs)))
    });
    let fields = Any::Map(present.collect());
    structs.pop();
    fields
}

/// Compares a stream value by value, and returns the number of values.
fn check(stream: &[u8]) -> usize {
    let (mut our, mut their) = (Decoder::new(LIMITS), gobwire::Decoder::new());
    let (mut rest, mut count) = (stream, 0);
    while let Some((width, length)) = gobwire::parse_length_prefix(rest).unwrap() {
        let (message, after) = rest.split_at(width + length);
        rest = after;
        our.handle_input(message).unwrap();
        let ours = our.poll_value::<Any>();
        if their.push_message(&message[width..]).unwrap() != Progress::Ready {
            assert_eq!(ours, Ok(None));
            continue;
        }
        count += 1;
        match (ours, their.decode::<Dynamic>()) {
            (Ok(Some(ours)), Ok(Dynamic { ty, value })) => {
                assert_eq!(ours, theirs(&ty, &value, &mut Vec::new()));
            }
            // Both refuse a string that is not UTF-8.
            (Err(DecodeError::Mismatch { .. }), Err(gobwire::Error::InvalidUtf8)) => {}
            // Go's `type Nest []Nest`: gobwire cannot represent it, because its types are trees.
            (Ok(Some(_)), Err(gobwire::Error::Unsupported(_))) => {}
            (ours, theirs) => panic!("{ours:?}, {theirs:?}"),
        }
    }
    assert!(rest.is_empty() && our.is_between_values());
    count
}

fn recordings(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|it| it == "gob"))
        .collect()
}

#[test]
fn gobwire_reads_the_same_from_every_controller() {
    let recordings = recordings("../rollouts-rpc/tests/data");
    assert!(!recordings.is_empty());
    for path in recordings {
        let values = check(&fs::read(&path).unwrap());
        assert!(values >= 2, "{}", path.display());
    }
}

#[test]
fn gobwire_reads_the_same_from_every_kind_of_value() {
    for path in recordings("tests/data") {
        let values = check(&fs::read(&path).unwrap());
        assert!(values > 0, "{}", path.display());
    }
}
