//! `cargo xtask dist`: the files of a release.
//!
//! The libraries that write them take as long to compile as the rest of xtask, so they are compiled with this command only.

#[cfg(feature = "dist")]
mod files;

use std::path::PathBuf;

use xshell::Shell;

/// Flags of `cargo xtask dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the files go.
    #[arg(long, value_name = "DIR", default_value = "dist")]
    out: PathBuf,
    /// Where the files will be downloaded from, for the manifests. Left out, that is left to whoever applies them.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Builds everything a second time, in a clone elsewhere, and compares the files.
    #[arg(long)]
    again: bool,
}

/// Writes the files of a release into a directory; files of other names in there are left alone.
///
/// # Errors
/// When one of them cannot be made as it should be. The others are written all the same.
#[cfg(feature = "dist")]
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    files::write(sh, args)
}

/// Runs the same command again, in an xtask that has the libraries.
///
/// # Errors
/// When that xtask does not compile, or fails.
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
