//! The tables in `docs/appset.md` and `docs/appset-sources.md` have exactly the keys that the generator reads, in their order, and
//! say what each of them does.
//!
//! `cargo xtask docs` adds the rows of new keys, with empty cells, and removes those of old ones; it runs this test with
//! `REFERENCE=overwrite`.

#![allow(clippy::unwrap_used, reason = "helpers are test code too")]

use std::{collections::BTreeMap, fs, path::Path};

use appset_generator::reference;

#[test]
fn the_reference_is_what_the_generator_reads() {
    let configuration = reference::configuration().into_iter();
    let configuration = configuration.flat_map(|(path, keys)| {
        let keys = keys.iter();
        keys.map(move |key| match path.as_str() {
            "" => (*key).to_owned(),
            path => format!("{path}.{key}"),
        })
    });
    check(
        "appset.md",
        &[
            ("configuration".to_owned(), "key", configuration.collect()),
            (
                "parameters".to_owned(),
                "key",
                named(reference::common_parameters()),
            ),
        ],
    );
    let sources = reference::parameters()
        .map(|(source, keys)| (format!("parameters of {source}"), "parameter", named(keys)));
    check("appset-sources.md", &sources.collect::<Vec<_>>());
}

fn named(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

/// Compares the rows of a page between the comments of each part with the keys of the part, or writes those that differ.
fn check(page: &str, parts: &[(String, &str, Vec<String>)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
    let before = fs::read_to_string(&path).unwrap();
    let written = parts
        .iter()
        .fold(before.clone(), |text, (part, head, keys)| {
            let begin = format!("<!-- {part}: written by `cargo xtask docs` -->\n");
            let end = format!("<!-- end of {part} -->\n");
            let (above, rest) = text.split_once(&begin).unwrap();
            let (table, below) = rest.split_once(&end).unwrap();
            let table = rows(table, head, keys);
            format!("{above}{begin}\n{table}\n{end}{below}")
        });
    if std::env::var_os("REFERENCE").is_some_and(|value| value == "overwrite") {
        fs::write(&path, &written).unwrap();
    } else {
        assert!(
            before == written,
            "docs/{page} has other keys than the generator reads: run `cargo xtask docs`"
        );
    }
    assert!(
        !written.contains("` | | |"),
        "docs/{page} does not say what a key does: fill in its row"
    );
}

/// Returns a table with a row for each of the `keys`, as it is in the `table` that is there.
fn rows(table: &str, head: &str, keys: &[String]) -> String {
    let there: BTreeMap<_, _> = table
        .lines()
        .filter_map(|row| Some((row.strip_prefix("| `")?.split_once('`')?.0, row)))
        .collect();
    let rows = keys.iter().map(|key| match there.get(key.as_str()) {
        Some(row) => format!("{row}\n"),
        None => format!("| `{key}` | | |\n"),
    });
    format!(
        "| {head} | value | default |\n|---|---|---|\n{}",
        rows.collect::<String>()
    )
}
