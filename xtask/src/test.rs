//! `cargo xtask test`: the tiers of the testing ladder, least powerful first.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use clap::ValueEnum as _;
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

impl Tier {
    /// Whether its tests start servers, which need more than cargo.
    fn starts_servers(&self) -> bool {
        !matches!(self, Self::Tidy | Self::Rust | Self::Fuzz)
    }

    /// Returns its name on the command line.
    fn name(&self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |it| it.get_name().to_owned())
    }
}

impl Args {
    fn asks(&self, tier: Tier) -> bool {
        self.tiers.is_empty() || self.tiers.contains(&tier)
    }

    /// The flags without the tiers.
    fn flags(&self) -> Vec<&'static str> {
        let flags = [("--no-go", self.no_go), ("--matrix", self.matrix)];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set);
        flags.map(|(flag, _)| flag).collect()
    }

    fn with_plugin(&self) -> bool {
        let tiers = [Tier::Host, Tier::Cluster];
        self.asks(Tier::Traffic) || !self.no_go && tiers.into_iter().any(|tier| self.asks(tier))
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
    // What is missing is reported before a build.
    if args.asks(Tier::Tidy) {
        toolchain::add_target(sh, tidy::PURE_TARGET)?;
    }
    if args.with_plugin() {
        toolchain::add_target(sh, &plugin::target())?;
    }
    let mut report = Report::default();
    let (with_servers, alone): (Vec<Tier>, Vec<Tier>) = Tier::value_variants()
        .iter()
        .filter(|tier| args.asks(**tier))
        .partition(|tier| tier.starts_servers());
    if with_servers.is_empty() || alone.is_empty() {
        run_alone(sh, args, &mut report);
        run_with_servers(sh, args, &mut report);
        return report.finish("tests");
    }
    // Servers wait for a part of the time, and compilers never do, so both run at the same time.
    let output = crate::workspace::target_dir(sh).join("test-servers.log");
    let file = output.display();
    say(&format!(
        "the tests with servers run at the same time; their output goes to {file}"
    ));
    let mut this = Command::new(std::env::current_exe()?);
    this.arg("test").args(args.flags());
    this.args(with_servers.iter().map(Tier::name));
    let servers = ParallelRun::start(&mut this, output)?;
    // Servers are given some seconds for their answers, so they come first. And if they ended last, a core would have nothing to
    // do meanwhile.
    rustix::process::nice(10)?;
    run_alone(sh, args, &mut report);
    report.step(
        "host, cluster, traffic: the steps of the list above",
        || servers.finish(),
    );
    report.finish("tests")
}

/// Runs the tiers that need only cargo.
fn run_alone(sh: &Shell, args: &Args, report: &mut Report) {
    if args.asks(Tier::Tidy) {
        tidy::steps(sh, report);
        report.step("dependencies: bans, licences, sources", || {
            deny::offline(sh)
        });
        report.step("docs: the book builds", || book::build(sh));
    }
    if args.asks(Tier::Rust) {
        report.step("rust: unit, property, golden, wire", || {
            Ok(cmd!(sh, "cargo test --locked --quiet --all-features").run()?)
        });
    }
    if args.asks(Tier::Fuzz) {
        report.step("fuzz: one minute", || fuzz::smoke(sh));
    }
}

/// Runs the tiers whose tests start controllers, an API server or Envoy, and the demo.
fn run_with_servers(sh: &Shell, args: &Args, report: &mut Report) {
    let with_go = |tier| args.asks(tier) && !args.no_go;
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
    if args.with_plugin() {
        report.step("build: the static plugin", || {
            plugin = Some(plugin::build(sh)?);
            Ok(())
        });
    }
    let plugin = || plugin.as_deref().context("there is no plugin to test");
    if with_go(Tier::Host) {
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
    if args.asks(Tier::Traffic) {
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
    if args.asks(Tier::Demo) {
        report.step("demo", || crate::demo::walk_built(sh));
    }
}
