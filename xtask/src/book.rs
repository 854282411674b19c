//! `cargo xtask docs`: writes the generated parts of the documents, and builds a site from `docs`.

use std::path::Path;

use anyhow::{bail, ensure};
use xshell::{Shell, cmd};

use crate::{
    plugin::PLUGIN,
    report::{Report, say},
    tidy, toolchain,
    workspace::target_dir,
};

const MDBOOK: &str = "0.5.4";
/// The page of the demo, and its script element. `docs/live` has the recording, which mdBook copies.
const PAGE: &str = "crates/traffic-page/src/page/index.html";
const SCRIPT: &str = r#"<script src="app.js" defer></script>"#;
const RECORDING: &str = r#"<script src="recording.js" defer></script>"#;

/// Writes the generated parts of the pages, checks the pages and builds the site.
///
/// # Errors
/// Returns `Err` if one of these fails.
pub(crate) fn run(sh: &Shell) -> anyhow::Result<()> {
    let mut report = Report::default();
    report.step("docs: reference", || {
        // The crates' tests write it, because xtask does not depend on the crates. Without the variable they compare.
        let test = cmd!(
            sh,
            "cargo test --locked --quiet --all-features --package {PLUGIN} --package appset-generator --test reference"
        );
        Ok(test.env("REFERENCE", "overwrite").run()?)
    });
    report.step("docs: picture of the crates", || tidy::draw(sh));
    report.step("docs: programs", || tidy::copy(sh));
    tidy::documents(sh, &mut report);
    report.step("docs: the book builds", || build(sh));
    report.finish("docs")
}

/// Builds the site, into `target/book`.
///
/// # Errors
/// Returns `Err` if mdBook cannot be installed or prints a warning or an error.
pub(crate) fn build(sh: &Shell) -> anyhow::Result<()> {
    // Without mdBook's server.
    let flags = ["--no-default-features", "--features", "search"];
    let mdbook = toolchain::tool(sh, "mdbook", MDBOOK, &flags)?;
    let book = target_dir(sh).join("book");
    let build = cmd!(sh, "{mdbook} build docs --dest-dir {book}");
    let output = build.quiet().ignore_status().output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    // mdBook exits with 0 even if it cannot include a file.
    if !output.status.success() || log.contains("WARN") || log.contains("ERROR") {
        bail!("mdbook: {log}");
    }
    live(sh, &book.join("live"))?;
    say(&format!("    {}", book.join("index.html").display()));
    Ok(())
}

/// Writes the page of the demo, with the recording instead of a server.
fn live(sh: &Shell, directory: &Path) -> anyhow::Result<()> {
    let page = sh.read_file(PAGE)?;
    ensure!(page.contains(SCRIPT), "{PAGE} has no {SCRIPT}");
    let recorded = page.replace(SCRIPT, &format!("{RECORDING}\n{SCRIPT}"));
    sh.write_file(directory.join("index.html"), recorded)?;
    sh.copy_file("crates/traffic-page/src/page/app.js", directory)?;
    Ok(())
}
