//! Checks the ELF headers of x86 programs. Source: System V ABI, AMD64 supplement, "ELF header".

use super::Reason;
use crate::words::u16_at;

/// EM_X86_64.
pub(super) const MACHINE_X86_64: u16 = 62;
/// EM_386.
const MACHINE_386: u16 = 3;

/// Whether the header names x86.
pub(super) fn is_for_x86(header: &[u8; 64]) -> bool {
    let machine = u16_at(header, 18);
    header[5] == 1 && (machine == MACHINE_X86_64 || machine == MACHINE_386)
}

/// Returns why an x86 program cannot run, and how to rebuild it.
pub(super) fn check(header: &[u8; 64]) -> Result<(), Reason> {
    match (header[4], u16_at(header, 18)) {
        (2, MACHINE_X86_64) => Ok(()),
        (_, MACHINE_X86_64) => {
            Err(Reason { what: "uses the x32 ABI", advice: "rebuild it for x86_64-linux without -mx32" })
        }
        _ => Err(Reason { what: "targets 32-bit processors", advice: "rebuild it for x86_64-linux" }),
    }
}
