//! Plays the Rollouts controller: starts a plugin binary, moves a canary through its steps, and prints the changes of each
//! call.
//!
//! ```sh
//! cargo run --package examples --example canary_walk -- path/to/rollouts-plugin-trafficrouter-glooplatform
//! ```

use std::{env, fs, path::Path, time::Instant};

use anstream::println;
use anstyle::{AnsiColor, Style};
use anyhow::{Context as _, ensure};
use gloo_types::{DestinationReference, RouteTableDoc};
use rollouts_rpc::{Rollout, Verification, goplugin::handshake::PluginKind, host::PluginProcess};
use serde_json::json;
use similar::{ChangeTag, TextDiff};
use tokio::process::Command;

const TABLE: &str = include_str!("canary_walk/shop.yaml");

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let plugin = env::args_os().nth(1).context("usage: canary_walk PLUGIN")?;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("shop.yaml");
    fs::write(&file, TABLE)?;

    let mut command = Command::new(plugin);
    command
        .args(["--log-level", "warn", "--route-tables-dir"])
        .arg(dir.path());
    let started = Instant::now();
    let plugin = PluginProcess::start(command, PluginKind::TrafficRouter, |line| {
        println!("{line}");
    })
    .await?;
    let router = plugin.session().dispense_router().await?;
    router.init_plugin().await?;
    println!(
        "started {} in {:.1?}",
        router.type_name().await?,
        started.elapsed()
    );

    let at_rest = None;
    let walk = [
        (at_rest, 0),
        (Some(0), 25),
        (Some(1), 50),
        (Some(2), 100),
        (at_rest, 0),
    ];
    for (step, weight) in walk {
        let rollout = reviews(step)?;
        let before = destinations(&file)?;
        let called = Instant::now();
        plugin.session().ping().await?;
        router.set_weight(&rollout, weight, &[]).await?;
        let took = called.elapsed();
        let verified = router.verify_weight(&rollout, weight, &[]).await?;
        println!("\nSetWeight {weight}: {took:.1?}, {verified:?}");
        show(&before, &destinations(&file)?);
        // At rest there is no weight to verify.
        let expected = step.map_or(Verification::NotImplemented, |_| Verification::Verified);
        ensure!(
            verified == expected,
            "the table does not show weight {weight}"
        );
    }

    let ended = plugin.quit().await?;
    ensure!(
        ended.acknowledged && ended.graceful,
        "the plugin did not exit gracefully after Quit: {}",
        ended.status
    );
    ensure!(
        fs::read_to_string(&file)? == TABLE,
        "the file differs from the owner's"
    );
    println!("\nThe file is equal to the owner's, byte for byte.");
    Ok(())
}

/// Returns the Rollout as the controller sends it, at a step or at rest.
fn reviews(step: Option<i32>) -> anyhow::Result<Rollout> {
    let rollout = json!({
        "metadata": {"name": "reviews", "namespace": "shop"},
        "spec": {"strategy": {"canary": {
            "stableService": "reviews",
            "canaryService": "reviews-canary",
            "steps": [{"setWeight": 25}, {"setWeight": 50}, {"setWeight": 100}],
            "trafficRouting": {
                "plugins": {"solo-io/glooplatform": {"routeTableSelector": {"name": "shop"}}},
            },
        }}},
        "status": {
            "stableRS": "v1",
            "currentPodHash": step.map_or("v1", |_| "v2"),
            "currentStepIndex": step,
        },
    });
    Ok(serde_json::from_value(rollout)?)
}

/// Returns one line for each route and destination of the table in `file`.
fn destinations(file: &Path) -> anyhow::Result<String> {
    let table = RouteTableDoc::from_value(serde_saphyr::from_str(&fs::read_to_string(file)?)?)?;
    let mut lines = String::new();
    for route in table.spec()?.http {
        lines.push_str(&format!("{}\n", route.name));
        let forward_to = route.forward_to.unwrap_or_default();
        for destination in forward_to.destinations.unwrap_or_default() {
            lines.push_str(&format!("  {}\n", line(&destination)));
        }
    }
    Ok(lines)
}

fn line(destination: &DestinationReference) -> String {
    let name = destination
        .reference
        .as_ref()
        .map_or("lambda", |reference| &reference.name);
    match destination.weight {
        Some(weight) => format!("{name:<16} {weight:>3}"),
        None => name.to_owned(),
    }
}

/// Prints a diff, with colours on a terminal.
fn show(before: &str, after: &str) {
    for change in TextDiff::from_lines(before, after).iter_all_changes() {
        let (sign, color) = match change.tag() {
            ChangeTag::Equal => (' ', None),
            ChangeTag::Delete => ('-', Some(AnsiColor::Red.into())),
            ChangeTag::Insert => ('+', Some(AnsiColor::Green.into())),
        };
        let style = Style::new().fg_color(color);
        println!("{style}{sign} {}{style:#}", change.value().trim_end());
    }
}
