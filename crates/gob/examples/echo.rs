//! Decodes streams of Go values and encodes them again, for the Go test in `tests/go/gob`.
//!
//! On stdin and stdout, the length of a stream precedes it in four bytes, big-endian.

use std::{
    collections::BTreeMap,
    error::Error,
    io::{self, ErrorKind, Read as _, Write as _},
};

use gob::{Bytes, Decoder, Encoder, Limits, Time};

gob::gob_struct! {
    struct Value as "Value" {
        yes: bool as "Yes",
        small: i8 as "Small",
        middle: i16 as "Middle",
        number: i32 as "Number",
        large: i64 as "Large",
        short: u16 as "Short",
        huge: u64 as "Huge",
        single: f32 as "Single",
        double: f64 as "Double",
        complex: (f64, f64) as "Complex",
        text: String as "Text",
        raw: Bytes as "Raw",
        array: [i16; 3] as "Array",
        texts: Vec<Vec<String>> as "Texts",
        // A nil map and an empty map differ on the wire.
        map: Option<BTreeMap<String, Vec<i64>>> as "Map",
        leaves: Option<BTreeMap<i32, Leaf>> as "Leaves",
        ptr_int: Option<i32> as "PtrInt",
        ptr_text: Option<String> as "PtrText",
        ptr_map: Option<BTreeMap<String, bool>> as "PtrMap",
        ptr_leaf: Option<Leaf> as "PtrLeaf",
        at: Time as "At",
        ptr_at: Option<Time> as "PtrAt",
        any: Option<Any> as "Any",
        anys: Vec<Option<Any>> as "Anys",
        any_map: Option<BTreeMap<String, Option<Any>>> as "AnyMap",
        children: Vec<Value> as "Children",
        next: Option<Box<Value>> as "Next",
    }

    struct Leaf as "Leaf" {
        n: i64 as "N",
        inner: Option<Box<Any>> as "Inner",
    }

    struct Other as "Other" {
        text: String as "Text",
        deep: Vec<Option<Any>> as "Deep",
    }
}

gob::gob_interface! {
    enum Any {
        Leaf(Leaf) as "Leaf",
        Other(Other) as "Other",
        Numbers(Vec<i64>) as "Numbers",
        Flags(BTreeMap<String, bool>) as "Flags",
        Int(i64) as "int",
        Text(String) as "string",
    }
}

const LIMITS: Limits = Limits {
    message_bytes: 16 << 20,
    value_messages: 100,
    types: 100,
    definition_bytes: 1 << 16,
    fields: 100,
    name_bytes: 100,
    depth: 64,
    interface_depth: 8,
    elements: 100_000,
};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
    let mut length = [0; 4];
    loop {
        match stdin.read_exact(&mut length) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let mut stream = vec![0; u32::from_be_bytes(length) as usize];
        stdin.read_exact(&mut stream)?;
        let echoed = echo(&stream)?;
        stdout.write_all(&u32::try_from(echoed.len())?.to_be_bytes())?;
        stdout.write_all(&echoed)?;
        stdout.flush()?;
    }
}

fn echo(stream: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut decoder = Decoder::new(LIMITS);
    let mut encoder = Encoder::new();
    let mut echoed = Vec::new();
    decoder.handle_input(stream)?;
    while let Some(value) = decoder.poll_value::<Value>()? {
        encoder.encode(&value, &mut echoed)?;
    }
    if decoder.is_between_values() {
        Ok(echoed)
    } else {
        Err("the stream ends within a value".into())
    }
}
