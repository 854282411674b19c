//! `cargo xtask deny`: checks that `deny.toml` allows all dependencies.

use xshell::{Shell, cmd};

use crate::toolchain;

const CARGO_DENY: &str = "0.20.2";

/// Flags of `cargo xtask deny`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Look for known vulnerabilities instead. Needs the RustSec database on github.com.
    #[arg(long)]
    advisories: bool,
}

/// Runs the checks that the flags select.
///
/// # Errors
/// Returns `Err` if `deny.toml` does not allow a dependency.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    if args.advisories {
        check(sh, &["advisories"])
    } else {
        offline(sh)
    }
}

/// Runs the checks that need no database.
///
/// # Errors
/// As [`run`].
pub(crate) fn offline(sh: &Shell) -> anyhow::Result<()> {
    check(sh, &["bans", "licenses", "sources"])
}

fn check(sh: &Shell, what: &[&str]) -> anyhow::Result<()> {
    let cargo_deny = toolchain::tool(sh, "cargo-deny", CARGO_DENY, &[])?;
    Ok(cmd!(sh, "{cargo_deny} --locked check {what...}").run()?)
}
