//! The list of commands, and what runs each.

use xshell::Shell;

use crate::{bench, book, demo, deny, dist, fuzz, go, record, soak, test, tidy};

/// Build, test and demo commands of this repository.
#[derive(clap::Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
pub(crate) enum Command {
    /// Walk a canary on a directory of YAML files, driving the plugin as the controller does; with --web on a page, with a real
    /// Envoy.
    Demo(demo::Args),
    /// Build the files of a release: static binaries, checksums, bills of materials, manifests.
    Dist(dist::Args),
    /// Run every test tier; fails when one of them cannot run.
    Test(test::Args),
    /// Measure decoding against Go and gobwire, planning and the plugin's process, or with --cluster the plugin on an API
    /// server; needs Go.
    Bench(bench::Args),
    /// Record what every release of the controller writes to plugins, for tests that replay it; needs Go.
    Record,
    /// Send the plugin everything that nobody should send it.
    Fuzz(fuzz::Args),
    /// Play random histories of owners, failures and a controller against the plugin, for a given time; or promote under load.
    Soak(soak::Args),
    /// Check what the documents promise: crate edges, purity, lints, formatting, the code map.
    Tidy,
    /// Check the licences and origins of all dependencies, and that no banned one is among them.
    Deny(deny::Args),
    /// Write the reference in `docs`, and build the site into `target/book`.
    Docs,
    /// Start etcd, kube-apiserver and the Rollouts controller on loopback until Ctrl-C.
    Cluster,
}

impl Command {
    /// Runs it, in a shell that is at the repository's root.
    ///
    /// # Errors
    /// When what it checks, builds or runs fails.
    pub(crate) fn run(self, sh: &Shell) -> anyhow::Result<()> {
        match self {
            Self::Demo(args) => demo::run(sh, &args),
            Self::Dist(args) => dist::run(sh, &args),
            Self::Test(args) => test::run(sh, &args),
            Self::Bench(args) => bench::run(sh, &args),
            Self::Record => record::run(sh),
            Self::Fuzz(args) => fuzz::run(sh, &args),
            Self::Soak(args) => soak::run(sh, &args),
            Self::Tidy => tidy::run(sh),
            Self::Deny(args) => deny::run(sh, &args),
            Self::Docs => book::run(sh),
            Self::Cluster => go::cluster(sh),
        }
    }
}
