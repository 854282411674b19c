//! ARCHITECTURE.md: its picture is what cargo says, its code map has every folder, and the last column of the map holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Context as _;
use xshell::{Shell, cmd};

use super::Violation;
use crate::workspace::Workspace;

const PAGE: &str = "ARCHITECTURE.md";

/// What stands around the picture.
const BEGIN: &str = "<!-- `cargo xtask docs` draws this from `cargo metadata`. -->\n";
const END: &str = "<!-- End of the picture. -->\n";

/// The word of the last column for a crate without clock, environment, file, socket, process or thread.
const PURE: &str = "pure";

pub(super) fn check(sh: &Shell, workspace: &Workspace) -> anyhow::Result<Vec<Violation>> {
    let page = sh.read_file(PAGE)?;
    let mut violations = Vec::new();
    if redrawn(&page, workspace)? != page {
        let what = "the picture is not what cargo says: run `cargo xtask docs`";
        violations.push(Violation::new(PAGE, what));
    }
    let rows = rows(&page);
    violations.extend(compare_folders(&rows, &folders(sh)?));
    let lock = sh.read_file("Cargo.lock")?;
    for (folder, row) in rows.iter().filter(|(_, row)| !row.cannot_reach.is_empty()) {
        let package = workspace.in_folder(folder);
        let name = &package
            .with_context(|| format!("{folder} is no package"))?
            .name;
        // One package at a time: in a build of the workspace a feature is on because another package asks for it.
        let tree = cmd!(
            sh,
            "cargo tree --locked --package {name} --all-features --edges normal,build --prefix none"
        );
        violations.extend(compare_reach(folder, row, &tree.quiet().read()?, &lock));
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
pub(super) fn pure(sh: &Shell, workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let rows = rows(&sh.read_file(PAGE)?);
    let pure = rows.iter().filter(|(_, row)| row.is_pure);
    let packages = pure.filter_map(|(folder, _)| workspace.in_folder(folder));
    let names: Vec<String> = packages.map(|package| package.name.clone()).collect();
    anyhow::ensure!(!names.is_empty(), "{PAGE} calls no crate pure");
    Ok(names)
}

/// The page with the picture of this workspace.
fn redrawn(page: &str, workspace: &Workspace) -> anyhow::Result<String> {
    let around = page.split_once(BEGIN);
    let around = around.and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = around.with_context(|| format!("{PAGE} has no {BEGIN}"))?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", picture(workspace)))
}

/// All arrows between the packages of the repository; dotted for what only tests and examples depend on.
fn picture(workspace: &Workspace) -> String {
    let mut text = "\n```mermaid\nflowchart BT\n".to_owned();
    let short = |folder: &str| folder.rsplit('/').next().unwrap_or_default().to_owned();
    for package in &workspace.packages {
        for (arrow, known) in [("-->", &package.knows), ("-.->", &package.tests_know)] {
            // A text takes everything.
            if let Some(known) = known
                .iter()
                .map(|it| short(it))
                .reduce(|a, b| format!("{a} & {b}"))
            {
                let _ = writeln!(text, "  {} {arrow} {known}", short(&package.folder));
            }
        }
    }
    text.push_str("```\n\n");
    text
}

/// What the code map says of a folder.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    is_pure: bool,
    cannot_reach: Vec<String>,
}

/// A row of the map has a folder in backticks in its first cell.
fn rows(page: &str) -> BTreeMap<String, Row> {
    let lines = page.lines().filter_map(|line| {
        let (folder, rest) = line.strip_prefix("| `")?.split_once('`')?;
        let last = rest.trim_end().strip_suffix('|')?.rsplit(" | ").next()?;
        let row = Row {
            is_pure: last.trim_start().starts_with(PURE),
            cannot_reach: last
                .split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect(),
        };
        Some((folder.to_owned(), row))
    });
    lines.collect()
}

/// The folders that the map has to name.
fn folders(sh: &Shell) -> anyhow::Result<BTreeSet<String>> {
    let mut folders = BTreeSet::new();
    for parent in ["crates", "tests/go"] {
        let inside = sh
            .read_dir(parent)?
            .into_iter()
            .filter(|path| path.is_dir());
        folders.extend(
            inside.filter_map(|path| Some(format!("{parent}/{}", path.file_name()?.to_str()?))),
        );
    }
    let others = [
        "benches", "deploy", "examples", "fuzz", "patches", "tests", "xtask",
    ];
    folders.extend(others.map(str::to_owned));
    Ok(folders)
}

fn compare_folders(rows: &BTreeMap<String, Row>, folders: &BTreeSet<String>) -> Vec<Violation> {
    let named: BTreeSet<String> = rows.keys().cloned().collect();
    let unnamed = folders
        .difference(&named)
        .map(|folder| Violation::new(folder, format!("is missing in {PAGE}")));
    let gone = named
        .difference(folders)
        .map(|folder| Violation::new(PAGE, format!("names {folder}, which is not there")));
    unnamed.chain(gone).collect()
}

/// `tree` has a line `name version ...` for each package that the one in the folder can reach; it stands first itself.
///
/// A name that is not in `lock` is a violation too: a misspelt one would never be reached.
fn compare_reach(folder: &str, row: &Row, tree: &str, lock: &str) -> Vec<Violation> {
    let reached = tree
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next());
    let reached: BTreeSet<&str> = reached.collect();
    let mut violations = Vec::new();
    for name in &row.cannot_reach {
        if !lock.contains(&format!("\nname = \"{name}\"\n")) {
            let what = format!("{folder} cannot reach {name}, but no package has that name");
            violations.push(Violation::new(PAGE, what));
        }
        if reached.contains(name.as_str()) {
            let what = format!("reaches {name}, which {PAGE} rules out");
            violations.push(Violation::new(folder, what));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::tests::workspace;

    #[track_caller]
    fn check(violations: Vec<Violation>, expect: &[&str]) {
        let found: Vec<String> = violations.into_iter().map(|it| it.what).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn map_and_folders_agree_or_the_difference_is_named() {
        let folders = BTreeSet::from(["crates/gob".to_owned(), "xtask".to_owned()]);
        let compare = |page: &str| compare_folders(&rows(page), &folders);
        check(
            compare("x\n| `crates/gob` | a | |\n| `xtask` | b | |\n"),
            &[],
        );
        check(
            compare("| `crates/gob` | a | |\n"),
            &["is missing in ARCHITECTURE.md"],
        );
        check(
            compare("| `crates/gob` | a | |\n| `xtask` | b | |\n| `crates/gone` | c | |\n"),
            &["names crates/gone, which is not there"],
        );
    }

    #[test]
    fn what_a_crate_reaches_is_refused() {
        let lock =
            "[[package]]\nname = \"serde\"\nversion = \"1\"\n\n[[package]]\nname = \"tokio\"\n";
        let compare = |page: &str| {
            let tree = "a v0.1.0 (/r/crates/a)\nserde v1.0.0 (*)\nserde_core v1.0.0\n";
            compare_reach("crates/a", &rows(page)["crates/a"], tree, lock)
        };
        check(compare("| `crates/a` | `serde` | pure; `tokio` |\n"), &[]);
        check(
            compare("| `crates/a` | | `serde`, `tokio` |\n"),
            &["reaches serde, which ARCHITECTURE.md rules out"],
        );
        check(
            compare("| `crates/a` | | `tokyo` |\n"),
            &["crates/a cannot reach tokyo, but no package has that name"],
        );
    }

    #[test]
    fn a_pure_crate_is_one_whose_last_cell_says_so() {
        let rows = rows("| `crates/c` | it is pure | `a` |\n| `crates/b` | b | pure; `a` |\n");
        assert!(!rows["crates/c"].is_pure);
        assert!(rows["crates/b"].is_pure);
    }

    #[test]
    fn the_picture_has_all_arrows_and_is_drawn_again() {
        let drawn = "\n```mermaid\nflowchart BT\n  a --> b\n  b -.-> c\n```\n\n";
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        assert_eq!(
            redrawn(&page, &workspace()).unwrap(),
            format!("before\n{BEGIN}{drawn}{END}after\n")
        );
        assert!(redrawn("no picture\n", &workspace()).is_err());
    }
}
