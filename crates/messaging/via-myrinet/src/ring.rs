//! MyVIA's rings: a small one on the NIC and a big one in host memory for the overflow, both FIFO. The caller models
//! the time that descriptors take to reach the NIC.
//!
//! Source: Jiao Zhenqiang et al., queues on the NIC; big ring, flag and low-water mark.

use std::collections::VecDeque;

/// The size of a physical descriptor with one segment, words: operation and length, immediate, address, length, cookie,
/// VI.
pub const DESCRIPTOR_WORDS: u32 = 6;

/// The size of each further segment, words: physical address and length.
pub const SEGMENT_WORDS: u32 = 2;

/// The rings of one queue.
#[derive(Clone, Debug)]
pub struct Rings<T> {
    capacity: usize,
    small: VecDeque<T>,
    /// The number of descriptors written by the host that have not arrived yet.
    in_transit: usize,
    big: VecDeque<T>,
    /// The flag in the small ring's header: the big ring is not empty.
    pub flag: bool,
    /// Whether a refill requested by the NIC is in progress.
    pub refilling: bool,
    /// The number of free entries of the small ring known to the host.
    pub known_free: usize,
    max_big: usize,
}

impl<T> Rings<T> {
    /// Creates empty rings; the small one holds `capacity` descriptors.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            small: VecDeque::new(),
            in_transit: 0,
            big: VecDeque::new(),
            flag: false,
            refilling: false,
            known_free: capacity,
            max_big: 0,
        }
    }

    /// The number of free entries of the small ring, not counting those of descriptors in transit.
    pub fn free(&self) -> usize {
        self.capacity.saturating_sub(self.small.len() + self.in_transit)
    }

    /// The host starts to write a descriptor into the small ring.
    pub fn write(&mut self) {
        self.in_transit += 1;
    }

    /// A descriptor has arrived on the NIC.
    pub fn arrive(&mut self, descriptor: T) {
        self.in_transit -= 1;
        self.small.push_back(descriptor);
    }

    /// Takes the oldest descriptor of the small ring.
    pub fn take(&mut self) -> Option<T> {
        self.small.pop_front()
    }

    /// The oldest descriptor of the small ring.
    pub fn front(&self) -> Option<&T> {
        self.small.front()
    }

    /// Appends a descriptor to the big ring.
    pub fn put_big(&mut self, descriptor: T) {
        self.big.push_back(descriptor);
        self.max_big = self.max_big.max(self.big.len());
    }

    /// Takes the oldest descriptor of the big ring.
    pub fn take_big(&mut self) -> Option<T> {
        self.big.pop_front()
    }

    /// Whether the big ring is not empty.
    pub fn has_big(&self) -> bool {
        !self.big.is_empty()
    }

    /// Whether the NIC must request a refill: the flag is set and at most `low_water` descriptors are left.
    pub fn is_low(&self, low_water: usize) -> bool {
        self.flag && !self.refilling && self.small.len() <= low_water
    }

    /// The highest number of descriptors in the big ring so far.
    pub fn max_big(&self) -> usize {
        self.max_big
    }
}
