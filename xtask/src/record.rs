//! `cargo xtask record`: records the bytes that releases of the controller write, for tests that replay them.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::{
    go::{MODULE, go},
    releases::RELEASES,
};

/// The directory of the recordings of the oldest and the newest release.
pub(crate) const DATA: &str = "crates/rollouts-rpc/tests/data";

/// Flags of `cargo xtask record`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Record every release into this directory, instead of the oldest and the newest into the tests' data.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Records releases, and writes a manifest with the versions and checksums.
///
/// # Errors
/// Returns `Err` if a recorder cannot be built or run.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let (releases, data) = match &args.out {
        Some(directory) => (RELEASES.iter().collect(), std::path::absolute(directory)?),
        None => {
            let ends = RELEASES.first().into_iter().chain(RELEASES.last());
            (ends.collect::<Vec<_>>(), sh.current_dir().join(DATA))
        }
    };
    sh.create_dir(&data)?;
    let mut manifest =
        "Written by `cargo xtask record`, that is tests/go/rollouts/record.\n".to_owned();
    for release in releases {
        let (go_mod, tags) = (release.go_mod, release.tags);
        let record = cmd!(
            sh,
            "go -C {MODULE} run -modfile={go_mod} -tags={tags} ./record {data}"
        );
        manifest += "\n";
        manifest += &go(record).read()?;
        manifest += "\n";
    }
    Ok(sh.write_file(data.join("MANIFEST"), manifest)?)
}
