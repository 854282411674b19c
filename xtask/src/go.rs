//! Builds and tests that need Go: the packages of the controller and of Argo CD, the controller, etcd and kube-apiserver.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use xshell::{Cmd, Shell, cmd};

use crate::{
    e2e,
    plugin::{self, PLUGIN},
    releases::RELEASES,
    report::ParallelRun,
    workspace::target_dir,
};

/// The module whose `go.mod` pins the Go programs and packages of the tests.
pub(crate) const MODULE: &str = "tests/go/rollouts";
/// The module that compares Go's gob with ours.
const GOB: &str = "tests/go/gob";
/// The module that compares the patterns that we accept with RE2.
const RE2: &str = "tests/go/re2";
/// The module that pins the Argo CD whose packages call our generator, and the API server of the tests, the newest. They are one
/// module because they need the same packages of Kubernetes, which are then compiled once.
const ARGO_CD: &str = "tests/go/argocd";
/// The module that judges objects by the protos of Gloo's vendor. It and [`PROMETHEUS`] require the versions of [`ARGO_CD`] where they
/// share a module, so that a package is compiled once.
const GLOO: &str = "tests/go/gloo";
/// The module that pins the Prometheus that checks alerts, dashboard and queries.
const PROMETHEUS: &str = "tests/go/prometheus";
/// The package and the program of the generator.
pub(crate) const GENERATOR: &str = "gloo-appset-generator";

/// Import paths of the programs of the cluster tests; [`build`] names the binaries.
const CONTROLLER: &str = "github.com/argoproj/argo-rollouts/cmd/rollouts-controller";
/// The directory of Argo's sample plugins.
const SAMPLES: &str = "github.com/argoproj/argo-rollouts/test/cmd";
const API_SERVER: &str = "k8s.io/kubernetes/cmd/kube-apiserver";
const ETCD: &str = "go.etcd.io/etcd/server/v3";
const KUSTOMIZE: &str = "sigs.k8s.io/kustomize/kustomize/v5";
const HELM: &str = "helm.sh/helm/v3/cmd/helm";

const STRIPPED: &str = "-s -w";

/// Builds etcd, kube-apiserver, kustomize, Helm, the judge of tables, three releases of the Rollouts controller and plugins in Go
/// into `target/go/bin`.
///
/// # Errors
/// Returns `Err` if Go is not installed or a build fails.
pub(crate) fn build(sh: &Shell) -> anyhow::Result<()> {
    if cmd!(sh, "go version").quiet().run().is_err() {
        bail!("Go is not installed: get it from go.dev/dl, or use --no-go");
    }
    let bin = bin(sh);
    let api_server = api_server_flags(&sh.read_file(Path::new(ARGO_CD).join("go.mod"))?)?;
    let api_server = cmd!(
        sh,
        "go -C {ARGO_CD} build -ldflags {api_server} -o {bin}/kube-apiserver {API_SERVER}"
    );
    go(api_server).run()?;
    let build = |go_mod: &str, output: &str, package: &str| {
        let flags = controller_flags(&sh.read_file(Path::new(MODULE).join(go_mod))?)?;
        let build = cmd!(
            sh,
            "go -C {MODULE} build -modfile={go_mod} -ldflags {flags} -o {bin}/{output} {package}"
        );
        anyhow::Ok(go(build).run()?)
    };
    build("go.mod", "etcd", ETCD)?;
    build("go.mod", "kustomize", KUSTOMIZE)?;
    build("go.mod", "helm", HELM)?;
    build("go.mod", "go-plugin", "./plugin")?;
    build("go.mod", "go-plugin-broken", "./broken")?;
    for (output, sample) in [
        ("argo-router", "trafficrouter"),
        ("argo-metric", "metrics"),
        ("argo-step", "step"),
    ] {
        let package = format!("{SAMPLES}/{sample}-plugin-sample");
        build("go.mod", output, &package)?;
    }
    let judge = cmd!(sh, "go -C {GLOO} build -ldflags {STRIPPED} -o {bin}/gloo .");
    go(judge).run()?;
    for release in RELEASES.iter().filter(|release| release.always) {
        let output = format!("rollouts-controller-{}", release.version);
        build(release.go_mod, &output, CONTROLLER)?;
    }
    Ok(())
}

