//! The effects of privileged instructions on the core. Source: LoongArch Reference Manual, volume 1, sections 4.2
//! (privileged instructions), 5.4.5 (page walks), chapter 7 (CSRs).

use longma_loongarch::semantics::privileged::{Privileged, TlbOperation};
use longma_loongarch::{Reservation, State, Trap};

use super::Core;
use crate::csr::{field, row, table as csr, table::Effect, with_field};
use crate::exception::line;
use crate::tlb::{Entry, PAGE_SIZES, PageEntry, Selection};
use crate::translation::PHYSICAL_BITS;

/// Bit 6 of a page directory entry: the entry maps a huge page.
const HUGE: u64 = 1 << 6;
/// Bit 12 of a huge page's entry: the page is global.
const HUGE_GLOBAL: u64 = 1 << 12;
/// Bit 6 of a page table entry: the page is global.
const GLOBAL: u64 = 1 << 6;

impl Privileged for Core {
    fn privilege_level(&self) -> u8 {
        self.registers.field(csr::CRMD, 0..=1) as u8
    }

    fn read_csr(&self, state: &State, number: u16) -> u64 {
        let Some(row) = row(number) else { return 0 };
        match row.effect {
            Effect::Directory => self.page_directory(),
            Effect::TimerValue => self.timer.value(self.ticks()),
            Effect::TimerClear => 0,
            Effect::Reservation => {
                self.registers.read(row) | u64::from(state.reservation.address != Reservation::NONE)
            }
            _ => self.registers.read(row),
        }
    }

    fn exchange_csr(&self, state: &mut State, number: u16, value: u64, mask: u64) -> u64 {
        let old = self.read_csr(state, number);
        let Some(row) = row(number) else { return 0 };
        let written = value & mask;
        match row.effect {
            Effect::TimerClear => {
                if written & 1 == 1 {
                    self.set_status(self.registers.get(csr::ESTAT) & !(1 << line::TIMER));
                }
                return old;
            }
            Effect::StlbPageSize => {
                let size = old & !mask | written;
                if PAGE_SIZES >> (size & 63) & 1 == 0 {
                    return old;
                }
            }
            Effect::Reservation if written & 2 != 0 => state.reservation = Reservation::default(),
            _ => {}
        }
        self.registers.write(row, value, mask);
        match row.effect {
            Effect::Mode => {
                self.update_mode();
                // DWPL changes which pages are writable.
                if number == csr::MISC {
                    self.forget_translations();
                }
            }
            Effect::Translation | Effect::StlbPageSize => self.forget_translations(),
            Effect::Enable => self.attend(),
            Effect::TimerConfiguration => {
                self.timer.configure(self.registers.get(csr::TCFG), self.ticks());
                self.attend();
            }
            _ => {}
        }
        old
    }

    fn read_iocsr(&self, address: u64, bytes: usize) -> u64 {
        self.bus.platform.borrow_mut().read_iocsr(self.number, address, bytes)
    }

    fn write_iocsr(&self, address: u64, bytes: usize, value: u64) {
        self.bus.platform.borrow_mut().write_iocsr(self.number, address, bytes, value);
        self.update_lines();
    }

    fn maintain_tlb(&self, operation: TlbOperation) {
        let index = self.registers.field(csr::TLBIDX, 0..=11) as usize;
        match operation {
            TlbOperation::Search => self.search_tlb(),
            TlbOperation::Read => self.read_tlb(index),
            TlbOperation::Write => {
                let replaced = self.tlb.borrow_mut().write(index, self.new_entry());
                self.forget_if(replaced);
            }
            TlbOperation::Fill => {
                if let Some(entry) = self.new_entry() {
                    let replaced = self.tlb.borrow_mut().fill(entry, self.stlb_size());
                    self.forget_if(replaced);
                }
            }
            TlbOperation::Clear => {
                self.tlb.borrow_mut().clear(index, Some(self.asid()));
                self.forget_translations();
            }
            TlbOperation::Flush => {
                self.tlb.borrow_mut().clear(index, None);
                self.forget_translations();
            }
        }
    }

