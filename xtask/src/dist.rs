//! `cargo xtask dist`: the files of a release.
//!
//! The libraries for this take as long to compile as the rest of xtask, so only this command compiles them.

#[cfg(feature = "dist")]
mod files;

use std::path::PathBuf;

use xshell::Shell;

/// Flags of `cargo xtask dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory for the files.
    #[arg(long, value_name = "DIR", default_value = "dist")]
    out: PathBuf,
    /// The URL from which users download the files, for the manifests. Without it, the manifests have the word URL.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Build everything a second time, in another clone, and compare the files.
    #[arg(long)]
    again: bool,
}

/// Writes the files of a release into a directory, and keeps other files in it.
///
/// # Errors
/// Returns `Err` if a file cannot be built as specified; the other files are written.
#[cfg(feature = "dist")]
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    files::write(sh, args)
}

/// Runs the same command with an xtask that has the libraries.
///
/// # Errors
/// Returns `Err` if that xtask does not compile, or fails.
#[cfg(not(feature = "dist"))]
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let Args { out, url, again } = args;
    let url = url.iter().map(|url| format!("--url={url}"));
    let again = again.then_some("--again");
    xshell::cmd!(
        sh,
        "cargo run --locked --package xtask --features dist -- dist --out {out} {url...} {again...}"
    )
    .quiet()
    .run()?;
    Ok(())
}
