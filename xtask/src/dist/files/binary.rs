//! A binary of a release: it runs in any image (static, stripped, for the right machine), and has a bill of materials.
//!
//! The bill is in CycloneDX 1.5 (<https://cyclonedx.org/docs/1.5/json>) and lists what is linked into the binary. `cargo tree`
//! knows this for one package and one target. Generators that read `cargo metadata` also list the features that other packages of
//! the workspace enable, and the directory of the build.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail, ensure};
use object::{
    Endianness,
    elf::{DT_NEEDED, EM_AARCH64, EM_X86_64, FileHeader64, PT_INTERP, SHT_SYMTAB},
    read::elf::{FileHeader as _, ProgramHeader as _},
};
use serde_json::{Value, json};
use xshell::{Shell, cmd};

use super::{Platform, release::Release};

/// The processors of releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    X86_64,
    Aarch64,
}

/// Checks that a binary is static, stripped and for this processor.
///
/// # Errors
/// Returns `Err` if it is not.
pub(super) fn check(binary: &[u8], machine: Machine) -> anyhow::Result<()> {
    let header = FileHeader64::<Endianness>::parse(binary)?;
    let endian = header.endian()?;
    let found = match header.e_machine(endian) {
        EM_X86_64 => Machine::X86_64,
        EM_AARCH64 => Machine::Aarch64,
        other => bail!("it is for machine {other}"),
    };
    ensure!(found == machine, "it is for {found:?}, not for {machine:?}");

    for segment in header.program_headers(endian, binary)? {
        ensure!(
            segment.p_type(endian) != PT_INTERP,
            "it is dynamic: it needs a loader"
        );
        // A static, position-independent binary has a dynamic section too, but needs no library.
        for entry in segment.dynamic(endian, binary)?.into_iter().flatten() {
            ensure!(
                entry.d_tag.get(endian) != DT_NEEDED,
                "it is dynamic: it needs a library"
            );
        }
    }
    let sections = header.sections(endian, binary)?;
    let symbols = sections.symbols(endian, binary, SHT_SYMTAB)?;
    ensure!(symbols.is_empty(), "it is not stripped");
    Ok(())
}

/// The bill of materials of a program's binary with this checksum.
///
/// # Errors
/// Returns `Err` if `cargo tree` fails or has unexpected output.
pub(super) fn bill_of_materials(
    sh: &Shell,
    release: &Release,
    program: &str,
    platform: &Platform,
    sha256: &str,
) -> anyhow::Result<String> {
    let target = platform.target;
    let format = "|{p}|{l}|";
    let tree = cmd!(
        sh,
        "cargo tree --quiet --locked --package {program} --edges normal,no-proc-macro --target {target} --prefix depth --format {format}"
    );
    let tree = tree.quiet().read()?;
    let packages = packages(&tree)?;
    let name = platform.file_name(program);
    let bill = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": name,
                "name": name,
                "version": release.version,
                "hashes": [{ "alg": "SHA-256", "content": sha256 }],
            },
        },
        "components": packages.iter().map(|(id, package)| package.component(id)).collect::<Value>(),
        "dependencies": packages.iter().map(|(id, package)| package.edges(id)).collect::<Value>(),
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

/// Name and version. All packages come from one registry.
type Id<'t> = (&'t str, &'t str);

#[derive(Debug, Default)]
struct Package<'t> {
    license: &'t str,
    is_ours: bool,
    dependencies: BTreeSet<Id<'t>>,
}

impl Package<'_> {
    fn component(&self, id: &Id<'_>) -> Value {
        let (name, version) = id;
        let mut component = json!({
            "type": "library",
            "bom-ref": reference(id),
            "name": name,
            "version": version,
            // Old crates have a slash instead of SPDX's OR.
            "licenses": [{ "expression": self.license.replace('/', " OR ") }],
        });
        if !self.is_ours
            && let Some(fields) = component.as_object_mut()
        {
            fields.insert(
                "purl".to_owned(),
                format!("pkg:cargo/{name}@{version}").into(),
            );
        }
        component
    }

    fn edges(&self, id: &Id<'_>) -> Value {
        json!({
            "ref": reference(id),
            "dependsOn": self.dependencies.iter().map(reference).collect::<Value>(),
        })
    }
}

