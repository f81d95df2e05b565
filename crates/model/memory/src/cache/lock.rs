//! Line lock: lines inside a window of addresses stay in the cache.
//! Not the registers that a program writes to set a window: those are the chip's.
//! Source: Loongson 3A5000/3B5000 Processor Reference Manual, shared cache lock windows (address, mask, valid).

/// A window of physical addresses: an address is inside if `address & mask == base & mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWindow {
    /// The address that the masked bits must match.
    pub base: u64,
    /// Which bits count.
    pub mask: u64,
}

impl LockWindow {
    /// True if `address` is inside.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        (address ^ self.base) & self.mask == 0
    }
}

/// The lock windows of a cache.
#[derive(Clone, Debug)]
pub(crate) struct LineLock {
    /// What each window locks; nothing while it is closed.
    windows: Vec<Vec<LockWindow>>,
    open: usize,
    /// Ways of a set that stay unlocked.
    min_unlocked_ways: u32,
}

impl LineLock {
    /// `windows` windows, all closed.
    pub fn new(windows: u32, min_unlocked_ways: u32) -> Self {
        // A set whose every line is locked could not take a line any more.
        Self {
            windows: vec![Vec::new(); windows as usize],
            open: 0,
            min_unlocked_ways: min_unlocked_ways.max(1),
        }
    }

    /// How many windows there are.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Opens or closes a window, which must exist. What it locks may be in several pieces.
    pub fn set(&mut self, window: usize, to: Vec<LockWindow>) {
        self.windows[window] = to;
        self.open = self.windows.iter().filter(|window| !window.is_empty()).count();
    }

    /// True if any window is open; if none is, no line is locked.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.open > 0
    }

    /// True if any open window contains `address`.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        self.windows.iter().flatten().any(|window| window.contains(address))
    }

    /// True if one more line may be locked in a set of `ways` ways of which `locked` are.
    #[inline]
    pub fn room(&self, ways: u64, locked: u64) -> bool {
        locked.count_ones() + self.min_unlocked_ways < ways.count_ones()
    }
}
