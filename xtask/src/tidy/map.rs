//! ARCHITECTURE.md: its picture matches cargo's metadata, its code map names every folder, and no crate reaches what the last
//! column of the map excludes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use xshell::{Shell, cmd};

use super::{quoted, tracked};
use crate::workspace::Workspace;

const PAGE: &str = "ARCHITECTURE.md";

/// The lines around the picture.
const BEGIN: &str = "<!-- `cargo xtask docs` draws this from `cargo metadata`. -->\n";
const END: &str = "<!-- End of the picture. -->\n";

pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<String>> {
    let workspace = Workspace::read(sh)?;
    let page = sh.read_file(PAGE)?;
    let mut violations = Vec::new();
    if redrawn(&page, &workspace)? != page {
        violations.push(format!(
            "{PAGE}: the picture is old: run `cargo xtask docs`"
        ));
    }
    let rows = rows(&page);
    violations.extend(compare_folders(&rows, &tracked(sh)?));
    let lock = sh.read_file("Cargo.lock")?;
    for (folder, cell) in rows.iter().filter(|(_, cell)| cell.contains('`')) {
        let package = workspace.in_folder(folder);
        let name = &package
            .with_context(|| format!("{folder} is no package"))?
            .name;
        for (features, excluded) in by_features(cell) {
            // One package at a time: in a build of the workspace a feature is on because another package enables it.
            let tree = cmd!(
                sh,
                "cargo tree --locked --package {name} {features} --edges normal,build --prefix none"
            );
            let tree = tree.quiet().read()?;
            violations.extend(compare_reach(folder, excluded, &tree, &lock));
        }
    }
    Ok(violations)
}

/// Draws the picture again.
///
/// # Errors
/// Returns `Err` if the page has lost the comments around the picture, or cannot be written.
pub(crate) fn draw(sh: &Shell) -> anyhow::Result<()> {
    let page = redrawn(&sh.read_file(PAGE)?, &Workspace::read(sh)?)?;
    Ok(sh.write_file(PAGE, page)?)
}

/// The packages that the code map calls pure.
///
/// # Errors
/// Returns `Err` if the page cannot be read, or calls no crate pure.
pub(super) fn pure(sh: &Shell) -> anyhow::Result<Vec<String>> {
    let workspace = Workspace::read(sh)?;
    let page = sh.read_file(PAGE)?;
    let rows = rows(&page)
        .into_iter()
        .filter(|(_, cell)| cell.starts_with("pure"));
    let packages = rows.filter_map(|(folder, _)| workspace.in_folder(folder));
    let names: Vec<String> = packages.map(|package| package.name.clone()).collect();
    ensure!(!names.is_empty(), "{PAGE} calls no crate pure");
    Ok(names)
}

/// The page with the picture of this workspace.
fn redrawn(page: &str, workspace: &Workspace) -> anyhow::Result<String> {
    let parts = page.split_once(BEGIN);
    let parts = parts.and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.with_context(|| format!("{PAGE} has no {BEGIN}"))?;
    let picture = picture(workspace);
    Ok(format!(
        "{before}{BEGIN}\n```mermaid\nflowchart BT\n{picture}```\n\n{END}{after}"
    ))
}

/// All arrows between the packages of the repository; dotted for what only tests and examples depend on.
fn picture(workspace: &Workspace) -> String {
    let short = |folder: &str| folder.rsplit('/').next().unwrap_or_default().to_owned();
    let mut text = String::new();
    for package in &workspace.packages {
        for (arrow, targets) in [("-->", &package.uses), ("-.->", &package.tests_use)] {
            let targets: Vec<_> = targets.iter().map(|folder| short(folder)).collect();
            if !targets.is_empty() {
                let (from, to) = (short(&package.folder), targets.join(" & "));
                text.push_str(&format!("  {from} {arrow} {to}\n"));
            }
        }
    }
    text
}

/// The last cell of each row of the code map, by the folder that stands in backticks in the first cell.
fn rows(page: &str) -> BTreeMap<&str, &str> {
    let rows = page.lines().filter_map(|line| {
        let (folder, rest) = line.strip_prefix("| `")?.split_once('`')?;
        let last = rest.trim_end().strip_suffix('|')?.rsplit(" | ").next()?;
        Some((folder, last.trim_start()))
    });
    rows.collect()
}

/// The folder that the map has to name for a tracked file.
fn folder(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["crates", name, ..] => Some(format!("crates/{name}")),
        ["tests", "go", module, ..] => Some(format!("tests/go/{module}")),
        [name, _, ..] if !name.starts_with('.') && *name != "docs" => Some((*name).to_owned()),
        _ => None,
    }
}

