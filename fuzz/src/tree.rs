//! Mutations of JSON and YAML documents as trees. A mutation of single bytes rarely leaves a valid document.

use fastrand::Rng;
use libfuzzer_sys::fuzzer_mutate;
use serde_json::{Value, json};

/// The body of a `fuzz_mutator!`: mutates the document in the first `size` bytes of `data` as a tree. Data that is not a
/// document is mutated as bytes, and sometimes a document is, too. A new key or text is one of `words`.
pub fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32, words: &[&str]) -> usize {
    let mut rng = Rng::with_seed(seed.into());
    let document = str::from_utf8(&data[..size]).ok();
    let document = document.and_then(|text| serde_saphyr::from_str::<Value>(text).ok());
    let Some(mut document) = document.filter(|_| rng.u8(..) > 32) else {
        return fuzzer_mutate(data, size, max_size);
    };
    for _ in 0..rng.usize(1..4) {
        mutate_once(&mut document, &mut rng, words);
    }
    let text = document.to_string();
    let size = text.len().min(max_size);
    data[..size].copy_from_slice(&text.as_bytes()[..size]);
    size
}

fn mutate_once(document: &mut Value, rng: &mut Rng, words: &[&str]) {
    let count = count(document);
    let other = nth(document, &mut rng.usize(..count)).map_or(Value::Null, |node| node.clone());
    let Some(node) = nth(document, &mut rng.usize(..count)) else {
        return;
    };
    match (node, rng.u8(..5)) {
        (Value::Array(items), 0) if !items.is_empty() => {
            items.remove(rng.usize(..items.len()));
        }
        (Value::Array(items), 1) => items.insert(rng.usize(..=items.len()), other),
        (Value::Object(fields), 0) if !fields.is_empty() => {
            let key = fields.keys().nth(rng.usize(..fields.len())).cloned();
            fields.shift_remove(&key.unwrap_or_default());
        }
        (Value::Object(fields), 1) => {
            let key = words.get(rng.usize(..words.len().max(1))).copied();
            fields.insert(key.unwrap_or_default().to_owned(), other);
        }
        (node, 2) => *node = other,
        (Value::Number(number), 3) => {
            let near = number
                .as_i64()
                .unwrap_or_default()
                .wrapping_add(rng.i64(-2..3));
            *number = near.into();
        }
        (node, 4) => {
            let key = words.get(rng.usize(..words.len().max(1))).copied();
            let scalars = [
                Value::Null,
                true.into(),
                0.into(),
                100.into(),
                (-1).into(),
                i64::MAX.into(),
                1.5.into(),
                "".into(),
                "a%\nb".into(),
                key.into(),
                json!([]),
                json!({}),
            ];
            *node = rng.choice(scalars).unwrap_or_default();
        }
        _ => {}
    }
}

fn children(node: &mut Value) -> Box<dyn Iterator<Item = &mut Value> + '_> {
    match node {
        Value::Array(items) => Box::new(items.iter_mut()),
        Value::Object(fields) => Box::new(fields.values_mut()),
        _ => Box::new(std::iter::empty()),
    }
}

fn count(node: &mut Value) -> usize {
    1 + children(node).map(count).sum::<usize>()
}

/// The node with index `before` in depth-first order. Decrements `before` by the number of nodes passed.
fn nth<'v>(node: &'v mut Value, before: &mut usize) -> Option<&'v mut Value> {
    if *before == 0 {
        return Some(node);
    }
    *before -= 1;
    children(node).find_map(|child| nth(child, before))
}
