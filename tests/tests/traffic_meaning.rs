//! A managed route changes nothing but what its step says: generated tables and steps, and each request answered twice by a real
//! Envoy, with the owner's tables and with the plugin's.
//!
//! `MEANING_TABLES` is the number of tables, and `MEANING_SEED` repeats one world of a run that printed it.

use std::env;

use anyhow::{Context as _, Result, ensure};
use e2e_tests::meaning::{CONTROLS, Checker, Options, control_world, run};

/// The number of tables of an ordinary run.
const TABLES: usize = 300;

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_route_changes_nothing_but_what_its_step_says() -> Result<()> {
    let number = |name: &str| -> Result<Option<u64>> {
        let value = env::var(name).ok().map(|value| value.parse());
        value
            .transpose()
            .with_context(|| format!("{name} is not a number"))
    };
    let seed = number("MEANING_SEED")?;
    let tables = number("MEANING_TABLES")?.map(usize::try_from).transpose()?;
    let options = Options {
        seed: seed.unwrap_or(0),
        tables: tables.unwrap_or(TABLES),
        is_single: seed.is_some(),
    };
    let report = run(options, &mut |text| println!("{text}")).await?;
    println!("{}", report.summary);
    ensure!(report.kinds.is_empty(), "{}", report.summary);
    Ok(())
}

/// Each check finds a fault that is planted into the served routes.
#[tokio::test(flavor = "multi_thread")]
async fn every_check_finds_a_planted_fault() -> Result<()> {
    let mut checker = Checker::start().await?;
    let world = [control_world()?];
    let checked = checker.check(&world).await?;
    ensure!(checked.findings.is_empty(), "{:#?}", checked.findings);
    ensure!(checked.refused + checked.skipped == 0, "{checked:?}");
    for control in CONTROLS {
        checker.plant(Some(control.fault));
        let checked = checker.check(&world).await?;
        let mut kinds: Vec<String> = checked
            .findings
            .into_iter()
            .map(|(_, it)| it.kind)
            .collect();
        kinds.dedup();
        ensure!(
            kinds.iter().any(|kind| kind == control.kind),
            "{}: {kinds:?}",
            control.kind
        );
    }
    Ok(())
}
