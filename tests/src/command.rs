//! Runs the commands of the plugin's binary, with and without a terminal.

use std::env;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tokio::process::Command;

/// The output and the exit code of a command.
#[derive(Debug)]
pub struct Answer {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    /// The result.
    pub stdout: String,
    /// Progress and errors.
    pub stderr: String,
}

impl Answer {
    /// Checks the exit code, and that all of `texts` were printed.
    ///
    /// # Errors
    /// Returns `Err` if one of them is wrong.
    pub fn check(&self, code: i32, texts: &[&str]) -> Result<()> {
        let printed = format!("{}{}", self.stdout, self.stderr);
        ensure!(
            self.code == Some(code),
            "{:?}, not {code}: {printed}",
            self.code
        );
        for text in texts {
            ensure!(printed.contains(text), "{text:?} is not in: {printed}");
        }
        Ok(())
    }
}

/// Returns the path of the plugin in `$PLUGIN_BINARY`.
///
/// # Errors
/// Returns `Err` if it is not the absolute path of a file.
pub fn plugin_binary() -> Result<PathBuf> {
    let plugin = PathBuf::from(env::var_os("PLUGIN_BINARY").unwrap_or_default());
    ensure!(
        plugin.is_absolute() && plugin.is_file(),
        "PLUGIN_BINARY must be the absolute path of the plugin, it is {plugin:?}"
    );
    Ok(plugin)
}

/// Runs a command of the plugin's binary as the user of the kubeconfig.
///
/// # Errors
/// Returns `Err` if it cannot be started, or prints invalid UTF-8.
pub async fn run(kubeconfig: &Path, line: &str) -> Result<Answer> {
    run_with(kubeconfig, line, Stdio::null()).await
}

/// Runs a command like [`run`], in a terminal with typed input.
///
/// # Errors
/// See [`run`]. Also returns `Err` if there is no pseudo-terminal left.
pub async fn run_typing(kubeconfig: &Path, line: &str, typed: &str) -> Result<Answer> {
    let (_keyboard, stdin) = terminal(typed)?;
    run_with(kubeconfig, line, stdin).await
}

async fn run_with(kubeconfig: &Path, line: &str, stdin: Stdio) -> Result<Answer> {
    let output = Command::new(plugin_binary()?)
        .args(line.split(' '))
        .env("KUBECONFIG", kubeconfig)
        .stdin(stdin)
        .output()
        .await?;
    Ok(Answer {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
    })
}

/// Ctrl-D, which ends the input of a terminal.
pub const END_OF_INPUT: &str = "\x04";

/// Opens a terminal with the input `typed`, and returns its master side and a stdin for a program. Dropping the master side
/// closes the terminal.
pub(crate) fn terminal(typed: &str) -> Result<(OwnedFd, Stdio)> {
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&keyboard)?;
    unlockpt(&keyboard)?;
    let stdin = rustix::fs::open(
        ptsname(&keyboard, Vec::new())?,
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    rustix::io::write(&keyboard, typed.as_bytes())?;
    Ok((keyboard, stdin.into()))
}
