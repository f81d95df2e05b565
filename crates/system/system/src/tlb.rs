//! The TLB: a set-associative part with a single page size (STLB) and a fully associative part with any page size
//! (MTLB). Source: LoongArch Reference Manual, volume 1, sections 4.2.4 (TLB maintenance), 5.4 (page table mapping).

use serde::{Deserialize, Serialize};

use crate::checkpoint_file::InvalidState;
use crate::csr::field;

/// Ways of the STLB.
pub const STLB_WAYS: usize = 8;
/// Sets of the STLB.
pub const STLB_SETS: usize = 256;
/// Entries of the STLB. Their indices start at 0; the entries of the MTLB follow.
pub const STLB_ENTRIES: usize = STLB_WAYS * STLB_SETS;
/// Entries of the MTLB.
pub const MTLB_ENTRIES: usize = 64;
/// Entries of both parts.
pub const ENTRIES: usize = STLB_ENTRIES + MTLB_ENTRIES;

/// The page sizes that the TLB supports, as in PRCFG2: bit n stands for 2^n bytes.
pub const PAGE_SIZES: u64 = 0x3fff_f000;

/// The bits of a virtual address that are translated.
const ADDRESS_BITS: u64 = (1 << 48) - 1;
/// Bits of the number of a pair of pages.
const PAIR_BITS: u32 = 48 - 13;
/// Bits of the number of an address space.
const ASID_BITS: u32 = 10;

/// The attributes of one of an entry's two pages, in the format of TLBELO0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageEntry(pub u64);

impl PageEntry {
    /// V: the page is valid.
    pub fn is_valid(self) -> bool {
        self.0 & 1 != 0
    }

    /// D: the page is dirty, which permits stores.
    pub fn is_dirty(self) -> bool {
        self.0 & 2 != 0
    }

    /// G: the page is in all address spaces.
    pub fn is_global(self) -> bool {
        self.0 & 0x40 != 0
    }

    /// NR: loads are forbidden.
    pub fn forbids_reads(self) -> bool {
        self.0 >> 61 & 1 != 0
    }

    /// NX: fetches are forbidden.
    pub fn forbids_execution(self) -> bool {
        self.0 >> 62 & 1 != 0
    }

    /// Whether `level` may use the page: PLV is the least privileged level or, with RPLV, the only one.
    pub fn permits_level(self, level: u8) -> bool {
        let permitted = field(self.0, 2..=3) as u8;
        if self.0 >> 63 == 1 { level == permitted } else { level <= permitted }
    }

    /// The physical address of a page of 2^`size` bytes.
    pub fn base(self, size: u8) -> u64 {
        self.0 & 0xffff_ffff_f000 & !((1 << size) - 1)
    }
}

/// An entry, which maps two adjacent pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// E: the entry takes part in translation.
    pub exists: bool,
    /// Bits 47 to 13 of the virtual address of the pair of pages.
    pub pair: u64,
    /// The base-2 logarithm of the page size, a bit of [`PAGE_SIZES`].
    pub size: u8,
    /// The address space, if `global` is false.
    pub asid: u16,
    /// Whether the entry belongs to all address spaces.
    pub global: bool,
    /// The even and the odd page.
    pub pages: [PageEntry; 2],
}

impl Entry {
    /// Builds an entry from the contents of CSRs: `high` is TLBEHI or TLBREHI, and `low` describes the even and the odd
    /// page. Returns `None` if the TLB does not support the page size.
    pub fn new(high: u64, size: u64, asid: u16, low: [u64; 2]) -> Option<Self> {
        if size > 63 || PAGE_SIZES >> size & 1 == 0 {
            return None;
        }
        let pages = low.map(PageEntry);
        Some(Self {
            exists: true,
            pair: field(high, 13..=47),
            size: size as u8,
            asid,
            global: pages[0].is_global() && pages[1].is_global(),
            pages,
        })
    }

    /// Whether the entry covers `address`, in whichever address space.
    fn covers(&self, address: u64) -> bool {
        let shift = self.size + 1;
        self.exists && (address & ADDRESS_BITS) >> shift == self.pair << 13 >> shift
    }

    fn is_in(&self, asid: u16) -> bool {
        self.global || self.asid == asid
    }

    /// The page of `address`.
    pub fn page(&self, address: u64) -> PageEntry {
        self.pages[(address >> self.size & 1) as usize]
    }
}

/// The entries that INVTLB invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Operations 0 and 1: all entries.
    All,
    /// Operations 2 and 3: the global entries, or the others.
    Global(bool),
    /// Operation 4: the entries of an address space that are not global.
    Space(u16),
    /// Operation 5: the entry of an address space for an address, unless it is global.
    Page(u16, u64),
    /// Operation 6: like operation 5, but including a global entry for the address.
    PageOrGlobal(u16, u64),
}