/// Builds the program that measures Go's decoder, and returns its path.
///
/// # Errors
/// Returns `Err` if the build fails.
pub(crate) fn build_decoder(sh: &Shell) -> anyhow::Result<PathBuf> {
    let output = target_dir(sh).join("go/bin/decode");
    go(cmd!(sh, "go -C {MODULE} build -o {output} ./decode")).run()?;
    Ok(output)
}

/// Builds a minimal router in Go, and prints what a host in Go measures for it and for the router at `ours`, in one run.
///
/// # Errors
/// Returns `Err` if a build or the measuring fails.
pub(crate) fn compare(sh: &Shell, ours: &Path) -> anyhow::Result<()> {
    let bin = bin(sh);
    for (output, package) in [("minimal-router", "./minimal"), ("compare", "./compare")] {
        let build = cmd!(
            sh,
            "go -C {MODULE} build -ldflags {STRIPPED} -o {bin}/{output} {package}"
        );
        go(build).run()?;
    }
    let (rust, go) = (
        format!("Rust={}", ours.display()),
        format!("Go={}", bin.join("minimal-router").display()),
    );
    Ok(cmd!(sh, "{bin}/compare {rust} {go}").run()?)
}

/// Prints the measurements of the host tests with the plugin at `plugin`.
///
/// # Errors
/// Returns `Err` if the measuring fails.
pub(crate) fn figures(sh: &Shell, plugin: &Path) -> anyhow::Result<()> {
    let figures = cmd!(
        sh,
        "go -C {MODULE} test -vet=off -count=1 -run ^TestFigures$"
    );
    Ok(go(figures)
        // The host collects its garbage as the controller does.
        .env("GOGC", "100")
        .env("PLUGIN_BINARY", plugin)
        .env("EXAMPLES_DIR", Programs::build(sh)?.examples())
        .run()?)
}

/// The programs that the tests start, except the release build of the plugin.
pub(crate) struct Programs(PathBuf);

impl Programs {
    /// Builds them with all features, so that cargo reuses the dependencies that `cargo test --all-features` has built.
    ///
    /// # Errors
    /// Returns `Err` if the build fails.
    pub(crate) fn build(sh: &Shell) -> anyhow::Result<Self> {
        cmd!(sh, "cargo build --locked --all-features --bins --examples").run()?;
        Ok(Self(target_dir(sh).join("debug")))
    }

    /// The directory of the examples.
    pub(crate) fn examples(&self) -> PathBuf {
        self.0.join("examples")
    }

    fn generator(&self) -> PathBuf {
        self.0.join(GENERATOR)
    }

    /// The plugin, built with gRPC mode.
    pub(crate) fn plugin(&self) -> PathBuf {
        self.0.join(PLUGIN)
    }
}

/// Runs the tests of a host that speaks gRPC, with a plugin that is built with gRPC mode.
///
/// # Errors
/// Returns `Err` if a build or a test fails.
pub(crate) fn grpc_tests(sh: &Shell) -> anyhow::Result<()> {
    Ok(go(cmd!(sh, "go -C {MODULE} test -vet=off -count=1 ./grpc"))
        .env("PLUGIN_BINARY", Programs::build(sh)?.plugin())
        .run()?)
}

/// Runs the differential test of the gob codec.
///
/// # Errors
/// Returns `Err` if a build or the test fails.
pub(crate) fn gob_tests(sh: &Shell) -> anyhow::Result<()> {
    go(cmd!(sh, "go -C {GOB} vet")).run()?;
    Ok(go(cmd!(sh, "go -C {GOB} test -count=1"))
        .env("GOB_ECHO", Programs::build(sh)?.examples().join("echo"))
        .run()?)
}

