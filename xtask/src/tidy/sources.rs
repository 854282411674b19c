//! What must hold in every Rust file and no lint of rustc or clippy checks.

use std::path::Path;

use super::{SourceFile, Violation};

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

    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if code.contains(concat!("#[ig", "nore")) {
            refuse(index + 1, "a test that never runs is not a test".into());
        }
    }
    violations
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
        check("crates/gob/src/wire.rs", "//! Owns.\nfn f() {}\n", &[]);
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
}
