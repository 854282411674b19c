//! What a binary must be that runs in any image: static, stripped, for the right machine.

use anyhow::{bail, ensure};
use object::{
    Endianness,
    elf::{DT_NEEDED, EM_AARCH64, EM_X86_64, FileHeader64, PT_INTERP, SHT_SYMTAB},
    read::elf::{FileHeader as _, ProgramHeader as _},
};

/// The machines that releases are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    X86_64,
    Aarch64,
}

/// Checks a binary.
///
/// # Errors
/// When it is not what it must be.
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
        // A static binary that may be loaded anywhere has a dynamic section too, but it needs no library.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_says(binary: &[u8], machine: Machine, expect: &str) {
        assert_eq!(check(binary, machine).unwrap_err().to_string(), expect);
    }

    /// The test program is dynamic and has its symbols.
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
    fn what_is_no_binary_is_refused() {
        assert!(check(b"#!/bin/sh\n", Machine::X86_64).is_err());
    }
}
