//! `cargo xtask test`: every tier of the testing ladder, least powerful first.

use std::path::PathBuf;

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::{
    book, deny, envoy, fuzz, go, matrix, plugin,
    report::{Report, say},
    tidy, toolchain, traffic,
};

/// Flags of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the tiers that need no Go; says which it left out.
    #[arg(long)]
    no_go: bool,
    /// The host tests against every release of the controller, not only the oldest and the two newest.
    #[arg(long)]
    matrix: bool,
}

/// Runs the tiers; a tier that cannot run is a failed tier.
///
/// # Errors
/// When the pinned toolchain cannot be installed, or any tier failed.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    toolchain::pin(sh, tidy::LINTERS)?;
    if sh.var_os("CI").is_some() {
        // A clean checkout is built once, so nobody would read what incremental compilation keeps.
        sh.set_var("CARGO_INCREMENTAL", "0");
    }
    let mut report = Report::default();
    tidy::steps(sh, &mut report);
    report.step("dependencies: bans, licences, sources", || {
        deny::offline(sh)
    });
    report.step("docs: the book builds", || book::build(sh));
    report.step("rust: unit, property, golden, wire", || {
        Ok(cmd!(sh, "cargo test --locked --quiet --all-features").run()?)
    });
    report.step("fuzz: one minute", || fuzz::smoke(sh));
    let mut plugin: Option<PathBuf> = None;
    report.step("build: the static plugin", || {
        plugin = Some(plugin::build(sh)?);
        Ok(())
    });
    let plugin = || plugin.as_deref().context("there is no plugin to test");
    if args.no_go {
        say(
            "left out: host tests, cluster tests, and traffic tests with a controller, which need Go",
        );
    } else {
        report.step("host: Go's gob", || go::gob_tests(sh));
        report.step("build: etcd, kube-apiserver, controllers, plugin", || {
            go::build(sh)
        });
        report.step("host: the controllers' client packages", || {
            matrix::host_tests(sh, plugin()?, args.matrix)
        });
        report.step("host: gRPC, and both protocols alike", || {
            go::grpc_tests(sh)
        });
        report.step("host: alerts and queries in Prometheus", || {
            go::prometheus_tests(sh)
        });
        report.step("host: Argo CD's own packages", || go::argo_cd_tests(sh));
        report.step("cluster: the released controllers", || {
            go::cluster_tests(sh, plugin()?)
        });
    }
    let mut envoy: Option<PathBuf> = None;
    report.step("build: Envoy", || {
        envoy = Some(envoy::installed(sh)?);
        Ok(())
    });
    let envoy = || envoy.as_deref().context("there is no Envoy to test with");
    report.step("traffic: the plugin's tables in Envoy", || {
        traffic::split_tests(sh, envoy()?, plugin()?)
    });
    report.step("traffic: the page of the demo in Chromium", || {
        traffic::page_tests(sh, envoy()?, plugin()?)
    });
    if !args.no_go {
        report.step("traffic: the released controllers", || {
            traffic::promotion_tests(sh, envoy()?, plugin()?)
        });
    }
    report.step("demo", || crate::demo::walk(sh));
    report.finish("tests")
}
