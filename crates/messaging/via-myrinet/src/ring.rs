//! MyVIA's rings: a small one on the NIC, a big one in host memory for what does not fit, both first in, first out.
//! Not the time that words take to the NIC: the owner moves descriptors when they have arrived.
//! Source: Jiao Zhenqiang et al., queues on the NIC; big ring, flag and low-water mark.

use std::collections::VecDeque;

/// Words of a physical descriptor with one segment: operation and length, immediate, address, length, cookie, VI.
pub const DESCRIPTOR_WORDS: u32 = 6;

/// Words of each further segment: physical address and length.
pub const SEGMENT_WORDS: u32 = 2;

/// One queue's rings.
#[derive(Clone, Debug)]
pub struct Rings<T> {
    capacity: usize,
    small: VecDeque<T>,
    /// Written by the host and not there yet.
    coming: usize,
    big: VecDeque<T>,
    /// The flag in the small ring's header: there is more in the big ring.
    pub flag: bool,
    /// The NIC has asked for a refill that is not over.
    pub refilling: bool,
    /// Free places of the small ring as the host last knew.
    pub known_free: usize,
    most_big: usize,
}

impl<T> Rings<T> {
    /// Empty rings; the small one holds `capacity`.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            small: VecDeque::new(),
            coming: 0,
            big: VecDeque::new(),
            flag: false,
            refilling: false,
            known_free: capacity,
            most_big: 0,
        }
    }

    /// Places of the small ring that are free, counting what is on its way as there.
    pub fn free(&self) -> usize {
        self.capacity.saturating_sub(self.small.len() + self.coming)
    }

    /// The host begins to write a descriptor into the small ring.
    pub fn write(&mut self) {
        self.coming += 1;
    }

    /// The descriptor has arrived on the NIC.
    pub fn arrive(&mut self, descriptor: T) {
        self.coming -= 1;
        self.small.push_back(descriptor);
    }

    /// The NIC takes the oldest descriptor of the small ring.
    pub fn take(&mut self) -> Option<T> {
        self.small.pop_front()
    }

    /// The oldest on the NIC.
    pub fn front(&self) -> Option<&T> {
        self.small.front()
    }

    /// The host puts a descriptor into the big ring.
    pub fn put_big(&mut self, descriptor: T) {
        self.big.push_back(descriptor);
        self.most_big = self.most_big.max(self.big.len());
    }

    /// The host takes the oldest of the big ring.
    pub fn take_big(&mut self) -> Option<T> {
        self.big.pop_front()
    }

    /// Whether the big ring holds anything.
    pub fn has_big(&self) -> bool {
        !self.big.is_empty()
    }

    /// Whether the NIC has to ask for more: the flag is set and no more than `low_water` are left.
    pub fn is_low(&self, low_water: usize) -> bool {
        self.flag && !self.refilling && self.small.len() <= low_water
    }

    /// The most that the big ring held.
    pub fn most_big(&self) -> usize {
        self.most_big
    }
}
