//! `docs/troubleshooting.md` has a row for each message of the programs that ship, and no row for another message.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use anyhow::Context as _;
use xshell::Shell;

use super::{SourceFile, Violation, files};

const PAGE: &str = "docs/troubleshooting.md";

/// Errors without a row, each with the reason: a folder or a file.
const WITHOUT_ROW: &[(&str, &str)] = &[
    (
        "crates/appset-generator/src/failure.rs",
        "docs/appset.md has a row for each code",
    ),
    (
        "crates/appset-generator/src/image_digests/manifest.rs",
        "docs/appset-registries.md: Messages",
    ),
    (
        "crates/appset-generator/src/rollouts.rs",
        "an answer of code missing_table, see docs/appset.md",
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

pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<Violation>> {
    let page = sh
        .read_file(PAGE)
        .with_context(|| format!("cannot read {PAGE}"))?;
    Ok(compare(&page, &files(sh, ".rs")?))
}

fn compare(page: &str, sources: &[SourceFile]) -> Vec<Violation> {
    let quoted: BTreeSet<String> = page.lines().filter_map(quote).collect();
    let mut said = BTreeSet::new();
    let mut violations = Vec::new();
    for source in sources {
        for message in messages(&source.text) {
            let matching = quoted.iter().filter(|quote| is_quote(quote, &message));
            let matching: Vec<_> = matching.cloned().collect();
            if has_row(&source.path) && matching.is_empty() {
                let place = source.path.display().to_string();
                let what = format!("{PAGE} has no row for: {message}");
                violations.push(Violation::new(place, what));
            }
            said.extend(matching);
        }
    }
    let unsaid = quoted.difference(&said);
    violations.extend(unsaid.map(|quote| Violation::new(PAGE, format!("nothing says: {quote}"))));
    violations
}

/// Whether the messages of a file need a row each.
fn has_row(path: &Path) -> bool {
    let mut parts = path.components().map(Component::as_os_str);
    let is_library =
        parts.next().is_some_and(|it| it == "crates") && parts.nth(1).is_some_and(|it| it == "src");
    is_library
        && !WITHOUT_ROW
            .iter()
            .any(|(without, _)| path.starts_with(without))
}

/// What a row of a table has in backticks in its first cell.
fn quote(line: &str) -> Option<String> {
    let (quote, _) = line.strip_prefix("| `")?.split_once("` |")?;
    Some(quote.replace("\\|", "|"))
}

/// Whether the page says the whole message, or its beginning and `…`.
fn is_quote(quote: &str, message: &str) -> bool {
    let begins = |quote| message.starts_with(quote);
    quote == message || quote.strip_suffix('…').is_some_and(begins)
}

/// The texts of the errors in a source, with `…` for what is filled in.
fn messages(source: &str) -> Vec<String> {
    let attributes = source.split("#[error(").skip(1);
    let literals = attributes.filter_map(|rest| rest.trim_start().strip_prefix('"'));
    literals.map(message).filter(|text| text != "…").collect()
}

/// What stands before the quotation mark that ends a string literal.
fn message(literal: &str) -> String {
    let mut text = String::new();
    let mut chars = literal.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
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
        let source = |path: &str, text: &str| SourceFile {
            path: path.into(),
            text: text.to_owned(),
        };
        let sources = [
            source("crates/route-store/src/error.rs", SOURCE),
            source("crates/gob/src/error.rs", "#[error(\"corrupt\")]"),
            source(
                "crates/gloo-types/tests/a.rs",
                "#[error(\"planted by a test\")]",
            ),
        ];
        let found = compare(page, &sources).into_iter();
        let found: Vec<_> = found.map(|violation| violation.what).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn whole_messages_and_beginnings_are_quotes() {
        check(
            "| message | why |\n|---|---|\n| `… not found: \"create\" it` | x |\n| `the host accepts a\\|b of …, not …` | x |\n",
            &[],
        );
        check(
            "| `… not found: …` | |\n| `the host accepts…` | `x` |\n| `corrupt` | |\n",
            &[],
        );
    }

    #[test]
    fn planted_missing_row() {
        check(
            "| `… not found: …` | |\n",
            &["docs/troubleshooting.md has no row for: the host accepts a|b of …, not …"],
        );
    }

    #[test]
    fn planted_message_that_nothing_says() {
        check(
            "| `… not found: …` | |\n| `the host accepts…` | |\n| `… not found, create it` | |\n",
            &["nothing says: … not found, create it"],
        );
    }
}
