//! Real rollouts by the oldest controller that has plugins. It passes no arguments to plugins and supports no checksum of a
//! file.

use std::process::ExitCode;

use anyhow::Result;
use e2e_tests::updates::{
    a_promoted_canary_restores_the_table, an_aborted_canary_restores_the_table,
};
use e2e_tests::{Release, Suite, trials};

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_5), |suite| {
        Ok(trials![suite:
            a_promoted_canary_restores_the_table,
            an_aborted_canary_restores_the_table,
        ])
    })
}
