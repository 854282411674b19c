//! `cargo xtask mutants`: measures what the tests catch, with cargo-mutants. No result passes or fails.

use serde_json::Value;
use xshell::{Shell, cmd};

use crate::{report::say, toolchain, workspace::target_dir};

const CARGO_MUTANTS: &str = "27.1.0";

/// The crates whose faults users would meet first, each with the packages whose tests have to catch them.
const JUDGES: [(&str, &str); 5] = [
    ("route-planner", "route-planner,gloo-router"),
    ("gloo-router", "gloo-router"),
    ("appset-generator", "appset-generator"),
    ("go-gob", "go-gob"),
    ("rollouts-rpc", "rollouts-rpc"),
];

/// Flags of `cargo xtask mutants`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these packages.
    #[arg(value_name = "PACKAGE", value_parser = JUDGES.map(|(package, _)| package))]
    packages: Vec<String>,
    /// Try one mutant of so many; 1 tries all, which takes many hours.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    one_of: u32,
    /// Which one of them.
    #[arg(long, default_value_t = 0)]
    seed: u32,
}

/// Tries mutants of each package, and prints how many were caught, and those that were not.
///
/// # Errors
/// Returns `Err` if cargo-mutants cannot be installed, or if a package has no result.
pub(crate) fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let mutants = toolchain::tool(sh, "cargo-mutants", CARGO_MUTANTS, &[])?;
    let shard = format!("{}/{}", args.seed % args.one_of, args.one_of);
    let mut table = Vec::new();
    for (package, judges) in JUDGES {
        if !args.packages.is_empty() && !args.packages.iter().any(|it| it == package) {
            continue;
        }
        let out = target_dir(sh).join("mutants").join(package);
        sh.remove_path(&out)?;
        sh.create_dir(&out)?;
        // It exits with 2 or 3 if a mutant was missed or had a timeout.
        cmd!(
            sh,
            "{mutants} mutants --package {package} --test-package {judges} --shard {shard} --sharding round-robin --output {out} --colors never"
        )
        .ignore_status()
        .run()?;
        let outcomes = out.join("mutants.out/outcomes.json");
        table.push(row(
            package,
            &serde_json::from_str(&sh.read_file(outcomes)?)?,
        ));
        table.push(sh.read_file(out.join("mutants.out/missed.txt"))?);
    }
    say("package               viable  caught  missed");
    table.iter().for_each(|line| say(line.trim_end()));
    Ok(())
}

/// A line of the table. A timeout is a mutant that does not end: the tests catch it.
fn row(package: &str, outcomes: &Value) -> String {
    let count = |name| outcomes.get(name).and_then(Value::as_u64).unwrap_or(0);
    let (caught, missed) = (count("caught") + count("timeout"), count("missed"));
    let (viable, unviable) = (caught + missed, count("unviable"));
    format!("{package:20} {viable:7} {caught:7} {missed:7}   ({unviable} do not compile)")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_timeout_counts_as_caught() {
        let outcomes =
            json!({"outcomes": [], "caught": 9, "missed": 2, "timeout": 1, "unviable": 3});
        let row = row("go-gob", &outcomes);
        assert_eq!(
            row,
            "go-gob                    12      10       2   (3 do not compile)"
        );
    }
}