fn compare_folders(rows: &BTreeMap<&str, &str>, tracked: &[String]) -> Vec<String> {
    let folders: BTreeSet<String> = tracked.iter().filter_map(|path| folder(path)).collect();
    let named: BTreeSet<String> = rows.keys().map(ToString::to_string).collect();
    let differ = folders.symmetric_difference(&named);
    let differ = differ.map(|folder| format!("{PAGE}: code map and repository differ in {folder}"));
    differ.collect()
}

/// What a cell excludes with all features, and what after the words "without features".
fn by_features(cell: &str) -> impl Iterator<Item = (&'static str, &str)> {
    let (always, without) = cell.split_once("without features").unwrap_or((cell, ""));
    let parts = [
        ("--all-features", always),
        ("--no-default-features", without),
    ];
    parts.into_iter().filter(|(_, part)| part.contains('`'))
}

/// `tree` has a line `name version ...` for each package that the one in the folder can reach, itself first.
///
/// A name that is not in `lock` is a violation too: a misspelt one would never be reached.
fn compare_reach(folder: &str, cell: &str, tree: &str, lock: &str) -> Vec<String> {
    let reached = tree.lines().skip(1);
    let reached: BTreeSet<_> = reached.filter_map(|line| line.split(' ').next()).collect();
    let mut violations = Vec::new();
    for name in quoted(cell) {
        if !lock.contains(&format!("\nname = \"{name}\"\n")) {
            violations.push(format!("{PAGE}: {folder}: there is no package {name}"));
        }
        if reached.contains(name) {
            violations.push(format!("{folder} reaches {name}, which {PAGE} excludes"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::tests::workspace;

    #[test]
    fn planted_folders() {
        #[track_caller]
        fn check(folders: &[&str], expect: &[&str]) {
            let files = "README.md .ci/run docs/a.md crates/gob/src/lib.rs xtask/Cargo.toml tests/go/gob/go.mod";
            let tracked: Vec<_> = files.split(' ').map(str::to_owned).collect();
            let page: String = folders
                .iter()
                .map(|folder| format!("| `{folder}` | a | |\n"))
                .collect();
            let what = "ARCHITECTURE.md: code map and repository differ in";
            let expect = expect.iter().map(|folder| format!("{what} {folder}"));
            assert_eq!(
                compare_folders(&rows(&page), &tracked),
                expect.collect::<Vec<_>>()
            );
        }
        check(&["crates/gob", "tests/go/gob", "xtask"], &[]);
        check(
            &["crates/gob", "tests/go/gob", "xtask", "crates/gone"],
            &["crates/gone"],
        );
        check(&["crates/gob", "xtask"], &["tests/go/gob"]);
    }

    #[test]
    fn planted_dependencies() {
        let lock =
            "[[package]]\nname = \"serde\"\nversion = \"1\"\n\n[[package]]\nname = \"tokio\"\n";
        let tree = "a v0.1.0 (/r/crates/a)\nserde v1.0.0 (*)\nserde_core v1.0.0\n";
        let check = |cells: &str, pure: bool, expect: &[&str]| {
            let page = format!("| `a` | {cells} |\n");
            let cell = rows(&page)["a"];
            assert_eq!(compare_reach("a", cell, tree, lock), expect);
            assert_eq!(cell.starts_with("pure"), pure, "{cells}");
        };
        check("reads `serde` | pure; `tokio`", true, &[]);
        let reaches = "a reaches serde, which ARCHITECTURE.md excludes";
        check("is pure | `serde`, `tokio`", false, &[reaches]);
        check(
            "| `tokyo`",
            false,
            &["ARCHITECTURE.md: a: there is no package tokyo"],
        );
    }

    #[test]
    fn some_packages_are_excluded_without_features_only() {
        let check = |cell, expect: &[(&str, &str)]| {
            assert_eq!(by_features(cell).collect::<Vec<_>>(), expect);
        };
        check("pure; `tokio`", &[("--all-features", "pure; `tokio`")]);
        check(
            "`tokio`; without features `kube`, `hyper`",
            &[
                ("--all-features", "`tokio`; "),
                ("--no-default-features", " `kube`, `hyper`"),
            ],
        );
        check("", &[]);
    }

    #[test]
    fn the_picture_has_all_arrows_and_is_drawn_again() {
        let drawn = "\n```mermaid\nflowchart BT\n  a --> b\n  b -.-> c\n```\n\n";
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        let expect = format!("before\n{BEGIN}{drawn}{END}after\n");
        assert_eq!(redrawn(&page, &workspace()).unwrap(), expect);
        assert!(redrawn("no picture\n", &workspace()).is_err());
    }
}