/// Runs the differential test of the patterns that RE2 accepts.
///
/// # Errors
/// Returns `Err` if a build or the test fails.
pub(crate) fn re2_tests(sh: &Shell) -> anyhow::Result<()> {
    go(cmd!(sh, "go -C {RE2} vet")).run()?;
    Ok(go(cmd!(sh, "go -C {RE2} test -count=1"))
        .env("PATTERNS", Programs::build(sh)?.examples().join("patterns"))
        .run()?)
}

/// Starts the tests with Argo CD's generators, templates and reconciler, which call our generator; with `vet`, go vet reads the
/// tests too.
///
/// # Errors
/// Returns `Err` if a build fails or Go does not start.
pub(crate) fn start_argo_cd_tests(sh: &Shell, vet: bool) -> anyhow::Result<ParallelRun> {
    // Vet reads all packages of Argo CD and Kubernetes, which takes minutes.
    let vet = (!vet).then_some("-vet=off");
    let tests = go(cmd!(sh, "go -C {ARGO_CD} test {vet...} -count=1"))
        .env("GENERATOR_BINARY", Programs::build(sh)?.generator());
    ParallelRun::start(&mut tests.into(), bin(sh).join("argo-cd.log"))
}

/// Tests the alerts on recorded series, parses every query of `deploy/observability` with Prometheus, and draws the dashboard.
///
/// # Errors
/// Returns `Err` if a build or a test fails.
pub(crate) fn prometheus_tests(sh: &Shell) -> anyhow::Result<()> {
    // Without vet, which would compile Prometheus again.
    let tests = cmd!(sh, "go -C {PROMETHEUS} test -vet=off -count=1 ./...");
    Ok(go(tests).run()?)
}

/// What the test files of `tests/tests` need, as variables: the programs of [`build`], the examples and the generator.
///
/// # Errors
/// Returns `Err` if a build fails.
pub(crate) fn variables(sh: &Shell) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let programs = Programs::build(sh)?;
    Ok(vec![
        ("EXAMPLES_DIR", programs.examples()),
        ("GENERATOR_BINARY", programs.generator()),
        ("GO_BIN_DIR", bin(sh)),
    ])
}

/// The tests of failures that need their own cluster.
const CHAOS: [&str; 8] = [
    "cluster_deletions",
    "cluster_faults",
    "cluster_informers",
    "cluster_leaders",
    "cluster_management",
    "cluster_permissions",
    "cluster_promotion",
    "cluster_background",
];

/// How long the management cluster is down in these tests, in seconds.
const OUTAGE: &str = "600";

/// Repeats the disturbances of one cluster for a given time, and then runs the tests of [`CHAOS`], with the release build of the
/// plugin.
///
/// # Errors
/// Returns `Err` if a build fails, or a table is not restored after a disturbance.
pub(crate) fn chaos(sh: &Shell, minutes: u64) -> anyhow::Result<()> {
    let plugin = plugin::build(sh)?;
    build(sh)?;
    let soak = e2e::command(sh, &["cluster_chaos"]).args(["--", "--nocapture"]);
    in_cluster(sh, soak.env("CHAOS_MINUTES", minutes.to_string()), &plugin)?;
    let others = e2e::command(sh, &CHAOS);
    in_cluster(sh, others.env("CHAOS_OUTAGE_SECONDS", OUTAGE), &plugin)
}

/// Compares `simulate` with released controllers for a number of random Rollouts, with seeds from `first`.
///
/// # Errors
/// Returns `Err` if a build fails, or a difference is found.
pub(crate) fn previews(sh: &Shell, rollouts: u64, first: Option<u64>) -> anyhow::Result<()> {
    let plugin = plugin::build(sh)?;
    build(sh)?;
    let examples = Programs::build(sh)?.examples();
    let soak = e2e::command(sh, &["cluster_previews"]).args(["--", "--nocapture"]);
    let soak = soak
        .env("PREVIEWS", rollouts.to_string())
        .env("PREVIEWS_SEED", first.unwrap_or(1).to_string())
        .env("EXAMPLES_DIR", examples);
    in_cluster(sh, soak, &plugin)
}

