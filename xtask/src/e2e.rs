//! The test files of `tests`: how cargo builds and runs them.
//!
//! All commands select the same packages and features as `cargo test --all-features`, so that each dependency is compiled once.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use xshell::{Cmd, Shell, cmd};

use crate::report::say;

/// How many test files run at the same time. They wait for a controller most of the time: with two of them, two cores are busy for
/// less than half of it.
const AT_ONCE: usize = 3;

/// Returns the command that runs test files, by name or pattern.
pub(crate) fn command<'a>(sh: &'a Shell, files: &[&str]) -> Cmd<'a> {
    let files = files.iter().flat_map(|file| ["--test", file]);
    cmd!(
        sh,
        "cargo test --locked --no-fail-fast --all-features {files...}"
    )
}

/// Runs all test files whose names start with one of `prefixes`, some of them at the same time, with the variables in `env`.
/// Prints the output of a file and how long it took when it has ended.
///
/// # Errors
/// Returns `Err` if the build or a test fails; the message names the files.
pub(crate) fn run_in_parallel(
    sh: &Shell,
    prefixes: &[&str],
    env: &[(&str, PathBuf)],
) -> anyhow::Result<()> {
    let files = files(sh, prefixes)?;
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    command(sh, &names).arg("--no-run").run()?;

    // Made by the shell, so that they have its directory and its variables: with other variables, cargo would build again.
    let commands = names.iter().map(|file| {
        let cargo = command(sh, &[file]);
        (*file, Command::from(cargo.envs(env.iter().cloned())))
    });
    let queue = Mutex::new(commands.collect::<Vec<_>>().into_iter());
    let failed = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((file, mut cargo)) = next else {
                return Ok(());
            };
            let started = Instant::now();
            let output = cargo.output().context("cannot run cargo")?;
            let took = started.elapsed().as_secs();
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            // One text, so that the outputs of two files do not mix.
            let text = [output.stdout, output.stderr].concat();
            say(&format!(
                "{file} in {took} s\n{}",
                String::from_utf8_lossy(&text)
            ));
            if !output.status.success() {
                failed.push(file);
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(worked) => worked,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })?;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The names of the test files with one of `prefixes`, in the order of the prefixes.
fn files(sh: &Shell, prefixes: &[&str]) -> anyhow::Result<Vec<String>> {
    let paths = sh.read_dir("tests/tests")?;
    let names = paths.iter().filter_map(|path| path.file_stem()?.to_str());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    let mut files = Vec::new();
    for prefix in prefixes {
        let found = names.iter().filter(|name| name.starts_with(prefix));
        let before = files.len();
        files.extend(found.map(|name| (*name).to_owned()));
        // A prefix of none would be a tier that is skipped silently.
        ensure!(files.len() > before, "tests/tests has no file {prefix}*");
    }
    Ok(files)
}
