//! The tables in `docs/appset.md` and `docs/appset-sources.md` are written from the keys that the generator reads.
//!
//! `cargo xtask docs` writes them; it runs this test with `REFERENCE=overwrite`.

#![allow(clippy::unwrap_used, reason = "helpers are test code too")]

use std::{fmt::Write as _, fs, path::Path};

use appset_generator::{Key, reference};

#[test]
fn the_reference_is_what_the_generator_reads() {
    let configuration = reference::configuration().into_iter().flat_map(|table| {
        let keys = table.keys.into_iter();
        keys.map(move |key| match table.path.as_str() {
            "" => (key.name.to_owned(), key),
            path => (format!("{path}.{}", key.name), key),
        })
    });
    check(
        "appset.md",
        &[
            ("configuration".to_owned(), table("key", configuration)),
            (
                "parameters".to_owned(),
                table("key", named(reference::common_parameters())),
            ),
        ],
    );
    let sources = reference::parameters().into_iter().map(|(source, keys)| {
        let text = table("parameter", named(keys));
        (format!("parameters of {source}"), text)
    });
    check("appset-sources.md", &sources.collect::<Vec<_>>());
}

/// Compares a page with what it has to have between the comments of each part, or writes that.
fn check(page: &str, parts: &[(String, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
    let before = fs::read_to_string(&path).unwrap();
    let written = parts.iter().fold(before.clone(), |text, (part, table)| {
        let begin = format!("<!-- {part}: written by `cargo xtask docs` -->\n");
        let end = format!("<!-- end of {part} -->\n");
        let (head, rest) = text.split_once(&begin).unwrap();
        let (_, tail) = rest.split_once(&end).unwrap();
        format!("{head}{begin}\n{table}\n{end}{tail}")
    });
    if std::env::var_os("REFERENCE").is_some_and(|value| value == "overwrite") {
        fs::write(&path, written).unwrap();
    } else {
        assert!(
            before == written,
            "docs/{page} differs from what the generator reads: run `cargo xtask docs`"
        );
    }
}

fn named(keys: Vec<Key>) -> impl Iterator<Item = (String, Key)> {
    keys.into_iter().map(|key| (key.name.to_owned(), key))
}

fn table(head: &str, rows: impl Iterator<Item = (String, Key)>) -> String {
    let mut text = format!("| {head} | value | default |\n|---|---|---|\n");
    for (name, Key { about, default, .. }) in rows {
        let row = format!("| `{name}` | {about} | {default} |");
        writeln!(text, "{}", row.replace("|  |", "| |")).unwrap();
    }
    text
}
