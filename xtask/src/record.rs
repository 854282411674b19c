//! `cargo xtask record`: the bytes that each release of the controller writes, for tests that replay them.

use xshell::{Shell, cmd};

use crate::{
    go::{MODULE, go},
    matrix::RELEASES,
};

const DATA: &str = "crates/rollouts-rpc/tests/data";

/// Records every release, and writes down what it was done with.
///
/// # Errors
/// When a recorder cannot be built or run.
pub(crate) fn run(sh: &Shell) -> anyhow::Result<()> {
    let data = sh.current_dir().join(DATA);
    let mut manifest =
        "Written by `cargo xtask record`, that is tests/go/rollouts/record.\n".to_owned();
    for release in RELEASES {
        let (go_mod, tags) = (release.go_mod, release.tags);
        let record = cmd!(
            sh,
            "go -C {MODULE} run -modfile={go_mod} -tags={tags} ./record {data}"
        );
        manifest += "\n";
        manifest += &go(sh, record).read()?;
        manifest += "\n";
    }
    Ok(sh.write_file(data.join("MANIFEST"), manifest)?)
}
