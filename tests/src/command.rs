//! The commands of the plugin's binary, as a person runs them in a terminal.

use std::env;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tokio::process::Command;

/// What a command printed on both streams, and its exit code.
#[derive(Debug)]
pub struct Answer {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it was asked for.
    pub stdout: String,
    /// Progress and errors.
    pub stderr: String,
}

impl Answer {
    /// Checks the exit code, and that all of `texts` were printed.
    ///
    /// # Errors
    /// One of them is not so.
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

/// The binary at `$PLUGIN_BINARY`.
///
/// # Errors
/// There is none.
pub fn plugin_binary() -> Result<PathBuf> {
    let plugin = PathBuf::from(env::var_os("PLUGIN_BINARY").unwrap_or_default());
    ensure!(
        plugin.is_absolute() && plugin.is_file(),
        "PLUGIN_BINARY must be the absolute path of the plugin, it is {plugin:?}"
    );
    Ok(plugin)
}

/// Runs a command of the shipped binary as the user of the kubeconfig.
///
/// # Errors
/// It cannot be started, or does not print text.
pub async fn run(kubeconfig: &Path, line: &str) -> Result<Answer> {
    run_with(kubeconfig, line, Stdio::null()).await
}

/// As [`run`], in a terminal with typed input.
///
/// # Errors
/// As for [`run`], or there is no further pseudo-terminal.
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

/// What ends a terminal's input: Ctrl-D.
pub const END_OF_INPUT: &str = "\x04";

/// A terminal on which `typed` has been typed, as the stdin of a program. It is there until the first of the two is dropped.
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
