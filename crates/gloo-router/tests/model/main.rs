//! Model test of the plugin: random histories of a controller, of owners' edits and of failures, and the invariants after
//! each call.
//!
//! A failing history is shrunk and printed, one action per line. Saved as `histories/<what it shows>.yaml`, it is played in
//! every later run.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic, also in its helpers, and prints what it found"
)]

mod api;
mod controller;
mod documents;
mod edit;
mod explore;
mod history;
mod oracle;
mod owner;
mod play;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use plugin_scenarios::scenarios;

use crate::explore::explore;
use crate::history::History;
use crate::play::play;

fn main() -> Result<ExitCode> {
    // Shrinking repeats a panic many times; only the last one is reported.
    std::panic::set_hook(Box::new(|_| {}));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model/histories");
    let recorded = |(name, text): (String, String)| {
        Trial::test(format!("recorded::{name}"), move || {
            let history = History::parse(&text).map_err(|error| format!("{error:#}"))?;
            play(&history, &|| {}).map_err(Failed::from)
        })
    };
    let mut trials: Vec<Trial> = scenarios(&folder)?.into_iter().map(recorded).collect();
    trials.push(Trial::test("histories", || {
        explore().map_err(|error| format!("{error:#}").into())
    }));
    Ok(libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}
