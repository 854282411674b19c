//! One log record and its two formats, without clock or output.

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::Level;

use super::LogFormat;

/// Longest line in bytes. The host's line buffer is 64 KiB, and the difference leaves space for framing.
const MAX_LINE: usize = 60 * 1024;

/// Longest message in a shortened record, in characters. An escaped character takes at most six bytes.
const MAX_SHORTENED: usize = 8 * 1024;

/// The largest integer that is exact in the 64-bit float to which the host decodes numbers.
const MAX_EXACT_INTEGER: i128 = 1 << 53;

#[derive(Debug)]
pub(super) struct Record {
    level: Level,
    module: String,
    message: String,
    fields: Map<String, Value>,
}

impl Record {
    pub(super) fn new(level: Level, module: &str) -> Self {
        Self {
            level,
            module: module.to_owned(),
            message: String::new(),
            fields: Map::new(),
        }
    }

    /// Sets a field by its name in tracing. `message` is the text of the record; `log.*` are the metadata of a record of the `log` crate.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        match (name, value) {
            ("message", Value::String(text)) => self.message = text,
            ("log.target", Value::String(target)) => self.module = target,
            (name, _) if name.starts_with("log.") => {}
            // The host reads keys with `@`, and crashes if the value has the wrong type.
            (name, value) => {
                self.fields
                    .insert(name.trim_start_matches('@').to_owned(), value);
            }
        }
    }

    /// Adds the fields of an enclosing span.
    pub(super) fn inherit(&mut self, span: &Self) {
        self.fields.extend(
            span.fields
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
    }

    /// Returns the record as one line with its newline.
    pub(super) fn to_line(&self, format: LogFormat, now: Timestamp) -> String {
        let line = self.format(format, now);
        if line.len() < MAX_LINE {
            return line;
        }
        let message = self.message.chars().take(MAX_SHORTENED).collect();
        let fields = Map::from_iter([("shortened_from_bytes".to_owned(), Value::from(line.len()))]);
        Self {
            level: self.level,
            module: self.module.clone(),
            message,
            fields,
        }
        .format(format, now)
    }

    fn format(&self, format: LogFormat, now: Timestamp) -> String {
        // Go's layout in the host accepts exactly six fractional digits.
        let time = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        match format {
            LogFormat::Json => self.json(time),
            LogFormat::Text => self.text(&time),
        }
    }

    fn json(&self, time: String) -> String {
        let object = Map::from_iter([
            (
                "@level".to_owned(),
                Value::from(self.level.as_str().to_ascii_lowercase()),
            ),
            ("@message".to_owned(), Value::from(self.with_fields())),
            ("@module".to_owned(), Value::from(self.module.as_str())),
            ("@timestamp".to_owned(), Value::from(time)),
        ]);
        let mut line = Value::Object(object).to_string();
        line.push('\n');
        line
    }

    /// Returns the message and the fields, in the order in which they were set.
    ///
    /// The fields are part of the message, because the host prints the other keys of a record in a random order (go-plugin
    /// `log_entry.go` ranges over a map).
    fn with_fields(&self) -> String {
        let mut text = self.message.clone();
        for (name, value) in &self.fields {
            let value = match value {
                Value::String(text) if is_plain(text) => text.clone(),
                other => other.to_string(),
            };
            text.push_str(&format!(" {name}={value}"));
        }
        text
    }

    fn text(&self, time: &str) -> String {
        let line = format!(
            "[{}] {time} {}: {}",
            self.level,
            self.module,
            self.with_fields()
        );
        // A line break in a message would start another record.
        let mut line = line.replace(char::is_control, " ");
        line.push('\n');
        line
    }
}