    fn invalidate_tlb(&self, operation: u32, asid: u64, address: u64) -> Result<(), Trap> {
        let selection = Selection::new(operation, asid, address).ok_or(Trap::IllegalInstruction)?;
        self.tlb.borrow_mut().invalidate(selection);
        self.forget_translations();
        Ok(())
    }

    fn load_directory(&self, base: u64, level: u32) -> u64 {
        if base & HUGE != 0 {
            // Bits 14 and 13 tell LDPTE the level of the huge page; an earlier LDDIR may have set them.
            return if field(base, 13..=14) == 0 && level < 4 {
                with_field(base, 13..=14, u64::from(level))
            } else {
                base
            };
        }
        let Some((start, width)) = self.directory_bits(level) else { return base };
        self.table_entry(base, index_bits(self.registers.get(csr::TLBRBADV), start, width))
    }

    fn load_page_entry(&self, base: u64, odd: bool) {
        let (start, width) = self.directory_bits(0).unwrap_or((0, 0));
        let (entry, size) = if base & HUGE != 0 {
            let (start, width) = self.directory_bits(field(base, 13..=14) as u32).unwrap_or((0, 0));
            // A TLB entry maps a pair of pages, so the two halves of a huge page form the pair.
            let size = (start + width).saturating_sub(1);
            let half = if odd { 1u64.checked_shl(size).unwrap_or(0) } else { 0 };
            let global = if base & HUGE_GLOBAL != 0 { GLOBAL } else { 0 };
            let plain = with_field(base, 13..=14, 0) & !HUGE & !HUGE_GLOBAL;
            ((plain | global).wrapping_add(half), size)
        } else {
            let index = index_bits(self.registers.get(csr::TLBRBADV), start, width) & !1;
            (self.table_entry(base, index | u64::from(odd)), start)
        };
        let number = if odd { csr::TLBRELO1 } else { csr::TLBRELO0 };
        // Software may keep its own data in entry bits that the TLB does not have.
        let writable = row(number).map_or(0, |row| row.writable);
        self.registers.set(number, entry & writable);
        self.registers.set_field(csr::TLBREHI, 0..=5, u64::from(size));
    }

    fn return_from_exception(&self, state: &mut State) {
        self.leave(state);
    }

    fn idle(&self) {
        self.set_idle(true);
        self.attend();
    }
}

impl Core {
    fn asid(&self) -> u16 {
        self.registers.field(csr::ASID, 0..=9) as u16
    }

    fn stlb_size(&self) -> u8 {
        self.registers.get(csr::STLBPS) as u8
    }

    /// Whether the core handles a TLB refill, during which TLB instructions use the TLBR registers.
    fn in_refill(&self) -> bool {
        self.registers.field(csr::TLBRERA, 0..=0) == 1
    }

    fn page_directory(&self) -> u64 {
        let address = self.registers.get(if self.in_refill() { csr::TLBRBADV } else { csr::BADV });
        self.registers.get(if address >> 63 == 0 { csr::PGDL } else { csr::PGDH })
    }

    fn forget_if(&self, replaced: bool) {
        if replaced {
            self.forget_translations();
        }
    }

    /// The entry that TLBWR and TLBFILL write; `None` if TLBIDX.NE marks it as empty or the page size is not supported.
    fn new_entry(&self) -> Option<Entry> {
        let get = |number| self.registers.get(number);
        if self.in_refill() {
            let high = get(csr::TLBREHI);
            let low = [get(csr::TLBRELO0), get(csr::TLBRELO1)];
            return Entry::new(high, field(high, 0..=5), self.asid(), low);
        }
        let index = get(csr::TLBIDX);
        let low = [get(csr::TLBELO0), get(csr::TLBELO1)];
        match field(index, 31..=31) {
            0 => Entry::new(get(csr::TLBEHI), field(index, 24..=29), self.asid(), low),
            _ => None,
        }
    }

    fn search_tlb(&self) {
        let number = if self.in_refill() { csr::TLBREHI } else { csr::TLBEHI };
        let address = self.registers.get(number) & !0x1fff;
        let found = self.tlb.borrow().search(address, self.asid(), self.stlb_size());
        if let Some(index) = found {
            self.registers.set_field(csr::TLBIDX, 0..=11, index as u64);
        }
        self.registers.set_field(csr::TLBIDX, 31..=31, u64::from(found.is_none()));
    }

