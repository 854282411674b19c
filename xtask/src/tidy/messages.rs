//! `docs/troubleshooting.md` has a row for each message of the programs that ship, and no row for another message.

use std::collections::BTreeSet;
use std::path::Path;

use xshell::Shell;

use super::{SourceFile, files};

const PAGE: &str = "docs/troubleshooting.md";

/// Errors without a row, each with the reason: a folder or a file.
const WITHOUT_ROW: &[(&str, &str)] = &[
    (
        "crates/appset-generator/src/failure.rs",
        "docs/appset.md has a row for each code",
    ),
    ("crates/envoy-routes", "for tests and the demo only"),
    (
        "crates/gob",
        "comes after `the … stream is corrupt`, whose row says what to do",
    ),
    (
        "crates/rollout-types/src/config.rs",
        "for plugins of other authors, see docs/writing-a-plugin.md",
    ),
    (
        "crates/rollouts-rpc/src/host",
        "of the host's half: for people who start plugins from Rust",
    ),
    (
        "crates/rollouts-rpc/src/netrpc/client.rs",
        "of the host's half",
    ),
    ("crates/traffic-lab", "for tests and the demo only"),
    ("crates/traffic-page", "for tests and the demo only"),
];

pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<String>> {
    Ok(compare(&sh.read_file(PAGE)?, &files(sh, &[".rs"])?))
}

fn compare(page: &str, sources: &[SourceFile]) -> Vec<String> {
    let rows: Vec<String> = page.lines().filter_map(quote).collect();
    let mut used = BTreeSet::new();
    let mut violations = Vec::new();
    for SourceFile { path, text } in sources {
        for message in messages(text) {
            let matching = rows.iter().filter(|quote| is_quote(quote, &message));
            let matching: Vec<&String> = matching.collect();
            if matching.is_empty() && needs_rows(path) {
                violations.push(format!("{path}: {PAGE} has no row for: {message}"));
            }
            used.extend(matching);
        }
    }
    let unused = rows.iter().filter(|quote| !used.contains(quote));
    violations.extend(unused.map(|quote| format!("{PAGE}: no error has the text: {quote}")));
    violations
}

/// Whether each message of a file needs a row.
fn needs_rows(path: &str) -> bool {
    let in_crate = path
        .strip_prefix("crates/")
        .and_then(|rest| rest.split_once('/'));
    let is_library = in_crate.is_some_and(|(_, file)| file.starts_with("src/"));
    let is_below = |folder: &str| Path::new(path).starts_with(folder);
    is_library && !WITHOUT_ROW.iter().any(|(without, _)| is_below(without))
}

/// The text in backticks in the first cell of a table's row.
fn quote(line: &str) -> Option<String> {
    let (quote, _) = line.strip_prefix("| `")?.split_once("` |")?;
    Some(quote.replace("\\|", "|"))
}

/// Whether the row quotes the whole message, or its beginning and `…`. Every other message may begin with the same single word.
fn is_quote(quote: &str, message: &str) -> bool {
    let is_word = |text: &&str| text.contains(char::is_alphabetic);
    let names_a_message = |text: &&str| text.split_whitespace().filter(is_word).count() > 1;
    let beginning = quote.strip_suffix('…').filter(names_a_message);
    quote == message || beginning.is_some_and(|beginning| message.starts_with(beginning))
}

/// The texts of the errors in a source file, with `…` for each inserted value.
fn messages(source: &str) -> Vec<String> {
    let attributes = source.split("#[error(").skip(1);
    let literals = attributes.filter_map(|rest| rest.trim_start().strip_prefix('"'));
    literals.map(message).filter(|text| text != "…").collect()
}

/// Reads a string literal up to its closing quotation mark.
fn message(literal: &str) -> String {
    let mut text = String::new();
    let mut chars = literal.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            // A backslash at the end of a line joins it with the next one.
            '\\' if chars.next_if_eq(&'\n').is_some() => {
                while chars.next_if(|c| c.is_whitespace()).is_some() {}
            }
            '\\' => text.extend(chars.next()),
            '{' => {
                text.push('…');
                chars.by_ref().find(|c| *c == '}');
            }
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::file;

    const SOURCE: &str = r##"
#[error("{0} not found: \"create\" it")]
#[error(
    "the host accepts a|b of {offered:?}, \
     not {ours}", .0.len()
)]
#[error(transparent)]
#[error("{text}")]
"##;

    #[track_caller]
    fn check(page: &str, expect: &[&str]) {
        let sources = [
            file("crates/route-store/src/error.rs", SOURCE),
            file("crates/gob/src/error.rs", "#[error(\"corrupt\")]"),
            file("crates/gloo-types/tests/a.rs", "#[error(\"planted\")]"),
        ];
        assert_eq!(compare(page, &sources), expect);
    }

    #[test]
    fn planted_rows() {
        check(
            "| message | why |\n|---|---|\n| `… not found: \"create\" it` | x |\n| `the host accepts a\\|b of …, not …` | x |\n",
            &[],
        );
        check(
            "| `… not found: …` | |\n| `the host accepts…` | `x` |\n| `corrupt` | |\n",
            &[],
        );
        let too_short = [
            "crates/route-store/src/error.rs: docs/troubleshooting.md has no row for: … not found: \"create\" it",
            "docs/troubleshooting.md: no error has the text: … not…",
        ];
        check("| `… not…` | |\n| `the host accepts…` | |\n", &too_short);
        check(
            "| `… not found: …` | |\n",
            &[
                "crates/route-store/src/error.rs: docs/troubleshooting.md has no row for: the host accepts a|b of …, not …",
            ],
        );
        check(
            "| `… not found: …` | |\n| `the host accepts…` | |\n| `… not found, create it` | |\n",
            &["docs/troubleshooting.md: no error has the text: … not found, create it"],
        );
    }
}
