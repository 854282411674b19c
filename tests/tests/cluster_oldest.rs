//! Real rollouts by the oldest controller with plugins. It does not support arguments and checksums of plugins.

use std::process::ExitCode;

use anyhow::Result;
use e2e_tests::walks::{a_promoted_canary_returns_the_table, an_aborted_canary_returns_the_table};
use e2e_tests::{Release, Suite};

fn main() -> Result<ExitCode> {
    Suite::run(Some(Release::V1_5), |suite| {
        macro_rules! trials {
            ($($test:ident),+ $(,)?) => { vec![$(suite.trial(stringify!($test), $test)),+] };
        }
        Ok(trials![
            a_promoted_canary_returns_the_table,
            an_aborted_canary_returns_the_table,
        ])
    })
}
