//! Plays every scenario over the memory store. `plugin_scenarios` documents the file format.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use plugin_scenarios::{Memory, play, scenarios};
use tokio::runtime::Runtime;

fn main() -> Result<ExitCode> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let trial = |(name, text): (String, String)| {
        Trial::test(name, move || {
            let runtime = Runtime::new()?;
            let outcome = runtime.block_on(play(&text, &Memory::default()));
            outcome.map_err(|error| format!("{error:#}").into())
        })
    };
    let trials = scenarios(&folder)?.into_iter().map(trial).collect();
    Ok(libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}
