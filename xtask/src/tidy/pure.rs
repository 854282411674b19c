//! Pure crates: they build for a target without operating system, and call nothing of what `clippy.toml` disallows.
//!
//! Building for WebAssembly proves that no dependency needs sockets, threads or C. It proves nothing about `std`, whose files and
//! clocks build there too and fail when they are used; clippy finds these. The rest of the workspace is checked without the
//! two lints (`[workspace.lints.clippy]`). Here they are forbidden, so no attribute in a source can allow them again.

use xshell::{Cmd, Shell, cmd};

use crate::toolchain;

const TARGET: &str = "wasm32-unknown-unknown";

const LINTS: &[&str] = &[
    "--deny=warnings",
    "--forbid=clippy::disallowed_methods",
    "--forbid=clippy::disallowed_types",
];

/// Checks the libraries of these packages.
///
/// # Errors
/// Returns `Err` if the target cannot be installed, or if one of them does not pass.
pub(super) fn check(sh: &Shell, packages: &[String]) -> anyhow::Result<()> {
    toolchain::add_target(sh, TARGET)?;
    let packages = packages.iter().flat_map(|name| ["--package", name]);
    let clippy = clippy(sh)
        .args(["--locked", "--target", TARGET])
        .args(packages);
    Ok(clippy.arg("--").args(LINTS).run()?)
}

/// Tests, examples and benches may read files and clocks.
fn clippy(sh: &Shell) -> Cmd<'_> {
    cmd!(sh, "cargo clippy --quiet --lib").quiet()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What clippy says of a library with this text, by the repository's `clippy.toml`.
    fn complaints(text: &str) -> String {
        let sh = Shell::new().unwrap();
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap();
        let directory = sh.create_temp_dir().unwrap();
        sh.change_dir(directory.path());
        sh.write_file(
            "Cargo.toml",
            "[package]\nname = \"planted\"\nedition = \"2024\"\n[workspace]\n",
        )
        .unwrap();
        sh.write_file("src/lib.rs", text).unwrap();
        let clippy = clippy(&sh).args(["--offline", "--"]).args(LINTS);
        let clippy = clippy
            .env("CLIPPY_CONF_DIR", root)
            .env_remove("CARGO_TARGET_DIR");
        let output = clippy.ignore_status().output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    }

    #[test]
    fn planted_calls_are_refused_each_by_its_name() {
        let planted = [
            ("std::env::var", "drop(std::env::var(\"HOME\"))"),
            ("std::fs::read", "drop(std::fs::read(\"/\"))"),
            ("std::fs::File", "let _: Option<std::fs::File> = None"),
            ("std::io::stdin", "drop(std::io::stdin())"),
            (
                "std::net::TcpStream",
                "drop(std::net::TcpStream::connect(\"\"))",
            ),
            (
                "std::path::Path::exists",
                "let _ = std::path::Path::new(\"/\").exists()",
            ),
            (
                "std::process::Command",
                "drop(std::process::Command::new(\"ls\"))",
            ),
            ("std::thread::spawn", "drop(std::thread::spawn(|| ()))"),
            ("std::time::Instant", "let _ = std::time::Instant::now()"),
            (
                "std::time::SystemTime",
                "let _: Option<std::time::SystemTime> = None",
            ),
        ];
        let calls: Vec<String> = planted
            .iter()
            .map(|(_, call)| format!("    {call};\n"))
            .collect();
        let found = complaints(&format!(
            "//! x\npub fn planted() {{\n{}}}\n",
            calls.concat()
        ));
        for (name, _) in planted {
            let complaint = [format!("method `{name}`"), format!("type `{name}`")];
            assert!(
                complaint.iter().any(|it| found.contains(it)),
                "{name}: {found}"
            );
        }
    }

    #[test]
    fn plain_code_passes_and_an_exception_does_not() {
        assert_eq!(complaints("//! x\npub fn one() -> u8 { 1 }\n"), "");
        let allowed = "//! x\n#![allow(clippy::disallowed_methods)]\npub fn f() { drop(std::env::var(\"HOME\")) }\n";
        assert!(
            complaints(allowed).contains("E0453"),
            "{}",
            complaints(allowed)
        );
    }
}
