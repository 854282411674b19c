//! `cargo xtask test`: the tiers of the testing ladder, least powerful first.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::{
    book, deny, e2e, fuzz, go, matrix,
    needs::{self, Need},
    plugin,
    report::{ParallelRun, Report, say},
    tidy, toolchain, traffic,
};

/// Flags of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tiers to run. Default: all of them.
    #[arg(value_enum)]
    tiers: Vec<Tier>,
    /// Run only tests that need no Go, and print which tests were skipped.
    #[arg(long)]
    no_go: bool,
    /// Run the host tests with every release of the controller, not only with the oldest and the two newest, and go vet on them.
    #[arg(long)]
    matrix: bool,
}

/// A group of tests with the same needs.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// Documents, lints, dependencies, the site.
    Tidy,
    /// Unit, property, golden and wire tests, scenarios, the model, allocation counts.
    Rust,
    /// Every fuzz target for some seconds. Needs a C++ compiler.
    Fuzz,
    /// Only build the Go programs of the cluster and traffic tests.
    Programs,
    /// The packages of the controllers, of Argo CD and of Prometheus. Needs Go.
    Host,
    /// Released controllers on etcd and kube-apiserver. Needs Go.
    Cluster,
    /// Requests through a real Envoy, and the demo's page in Chromium. Needs Go for the released controllers.
    Traffic,
    /// The demo.
    Demo,
}

impl Args {
    fn asks(&self, tier: Tier) -> bool {
        self.tiers.is_empty() || self.tiers.contains(&tier)
    }

    fn with_go(&self) -> bool {
        let tiers = [Tier::Programs, Tier::Host, Tier::Cluster, Tier::Traffic];
        !self.no_go && tiers.into_iter().any(|tier| self.asks(tier))
    }

    /// Returns what the tiers need of the machine.
    fn needs(&self) -> Vec<Need> {
        let needs = [
            (Need::CxxCompiler, self.asks(Tier::Fuzz)),
            (Need::Pip, self.asks(Tier::Traffic)),
            (Need::Browser, self.asks(Tier::Traffic)),
            (Need::Go, self.with_go()),
        ];
        let needs = needs.into_iter().filter(|(_, is_needed)| *is_needed);
        needs.map(|(need, _)| need).collect()
    }
}

