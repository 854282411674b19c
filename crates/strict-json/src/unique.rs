//! Reads JSON in which no object has the same key twice.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Value};

/// Reads a document of at most `most` values, and refuses an object that has a key twice.
///
/// Readers of JSON disagree about such an object: most take the last value, some the first. So whoever adds a key to a text that
/// another program checked could replace what was checked.
///
/// # Errors
/// Returns `Err` if the text is not JSON, if it has more values, or if an object has a key twice.
pub fn from_slice(text: &[u8], most: usize) -> Result<Value, serde_json::Error> {
    let left = Cell::new(most);
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Unique { most, left: &left }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct Unique<'a> {
    most: usize,
    /// The number of values that may follow.
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Unique<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            let most = self.most;
            return Err(D::Error::custom(format_args!(
                "it has more than {most} values"
            )));
        };
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            match object.entry(key) {
                Entry::Vacant(place) => drop(place.insert(fields.next_value_seed(self)?)),
                Entry::Occupied(first) => {
                    let key: String = first.key().chars().take(64).collect();
                    return Err(A::Error::custom(format_args!(
                        "the key \"{}\" is there twice: remove one of them",
                        key.escape_debug()
                    )));
                }
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<(), &str>) {
        match (from_slice(text.as_bytes(), 200), expect) {
            (Ok(value), Ok(())) => {
                let same: Value = serde_json::from_str(text).unwrap();
                assert_eq!(value, same, "{text}");
            }
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (read, _) => panic!("{read:?}"),
        }
    }

    #[test]
    fn documents_are_read_as_by_serde_json() {
        check(
            r#"{"b": [1, -1, 1.5, 18446744073709551615, true, null, "é\n"], "a": {"a": {}}}"#,
            Ok(()),
        );
        check("7", Ok(()));
        check(&format!("[{}1]", "1,".repeat(198)), Ok(()));
        let many = format!("[{}1]", "1,".repeat(199));
        check(&many, Err("it has more than 200 values"));
        check("", Err("EOF"));
        check("{} x", Err("trailing"));
        check(&"[".repeat(4000), Err("recursion limit"));
        check(r#"{"a": [{"a": 1}, {"a": 1}], "b": {"a": 1}}"#, Ok(()));
    }

    #[test]
    fn a_key_that_an_object_has_twice_is_refused() {
        check(
            r#"{"a": 1, "b": 2, "a": 1}"#,
            Err(r#"the key "a" is there twice"#),
        );
        check(
            r#"[{"x": {"a": 1, "\u0061": 2}}]"#,
            Err(r#"the key "a" is there twice"#),
        );
        check(
            r#"{"\n": 1, "\n": 1}"#,
            Err(r#"the key "\n" is there twice"#),
        );
    }
}
