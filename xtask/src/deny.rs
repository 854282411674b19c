//! `cargo xtask deny`: only dependencies that `deny.toml` lets in.

use xshell::{Shell, cmd};

use crate::tools;

const CARGO_DENY: &str = "0.20.2";

/// Flags of `cargo xtask deny`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Look for known vulnerabilities instead; needs the RustSec database, which is on github.com.
    #[arg(long)]
    advisories: bool,
}

/// Checks what the flags ask for.
///
/// # Errors
/// When `deny.toml` does not let something in.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    if args.advisories {
        check(sh, &["advisories"])
    } else {
        offline(sh)
    }
}

/// Checks what needs no database.
///
/// # Errors
/// As [`run`].
pub(crate) fn offline(sh: &Shell) -> anyhow::Result<()> {
    check(sh, &["bans", "licenses", "sources"])
}

fn check(sh: &Shell, what: &[&str]) -> anyhow::Result<()> {
    let cargo_deny = tools::installed(sh, "cargo-deny", CARGO_DENY, &[])?;
    Ok(cmd!(sh, "{cargo_deny} --locked check {what...}").run()?)
}
