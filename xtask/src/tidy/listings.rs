//! The programs in a page are files of `examples`, whose tests run them. The page has a copy, because only the book's build could
//! include them, and people read the page in the repository too. What the page says about dependencies is compared with the
//! workspace, which compiles the programs.

use std::collections::BTreeSet;

use anyhow::Context as _;
use xshell::Shell;

const PAGE: &str = "docs/writing-a-plugin.md";
/// Stands above each program; ` -->` follows the path.
const BEGIN: &str = "<!-- examples/";

/// Compares the programs of the page with their files, and their dependencies with those of the workspace.
pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<String>> {
    let page = sh.read_file(PAGE)?;
    let is_current = with_programs(&page, |path| Ok(sh.read_file(path)?))? == page;
    let violation = format!("{PAGE} has an old copy of a program: run cargo xtask docs");
    let mut violations = dependencies(&page, &sh.read_file("Cargo.toml")?);
    violations.extend((!is_current).then_some(violation));
    Ok(violations)
}

/// Compares the manifest and the lines `cargo add` of the page with the manifest of the workspace, and with the programs: the first
/// program needs exactly the dependencies of the manifest, the others also those that `cargo add` adds somewhere.
fn dependencies(page: &str, workspace: &str) -> Vec<String> {
    let (_, known) = workspace
        .split_once("[workspace.dependencies]\n")
        .unwrap_or_default();
    let (known, _) = known.split_once("\n[").unwrap_or((known, ""));
    let name_of = |line: &str| line.split_once(" = ").map(|(name, _)| name.to_owned());
    let (_, manifest) = page.split_once("[dependencies]\n").unwrap_or_default();
    let (manifest, _) = manifest.split_once("```").unwrap_or_default();
    let mut violations = Vec::new();
    for line in manifest.lines().filter(|line| !line.contains("git = ")) {
        if !known.lines().any(|other| other == line) {
            violations.push(format!("{PAGE}: Cargo.toml does not have `{line}`"));
        }
    }
    let first: BTreeSet<String> = manifest.lines().filter_map(name_of).collect();
    let added = page
        .lines()
        .filter_map(|line| line.strip_prefix("cargo add "));
    let all: BTreeSet<String> = added
        .flat_map(|names| names.split(' ').map(str::to_owned))
        .chain(first.iter().cloned())
        .collect();
    for (number, program) in page.split(BEGIN).skip(1).enumerate() {
        let program = program.split("```\n").next().unwrap_or_default();
        let is_used = |name: &String| program.contains(&format!("{}::", name.replace('-', "_")));
        let used: BTreeSet<String> = known.lines().filter_map(name_of).filter(is_used).collect();
        let file = program.split(' ').next().unwrap_or_default();
        for name in used.difference(if number == 0 { &first } else { &all }) {
            violations.push(format!("{PAGE} does not say that {file} needs {name}"));
        }
        for name in first.difference(&used).filter(|_| number == 0) {
            violations.push(format!("{PAGE}: {file} does not need {name}"));
        }
    }
    violations
}

/// Copies the programs into the page.
///
/// # Errors
/// Returns `Err` if a file cannot be read or written.
pub(crate) fn copy(sh: &Shell) -> anyhow::Result<()> {
    let page = with_programs(&sh.read_file(PAGE)?, |path| Ok(sh.read_file(path)?))?;
    Ok(sh.write_file(PAGE, page)?)
}

fn with_programs(
    page: &str,
    read: impl Fn(&str) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (file, rest) = part.split_once(" -->\n\n```rust\n").context(BEGIN)?;
        let (_, after) = rest.split_once("```\n").context("a program has no end")?;
        let program = read(&format!("examples/{file}"))?;
        text.push_str(&format!(
            "{BEGIN}{file} -->\n\n```rust\n{program}```\n{after}"
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_copy_of_a_program_is_replaced() {
        let page =
            |code: &str| format!("# A\n\n<!-- examples/a.rs -->\n\n```rust\n{code}\n```\n\nEnd\n");
        let read = |path: &str| Ok(format!("// {path}\n"));
        let current = with_programs(&page("old"), read).unwrap();
        assert_eq!(current, page("// examples/a.rs"));
        assert_eq!(with_programs(&current, read).unwrap(), current);
        assert!(with_programs("<!-- examples/a.rs -->", read).is_err());
    }

    #[test]
    fn the_dependencies_of_the_page_are_those_of_its_programs() {
        let workspace = "[workspace.dependencies]\nmine = { path = \"x\" }\nserde = \"1\"\nserde_json = \"1\"\ntokio = \"1\"\n\n[patch]\n";
        let page = |manifest: &str, first: &str, second: &str| {
            let program = |code: &str| format!("<!-- examples/a.rs -->\n\n```rust\n{code}\n```\n");
            let (first, second) = (program(first), program(second));
            let manifest = format!("[dependencies]\nmine = {{ git = \"URL\" }}\n{manifest}```\n");
            let page = format!("{manifest}{first}cargo add tokio --features x\n{second}");
            dependencies(&page, workspace).len()
        };
        let good = "use mine::A; use serde::B;";
        assert_eq!(page("serde = \"1\"\n", good, "tokio::spawn"), 0);
        // Another version, one that is missing, one too many, and one that a later program needs.
        assert_eq!(page("serde = \"2\"\n", good, ""), 1);
        assert_eq!(page("", good, ""), 1);
        assert_eq!(page("serde = \"1\"\n", "mine::A", ""), 1);
        assert_eq!(page("serde = \"1\"\n", good, "serde_json::json"), 1);
    }
}
