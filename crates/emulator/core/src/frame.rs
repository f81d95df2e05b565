//! The memory block that translated code of a system addresses through its base register.

use longma_loongarch::State;

/// Entries of the jump cache. A power of two.
pub(crate) const JUMP_ENTRIES: usize = 4096;

/// An entry of a direct-mapped cache of address translations.
///
/// The entry for a virtual page is at the index given by the lowest bits of the page number. It matches an access if the
/// page number of the last byte, shifted by 12 bits, plus the current generation equals `tag`. An access to two pages
/// never matches, because adjacent pages have different indices.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PageEntry {
    /// The virtual address of the page plus the generation, which is below 4096.
    pub tag: u64,
    /// The offset from virtual addresses on the page to host addresses.
    pub addend: u64,
}

/// Host code for a guest address.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct JumpEntry {
    pub guest: u64,
    /// The stamp of the frame when the entry was made. An entry with another stamp does not match.
    pub stamp: u64,
    pub host: u64,
    /// Padding to a power of two.
    _padding: u64,
}

/// A core's registers and the state that translated code accesses.
#[repr(C, align(64))]
pub struct Frame {
    /// The guest's registers.
    pub state: State,
    /// Instructions that may execute before the owner must check for interrupts.
    pub budget: u64,
    /// Identifies the mapping of virtual addresses. Jumps between regions use only addresses found under this stamp.
    pub stamp: u64,
    /// The generation of valid entries in `readable` and `writable`, below 4096.
    pub generation: u64,
    /// The units that are enabled, as in EUEN.
    pub units: u64,
    /// The first of [`Frame::PAGES`] entries for loads.
    pub readable: *const PageEntry,
    /// The first of [`Frame::PAGES`] entries for stores.
    pub writable: *const PageEntry,
    /// Passed to the owner's function unchanged.
    pub owner: *const (),
    pub(crate) jumps: [JumpEntry; JUMP_ENTRIES],
}

impl Frame {
    /// Entries of a cache of translations. A power of two.
    pub const PAGES: usize = 1024;

    /// Creates the frame of a core with registers `state`. The frame has no valid pointers yet.
    pub fn new(state: State) -> Box<Self> {
        Box::new(Self {
            state,
            budget: 0,
            stamp: 0,
            generation: 0,
            units: 0,
            readable: std::ptr::null(),
            writable: std::ptr::null(),
            owner: std::ptr::null(),
            jumps: [JumpEntry::default(); JUMP_ENTRIES],
        })
    }

    /// Makes jumps to `pc` continue at the host address `host` as long as the stamp is the current one, which must not
    /// be 0.
    pub fn add_jump(&mut self, pc: u64, host: u64) {
        let entry = JumpEntry { guest: pc, stamp: self.stamp, host, _padding: 0 };
        self.jumps[(pc >> 2) as usize % JUMP_ENTRIES] = entry;
    }
}
