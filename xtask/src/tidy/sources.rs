//! Rules for single Rust files and manifests that no lint of rustc, clippy or cargo checks.

use super::SourceFile;

/// A longer file usually has two ideas.
const LONG: usize = 800;

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(SourceFile { path, text }: &SourceFile) -> Vec<String> {
    let mut violations = Vec::new();
    let mut require = |holds: bool, rule: &str| {
        if !holds {
            violations.push(format!("{path}: {rule}"));
        }
    };
    if path.ends_with(".rs") {
        require(text.starts_with("//!"), "start with `//!`");
        require(text.lines().count() <= LONG, "more than 800 lines");
    } else {
        // `fuzz` is a workspace of its own, and cannot inherit lints.
        let inherits = text.contains("[lints]\nworkspace = true") || text.contains("[workspace]");
        require(inherits, "add `[lints] workspace = true`");
    }
    if let Some(test) = path.strip_prefix("tests/tests/") {
        // `cargo xtask test` selects the tests of a tier by these prefixes.
        let tiers = ["cluster_", "host_", "traffic_"];
        let has_tier = tiers.iter().any(|tier| test.starts_with(tier));
        require(has_tier, "start its name with cluster_, host_ or traffic_");
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::file;

    #[track_caller]
    fn check(path: &str, text: &str, expect: &[&str]) {
        let found = check_file(&file(path, text));
        let expect = expect.iter().map(|rule| format!("{path}: {rule}"));
        assert_eq!(found, expect.collect::<Vec<_>>());
    }

    #[test]
    fn planted_files() {
        let long = |lines| "//! x\n".repeat(lines);
        check("a.rs", &long(800), &[]);
        check("a.rs", &long(801), &["more than 800 lines"]);
        check("a.rs", "fn f() {}\n", &["start with `//!`"]);
        check("tests/tests/host_canary.rs", "//! x\n", &[]);
        let rule = "start its name with cluster_, host_ or traffic_";
        check("tests/tests/canary.rs", "//! x\n", &[rule]);
        check("Cargo.toml", "[workspace]\n", &[]);
        check("a/Cargo.toml", "[lints]\nworkspace = true\n", &[]);
        let own = "[lints.rust]\nunsafe_code = \"allow\"\n";
        check("a/Cargo.toml", own, &["add `[lints] workspace = true`"]);
    }
}
