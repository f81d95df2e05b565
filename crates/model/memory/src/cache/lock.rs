//! Line locking: lines inside a window of physical addresses are not evicted.
//!
//! Source: Loongson 3A5000/3B5000 Processor Reference Manual, shared cache lock windows (address, mask, valid).

/// A window of physical addresses. An address is inside if `address & mask == base & mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWindow {
    /// The value that the masked address bits must have.
    pub base: u64,
    /// Address bits that are compared.
    pub mask: u64,
}

impl LockWindow {
    /// Returns whether `address` is inside the window.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        (address ^ self.base) & self.mask == 0
    }
}

/// The lock windows of a cache.
#[derive(Clone, Debug)]
pub(crate) struct LineLock {
    /// The address ranges of each window; empty for a closed window.
    windows: Vec<Vec<LockWindow>>,
    open: usize,
    /// Ways of each set that cannot be locked.
    min_unlocked_ways: u32,
}

impl LineLock {
    /// Creates `windows` closed windows.
    pub fn new(windows: u32, min_unlocked_ways: u32) -> Self {
        // At least one way stays unlocked: a fully locked set could not accept another line.
        Self {
            windows: vec![Vec::new(); windows as usize],
            open: 0,
            min_unlocked_ways: min_unlocked_ways.max(1),
        }
    }

    /// Number of windows.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Opens a window, or closes it if `to` is empty. A window may cover several address ranges. The window must exist.
    pub fn set(&mut self, window: usize, to: Vec<LockWindow>) {
        self.windows[window] = to;
        self.open = self.windows.iter().filter(|window| !window.is_empty()).count();
    }

    /// Returns whether any window is open.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.open > 0
    }

    /// Returns whether an open window contains `address`.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        self.windows.iter().flatten().any(|window| window.contains(address))
    }

    /// Returns whether another line can be locked in a set. `ways` and `locked` are masks of the set's ways and its
    /// locked ways.
    #[inline]
    pub fn can_lock(&self, ways: u64, locked: u64) -> bool {
        locked.count_ones() + self.min_unlocked_ways < ways.count_ones()
    }
}
