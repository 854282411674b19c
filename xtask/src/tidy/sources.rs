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
    if is_of_people(path) {
        for (number, line) in (1..).zip(code(text)) {
            let rule =
                format!("line {number} prints Rust's debug form: write words, or a `Display`");
            require(!prints_debug(line) || ALLOWED.contains(&line.trim()), &rule);
        }
    }
    if let Some(test) = path.strip_prefix("tests/tests/") {
        // `cargo xtask test` selects the tests of a tier by these prefixes.
        let tiers = ["cluster_", "host_", "traffic_"];
        let has_tier = tiers.iter().any(|tier| test.starts_with(tier));
        require(has_tier, "start its name with cluster_, host_ or traffic_");
    }
    violations
}

/// Crates for tests only: their messages are for developers.
const FOR_TESTS: [&str; 4] = [
    "crates/envoy-routes/",
    "crates/plugin-scenarios/",
    "crates/traffic-lab/",
    "crates/traffic-page/",
];

/// Lines that print a debug form which is not Rust's, or that no person reads.
const ALLOWED: [&str; 3] = [
    // `tracing` passes the text of a field or message as the debug form of its arguments.
    r#"self.0.set(field.name(), format!("{value:?}").into());"#,
    r#"let text = format!("{value:?}");"#,
    // Only the hash of the text is used.
    r#"format!("{strategy:?}").hash(&mut hasher);"#,
];

/// Whether messages of this file may reach a person.
fn is_of_people(path: &str) -> bool {
    let is_test = path.contains("/tests/")
        || ["/tests.rs", "/testing.rs"]
            .iter()
            .any(|end| path.ends_with(end));
    path.starts_with("crates/")
        && path.contains("/src/")
        && !is_test
        && !FOR_TESTS.iter().any(|test| path.starts_with(test))
}

/// The lines before the tests of a file.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take_while(|line| *line != "#[cfg(test)]")
}

/// Whether a line formats with `{:?}`, or gives a field to `tracing` with `?`. clippy's `use_debug` sees `write!` and `print!` only,
/// neither `format!`, nor the attributes of `thiserror`, nor `tracing`.
fn prints_debug(line: &str) -> bool {
    if line.trim_start().starts_with("//") {
        return false;
    }
    let is_field = |(at, _): (usize, &str)| {
        let (before, after) = line.split_at(at);
        let opens = ["(", ", ", "= "].iter().any(|it| before.ends_with(it));
        let is_text = before.matches('"').count() % 2 == 1;
        let names = after.chars().nth(1).is_some_and(|c| c.is_ascii_lowercase());
        opens && names && !is_text
    };
    line.contains(":?}") || line.contains(":#?}") || line.match_indices('?').any(is_field)
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
        let debug = "line 2 prints Rust's debug form: write words, or a `Display`";
        let source = "crates/gob/src/a.rs";
        for line in [
            "f(\"{it:?}\")",
            "f(\"{:#?}\")",
            "debug!(?it)",
            "info!(key, why = ?it)",
        ] {
            let text = format!("//! x\n{line}\n");
            check(source, &text, &[debug]);
            check("crates/gob/tests/it/a.rs", &text, &[]);
            check(source, &format!("//! x\n#[cfg(test)]\n{line}\n"), &[]);
        }
        let fine = "//! x\n// {it:?}\nf::<T: ?Sized>(a?, b?)\nregex(\"(?i)a\")\n";
        check(source, fine, &[]);
        check("tests/tests/host_canary.rs", "//! x\n", &[]);
        let rule = "start its name with cluster_, host_ or traffic_";
        check("tests/tests/canary.rs", "//! x\n", &[rule]);
        check("Cargo.toml", "[workspace]\n", &[]);
        check("a/Cargo.toml", "[lints]\nworkspace = true\n", &[]);
        let own = "[lints.rust]\nunsafe_code = \"allow\"\n";
        check("a/Cargo.toml", own, &["add `[lints] workspace = true`"]);
    }
}