/// Returns an integer as a JSON number, or as text if a float cannot represent it exactly.
pub(super) fn integer(value: impl Into<i128>) -> Value {
    let value = value.into();
    match i64::try_from(value) {
        Ok(small) if value.abs() <= MAX_EXACT_INTEGER => small.into(),
        _ => value.to_string().into(),
    }
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.contains([' ', '"', '=']) && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(message: &str, fields: &[(&str, Value)]) -> Record {
        let mut record = Record::new(Level::INFO, "router");
        record.set("message", message.into());
        for (name, value) in fields {
            record.set(name, value.clone());
        }
        record
    }

    #[track_caller]
    fn check(record: &Record, format: LogFormat, expect: &str) {
        let now = "2024-05-06T07:08:09.123456789Z".parse().unwrap();
        assert_eq!(record.to_line(format, now), format!("{expect}\n"));
    }

    #[test]
    fn a_record_is_an_hclog_object() {
        check(
            &record(
                "weight set",
                &[("rollout", "ns/demo".into()), ("weight", 5.into())],
            ),
            LogFormat::Json,
            r#"{"@level":"info","@message":"weight set rollout=ns/demo weight=5","@module":"router","@timestamp":"2024-05-06T07:08:09.123456Z"}"#,
        );
    }

    #[test]
    fn the_time_always_has_six_fractional_digits() {
        for (now, expect) in [
            ("2024-05-06T07:08:09Z", "2024-05-06T07:08:09.000000Z"),
            ("2024-05-06T07:08:09.1Z", "2024-05-06T07:08:09.100000Z"),
            ("2024-05-06T07:08:09+05:30", "2024-05-06T01:38:09.000000Z"),
        ] {
            let line = record("m", &[]).to_line(LogFormat::Json, now.parse().unwrap());
            assert!(line.contains(expect), "{line}");
        }
    }

    #[test]
    fn a_field_cannot_replace_a_key_that_the_host_reads() {
        check(
            &record(
                "m",
                &[
                    ("@level", 1.into()),
                    ("@message", Value::Null),
                    ("level", true.into()),
                ],
            ),
            LogFormat::Json,
            r#"{"@level":"info","@message":"m level=true message=null","@module":"router","@timestamp":"2024-05-06T07:08:09.123456Z"}"#,
        );
    }

    #[test]
    fn control_characters_cannot_start_a_new_line() {
        check(
            &record("a\nb\u{1b}", &[]),
            LogFormat::Json,
            r#"{"@level":"info","@message":"a\nb\u001b","@module":"router","@timestamp":"2024-05-06T07:08:09.123456Z"}"#,
        );
        check(
            &record("a\n[ERROR] b", &[("k", "x\ny".into())]),
            LogFormat::Text,
            r#"[INFO] 2024-05-06T07:08:09.123456Z router: a [ERROR] b k="x\ny""#,
        );
    }

    #[test]
    fn text_starts_with_the_level_that_a_host_parses() {
        check(
            &record(
                "m",
                &[
                    ("a", "x".into()),
                    ("b", "x y".into()),
                    ("c", 1.into()),
                    ("d", "".into()),
                ],
            ),
            LogFormat::Text,
            r#"[INFO] 2024-05-06T07:08:09.123456Z router: m a=x b="x y" c=1 d="""#,
        );
    }

    #[test]
    fn a_long_record_keeps_the_start_of_its_message_and_stays_below_the_hosts_buffer() {
        let long = record(
            &"\u{1}".repeat(70_000),
            &[("field", "y".repeat(70_000).into())],
        );
        for format in [LogFormat::Json, LogFormat::Text] {
            let line = long.to_line(format, Timestamp::UNIX_EPOCH);
            assert!(line.len() < 64 * 1024, "{}", line.len());
            assert!(line.contains("shortened_from_bytes") && line.ends_with('\n'));
        }
    }

    #[test]
    fn a_record_of_the_log_crate_keeps_its_target() {
        check(
            &record(
                "m",
                &[("log.target", "yamux".into()), ("log.line", 7.into())],
            ),
            LogFormat::Text,
            "[INFO] 2024-05-06T07:08:09.123456Z yamux: m",
        );
    }

    #[test]
    fn an_integer_that_is_not_exact_as_a_float_becomes_text() {
        assert_eq!(
            integer(9_007_199_254_740_992_i64),
            Value::from(9_007_199_254_740_992_i64)
        );
        assert_eq!(
            integer(9_007_199_254_740_993_i64),
            Value::from("9007199254740993")
        );
        assert_eq!(integer(u64::MAX), Value::from("18446744073709551615"));
        assert_eq!(integer(i64::MIN), Value::from("-9223372036854775808"));
    }
}
