//! The programs in a page are files of `examples`, whose tests run them. The page has a copy, because only the book's build could
//! include them, and people read the page in the repository too.

use anyhow::Context as _;
use xshell::Shell;

const PAGE: &str = "docs/writing-a-plugin.md";
/// Stands above each program; ` -->` follows the path.
const BEGIN: &str = "<!-- examples/";

/// Compares the programs of the page with their files.
pub(super) fn check(sh: &Shell) -> anyhow::Result<Vec<String>> {
    let page = sh.read_file(PAGE)?;
    let is_current = with_programs(&page, |path| Ok(sh.read_file(path)?))? == page;
    let violation = format!("{PAGE} has an old copy of a program: run cargo xtask docs");
    Ok((!is_current).then_some(violation).into_iter().collect())
}

/// Copies the programs into the page.
///
/// # Errors
/// Returns `Err` if a file cannot be read or written.
pub(crate) fn copy(sh: &Shell) -> anyhow::Result<()> {
    let page = with_programs(&sh.read_file(PAGE)?, |path| Ok(sh.read_file(path)?))?;
    Ok(sh.write_file(PAGE, page)?)
}

fn with_programs(
    page: &str,
    read: impl Fn(&str) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (file, rest) = part.split_once(" -->\n\n```rust\n").context(BEGIN)?;
        let (_, after) = rest.split_once("```\n").context("a program has no end")?;
        let program = read(&format!("examples/{file}"))?;
        text.push_str(&format!(
            "{BEGIN}{file} -->\n\n```rust\n{program}```\n{after}"
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_copy_of_a_program_is_replaced() {
        let page =
            |code: &str| format!("# A\n\n<!-- examples/a.rs -->\n\n```rust\n{code}\n```\n\nEnd\n");
        let read = |path: &str| Ok(format!("// {path}\n"));
        let current = with_programs(&page("old"), read).unwrap();
        assert_eq!(current, page("// examples/a.rs"));
        assert_eq!(with_programs(&current, read).unwrap(), current);
        assert!(with_programs("<!-- examples/a.rs -->", read).is_err());
    }
}
