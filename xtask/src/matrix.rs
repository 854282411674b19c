//! The host tests with each tested release of the controller: the same tests, with a `go.mod` for each release.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context as _, bail};
use xshell::{Shell, cmd};

use crate::{
    go::{self, MODULE, go},
    releases::{RELEASES, Release},
    report::say,
    workspace::target_dir,
};

/// Runs go vet and the host tests with all releases, or only the host tests with those that every run tests. The releases are
/// tested in parallel, because each run is idle for 80 s.
///
/// # Errors
/// Returns `Err` if a build or a test fails.
pub(crate) fn host_tests(sh: &Shell, plugin: &Path, all: bool) -> anyhow::Result<()> {
    if all {
        // Vet reads all packages of the controller and of Kubernetes too, which takes minutes.
        go(cmd!(sh, "go -C {MODULE} vet ./...")).run()?;
    }
    let examples = go::Programs::build(sh)?.examples();
    let releases = RELEASES.iter().filter(|release| all || release.always);
    let mut tests = Vec::new();
    for release in releases {
        tests.push((release, build(sh, release)?));
    }
    let runs: Vec<Run> = tests
        .into_iter()
        .map(|(release, test)| Run::start(sh, release, &test, plugin, &examples))
        .collect::<anyhow::Result<_>>()?;
    let outcomes: Vec<Outcome> = runs
        .into_iter()
        .map(Run::finish)
        .collect::<anyhow::Result<_>>()?;

    let failed = || outcomes.iter().filter(|outcome| !outcome.passed);
    for outcome in failed() {
        say(&format!("---- {} ----\n{}", outcome.version, outcome.log));
    }
    say(&table(&outcomes));
    let failed: Vec<&str> = failed().map(|outcome| outcome.version).collect();
    if !failed.is_empty() {
        bail!("failed against {}", failed.join(", "));
    }
    Ok(())
}

/// Compiles the tests against a release.
fn build(sh: &Shell, release: &Release) -> anyhow::Result<PathBuf> {
    let Release {
        version,
        go_mod,
        tags,
        ..
    } = release;
    let test = target_dir(sh).join(format!("go/bin/host-{version}.test"));
    // Without vet, which `go test -c` runs too.
    let compile = cmd!(
        sh,
        "go -C {MODULE} test -c -vet=off -modfile={go_mod} -tags={tags} -o {test} ."
    );
    go(compile).run()?;
    Ok(test)
}

/// Tests that are running.
struct Run {
    version: &'static str,
    process: Child,
    log: PathBuf,
}

impl Run {
    fn start(
        sh: &Shell,
        release: &Release,
        test: &Path,
        plugin: &Path,
        examples: &Path,
    ) -> anyhow::Result<Self> {
        let log = test.with_extension("log");
        let output =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let process = Command::new(test)
            // Measurements of parallel tests mean nothing; `cargo xtask bench` prints them.
            .args(["-test.v", "-test.skip=^TestFigures$"])
            .current_dir(sh.current_dir().join(MODULE))
            .env("PLUGIN_BINARY", plugin)
            .env("EXAMPLES_DIR", examples)
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", test.display()))?;
        Ok(Self {
            version: release.version,
            process,
            log,
        })
    }

    fn finish(mut self) -> anyhow::Result<Outcome> {
        let passed = self.process.wait()?.success();
        let log = fs::read_to_string(&self.log)?;
        Ok(Outcome {
            version: self.version,
            passed,
            log,
        })
    }
}

/// The result of the tests with a release.
struct Outcome {
    version: &'static str,
    passed: bool,
    /// The output of `go test -v`.
    log: String,
}

impl Outcome {
    /// The verdict of each test, without subtests.
    fn verdicts(&self) -> BTreeMap<&str, &str> {
        self.log.lines().filter_map(verdict).collect()
    }
}

fn verdict(line: &str) -> Option<(&str, &str)> {
    let (verdict, rest) = line.strip_prefix("--- ")?.split_once(": ")?;
    Some((rest.split(' ').next()?, verdict))
}

/// A table with a row for each test and a column for each release. A dash means that the test does not apply to the release.
fn table(outcomes: &[Outcome]) -> String {
    let columns: Vec<_> = outcomes.iter().map(Outcome::verdicts).collect();
    let tests: BTreeSet<&str> = columns
        .iter()
        .flat_map(|column| column.keys().copied())
        .collect();
    let width = tests
        .iter()
        .map(|test| test.len())
        .max()
        .unwrap_or_default();
    let row = |name: &str, cells: Vec<&str>| {
        let cells: String = cells.iter().map(|cell| format!(" {cell:>7}")).collect();
        format!("{name:<width$}{cells}")
    };
    let head = row("", outcomes.iter().map(|outcome| outcome.version).collect());
    let rows = tests.iter().map(|test| {
        let cells = columns
            .iter()
            .map(|column| column.get(test).copied().unwrap_or("-"));
        row(test, cells.collect())
    });
    std::iter::once(head)
        .chain(rows)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_has_a_module_that_requires_it() {
        let module = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(MODULE);
        for Release {
            version, go_mod, ..
        } in RELEASES
        {
            let text = fs::read_to_string(module.join(go_mod)).unwrap();
            let requirement = format!("github.com/argoproj/argo-rollouts v{version}\n");
            assert!(text.contains(&requirement), "{go_mod}");
        }
    }

    #[test]
    fn the_docs_have_a_column_for_each_release() {
        let docs = include_str!("../../docs/compatibility.md");
        let versions: Vec<_> = RELEASES.iter().map(|release| release.version).collect();
        assert!(docs.contains(&format!("\n| | {} |\n", versions.join(" | "))));
    }

    #[test]
    fn the_table_has_a_row_for_each_test() {
        let outcome = |version, log: &str| Outcome {
            version,
            passed: true,
            log: log.to_owned(),
        };
        let outcomes = [
            outcome(
                "1.5.1",
                "=== RUN   TestA\n--- PASS: TestA (0.01s)\n    --- PASS: TestA/part (0.00s)\nPASS\n",
            ),
            outcome(
                "1.10.1",
                "--- FAIL: TestA (1.00s)\n    a_test.go:7: no\n--- PASS: TestLonger (80.0s)\n",
            ),
        ];
        let expected = "             1.5.1  1.10.1\n\
                        TestA         PASS    FAIL\n\
                        TestLonger       -    PASS";
        assert_eq!(table(&outcomes), expected);
    }
}
