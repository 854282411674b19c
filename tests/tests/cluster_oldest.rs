//! Real rollouts by the oldest controller that has plugins. It passes no arguments to plugins and supports no checksum of a
//! file.

use std::process::ExitCode;

use anyhow::Result;
use e2e_tests::updates::{
    a_promoted_canary_restores_the_table, an_aborted_canary_restores_the_table,
    the_advice_about_aborts_is_right,
};
use e2e_tests::{Cluster, Release, Suite, trials};

const RELEASE: Release = Release::V1_5;

async fn the_advice_about_aborts_is_right_for_the_oldest(cluster: &Cluster) -> Result<()> {
    the_advice_about_aborts_is_right(cluster, RELEASE).await
}

fn main() -> Result<ExitCode> {
    Suite::run(Some(RELEASE), |suite| {
        Ok(trials![suite:
            a_promoted_canary_restores_the_table,
            an_aborted_canary_restores_the_table,
            the_advice_about_aborts_is_right_for_the_oldest,
        ])
    })
}