/// `cargo xtask cluster`: starts the cluster of the tests, and keeps it until Ctrl-C.
///
/// # Errors
/// Returns `Err` if a build fails or the cluster does not come up.
pub(crate) fn cluster(sh: &Shell) -> anyhow::Result<()> {
    let plugin = plugin::build(sh)?;
    build(sh)?;
    in_cluster(
        sh,
        cmd!(
            sh,
            "cargo run --quiet --locked --package e2e-tests --bin cluster"
        ),
        &plugin,
    )
}

fn in_cluster(sh: &Shell, command: Cmd<'_>, plugin: &Path) -> anyhow::Result<()> {
    with_programs(sh, command.env("PLUGIN_BINARY", plugin))
}

/// Runs a command with `GO_BIN_DIR`, the directory of the programs of [`build`].
///
/// # Errors
/// Returns `Err` if the command fails.
pub(crate) fn with_programs(sh: &Shell, command: Cmd<'_>) -> anyhow::Result<()> {
    Ok(command.env("GO_BIN_DIR", bin(sh)).run()?)
}

/// The directory of the programs of [`build`].
fn bin(sh: &Shell) -> PathBuf {
    target_dir(sh).join("go/bin")
}

/// The Go that compiles every module, or a newer one that a module needs. With a Go of its own, each module would compile the
/// standard library and every package that it shares with others again.
const TOOLCHAIN: &str = "go1.27.4+auto";

/// Runs Go as all commands here run it. Its cache is the user's, so that a second checkout compiles no package again.
pub(crate) fn go<'a>(command: Cmd<'a>) -> Cmd<'a> {
    command
        .env("GOTOOLCHAIN", TOOLCHAIN)
        .env("CGO_ENABLED", "0")
        // The compiler and the linker then need up to a quarter less CPU, and collect garbage only in the largest programs.
        .env("GOGC", "off")
        .env("GOMEMLIMIT", "2GiB")
}

/// Linker flags that strip an API server, and set the version that it reports.
fn api_server_flags(go_mod: &str) -> anyhow::Result<String> {
    let version = required(go_mod, "k8s.io/kubernetes")?;
    let mut parts = version.split('.');
    let mut part = || parts.next().unwrap_or_default();
    let (major, minor) = (part(), part());
    Ok(format!(
        "{STRIPPED} \
         -X k8s.io/component-base/version.gitVersion=v{version} \
         -X k8s.io/component-base/version.gitMajor={major} \
         -X k8s.io/component-base/version.gitMinor={minor}"
    ))
}

/// Linker flags that strip a controller, and set the version that it reports.
fn controller_flags(go_mod: &str) -> anyhow::Result<String> {
    let version = required(go_mod, "github.com/argoproj/argo-rollouts")?;
    Ok(format!(
        "{STRIPPED} -X github.com/argoproj/argo-rollouts/utils/version.version={version}"
    ))
}

/// The version of a module that `go.mod` requires, without `v`.
fn required<'m>(go_mod: &'m str, module: &str) -> anyhow::Result<&'m str> {
    let mut words = go_mod.split_whitespace();
    words
        .find(|word| *word == module)
        .and_then(|_| words.next()?.strip_prefix('v'))
        .with_context(|| format!("go.mod does not require {module}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_report_the_versions_of_their_modules() {
        let go_mod = "require k8s.io/kubernetes v1.37.2\n\nrequire (\n\tgithub.com/argoproj/argo-rollouts v1.9.3 // why\n)\n";
        let flags = api_server_flags(go_mod).unwrap();
        for flag in ["gitVersion=v1.37.2 ", "gitMajor=1 ", "gitMinor=37"] {
            assert!(flags.contains(flag), "{flag}: {flags}");
        }
        let flags = controller_flags(go_mod).unwrap();
        assert!(flags.ends_with("version.version=1.9.3"), "{flags}");
        assert!(controller_flags("require k8s.io/kubernetes v1.37.2").is_err());
    }
}
