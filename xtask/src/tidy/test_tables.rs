//! The tables in `docs/maintainers` name a test in each row, and each of these tests exists.

use std::collections::BTreeSet;

use anyhow::Context as _;
use xshell::{Shell, cmd};

use super::{SourceFile, Violation, files};

const TABLES: &[&str] = &[
    "docs/maintainers/bugs-avoided.md",
    "docs/maintainers/hostile-peers.md",
    "docs/maintainers/yardstick.md",
];

pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<Violation>> {
    let mut tests = functions(&files(sh, ".rs")?);
    tests.extend(functions(&files(sh, "_test.go")?));
    let listed = cmd!(sh, "git ls-files --cached --others --exclude-standard")
        .quiet()
        .read()?;
    tests.extend(listed.lines().filter_map(scenario).map(str::to_owned));
    let mut violations = Vec::new();
    for table in TABLES {
        let text = sh
            .read_file(table)
            .with_context(|| format!("cannot read {table}"))?;
        violations.extend(compare(table, &text, &tests));
    }
    Ok(violations)
}

/// The names of all functions; a test is one of them.
fn functions(files: &[SourceFile]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in files.iter().flat_map(|file| file.text.lines()) {
        let rest = line.split_once("fn ").or_else(|| line.split_once("func "));
        if let Some((name, _)) = rest.and_then(|(_, rest)| rest.split_once('(')) {
            names.insert(name.to_owned());
        }
    }
    names
}

/// The name of a scenario's file.
fn scenario(path: &str) -> Option<&str> {
    let (folder, file) = path.rsplit_once('/')?;
    file.strip_suffix(".yaml")
        .filter(|_| folder.ends_with("/scenarios"))
}

/// The last cell of each row names tests in backticks, or says in words why there is none.
fn compare(place: &str, text: &str, tests: &BTreeSet<String>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut rows = 0;
    for (index, line) in text.lines().enumerate() {
        let place = format!("{place}:{}", index + 1);
        let Some(row) = line
            .strip_prefix("| ")
            .and_then(|row| row.strip_suffix(" |"))
        else {
            continue;
        };
        let last = row.rsplit(" | ").next().unwrap_or_default();
        // The head of a table.
        if last == "here" {
            continue;
        }
        rows += 1;
        if last.trim_matches(['|', ' ']).is_empty() {
            violations.push(Violation::new(
                place.as_str(),
                "names no test and gives no reason",
            ));
        }
        for name in last.split('`').skip(1).step_by(2) {
            if !tests.contains(name) {
                violations.push(Violation::new(
                    place.as_str(),
                    format!("there is no test {name}"),
                ));
            }
        }
    }
    if rows == 0 {
        violations.push(Violation::new(place, "has no table"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        let tests = ["s01_routes", "b13_absent"].map(str::to_owned).into();
        let found = compare("docs/x.md", text, &tests);
        let found: Vec<_> = found.into_iter().map(|it| it.what).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn tests_that_exist_and_reasons_pass() {
        check(
            "| | bug | here |\n|---|---|---|\n| B1 | x | `s01_routes`, `b13_absent` |\n",
            &[],
        );
        check("| B2 | x | about releases |\n", &[]);
    }

    #[test]
    fn planted_missing_test() {
        check(
            "| B1 | x | `s01_routes`, `gone` |\n",
            &["there is no test gone"],
        );
    }

    #[test]
    fn planted_empty_cell() {
        check("| B1 | x |  |\n", &["names no test and gives no reason"]);
    }

    #[test]
    fn planted_lost_table() {
        check("nothing here\n", &["has no table"]);
    }

    #[test]
    fn functions_and_files_are_tests() {
        let file = SourceFile {
            path: "x.rs".into(),
            text: "    async fn an_abort(cluster: &Cluster) {}\nfunc TestFigures(t *testing.T) {"
                .to_owned(),
        };
        let names: Vec<_> = functions(&[file]).into_iter().collect();
        assert_eq!(names, ["TestFigures", "an_abort"]);
        assert_eq!(scenario("crates/a/tests/scenarios/s01.yaml"), Some("s01"));
        assert_eq!(scenario("crates/a/src/base.yaml"), None);
    }
}
