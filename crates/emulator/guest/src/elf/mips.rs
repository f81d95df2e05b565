//! Checks the ELF headers of MIPS programs. Source: MIPS ELF psABI supplement, "ELF header"; Linux
//! arch/mips/include/asm/elf.h (e_flags).

use crate::words::{u16_at, u32_at};

use super::{MACHINE_MIPS, Reason};

/// EF_MIPS_ABI2 (n32) and EF_MIPS_ABI.
const OTHER_ABIS: u32 = 0x20 | 0xf000;
/// EF_MIPS_ARCH_ASE_M16 and EF_MIPS_MICROMIPS.
const OTHER_ENCODINGS: u32 = 0x0600_0000;

/// Whether the header, read in its own byte order, names MIPS.
pub(super) fn is_for_mips(header: &[u8; 64]) -> bool {
    let machine = u16_at(header, 18);
    machine == MACHINE_MIPS || header[5] == 2 && machine.swap_bytes() == MACHINE_MIPS
}

/// Returns why a MIPS program cannot run, and how to rebuild it.
pub(super) fn check(header: &[u8; 64]) -> Result<(), Reason> {
    let flags = u32_at(header, 48);
    if header[5] != 1 {
        return Err(Reason {
            what: "is big-endian",
            advice: "only little-endian MIPS64 programs are supported: rebuild it for mips64el-linux-gnuabi64",
        });
    }
    if header[4] != 2 || flags & OTHER_ABIS != 0 {
        return Err(Reason {
            what: "uses an ABI other than n64",
            advice: "rebuild it for mips64el-linux-gnuabi64",
        });
    }
    if flags & OTHER_ENCODINGS != 0 {
        return Err(Reason {
            what: "contains MIPS16 or microMIPS instructions",
            advice: "rebuild it without -mips16 and -mmicromips",
        });
    }
    // EF_MIPS_ARCH: MIPS III, IV, V, MIPS64, MIPS64 release 2.
    match flags >> 28 {
        2 | 3 | 4 | 6 | 8 => Ok(()),
        10 => Err(Reason { what: "targets release 6", advice: "rebuild it with -march=mips64r2" }),
        _ => Err(Reason { what: "targets a 32-bit processor", advice: "rebuild it with -march=mips64r2" }),
    }
}
