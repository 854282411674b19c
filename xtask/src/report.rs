//! Runs named steps, and prints the result and the duration of each at the end.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// Runs steps one after another. A failed step does not stop the next one.
#[derive(Default)]
pub(crate) struct Report {
    steps: Vec<Step>,
}

struct Step {
    name: String,
    error: Option<anyhow::Error>,
    took: Duration,
}

impl Report {
    /// Runs `step` and stores its result.
    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce() -> anyhow::Result<()>) {
        say(&format!("==> {name}"));
        let started = Instant::now();
        let error = step().err();
        if let Some(error) = &error {
            say(&format!("    {error:#}"));
        }
        self.steps.push(Step {
            name: name.to_owned(),
            error,
            took: started.elapsed(),
        });
    }

    /// Prints one line per step, and the error of each failed one below it.
    ///
    /// # Errors
    /// Returns `Err` if any step failed; the message names them.
    pub(crate) fn finish(self, what: &str) -> anyhow::Result<()> {
        say("");
        for step in &self.steps {
            let verdict = if step.error.is_none() { "ok" } else { "FAILED" };
            say(&format!(
                "{:<44} {verdict:>6} {:>7.1} s",
                step.name,
                step.took.as_secs_f64()
            ));
            if let Some(error) = &step.error {
                say(&format!("    {error:#}"));
            }
        }
        let failed: Vec<&str> = self
            .steps
            .iter()
            .filter(|step| step.error.is_some())
            .map(|step| step.name.as_str())
            .collect();
        let passed = self.steps.len() - failed.len();
        say(&format!("{what}: {passed} passed, {} failed", failed.len()));
        if !failed.is_empty() {
            bail!("{what} failed: {}", failed.join(", "));
        }
        Ok(())
    }
}

/// A process that runs in parallel, with its output in a file.
pub(crate) struct ParallelRun {
    process: Child,
    output: PathBuf,
}

impl ParallelRun {
    /// Starts the process.
    ///
    /// # Errors
    /// Returns `Err` if the file cannot be created or the process does not start.
    pub(crate) fn start(command: &mut Command, output: PathBuf) -> anyhow::Result<Self> {
        if let Some(directory) = output.parent() {
            fs::create_dir_all(directory)?;
        }
        let file =
            File::create(&output).with_context(|| format!("cannot create {}", output.display()))?;
        let process = command
            .stdin(Stdio::null())
            .stderr(file.try_clone()?)
            .stdout(file)
            .spawn()?;
        Ok(Self { process, output })
    }

    /// Waits for the end of the process, and prints its output.
    ///
    /// # Errors
    /// Returns `Err` if the process failed.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let status = self.process.wait()?;
        say(&String::from_utf8_lossy(&fs::read(&self.output)?));
        if !status.success() {
            bail!("the process ended with {status}, see its output above");
        }
        Ok(())
    }
}

/// Prints an error and its causes in one line.
#[expect(
    clippy::print_stderr,
    reason = "the output is for a person at a terminal"
)]
pub(crate) fn print_error(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

/// Prints a line for the person at the terminal.
#[expect(
    clippy::print_stdout,
    reason = "the output is for a person at a terminal"
)]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
