//! What must hold in every Rust file, and the extra rules of the pure crates.

use std::path::Path;

use super::{SourceFile, Violation};

/// Crates whose functions are plain: no clock, environment, file, socket or thread.
const PURE: &[&str] = &[
    "crates/appset-generator/src",
    "crates/envoy-routes/src",
    "crates/gob/src",
    "crates/gloo-types/src",
    "crates/rollout-types/src",
    "crates/route-planner/src",
    "crates/strict-json/src",
];

const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
    "async fn",
    "async move",
    ".await",
];

/// Longest file: above this one file is likely two ideas.
const LONG: usize = 800;

/// `main.rs` parses and calls; it owns no logic.
const MAIN_LINES: usize = 50;

/// A test file's first word tells what it needs.
const E2E_TIERS: &[&str] = &["cluster", "host", "traffic"];

pub(super) fn check(files: &[SourceFile]) -> Vec<Violation> {
    files
        .iter()
        .flat_map(|file| check_file(&file.path, &file.text))
        .collect()
}

fn check_file(path: &Path, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let shown = path.display().to_string();
    let mut refuse = |line: usize, what: String| {
        violations.push(Violation::new(format!("{shown}:{line}"), what));
    };

    if !text.starts_with("//!") {
        refuse(
            1,
            "does not begin with `//!` saying what the file owns".into(),
        );
    }
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    if name == "mod.rs" {
        refuse(
            1,
            "modules are `foo.rs` beside `foo/`, never `mod.rs`".into(),
        );
    }
    let lines = text.lines().count();
    if name == "main.rs" && lines > MAIN_LINES {
        refuse(
            lines,
            format!("main.rs has {lines} lines; it parses and calls, the rest belongs elsewhere"),
        );
    }
    if lines > LONG {
        refuse(lines, format!("{lines} lines: divide it by its ideas"));
    }
    if path.starts_with("tests/tests") && !E2E_TIERS.iter().any(|tier| name.starts_with(tier)) {
        refuse(1, format!("names its tier first: one of {E2E_TIERS:?}"));
    }

    let pure = PURE.iter().any(|dir| path.starts_with(dir));
    for (line, code) in code_lines(text) {
        if pure {
            let impure = IMPURE.iter().filter(|word| code.contains(*word));
            impure.for_each(|word| refuse(line, format!("a pure crate uses `{word}`")));
        }
        if code.contains(concat!("#[ig", "nore")) {
            refuse(line, "a test that never runs is not a test".into());
        }
        if code.contains(concat!("allow(", "clippy")) && !text_gives_reason(text, line) {
            refuse(line, "a lint exception says its reason".into());
        }
    }
    violations
}

/// Lines with their number, without what follows `//`.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
}

/// An attribute gives its reason in itself (within the next lines) or in a comment just above.
fn text_gives_reason(text: &str, line: usize) -> bool {
    let around = text.lines().skip(line.saturating_sub(2)).take(8);
    around
        .into_iter()
        .any(|line| line.contains("reason =") || line.trim_start().starts_with("// "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expect: &[&str]) {
        let found: Vec<String> = check_file(Path::new(path), text)
            .into_iter()
            .map(|violation| violation.what)
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn a_good_file_passes() {
        check(
            "crates/gob/src/wire.rs",
            "//! Owns.\nfn f() {} // std::fs is only named here\n",
            &[],
        );
    }

    #[test]
    fn planted_missing_header() {
        check(
            "xtask/src/a.rs",
            "fn f() {}\n",
            &["does not begin with `//!` saying what the file owns"],
        );
    }

    #[test]
    fn planted_mod_rs() {
        check(
            "crates/a/src/b/mod.rs",
            "//! x\n",
            &["modules are `foo.rs` beside `foo/`, never `mod.rs`"],
        );
    }

    #[test]
    fn planted_clock_in_a_pure_crate() {
        check(
            "crates/route-planner/src/plan.rs",
            "//! x\nlet now = std::time::Instant::now();\n",
            &["a pure crate uses `Instant`"],
        );
    }

    #[test]
    fn planted_file_socket_and_environment_in_a_pure_crate() {
        check(
            "crates/gob/src/lib.rs",
            "//! x\nuse std::fs;\nuse std::net;\nuse std::env;\n",
            &[
                "a pure crate uses `std::fs`",
                "a pure crate uses `std::net`",
                "a pure crate uses `std::env`",
            ],
        );
    }

    #[test]
    fn an_impure_crate_may_read_files() {
        check(
            "crates/route-store/src/lib.rs",
            "//! x\nuse std::fs;\n",
            &[],
        );
    }

    #[test]
    fn planted_long_file() {
        let text = "//! x\n".repeat(801);
        check(
            "crates/gob/src/lib.rs",
            &text,
            &["801 lines: divide it by its ideas"],
        );
    }

    #[test]
    fn planted_long_main() {
        let text = "//! x\n".repeat(51);
        check(
            "crates/a/src/main.rs",
            &text,
            &["main.rs has 51 lines; it parses and calls, the rest belongs elsewhere"],
        );
    }

    #[test]
    fn planted_skipped_test() {
        let text = ["//! x\n", "#[ig", "nore = \"slow\"]\n"].concat();
        check(
            "crates/gob/src/lib.rs",
            &text,
            &["a test that never runs is not a test"],
        );
    }

    #[test]
    fn planted_tierless_end_to_end_test() {
        check(
            "tests/tests/canary.rs",
            "//! x\n",
            &["names its tier first: one of [\"cluster\", \"host\", \"traffic\"]"],
        );
    }

    #[test]
    fn planted_bare_lint_exception() {
        let text = ["//! x\n\n\n#[allow(", "clippy::unwrap_used)]\nfn f() {}\n"].concat();
        check(
            "crates/gob/src/lib.rs",
            &text,
            &["a lint exception says its reason"],
        );
    }
}