fn reference((name, version): &Id<'_>) -> String {
    format!("{name}@{version}")
}

/// Parses lines such as `2|serde v1.0.229|MIT OR Apache-2.0|`; the number is the depth. A repeated package ends with `(*)`, and its
/// dependencies are not repeated.
fn packages(tree: &str) -> anyhow::Result<BTreeMap<Id<'_>, Package<'_>>> {
    let mut packages: BTreeMap<Id<'_>, Package<'_>> = BTreeMap::new();
    let mut parents: Vec<Id<'_>> = Vec::new();
    for line in tree.lines() {
        let mut fields = line.split('|');
        let mut field = || fields.next().context("an unknown line of cargo tree");
        let (depth, package, license) = (field()?.parse()?, field()?, field()?);
        let mut words = package.split(' ');
        let name = words.next().unwrap_or_default();
        let version = words.next().and_then(|word| word.strip_prefix('v'));
        let id = (name, version.context("a package without a version")?);

        parents.truncate(depth);
        if let Some(parent) = parents.last() {
            packages.entry(*parent).or_default().dependencies.insert(id);
        }
        parents.push(id);
        let package = packages.entry(id).or_default();
        package.license = license;
        // The third word is the directory of a local package.
        package.is_ours = words.next().is_some();
    }
    Ok(packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_says(binary: &[u8], machine: Machine, expect: &str) {
        assert_eq!(check(binary, machine).unwrap_err().to_string(), expect);
    }

    /// The test program is dynamic and not stripped.
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_dynamic_binary_and_one_of_another_machine_are_refused() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let (here, elsewhere) = match std::env::consts::ARCH {
            "x86_64" => (Machine::X86_64, Machine::Aarch64),
            _ => (Machine::Aarch64, Machine::X86_64),
        };
        check_says(&this, here, "it is dynamic: it needs a loader");
        let expect = format!("it is for {here:?}, not for {elsewhere:?}");
        check_says(&this, elsewhere, &expect);
    }

    #[test]
    fn a_script_is_refused() {
        assert!(check(b"#!/bin/sh\n", Machine::X86_64).is_err());
    }

    const TREE: &str = "\
0|plugin v0.1.0 (/home/me/plugin)|Apache-2.0|
1|serde v1.0.229|MIT/Apache-2.0|
2|serde_core v1.0.229|MIT OR Apache-2.0|
1|yamux v0.14.1|Apache-2.0 OR MIT|
2|serde v1.0.229|MIT/Apache-2.0| (*)
";

    #[test]
    fn each_package_is_listed_once_with_its_dependencies() {
        let packages = packages(TREE).unwrap();
        let shown: Vec<String> = packages
            .iter()
            .map(|(id, package)| package.edges(id).to_string())
            .collect();
        assert_eq!(
            shown,
            [
                r#"{"ref":"plugin@0.1.0","dependsOn":["serde@1.0.229","yamux@0.14.1"]}"#,
                r#"{"ref":"serde@1.0.229","dependsOn":["serde_core@1.0.229"]}"#,
                r#"{"ref":"serde_core@1.0.229","dependsOn":[]}"#,
                r#"{"ref":"yamux@0.14.1","dependsOn":["serde@1.0.229"]}"#,
            ]
        );
    }

    #[test]
    fn only_packages_of_a_registry_have_a_package_url_and_no_directory_is_shown() {
        let packages = packages(TREE).unwrap();
        let component = |id| packages.get(&id).map(|it| it.component(&id).to_string());
        assert_eq!(
            component(("plugin", "0.1.0")).unwrap(),
            r#"{"type":"library","bom-ref":"plugin@0.1.0","name":"plugin","version":"0.1.0","licenses":[{"expression":"Apache-2.0"}]}"#
        );
        assert_eq!(
            component(("serde", "1.0.229")).unwrap(),
            r#"{"type":"library","bom-ref":"serde@1.0.229","name":"serde","version":"1.0.229","licenses":[{"expression":"MIT OR Apache-2.0"}],"purl":"pkg:cargo/serde@1.0.229"}"#
        );
    }

    #[test]
    fn other_output_is_refused() {
        assert!(packages("serde v1.0.229").is_err());
    }
}
