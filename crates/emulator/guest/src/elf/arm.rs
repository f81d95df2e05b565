//! Checks the ELF headers of AArch64 programs. Source: ELF for the Arm 64-bit Architecture (AArch64), section "ELF
//! Header".

use super::Reason;
use crate::words::u16_at;

/// EM_AARCH64.
pub(super) const MACHINE_AARCH64: u16 = 183;

/// Whether the header, read in its own byte order, names AArch64.
pub(super) fn is_for_arm(header: &[u8; 64]) -> bool {
    let machine = u16_at(header, 18);
    machine == MACHINE_AARCH64 || header[5] == 2 && machine.swap_bytes() == MACHINE_AARCH64
}

/// Returns why an AArch64 program cannot run, and how to rebuild it.
pub(super) fn check(header: &[u8; 64]) -> Result<(), Reason> {
    match (header[4], header[5]) {
        (2, 1) => Ok(()),
        (2, _) => Err(Reason { what: "is big-endian", advice: "rebuild it for aarch64-linux" }),
        _ => Err(Reason {
            what: "uses the ILP32 ABI",
            advice: "rebuild it for aarch64-linux without -mabi=ilp32",
        }),
    }
}
