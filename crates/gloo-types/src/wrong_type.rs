//! Says what is wrong with a value in the words of Kubernetes and YAML. The libraries that read documents name Rust types.

use std::fmt;

/// Why a value cannot be read: `must be a list, found an object`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WrongType(String);

impl WrongType {
    /// Rewords the error of a library that reads JSON or YAML.
    pub fn new(error: impl fmt::Display) -> Self {
        Self(reworded(&error.to_string()))
    }
}

fn reworded(error: &str) -> String {
    let wrong = ["invalid type: ", "invalid value: "];
    let wrong = wrong.iter().find_map(|start| error.strip_prefix(start));
    if let Some((found, expected)) = wrong.and_then(|it| it.split_once(", expected ")) {
        let (expected, place) = match expected.split_once(" at line ") {
            Some((expected, place)) => (expected, format!(" at line {place}")),
            None => (expected, String::new()),
        };
        let expected = match (found.starts_with("integer"), expected) {
            (true, "i32") => "a whole number from -2147483648 to 2147483647",
            (true, "u32") => "a whole number from 0 to 4294967295",
            _ => name_of(expected),
        };
        let found = value_of(found);
        return format!("must be {expected}, found {found}{place}");
    }
    if let Some(field) = error.strip_prefix("missing field ") {
        return format!("must have the key {}", field.replace('`', ""));
    }
    error.to_owned()
}

/// Names a type that a value must have.
fn name_of(expected: &str) -> &str {
    match expected {
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0",
        "f32" | "f64" => "a number",
        "a borrowed string" | "string" => "a string",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" | "a mapping" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        _ => expected,
    }
}

/// Names a value that was found.
fn value_of(found: &str) -> String {
    let quoted = || {
        found
            .split_once('`')
            .map(|(_, value)| value.trim_end_matches('`'))
    };
    match found {
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        "null" | "unit value" => "nothing".to_owned(),
        _ if found.starts_with("boolean") => {
            let value = quoted().unwrap_or_default();
            format!("the boolean {value}: put it in quotes")
        }
        _ => match found.strip_prefix("string ") {
            Some(text) => format!("the string {text}"),
            None => quoted().unwrap_or(found).to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Object {
        #[expect(dead_code, reason = "only its type matters")]
        name: String,
    }

    #[track_caller]
    fn check<T: for<'de> Deserialize<'de> + fmt::Debug>(value: Value, expect: &str) {
        let error = serde_json::from_value::<T>(value).unwrap_err();
        assert_eq!(WrongType::new(error).to_string(), expect);
    }

    #[test]
    fn no_message_names_a_rust_type() {
        check::<i32>(
            json!("a quarter"),
            r#"must be a whole number, found the string "a quarter""#,
        );
        check::<u32>(
            json!(-1),
            "must be a whole number from 0 to 4294967295, found -1",
        );
        check::<i32>(
            json!(3_000_000_000_u32),
            "must be a whole number from -2147483648 to 2147483647, found 3000000000",
        );
        check::<u32>(
            json!("1"),
            r#"must be a whole number from 0, found the string "1""#,
        );
        check::<i32>(json!(1.5), "must be a whole number, found 1.5");
        check::<String>(
            json!(true),
            "must be a string, found the boolean true: put it in quotes",
        );
        check::<String>(json!(null), "must be a string, found nothing");
        check::<Vec<i32>>(json!({}), "must be a list, found an object");
        check::<Object>(json!(7), "must be an object, found 7");
        check::<Object>(json!({}), "must have the key name");
        check::<bool>(json!([]), "must be true or false, found a list");
        let error = serde_json::from_str::<Vec<i32>>("[1, {}]").unwrap_err();
        assert_eq!(
            WrongType::new(error).to_string(),
            "must be a whole number, found an object at line 1 column 4"
        );
    }
}