impl Selection {
    /// The selection of an INVTLB operation; `None` if the operation does not exist.
    pub fn new(operation: u32, asid: u64, address: u64) -> Option<Self> {
        let asid = (asid & 0x3ff) as u16;
        Some(match operation {
            0 | 1 => Self::All,
            2 => Self::Global(true),
            3 => Self::Global(false),
            4 => Self::Space(asid),
            5 => Self::Page(asid, address),
            6 => Self::PageOrGlobal(asid, address),
            _ => return None,
        })
    }

    fn includes(self, entry: &Entry) -> bool {
        match self {
            Self::All => true,
            Self::Global(global) => entry.global == global,
            Self::Space(asid) => !entry.global && entry.asid == asid,
            Self::Page(asid, address) => !entry.global && entry.asid == asid && entry.covers(address),
            Self::PageOrGlobal(asid, address) => entry.is_in(asid) && entry.covers(address),
        }
    }
}

/// The state of a TLB in a checkpoint: the entries that exist with their indices.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedTlb {
    entries: Vec<(usize, Entry)>,
    random: u64,
}

/// The translation lookaside buffer.
#[derive(Debug)]
pub struct Tlb {
    entries: Vec<Entry>,
    /// The state of the generator that chooses the entry to replace. The manual calls the choice random; this generator
    /// is deterministic.
    random: u64,
}

impl Tlb {
    /// Creates an empty TLB.
    pub fn new() -> Self {
        Self { entries: vec![Entry::default(); ENTRIES], random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// The entry at an index; `None` if the index or the entry does not exist.
    pub fn get(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index).filter(|entry| entry.exists)
    }

    /// The index of the entry that translates `address` in the address space `asid`. `stlb_size` is the value of
    /// STLBPS.
    pub fn search(&self, address: u64, asid: u16, stlb_size: u8) -> Option<usize> {
        let set = stlb_set(address, stlb_size);
        let ways = (0..STLB_WAYS)
            .map(|way| way * STLB_SETS + set)
            .filter(|index| self.entries[*index].size == stlb_size);
        ways.chain(STLB_ENTRIES..ENTRIES).find(|index| {
            let entry = &self.entries[*index];
            entry.covers(address) && entry.is_in(asid)
        })
    }

    /// Writes an entry; `None` removes it. Returns whether an entry existed before. Ignores an index beyond the end.
    pub fn write(&mut self, index: usize, entry: Option<Entry>) -> bool {
        let Some(place) = self.entries.get_mut(index) else { return false };
        std::mem::replace(place, entry.unwrap_or_default()).exists
    }

    /// Writes an entry to the STLB if its page size is `stlb_size`, else to the MTLB. Returns whether it replaced an
    /// entry.
    pub fn fill(&mut self, entry: Entry, stlb_size: u8) -> bool {
        let (start, step, count) = if entry.size == stlb_size {
            (stlb_set(entry.pair << 13, stlb_size), STLB_SETS, STLB_WAYS)
        } else {
            (STLB_ENTRIES, 1, MTLB_ENTRIES)
        };
        let free = (0..count).find(|way| !self.entries[start + way * step].exists);
        let way = free.unwrap_or_else(|| self.next_random() as usize % count);
        self.write(start + way * step, Some(entry))
    }

    /// TLBCLR and TLBFLUSH: removes entries from the STLB set of `index` or, for an index of the MTLB, from the MTLB.
    /// With `asid`, only the entries of that address space that are not global are removed.
    pub fn clear(&mut self, index: usize, asid: Option<u16>) {
        let selected: Vec<usize> = match index {
            0..STLB_ENTRIES => (0..STLB_WAYS).map(|way| way * STLB_SETS + index % STLB_SETS).collect(),
            _ => (STLB_ENTRIES..ENTRIES).collect(),
        };
        for index in selected {
            let entry = &mut self.entries[index];
            if asid.is_none_or(|asid| !entry.global && entry.asid == asid) {
                entry.exists = false;
            }
        }
    }

    /// INVTLB: invalidates entries.
    pub fn invalidate(&mut self, selection: Selection) {
        for entry in &mut self.entries {
            if selection.includes(entry) {
                entry.exists = false;
            }
        }
    }

    /// The state in a checkpoint.
    pub(crate) fn saved(&self) -> SavedTlb {
        let entries = self.entries.iter().copied().enumerate().filter(|(_, entry)| entry.exists);
        SavedTlb { entries: entries.collect(), random: self.random }
    }

    /// Replaces all entries.
    ///
    /// # Errors
    /// The TLB has no such entries.
    pub(crate) fn restore(&mut self, saved: SavedTlb) -> Result<(), InvalidState> {
        *self = Self { random: saved.random, ..Self::new() };
        for (index, entry) in saved.entries {
            let is_possible = entry.exists
                && entry.size < 64
                && PAGE_SIZES >> entry.size & 1 == 1
                && entry.pair >> PAIR_BITS == 0
                && entry.asid >> ASID_BITS == 0;
            match self.entries.get_mut(index).filter(|_| is_possible) {
                Some(place) => *place = entry,
                None => return Err(InvalidState::value("the TLB")),
            }
        }
        Ok(())
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 32
    }
}

impl Default for Tlb {
    fn default() -> Self {
        Self::new()
    }
}

fn stlb_set(address: u64, size: u8) -> usize {
    ((address & ADDRESS_BITS) >> (size + 1)) as usize % STLB_SETS
}

#[cfg(test)]
mod tests {
    use super::*;

