//! What must hold in every manifest.

use std::path::Path;

use super::{SourceFile, Violation};

/// Packages whose errors a person reads; libraries name their errors instead.
const MAY_USE_ANYHOW: &[&str] = &[
    "crates/appset-bin",
    "crates/plugin-bin",
    "crates/plugin-scenarios",
    "examples",
    "tests",
    "xtask",
];

pub(super) fn check(files: &[SourceFile]) -> Vec<Violation> {
    files
        .iter()
        .flat_map(|file| check_manifest(&file.path, &file.text))
        .collect()
}

fn check_manifest(path: &Path, text: &str) -> Vec<Violation> {
    if text.contains("[workspace]") {
        return Vec::new();
    }
    let place = path.display().to_string();
    let mut violations = Vec::new();
    let mut refuse = |what: &str| violations.push(Violation::new(place.as_str(), what));
    if !text.contains("[lints]\nworkspace = true") {
        refuse("has no `[lints] workspace = true`");
    }
    if !text.contains("description = \"") || text.contains("description = \"\"") {
        refuse("has no description");
    }
    let dependencies = text.split("[dev-dependencies]").next().unwrap_or_default();
    if dependencies.contains("\nanyhow") && !MAY_USE_ANYHOW.iter().any(|dir| path.starts_with(dir))
    {
        refuse("a library names its errors with thiserror, not anyhow");
    }
    let mut lines = text.lines().peekable();
    let features = lines
        .by_ref()
        .skip_while(|line| *line != "[features]")
        .skip(1);
    let mut explained = false;
    for line in features.take_while(|line| !line.starts_with('[')) {
        if line.contains(" = [") && !explained {
            refuse("a feature without a `##` line above it");
        }
        explained = line.starts_with("## ");
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\ndescription = \"x\"\n[lints]\nworkspace = true\n";

    #[track_caller]
    fn check(path: &str, text: &str, expect: &[&str]) {
        let found: Vec<String> = check_manifest(Path::new(path), text)
            .into_iter()
            .map(|violation| violation.what)
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn a_good_manifest_passes() {
        check("crates/gob/Cargo.toml", GOOD, &[]);
        check(
            "crates/plugin-bin/Cargo.toml",
            &format!("{GOOD}[dependencies]\nanyhow = \"1\"\n"),
            &[],
        );
        check(
            "crates/gob/Cargo.toml",
            &format!("{GOOD}[dev-dependencies]\nanyhow = \"1\"\n"),
            &[],
        );
        check(
            "crates/gob/Cargo.toml",
            &format!("{GOOD}[features]\n## What for.\nhost = []\n"),
            &[],
        );
    }

    #[test]
    fn planted_own_lints() {
        check(
            "crates/gob/Cargo.toml",
            "[package]\ndescription = \"x\"\n[lints.rust]\nunsafe_code = \"allow\"\n",
            &["has no `[lints] workspace = true`"],
        );
    }

    #[test]
    fn planted_missing_description() {
        check(
            "crates/gob/Cargo.toml",
            "[lints]\nworkspace = true\n",
            &["has no description"],
        );
    }

    #[test]
    fn planted_anyhow_in_a_library() {
        check(
            "crates/gob/Cargo.toml",
            &format!("{GOOD}[dependencies]\nanyhow.workspace = true\n"),
            &["a library names its errors with thiserror, not anyhow"],
        );
    }

    #[test]
    fn planted_unexplained_feature() {
        check(
            "crates/gob/Cargo.toml",
            &format!("{GOOD}[features]\n## What for.\nhost = []\ntesting = [\"host\"]\n"),
            &["a feature without a `##` line above it"],
        );
    }
}
