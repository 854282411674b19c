//! A terminal with somebody at it.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use anyhow::Result;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

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
