//! The test files of `tests`: how cargo builds and runs them.
//!
//! All commands select the same packages and features as `cargo test --all-features`, so that each dependency is compiled once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use xshell::{Cmd, Shell, cmd};

use crate::report::say;

/// How many test files run at the same time. They wait for a controller most of the time: with two of them, two cores are busy for
/// less than half of it.
const AT_ONCE: usize = 3;
/// The folder of their package, in which they run, as cargo runs them.
const PACKAGE: &str = "tests";

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
    // The programs run without cargo, which would wait while another cargo builds.
    let programs = programs(sh, &files)?;
    let commands = files.iter().zip(programs).map(|(file, program)| {
        let program = cmd!(sh, "{program}").envs(env.iter().cloned());
        let mut program = Command::from(program);
        program.current_dir(sh.current_dir().join(PACKAGE));
        // With Go's default, the API server and the controllers collect garbage for a quarter of their time.
        program.env("GOGC", "800");
        (file.as_str(), program)
    });
    let queue = Mutex::new(commands.collect::<Vec<_>>().into_iter());
    let failed = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((file, mut program)) = next else {
                return Ok(());
            };
            let started = Instant::now();
            let output = program
                .output()
                .with_context(|| format!("cannot run {file}"))?;
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

/// Builds test files, and returns the program of each.
fn programs(sh: &Shell, files: &[String]) -> anyhow::Result<Vec<String>> {
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    let build = command(sh, &names).args(["--no-run", "--message-format=json-render-diagnostics"]);
    let messages = build.read()?;
    let messages = messages.lines().map(serde_json::from_str);
    let messages = messages.collect::<Result<Vec<Value>, _>>()?;
    let program = |file: &String| {
        let of_file = |it: &&Value| it.pointer("/target/name").is_some_and(|name| name == file);
        let built = messages.iter().filter(of_file);
        let mut programs = built.filter_map(|it| it.get("executable")?.as_str());
        let program = programs.next().map(str::to_owned);
        program.with_context(|| format!("cargo built no program of {file}"))
    };
    files.iter().map(program).collect()
}

/// The names of the test files with one of `prefixes`, in the order of the prefixes.
fn files(sh: &Shell, prefixes: &[&str]) -> anyhow::Result<Vec<String>> {
    let paths = sh.read_dir(Path::new(PACKAGE).join("tests"))?;
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
