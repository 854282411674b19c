//! `install`: copies this program to where another container finds it.

use std::{env, fs, path::PathBuf};

use anyhow::Context as _;

use super::output;

/// Copy this program into a directory, such as the volume that an init container shares with the controller.
///
/// The image of the plugin holds this program and nothing else, so it has to copy itself.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// The directory. The file in it has the name that the controller's ConfigMap uses.
    directory: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<bool> {
    let program = env::current_exe().context("cannot find this program")?;
    let path = args.directory.join(crate::PROGRAM);
    let partial = path.with_extension("partial");
    // A running program cannot be overwritten, but another file can be renamed to its name. A rename is atomic, so the file
    // is never incomplete.
    fs::copy(program, &partial)
        .and_then(|_| fs::rename(&partial, &path))
        .with_context(|| format!("cannot write {}", path.display()))?;
    output::print(&format!("installed {}\n", path.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_complete_executable_and_replaces_an_older_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(crate::PROGRAM);
        fs::write(&path, "former").unwrap();
        let args = Args {
            directory: directory.path().to_owned(),
        };
        run(&args).unwrap();

        let program = env::current_exe().unwrap();
        assert!(fs::read(&path).unwrap() == fs::read(&program).unwrap());
        let permissions = |path| fs::metadata(path).unwrap().permissions();
        assert_eq!(permissions(path), permissions(program));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let args = Args {
            directory: "/nowhere/plugins".into(),
        };
        let error = run(&args).unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot write /nowhere/plugins/rollouts-plugin-trafficrouter-glooplatform"
        );
    }
}
