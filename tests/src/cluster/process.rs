//! One program of the cluster: started with its output in a file, killed when dropped.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};

/// How much of a log is shown when something failed.
const TAIL_LINES: usize = 60;

/// A running child process and its log.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, with stdout and stderr in `directory/name.log`.
    pub(crate) fn start(name: &str, directory: &Path, command: &mut Command) -> Result<Self> {
        let log = directory.join(name).with_extension("log");
        let output = File::create(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> Result<i32> {
        Ok(self.child.id().try_into()?)
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// How it ended, if it has.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The file with its output.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of the log, under the name of the process.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string());
        let start = text.rmatch_indices('\n').nth(TAIL_LINES);
        let tail = start.map_or(text.as_str(), |(line_end, _)| text.split_at(line_end + 1).1);
        format!("---- {} ----\n{}\n", self.name, tail)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
