//! The tables in `docs/configuration.md` are generated from the parser's keys and from clap's flags, the one in
//! `docs/commands.md` from the permissions that `doctor` checks.
//!
//! `cargo xtask docs` writes them by running this test with `REFERENCE=overwrite`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers are test code too"
)]

use std::{fmt::Write as _, fs, path::Path};

use clap::CommandFactory as _;
use plugin_commands::CommandLine;
use route_planner::keys::{BLOCK, Key, Shape};

#[test]
fn the_reference_lists_every_key_and_flag() {
    check("docs/configuration.md", |page| {
        replace(&replace(page, "keys", &keys()), "flags", &flags())
    });
}

#[test]
fn the_commands_list_every_permission() {
    check("docs/commands.md", |page| {
        replace(page, "permissions", &permissions())
    });
}

/// Writes a page, or compares it.
fn check(name: &str, write: impl FnOnce(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name);
    let page = fs::read_to_string(&path).unwrap();
    let written = write(&page);
    if std::env::var_os("REFERENCE").is_some_and(|value| value == "overwrite") {
        fs::write(&path, written).unwrap();
    } else {
        assert!(
            page == written,
            "{name} has drifted: run `cargo xtask docs`"
        );
    }
}

/// Returns `page` with `text` between the comments that mark the beginning and the end of `part`.
fn replace(page: &str, part: &str, text: &str) -> String {
    let (begin, end) = (
        format!("<!-- {part}: written by `cargo xtask docs` -->\n"),
        format!("<!-- end of {part} -->\n"),
    );
    let (before, rest) = page.split_once(&begin).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    format!("{before}{begin}\n{text}\n{end}{after}")
}

/// Returns a table of the permissions that the plugin uses, with a row for those that one feature needs of a resource.
fn permissions() -> String {
    let mut text = "| permission | without it |\n|---|---|\n".to_owned();
    let permissions = plugin_commands::permissions();
    let rows = permissions
        .chunk_by(|a, b| (a.group, a.resource, a.without) == (b.group, b.resource, b.without));
    for row in rows {
        let verbs: Vec<&str> = row.iter().flat_map(|it| it.verbs).copied().collect();
        let resource = format!("{}.{}", row[0].resource, row[0].group);
        // The name of the core group is empty.
        let resource = resource.trim_end_matches('.');
        let (verbs, without) = (verbs.join(", "), row[0].without);
        writeln!(text, "| {verbs} `{resource}` | {without} |").unwrap();
    }
    text
}

/// Returns a table of the block's keys, and one for each object among them.
fn keys() -> String {
    let mut text = table(BLOCK.iter().map(|key| (key.name.to_owned(), key)));
    let mut done: Vec<&[Key]> = Vec::new();
    for key in BLOCK {
        let Some(inside) = inside(&key.value).filter(|inside| !done.contains(inside)) else {
            continue;
        };
        writeln!(text, "\n### {}\n", heading(inside)).unwrap();
        let mut rows = Vec::new();
        flatten("", inside, &mut rows);
        text += &table(rows);
        done.push(inside);
    }
    text
}

/// Returns the heading of a table of `keys`: the names of all keys that share it.
fn heading(keys: &[Key]) -> String {
    let names = BLOCK.iter().filter(|key| inside(&key.value) == Some(keys));
    let names: Vec<_> = names.map(|key| format!("`{}`", key.name)).collect();
    format!("In {}", names.join(" and "))
}

fn flatten<'k>(path: &str, keys: &'k [Key], rows: &mut Vec<(String, &'k Key)>) {
    for key in keys {
        let path = format!("{path}{}", key.name);
        rows.push((path.clone(), key));
        let brackets = if matches!(key.value, Shape::Objects(_)) {
            "[]"
        } else {
            ""
        };
        flatten(
            &format!("{path}{brackets}."),
            inside(&key.value).unwrap_or_default(),
            rows,
        );
    }
}

fn inside(shape: &Shape) -> Option<&'static [Key]> {
    match shape {
        Shape::Object(keys) | Shape::Objects(keys) => Some(keys),
        _ => None,
    }
}

fn table<'k>(rows: impl IntoIterator<Item = (String, &'k Key)>) -> String {
    let mut text = "| key | value | default | |\n|---|---|---|---|\n".to_owned();
    for (path, key) in rows {
        let (value, default) = (value(&key.value), key.default);
        writeln!(text, "| `{path}` | {value} | {default} | {} |", key.about).unwrap();
    }
    text
}

fn value(shape: &Shape) -> String {
    let words = match shape {
        Shape::Name => "name",
        Shape::Names => "list of names",
        Shape::Text => "text",
        Shape::Texts => "list of texts",
        Shape::Label => "text of a label",
        Shape::Labels => "list of such texts",
        Shape::LabelMap => "labels",
        Shape::Port => "1 to 65535",
        Shape::Duration => "duration",
        Shape::Object(_) => "object",
        Shape::Objects(_) => "list of objects",
        Shape::OneOf(words) => {
            let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
            return words.join(", ");
        }
    };
    words.to_owned()
}

fn flags() -> String {
    let mut text = "| flag | variable | default | |\n|---|---|---|---|\n".to_owned();
    let command = CommandLine::command();
    let flags = command
        .get_arguments()
        .filter(|flag| flag.get_env().is_some());
    for flag in flags {
        let name = flag.get_long().unwrap();
        let takes_value = flag.get_action().takes_values();
        let value = flag.get_value_names().filter(|_| takes_value);
        let value = value.unwrap_or_default().concat();
        let variable = flag.get_env().unwrap().display();
        let defaults = flag.get_default_values().iter();
        let defaults: Vec<_> = defaults
            .map(|value| format!("`{}`", value.display()))
            .collect();
        let help = flag.get_help().unwrap().to_string();
        let choices = flag.get_possible_values();
        let choices: Vec<_> = choices
            .iter()
            .map(|choice| format!("`{}`", choice.get_name()))
            .collect();
        let choices = if choices.is_empty() || !takes_value || flag.is_hide_possible_values_set() {
            String::new()
        } else {
            format!(": {}", choices.join(", "))
        };
        writeln!(
            text,
            "| `{}` | `{variable}` | {} | {help}{choices} |",
            format!("--{name} {value}").trim_end(),
            defaults.join(", ")
        )
        .unwrap();
    }
    text
}
