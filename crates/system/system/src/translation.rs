//! Translation of virtual addresses: direct translation, direct-mapped windows, and the TLB. Source: LoongArch
//! Reference Manual, volume 1, sections 5.2 (address translation modes), 5.4 (page table mapping).

use longma_loongarch::Access;

use crate::csr::{Registers, field, sign_extend_address, table as csr};
use crate::exception::Exception;
use crate::tlb::Tlb;

/// The bits of a physical address.
pub const PHYSICAL_BITS: u64 = (1 << 48) - 1;

/// The number of translation modes: without paging, and with paging at each privilege level. Each mode has its own
/// cache of translations.
pub const MODES: usize = 5;

/// The current translation mode, below [`MODES`].
pub fn mode(registers: &Registers) -> usize {
    let crmd = registers.get(csr::CRMD);
    // The manual leaves the mode undefined if DA and PG are equal. PG decides here.
    if field(crmd, 4..=4) == 0 { 0 } else { 1 + field(crmd, 0..=1) as usize }
}

/// Translates `address` and checks that `access` is permitted.
///
/// # Errors
/// The exception that the access raises.
pub fn translate(registers: &Registers, tlb: &Tlb, address: u64, access: Access) -> Result<u64, Exception> {
    let level = match mode(registers) {
        0 => return Ok(address & PHYSICAL_BITS),
        mode => (mode - 1) as u8,
    };
    for window in [csr::DMW0, csr::DMW1, csr::DMW2, csr::DMW3] {
        let window = registers.get(window);
        if window >> level & 1 == 1 && window >> 60 == address >> 60 {
            return Ok(address & PHYSICAL_BITS);
        }
    }
    if sign_extend_address(address) != address {
        return Err(Exception::AddressError(access));
    }
    let asid = registers.field(csr::ASID, 0..=9) as u16;
    let index = tlb.search(address, asid, registers.get(csr::STLBPS) as u8);
    let entry = index.and_then(|index| tlb.get(index)).ok_or(Exception::TlbRefill)?;
    let page = entry.page(address);
    // The checks are in the order of the manual's definition of translation.
    if !page.is_valid() {
        return Err(Exception::PageInvalid(access));
    }
    match access {
        Access::Execute if page.forbids_execution() => return Err(Exception::NotExecutable),
        Access::Read if page.forbids_reads() => return Err(Exception::NotReadable),
        _ => {}
    }
    if !page.permits_level(level) {
        return Err(Exception::PagePrivilege);
    }
    // DWPL permits stores to clean pages at levels 0 to 2.
    let protects = level == 3 || registers.get(csr::MISC) >> (16 + level) & 1 == 0;
    if access == Access::Write && !page.is_dirty() && protects {
        return Err(Exception::PageModified);
    }
    Ok(page.base(entry.size) | address & ((1 << entry.size) - 1))
}

/// The physical address of `address` by the translation mode, the windows and the TLB, without permission checks; `None`
/// if none of them has it.
pub fn look_up(registers: &Registers, tlb: &Tlb, address: u64) -> Option<u64> {
    if mode(registers) == 0 {
        return Some(address & PHYSICAL_BITS);
    }
    for window in [csr::DMW0, csr::DMW1, csr::DMW2, csr::DMW3] {
        let window = registers.get(window);
        if window & 0xf != 0 && window >> 60 == address >> 60 {
            return Some(address & PHYSICAL_BITS);
        }
    }
    if sign_extend_address(address) != address {
        return None;
    }
    let asid = registers.field(csr::ASID, 0..=9) as u16;
    let entry = *tlb.get(tlb.search(address, asid, registers.get(csr::STLBPS) as u8)?)?;
    let page = entry.page(address);
    page.is_valid().then(|| page.base(entry.size) | address & ((1 << entry.size) - 1))
}
