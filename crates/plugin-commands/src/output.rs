//! Prints reports: with colours on a terminal, as plain text elsewhere, or as JSON or YAML.

use std::io::{ErrorKind, Write as _};

use anstyle::{AnsiColor, Style};
use anyhow::Context as _;
use clap::ValueEnum;
use rollouts_rpc::escaped;
use route_planner::ANNOTATION;
use serde::Serialize;
use serde_json::Value;
use similar::{
    ChangeTag,
    algorithms::{Capture, Compact, Replace, myers},
    udiff::UnifiedHunkHeader,
};

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const RED: Style = AnsiColor::Red.on_default();
pub(super) const GREEN: Style = AnsiColor::Green.on_default();
pub(super) const YELLOW: Style = AnsiColor::Yellow.on_default();
const CYAN: Style = AnsiColor::Cyan.on_default();

/// Unchanged lines shown around a change.
const CONTEXT: usize = 3;

/// The annotation of `kubectl apply`, which holds the object again on one line.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Text,
    Json,
    Yaml,
}

impl Format {
    /// Renders a report in this format. `text` renders it as text.
    pub(super) fn render<R: Serialize>(
        self,
        report: &R,
        text: impl FnOnce(&R) -> String,
    ) -> anyhow::Result<String> {
        match self {
            Self::Text => Ok(text(report)),
            Self::Json => json(report),
            Self::Yaml => yaml(report),
        }
    }
}

pub(super) fn json<R: Serialize>(report: &R) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    // Other control characters are only in strings, where JSON has its own form for them.
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_ascii() || escaped(c.encode_utf8(&mut [0; 4])).len() == c.len_utf8() {
            true => safe.push(c),
            false => safe += &format!("\\u{:04x}", u32::from(c)),
        }
    }
    Ok(safe)
}

pub(super) fn yaml<R: Serialize>(report: &R) -> anyhow::Result<String> {
    Ok(serde_saphyr::to_string(report)?)
}

/// Writes to stdout. Styles are omitted if it is no terminal or `NO_COLOR` is set. Returns `false` if the reader of a pipe needs no
/// more, which is no error.
pub(super) fn print(text: &str) -> anyhow::Result<bool> {
    let mut stdout = anstream::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => {
            written.context("cannot write to stdout")?;
            Ok(true)
        }
    }
}

/// Prints an error to stderr.
pub(super) fn print_error(text: &str) {
    // If stderr is closed, the message is lost.
    let _ = write!(anstream::stderr(), "{}", line(RED, "error", text));
}

/// Prints to stderr what takes some time, if it is a terminal.
pub(super) fn progress(what: &str) {
    let mut stderr = anstream::stderr();
    if stderr.is_terminal() {
        let _ = writeln!(stderr, "{DIM}{what} ...{DIM:#}");
    }
}

pub(super) fn styled(style: Style, text: &str) -> String {
    format!("{style}{}{style:#}", escaped(text))
}

/// Returns a line that begins with a word such as `error`.
pub(super) fn line(style: Style, word: &str, text: &str) -> String {
    format!("{}: {}\n", styled(style, word), escaped(text))
}

/// Returns a unified diff of two objects as YAML, without fields that only machines use. Empty if they are equal.
pub(super) fn diff(label: &str, before: &Value, after: &Value) -> anyhow::Result<String> {
    let (before, after) = (manifest(before)?, manifest(after)?);
    let before: Vec<&str> = before.lines().collect();
    let after: Vec<&str> = after.lines().collect();
    // `TextDiff` would link every algorithm into the binary.
    let mut diff = Compact::new(Replace::new(Capture::new()), &before, &after);
    myers::diff(&mut diff, &before, 0..before.len(), &after, 0..after.len())?;
    let capture = diff.into_inner().into_inner();
    let mut text = String::new();
    for hunk in capture.into_grouped_ops(CONTEXT) {
        if text.is_empty() {
            for line in [format!("--- {label}"), format!("+++ {label}, changed")] {
                text += &(styled(BOLD, &line) + "\n");
            }
        }
        text += &format!("{CYAN}{}{CYAN:#}\n", UnifiedHunkHeader::new(&hunk));
        for change in hunk.iter().flat_map(|op| op.iter_changes(&before, &after)) {
            let (sign, style) = match change.tag() {
                ChangeTag::Equal => (' ', Style::new()),
                ChangeTag::Delete => ('-', RED),
                ChangeTag::Insert => ('+', GREEN),
            };
            text += &(styled(style, &format!("{sign}{}", change.value())) + "\n");
        }
    }
    Ok(text)
}

/// Returns an object as [`diff`] shows it; empty for a missing object.
fn manifest(object: &Value) -> anyhow::Result<String> {
    if object.is_null() {
        return Ok(String::new());
    }
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in [
            "managedFields",
            "resourceVersion",
            "generation",
            "uid",
            "creationTimestamp",
        ] {
            metadata.shift_remove(key);
        }
        let annotations = metadata.get_mut("annotations");
        if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
            // The plugin's record is of no use to people.
            if let Some(record @ Value::String(_)) = annotations.get_mut(ANNOTATION) {
                *record = "...".into();
            }
            let removed = annotations.shift_remove(LAST_APPLIED);
            if removed.is_some() && annotations.is_empty() {
                metadata.shift_remove("annotations");
            }
        }
    }
    yaml(&object)
}

/// Formats rows as columns, each as wide as its widest cell. The first row is the header.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let rows = rows
        .iter()
        .map(|row| row.each_ref().map(|cell| escaped(cell)));
    let rows: Vec<[String; N]> = rows.collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let lines = rows.iter().enumerate().map(|(index, row)| {
        let cells = row.iter().zip(widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:width$}  "))
            .collect();
        let style = if index == 0 { BOLD } else { Style::new() };
        styled(style, line.trim_end()) + "\n"
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_aligned_and_control_characters_are_escaped() {
        let rows = [["A", "B"], ["a", "1"], ["b\n", "\u{202e}"]];
        let text = table(&rows.map(|row| row.map(str::to_owned)));
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(plain, "A    B\na    1\nb\\n  \\u{202e}\n");
    }

    #[test]
    fn a_line_is_one_line_in_one_direction() {
        let text = line(RED, "error", "a\nb\u{202e}\t") + &styled(BOLD, "c\rd");
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(plain, "error: a\\nb\\u{202e}\\t\nc\\rd");
    }

    #[test]
    fn a_diff_omits_fields_of_machines() {
        let applied = json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
        let before =
            json!({"metadata": {"name": "a", "uid": "1", "annotations": applied}, "spec": 1});
        let mut after = before.clone();
        json_patch::merge(
            &mut after,
            &json!({"metadata": {"generation": 2, "annotations": {"owner": "shop"}}, "status": {}}),
        );
        let diff = diff("A a", &before, &after).unwrap();
        let plain = anstream::adapter::strip_str(&diff).to_string();
        let changed = plain.lines().filter(|line| !line.starts_with(' '));
        let changed: Vec<&str> = changed.skip(3).collect();
        assert_eq!(changed, ["+  annotations:", "+    owner: shop"]);
    }
}
