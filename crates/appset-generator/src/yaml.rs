//! The reading of YAML: words as YAML 1.2 reads them, and no number that would be printed in another way than it was written.
//!
//! A country `NO` is a text, and not `false` as in YAML 1.1. A version `1.10` and an identifier `0x1F` are numbers in YAML, which
//! would become `1.1` and `31`, so they must be quoted.

use std::iter;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{Spanned, UserMessageFormatter};

use crate::error::ConfigError;

/// Reads a document.
pub(crate) fn read(text: &str) -> Result<Value, ConfigError> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        underscored_numbers_as_strings: true,
        // `Node::value` refuses them.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    let document: Spanned<Node> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let error = error.without_snippet();
            ConfigError::Yaml(error.render_with_formatter(&UserMessageFormatter))
        })?;
    value(document, text, String::new())
}

/// A value whose numbers still have their place in the text.
enum Node {
    Number(Value),
    Other(Value),
    List(Vec<Spanned<Self>>),
    Map(Vec<(String, Spanned<Self>)>),
}

/// Returns the value of `node`, which is at `path` of the document `text`.
fn value(node: Spanned<Node>, text: &str, path: String) -> Result<Value, ConfigError> {
    let span = node.defined.span();
    match node.value {
        Node::Other(value) => Ok(value),
        Node::Number(value) => {
            let number = |it: Option<u64>| usize::try_from(it?).ok();
            let place = number(span.byte_offset()).zip(number(span.byte_len()));
            let written = place.and_then(|(at, length)| text.get(at..at + length));
            let printed = value.to_string();
            match written.filter(|it| *it != printed) {
                None => Ok(value),
                Some(written) => Err(ConfigError::Spelling(path, written.to_owned())),
            }
        }
        Node::List(items) => {
            let items = items.into_iter().enumerate();
            let items = items.map(|(at, item)| value(item, text, format!("{path}[{at}]")));
            items.collect()
        }
        Node::Map(fields) => {
            let mut map = Map::new();
            for (key, field) in fields {
                let path = match path.is_empty() {
                    true => key.clone(),
                    false => format!("{path}.{key}"),
                };
                map.insert(key, value(field, text, path)?);
            }
            Ok(Value::Object(map))
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Other(Value::Null))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Other(flag.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Other(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let items = iter::from_fn(|| items.next_element().transpose());
        items.collect::<Result<_, _>>().map(Node::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Node, A::Error> {
        let fields = iter::from_fn(|| fields.next_entry().transpose());
        fields.collect::<Result<_, _>>().map(Node::Map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the value of `a` in JSON, or the error.
    #[track_caller]
    fn check(written: &str, expect: Result<&str, &str>) {
        let read = read(&format!("ä: {{b: [{written}]}}")).map_err(|error| error.to_string());
        match (read, expect) {
            (Ok(read), Ok(expect)) => {
                assert_eq!(read["ä"]["b"][0].to_string(), expect, "{written}");
            }
            (Err(error), Err(expect)) => assert!(error.contains(expect), "{error}"),
            (read, _) => panic!("{written}: {read:?}"),
        }
    }

    #[test]
    fn words_are_those_of_yaml_1_2_and_numbers_keep_their_text() {
        for text in [
            "NO",
            "no",
            "Off",
            "on",
            "yes",
            "y",
            "n",
            "1_000",
            "0x_1",
            "12:30:45",
            "2026-01-31",
            "0b1x",
            "1.2.3",
            ".5.",
            "tRue",
        ] {
            check(text, Ok(&format!("\"{text}\"")));
            check(&format!("'{text}'"), Ok(&format!("\"{text}\"")));
        }
        check("!!str 0x1F", Ok("\"0x1F\""));
        for (text, value) in [
            ("true", "true"),
            ("True", "true"),
            ("FALSE", "false"),
            ("~", "null"),
            ("Null", "null"),
            ("0", "0"),
            ("-7", "-7"),
            ("18446744073709551615", "18446744073709551615"),
        ] {
            check(text, Ok(value));
        }
        for text in [
            "0x1F",
            "0o17",
            "0b11",
            "+5",
            "007",
            "1.10",
            "1e3",
            ".5",
            ".inf",
            "-.INF",
            ".nan",
            "18446744073709551616",
            "-0",
            "1e999",
        ] {
            check(text, Err(&format!("ä.b[0] is {text}, ")));
            check(&format!("\"{text}\""), Ok(&format!("\"{text}\"")));
        }
        // An alias stands for what was written at its anchor.
        let error = read("{a: &x 0x1F, b: *x}").unwrap_err().to_string();
        assert!(error.contains("a is 0x1F"), "{error}");
        assert!(read("{a: &x 7, b: *x}").is_ok());
        assert!(read("{a: 1, a: 2}").is_err());
    }
}