/// Runs the tiers.
///
/// # Errors
/// Returns `Err` if a program is missing, if the pinned toolchain cannot be installed, if a tier fails, or if it cannot run.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    needs::provide(sh, &args.needs())?;
    toolchain::pin(sh, tidy::LINTERS)?;
    if sh.var_os("CI").is_some() {
        // CI builds a clean checkout once, so it does not profit from incremental compilation.
        sh.set_var("CARGO_INCREMENTAL", "0");
        // A failed assertion names its line without line tables, which take time to generate and to link in each test binary.
        sh.set_var("CARGO_PROFILE_DEV_DEBUG", "false");
    }
    if args.with_go() && sh.var_os("GOFLAGS").is_none() {
        // Without inlining, Go compiles in two thirds of the time, and without tables for debuggers in four fifths of that. What
        // `cargo xtask bench` measures is compiled as released.
        sh.set_var("GOFLAGS", "'-gcflags=all=-l -dwarf=false'");
    }
    let asked = |tier| args.asks(tier);
    let with_go = |tier| asked(tier) && !args.no_go;
    // What is missing is reported before a build.
    if asked(Tier::Tidy) {
        toolchain::add_target(sh, tidy::PURE_TARGET)?;
    }
    if with_go(Tier::Host) || with_go(Tier::Cluster) || asked(Tier::Traffic) {
        toolchain::add_target(sh, &plugin::target())?;
    }
    let mut report = Report::default();
    // Host tests wait for a part of the time, and linking Rust uses one core, so both can run at the same time.
    let has_rust = [Tier::Tidy, Tier::Rust, Tier::Fuzz].into_iter().any(asked);
    let is_parallel = with_go(Tier::Host) && has_rust;
    let mut host = None;
    if is_parallel {
        let output = crate::workspace::target_dir(sh).join("test-host.log");
        let file = output.display();
        say(&format!(
            "the host tests run at the same time; their output goes to {file}"
        ));
        let matrix = args.matrix.then_some("--matrix");
        let arguments: Vec<&str> = ["test", "programs", "host"]
            .into_iter()
            .chain(matrix)
            .collect();
        let mut this = Command::new(std::env::current_exe()?);
        host = Some(ParallelRun::start(this.args(arguments), output)?);
        // The host tests wait in between. If they ended last, a core would have nothing to do meanwhile, so they come first.
        rustix::process::nice(5)?;
    }
    if asked(Tier::Tidy) {
        tidy::steps(sh, &mut report);
        report.step("dependencies: bans, licences, sources", || {
            deny::offline(sh)
        });
        report.step("docs: the book builds", || book::build(sh));
    }
    if asked(Tier::Rust) {
        report.step("rust: unit, property, golden, wire", || {
            Ok(cmd!(sh, "cargo test --locked --quiet --all-features").run()?)
        });
    }
    if asked(Tier::Fuzz) {
        report.step("fuzz: one minute", || fuzz::smoke(sh));
    }

    if let Some(host) = host {
        // The files of `tests/tests` give controllers some seconds, so no compiler runs beside them.
        report.step("host: all steps of the list above", || host.finish());
    }
    if args.no_go {
        say(
            "skipped: host tests, cluster tests, and traffic tests with a controller, which need Go",
        );
    }
    if with_go(Tier::Programs) || with_go(Tier::Cluster) || with_go(Tier::Traffic) {
        report.step("build: etcd, kube-apiserver, controllers, plugin", || {
            go::build(sh)
        });
    }
    let mut plugin: Option<PathBuf> = None;
    if with_go(Tier::Host) || with_go(Tier::Cluster) || asked(Tier::Traffic) {
        report.step("build: the static plugin", || {
            plugin = Some(plugin::build(sh)?);
            Ok(())
        });
    }
    let plugin = || plugin.as_deref().context("there is no plugin to test");
    if with_go(Tier::Host) && !is_parallel {
        // Argo CD's tests wait for 95 s, so they run beside the others.
        let mut argo_cd = None;
        report.step("host: Argo CD's own packages begin", || {
            argo_cd = Some(go::start_argo_cd_tests(sh, args.matrix)?);
            Ok(())
        });
        report.step("host: Go's gob", || go::gob_tests(sh));
        report.step("host: patterns of RE2", || go::re2_tests(sh));
        report.step("host: the controllers' client packages", || {
            matrix::host_tests(sh, plugin()?, args.matrix)
        });
        report.step("host: gRPC, and both protocols alike", || {
            go::grpc_tests(sh)
        });
        report.step("host: alerts and queries in Prometheus", || {
            go::prometheus_tests(sh)
        });
        report.step("host: Argo CD's own packages", || {
            argo_cd.context("they did not begin")?.finish()
        });
    }
    let mut files: Vec<&str> = Vec::new();
    let mut env = Vec::new();
    if asked(Tier::Traffic) {
        report.step("build: Envoy", || {
            env.push(("ENVOY_BINARY", traffic::envoy(sh)?));
            Ok(())
        });
        // First, because the longest files are among them.
        match args.no_go {
            true => files.extend(traffic::WITHOUT_GO),
            false => files.push("traffic_"),
        }
    }
    if with_go(Tier::Cluster) {
        files.extend(["host_", "cluster_"]);
    }
    if !files.is_empty() {
        report.step("cluster and traffic: files of tests/tests", || {
            env.push(("PLUGIN_BINARY", plugin()?.to_owned()));
            env.extend(go::variables(sh)?);
            e2e::run_in_parallel(sh, &files, &env)
        });
    }
    if asked(Tier::Demo) {
        report.step("demo", || crate::demo::walk_built(sh));
    }
    report.finish("tests")
}
