//! One process of the cluster, with its output in a file. Dropping it kills the process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};

/// Number of lines of a log in an error.
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

    /// The process id.
    pub(crate) fn id(&self) -> Result<i32> {
        Ok(self.child.id().try_into()?)
    }

    /// Kills the process and waits for its end.
    pub(crate) fn kill(&mut self) {
        // Both only fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the exit status; `None` while the process runs.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The file with stdout and stderr.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the last lines of the log, with the name of the process as a heading.
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