    fn read_tlb(&self, index: usize) {
        let entry = self.tlb.borrow().get(index).copied().unwrap_or_default();
        let low = entry.pages.map(|page| page.0 & !GLOBAL | if entry.global { GLOBAL } else { 0 });
        self.registers.set_field(csr::TLBIDX, 31..=31, u64::from(!entry.exists));
        self.registers.set_field(csr::TLBIDX, 24..=29, if entry.exists { entry.size.into() } else { 0 });
        self.registers.set(csr::TLBEHI, if entry.exists { entry.pair << 13 } else { 0 });
        self.registers.set(csr::TLBELO0, if entry.exists { low[0] } else { 0 });
        self.registers.set(csr::TLBELO1, if entry.exists { low[1] } else { 0 });
        self.registers.set_field(csr::ASID, 0..=9, if entry.exists { entry.asid.into() } else { 0 });
        self.forget_translations();
    }

    /// The position and the number of the address bits that index a level of the page table. Level 0 is the last level;
    /// levels 1 to 4 are directories.
    fn directory_bits(&self, level: u32) -> Option<(u32, u32)> {
        let (number, position, bits) = match level {
            0 => (csr::PWCL, 0, 5),
            1 => (csr::PWCL, 10, 5),
            2 => (csr::PWCL, 20, 5),
            3 => (csr::PWCH, 0, 6),
            4 => (csr::PWCH, 12, 6),
            _ => return None,
        };
        let part = |start: u32| self.registers.field(number, start..=start + bits - 1) as u32;
        Some((part(position), part(position + bits)))
    }

    /// The physical address of a virtual address in the page tables, for any type of access.
    pub(super) fn walk(&self, address: u64) -> Option<u64> {
        let mut base = self.registers.get(if address >> 63 == 0 { csr::PGDL } else { csr::PGDH });
        for level in (1..=4).rev() {
            let (start, width) = self.directory_bits(level)?;
            if width > 0 {
                base = self
                    .table_entry(Some(base).filter(|base| *base != 0)?, index_bits(address, start, width));
            }
            if base & HUGE != 0 {
                return page_address(base, start, address);
            }
        }
        let (start, width) = self.directory_bits(0)?;
        let entry =
            self.table_entry(Some(base).filter(|base| *base != 0)?, index_bits(address, start, width));
        page_address(entry, start, address)
    }

    /// The entry of a table at the physical address `base`; 0 if there is no memory.
    fn table_entry(&self, base: u64, index: u64) -> u64 {
        self.bus.memory.read_doubleword(self.entry_address(base, index)).unwrap_or(0)
    }

    /// The physical address of an entry of the table at `base`.
    fn entry_address(&self, base: u64, index: u64) -> u64 {
        // PTEWidth: an entry has one to four doublewords, of which the first is used.
        let bytes = 8 * (self.registers.field(csr::PWCL, 30..=31) + 1);
        (base & PHYSICAL_BITS).wrapping_add(index.wrapping_mul(bytes))
    }

    /// The physical address that LDDIR (`level` from 1 to 4) or LDPTE (level 0) reads for the table at `base`; `None`
    /// without an access because `base` describes a huge page.
    pub(super) fn walked_address(&self, base: u64, level: u32) -> Option<u64> {
        let (start, width) = self.directory_bits(level).filter(|_| base & HUGE == 0)?;
        Some(self.entry_address(base, index_bits(self.registers.get(csr::TLBRBADV), start, width)))
    }
}

/// The physical address of `address` in a page of 2^`size` bytes; `None` if the entry is not valid.
fn page_address(entry: u64, size: u32, address: u64) -> Option<u64> {
    let page = PageEntry(entry);
    (page.is_valid() && size < 48).then(|| page.base(size as u8) | address & ((1 << size) - 1))
}

/// `width` bits of an address from bit `start`.
fn index_bits(address: u64, start: u32, width: u32) -> u64 {
    let shifted = address.checked_shr(start).unwrap_or(0);
    shifted & 1u64.checked_shl(width).map_or(u64::MAX, |limit| limit - 1)
}
