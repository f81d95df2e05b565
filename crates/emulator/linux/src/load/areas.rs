//! The address ranges of a translator and the signal trampoline of a program for another architecture. Source: the
//! requirements of `longma-translate`.

use longma_guest::{AddressSpace, Errno, MapRequest, PAGE_BYTES, Placement, Protection};

use super::special;
use crate::Areas;
use longma_guest::elf::Architecture;

/// The range of a direct jump, so that all code can reach all other code.
const CODE_BYTES: u64 = 120 << 20;
/// The limit of code addresses, because entries of the lookup table have 32 bits.
const MAX_CODE_ADDRESS: u64 = 1 << 32;
/// `addiu v0, zero, 5211` (rt_sigreturn) and `syscall`.
const MIPS_SIGNAL_RETURN: &[u8] = &[0x5b, 0x14, 0x02, 0x24, 0x0c, 0, 0, 0];
/// `mov rax, 15` (rt_sigreturn) and `syscall`, which debuggers and unwinders recognize.
const X86_SIGNAL_RETURN: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `mov x8, 139` (rt_sigreturn) and `svc 0`, which debuggers and unwinders recognize.
const ARM_SIGNAL_RETURN: &[u8] = &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4];

/// Maps both areas: the lookup table outside the program's part of the address space, and the code at the highest free
/// address below the limit.
pub(super) fn map(space: &mut AddressSpace, architecture: Architecture) -> Result<Areas, Errno> {
    let limit = space.memory().limit();
    let table = limit / 2..limit;
    let candidates = (1..).map(|steps: u64| MAX_CODE_ADDRESS.checked_sub(steps * CODE_BYTES));
    let candidates = candidates.map_while(|start| start.filter(|start| *start >= CODE_BYTES));
    let mut candidates =
        candidates.map(|start| start & !(PAGE_BYTES - 1)).map(|start| start..start + CODE_BYTES);
    let code = candidates.find(|range| space.is_free(range.clone())).ok_or(Errno(libc::ENOMEM))?;
    for (range, name, execute) in [(&code, "[translated]", true), (&table, "[targets]", false)] {
        let protection = Protection { read: true, write: false, execute };
        let length = range.end - range.start;
        let mut request = MapRequest::anonymous(Placement::FixedNoReplace(range.start), length, protection);
        request.backing = special(name);
        request.flags = libc::MAP_NORESERVE;
        space.map(&request)?;
        space.reserve_for_engine(range.clone());
    }
    space.own_code(code.clone()).map_err(|_| Errno(libc::ENOMEM))?;
    Ok(Areas { code, table, architecture })
}

/// The signal trampoline.
pub(super) fn signal_return(architecture: Architecture) -> &'static [u8] {
    match architecture {
        Architecture::X86_64 => X86_SIGNAL_RETURN,
        Architecture::Aarch64 => ARM_SIGNAL_RETURN,
        Architecture::LoongArch64 | Architecture::Mips64 => MIPS_SIGNAL_RETURN,
    }
}
