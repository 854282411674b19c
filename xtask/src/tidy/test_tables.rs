//! The tables in `docs/maintainers` name tests, and each of these tests exists.

use std::collections::BTreeSet;

use xshell::Shell;

use super::{files, quoted, tracked};

const TABLES: [&str; 3] = [
    "docs/maintainers/bugs-avoided.md",
    "docs/maintainers/hostile-peers.md",
    "docs/maintainers/yardstick.md",
];

pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<String>> {
    let (sources, paths) = (files(sh, &[".rs", "_test.go"])?, tracked(sh)?);
    let functions = sources.iter().flat_map(|file| functions(&file.text));
    let tests = functions.chain(paths.iter().filter_map(|path| scenario(path)));
    let tests = tests.collect();
    let mut violations = Vec::new();
    for table in TABLES {
        violations.extend(compare(table, &sh.read_file(table)?, &tests));
    }
    Ok(violations)
}

/// The names of all functions; the tests are among them.
fn functions(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let (_, rest) = line
            .split_once("fn ")
            .or_else(|| line.split_once("func "))?;
        Some(rest.split_once('(')?.0)
    })
}

/// The name of a scenario, from the path of its file.
fn scenario(path: &str) -> Option<&str> {
    let (_, name) = path.strip_suffix(".yaml")?.rsplit_once("/scenarios/")?;
    Some(name)
}

/// The last cell of a row names tests in backticks, or says in words why there is none.
fn compare(path: &str, page: &str, tests: &BTreeSet<&str>) -> Vec<String> {
    let mut violations = Vec::new();
    let mut rows = 0;
    for (line, number) in page.lines().zip(1..) {
        let row = line
            .strip_prefix("| ")
            .and_then(|row| row.strip_suffix(" |"));
        let last = row.and_then(|row| row.rsplit(" | ").next());
        // The heading of the last column is `here`.
        let Some(last) = last.filter(|last| *last != "here") else {
            continue;
        };
        rows += 1;
        if last.trim_matches(['|', ' ']).is_empty() {
            violations.push(format!(
                "{path}:{number}: names no test and gives no reason"
            ));
        }
        let unknown = quoted(last).filter(|name| !tests.contains(name));
        violations.extend(unknown.map(|name| format!("{path}:{number}: there is no test {name}")));
    }
    if rows == 0 {
        violations.push(format!("{path} has no table"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(page: &str, expect: &[&str]) {
        let source =
            "    async fn an_abort(cluster: &Cluster) {}\nfunc TestFigures(t *testing.T) {\n";
        let paths = ["a/tests/scenarios/s01_routes.yaml", "a/src/base.yaml"];
        let scenarios = paths.into_iter().filter_map(scenario);
        let tests = functions(source).chain(scenarios).collect();
        assert_eq!(compare("x.md", page, &tests), expect);
    }

    #[test]
    fn planted_rows() {
        let named = "| | bug | here |\n|---|---|---|\n| B1 | x | `s01_routes`, `TestFigures`, `an_abort` |\n";
        check(named, &[]);
        check("| B2 | x | about releases |\n", &[]);
        check(
            "| B1 | x | `s01_routes`, `gone` |\n",
            &["x.md:1: there is no test gone"],
        );
        check("| B1 | x | `base` |\n", &["x.md:1: there is no test base"]);
        check(
            "\n| B1 | x |  |\n",
            &["x.md:2: names no test and gives no reason"],
        );
        check("nothing here\n", &["x.md has no table"]);
    }
}
