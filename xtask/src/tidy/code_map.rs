//! The code map in ARCHITECTURE.md names exactly the folders that are there.

use std::collections::BTreeSet;

use xshell::Shell;

use super::Violation;

const MAP: &str = "ARCHITECTURE.md";

pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<Violation>> {
    let mut folders = BTreeSet::new();
    for parent in ["crates", "tests/go"] {
        let inside = sh
            .read_dir(parent)?
            .into_iter()
            .filter(|path| path.is_dir());
        folders.extend(
            inside.filter_map(|path| Some(format!("{parent}/{}", path.file_name()?.to_str()?))),
        );
    }
    folders.extend(["deploy", "examples", "fuzz", "patches", "tests", "xtask"].map(str::to_owned));
    Ok(compare(&sh.read_file(MAP)?, &folders))
}

/// A map entry is a table row whose first cell is a folder in backticks.
fn compare(map: &str, folders: &BTreeSet<String>) -> Vec<Violation> {
    let named: BTreeSet<String> = map
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(folder, _)| folder.trim_end_matches('/').to_owned())
        .collect();
    let unnamed = folders
        .difference(&named)
        .map(|folder| Violation::new(folder, format!("is missing in {MAP}")));
    let gone = named
        .difference(folders)
        .map(|folder| Violation::new(MAP, format!("names {folder}, which is not there")));
    unnamed.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(map: &str, expect: &[&str]) {
        let folders = BTreeSet::from(["crates/gob".to_owned(), "xtask".to_owned()]);
        let found: Vec<String> = compare(map, &folders)
            .into_iter()
            .map(|violation| violation.what)
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn map_and_folders_agree() {
        check(
            "text\n| `crates/gob` | gob |\n| `xtask/` | commands |\n",
            &[],
        );
    }

    #[test]
    fn planted_unmapped_folder() {
        check(
            "| `crates/gob` | gob |\n",
            &["is missing in ARCHITECTURE.md"],
        );
    }

    #[test]
    fn planted_stale_entry() {
        check(
            "| `crates/gob` | gob |\n| `xtask` | x |\n| `crates/gone` | x |\n",
            &["names crates/gone, which is not there"],
        );
    }
}
