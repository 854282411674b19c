//! Checks that a build is reproducible: builds the commit again in a clone and compares the files.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, bail, ensure};
use xshell::{Shell, cmd};

use super::is_of_release;
use crate::report::say;

/// Builds the checked-out commit in a clone, for the same `url`, and compares the files with those in `out`.
///
/// Only the downloads are shared; the source, the target directory and the cache of zig are new.
///
/// # Errors
/// Returns `Err` if there are uncommitted changes, the build fails, or a file differs.
pub(super) fn compare(sh: &Shell, out: &Path, url: Option<&str>) -> anyhow::Result<()> {
    let changes = cmd!(sh, "git status --porcelain").quiet().read()?;
    ensure!(changes.is_empty(), "commit these first:\n{changes}");
    let place = sh.create_temp_dir()?;
    let clone = place.path().join("clone");
    cmd!(sh, "git clone --quiet . {clone}").run()?;

    let url = url.map(|url| format!("--url={url}"));
    let there = Shell::new()?;
    there.change_dir(&clone);
    cmd!(there, "cargo xtask dist {url...}")
        .env_remove("CARGO_TARGET_DIR")
        .env("ZIG_GLOBAL_CACHE_DIR", place.path().join("zig"))
        .run()?;
    let (first, second) = (files(sh, out)?, files(sh, &clone.join("dist"))?);
    let differing = differing(&first, &second);
    if !differing.is_empty() {
        bail!("not the same bytes: {}", differing.join(", "));
    }
    say(&format!("    {} files with the same bytes", first.len()));
    Ok(())
}

type Files = BTreeMap<String, Vec<u8>>;

/// The files of a release, by name.
fn files(sh: &Shell, dir: &Path) -> anyhow::Result<Files> {
    let mut files = Files::new();
    for path in sh.read_dir(dir)? {
        let name = path.file_name().context("a file without a name")?;
        let name = name.to_string_lossy().into_owned();
        if is_of_release(&name) {
            files.insert(name, sh.read_binary_file(path)?);
        }
    }
    Ok(files)
}

/// The names of files that are in one directory only, or that differ.
fn differing<'f>(first: &'f Files, second: &'f Files) -> Vec<&'f str> {
    let is_other = |name: &&String| first.get(*name) != second.get(*name);
    let mut names: Vec<&str> = first
        .keys()
        .chain(second.keys())
        .filter(is_other)
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(files: &[(&str, &str)]) -> Files {
        let owned = |(name, bytes): &(&str, &str)| ((*name).to_owned(), bytes.as_bytes().to_vec());
        files.iter().map(owned).collect()
    }

    #[track_caller]
    fn check(first: &[(&str, &str)], second: &[(&str, &str)], expect: &[&str]) {
        assert_eq!(differing(&release(first), &release(second)), expect);
    }

    #[test]
    fn files_that_differ_or_are_missing_are_named() {
        let files = [("a", "1"), ("b", "2")];
        check(&files, &files, &[]);
        check(&files, &[("a", "1"), ("b", "3")], &["b"]);
        check(&files, &[("b", "2")], &["a"]);
        check(&[("b", "2")], &files, &["a"]);
        check(&[("a", "1")], &[("b", "2")], &["a", "b"]);
    }
}
