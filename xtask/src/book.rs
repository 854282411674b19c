//! `cargo xtask docs`: the pages of `docs` as a site.

use anyhow::bail;
use xshell::{Shell, cmd};

use crate::{
    plugin::{PLUGIN, target_dir},
    report::{Report, say},
    tidy, tools,
};

const MDBOOK: &str = "0.5.4";

/// Writes the reference, checks what the pages say and builds the site.
///
/// # Errors
/// When one of these fails.
pub(crate) fn run(sh: &Shell) -> anyhow::Result<()> {
    let mut report = Report::default();
    report.step("docs: reference", || {
        // A test of the plugin, as nothing here may depend on its crates; without the variable it compares.
        let test = cmd!(
            sh,
            "cargo test --locked --quiet --package {PLUGIN} --test reference"
        );
        Ok(test.env("REFERENCE", "overwrite").run()?)
    });
    tidy::documents(sh, &mut report);
    report.step("docs: the book builds", || build(sh));
    report.finish("docs")
}

/// Builds the site, into `target/book`.
///
/// # Errors
/// When mdBook cannot be had or has something to complain about.
pub(crate) fn build(sh: &Shell) -> anyhow::Result<()> {
    // Without its server.
    let flags = ["--no-default-features", "--features", "search"];
    let mdbook = tools::installed(sh, "mdbook", MDBOOK, &flags)?;
    let book = target_dir(sh).join("book");
    let build = cmd!(sh, "{mdbook} build docs --dest-dir {book}");
    let output = build.quiet().ignore_status().output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    // It exits with 0 also when it could not include a file.
    if !output.status.success() || log.contains("WARN") || log.contains("ERROR") {
        bail!("mdbook: {log}");
    }
    say(&format!("    {}", book.join("index.html").display()));
    Ok(())
}