    const STLB_SIZE: u8 = 14;

    fn entry(address: u64, size: u64, asid: u16, global: bool) -> Entry {
        let low = if global { 0x43 } else { 3 };
        Entry::new(address, size, asid, [low, low]).unwrap()
    }

    fn present(tlb: &Tlb, address: u64, asid: u16) -> bool {
        tlb.search(address, asid, STLB_SIZE).is_some()
    }

    #[test]
    fn an_entry_of_the_stlb_size_is_filled_into_its_set_and_others_into_the_mtlb() {
        let mut tlb = Tlb::new();
        assert!(!tlb.fill(entry(0x1_2345_8000, 14, 1, false), STLB_SIZE));
        assert!(!tlb.fill(entry(0x4000_0000, 21, 1, false), STLB_SIZE));
        let small = tlb.search(0x1_2345_8000, 1, STLB_SIZE).unwrap();
        assert_eq!(small % STLB_SETS, (0x1_2345_8000usize >> 15) % STLB_SETS);
        assert!(small < STLB_ENTRIES);
        assert!(tlb.search(0x403f_ffff, 1, STLB_SIZE).unwrap() >= STLB_ENTRIES);
        assert!(!present(&tlb, 0x4040_0000, 1));
    }

    #[test]
    fn a_full_set_replaces_an_entry_of_the_same_set() {
        let mut tlb = Tlb::new();
        let stride = (STLB_SETS as u64) << 15;
        let replaced = (0..9).filter(|n| tlb.fill(entry(n * stride, 14, 1, false), STLB_SIZE)).count();
        assert_eq!(replaced, 1);
        assert_eq!((0..9).filter(|n| present(&tlb, n * stride, 1)).count(), 8);
    }

    #[test]
    fn only_an_entry_of_the_address_space_or_a_global_one_matches() {
        let mut tlb = Tlb::new();
        tlb.fill(entry(0x8000, 14, 1, false), STLB_SIZE);
        tlb.fill(entry(0x1_0000, 14, 1, true), STLB_SIZE);
        assert!(present(&tlb, 0x8000, 1) && !present(&tlb, 0x8000, 2));
        assert!(present(&tlb, 0x1_0000, 2));
    }

    #[test]
    fn each_operation_of_invtlb_removes_what_the_manual_says() {
        // Entries that are not global in spaces 1 and 2, and a global entry, each at two addresses.
        let all = [(1, false), (2, false), (1, true)];
        let addresses = [0x8000, 0x10_0000];
        // For each operation, the entries at the first and at the second address that remain.
        let remaining: [[[bool; 3]; 2]; 7] = [
            [[false; 3]; 2],
            [[false; 3]; 2],
            [[true, true, false]; 2],
            [[false, false, true]; 2],
            [[false, true, true]; 2],
            [[false, true, true], [true; 3]],
            [[false, true, false], [true; 3]],
        ];
        for (operation, expected) in remaining.iter().enumerate() {
            let mut tlb = Tlb::new();
            let mut places = Vec::new();
            for address in addresses {
                for (asid, global) in all {
                    let index = STLB_ENTRIES + places.len();
                    tlb.write(index, Some(entry(address, 12, asid, global)));
                    places.push(index);
                }
            }
            tlb.invalidate(Selection::new(operation as u32, 1, addresses[0]).unwrap());
            let found: Vec<bool> = places.iter().map(|index| tlb.get(*index).is_some()).collect();
            assert_eq!(found, expected.concat(), "operation {operation}");
        }
        assert_eq!(Selection::new(7, 0, 0), None);
    }

    #[test]
    fn clearing_keeps_global_entries_and_flushing_does_not() {
        let mut tlb = Tlb::new();
        tlb.write(5, Some(entry(0, 14, 1, false)));
        tlb.write(5 + STLB_SETS, Some(entry(0, 14, 1, true)));
        tlb.write(6, Some(entry(0, 14, 1, false)));
        tlb.write(STLB_ENTRIES, Some(entry(0, 12, 1, false)));
        tlb.clear(5, Some(1));
        assert!(tlb.get(5).is_none() && tlb.get(5 + STLB_SETS).is_some() && tlb.get(6).is_some());
        tlb.clear(5, None);
        assert!(tlb.get(5 + STLB_SETS).is_none() && tlb.get(6).is_some());
        tlb.clear(STLB_ENTRIES + 3, Some(2));
        assert!(tlb.get(STLB_ENTRIES).is_some());
        tlb.clear(STLB_ENTRIES + 3, None);
        assert!(tlb.get(STLB_ENTRIES).is_none());
    }

    #[test]
    fn a_page_size_that_the_tlb_does_not_support_makes_no_entry() {
        for size in [0, 11, 30, 63, 64, u64::MAX] {
            assert_eq!(Entry::new(0, size, 0, [1, 1]), None, "{size}");
        }
    }
}
