//! Queues whose entries are allocated and freed in program order. `calendar.rs` models queues that free entries out of
//! order.

/// The entries of a queue, as a ring: for each, the cycle from which it is free.
#[derive(Debug)]
pub(crate) struct Entries {
    free_at: Box<[u64]>,
    next: usize,
}

impl Entries {
    /// Creates `count` free entries.
    pub fn new(count: u32) -> Self {
        Self { free_at: vec![0; count.max(1) as usize].into(), next: 0 }
    }

    /// The cycle from which the next entry is free.
    #[inline]
    pub fn free_at(&self) -> u64 {
        self.free_at[self.next]
    }

    /// Allocates the next entry until `cycle`.
    #[inline]
    pub fn allocate_until(&mut self, cycle: u64) {
        self.free_at[self.next] = cycle;
        self.next += 1;
        if self.next == self.free_at.len() {
            self.next = 0;
        }
    }
}
