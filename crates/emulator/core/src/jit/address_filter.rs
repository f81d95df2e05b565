//! A set of guest addresses that may report an absent address as present. The run loop checks it before taking a lock,
//! because most code is not translated while a program starts. Source: Bloom, "Space/time trade-offs in hash coding
//! with allowable errors" (1970), with one bit for each address.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bits, a power of two. Two instructions share a bit if their distance is a multiple of this many
/// instructions.
const BITS: u64 = 1 << 20;

pub(super) struct AddressFilter(Box<[AtomicU64]>);

impl Default for AddressFilter {
    fn default() -> Self {
        Self((0..BITS / 64).map(|_| AtomicU64::new(0)).collect())
    }
}

impl AddressFilter {
    fn word_and_bit(&self, pc: u64) -> (&AtomicU64, u64) {
        let bit = (pc >> 2) % BITS;
        (&self.0[(bit / 64) as usize], 1 << (bit % 64))
    }

    /// Adds an address permanently. Call it before publishing the address under a lock: a thread that finds the
    /// address under that lock then also finds it here.
    pub fn add(&self, pc: u64) {
        let (word, bit) = self.word_and_bit(pc);
        word.fetch_or(bit, Ordering::Relaxed);
    }

    /// Whether the address may be in the set. Returns true for every added address and for some others; it may return
    /// false for an address that another thread is adding.
    pub fn may_contain(&self, pc: u64) -> bool {
        let (word, bit) = self.word_and_bit(pc);
        word.load(Ordering::Relaxed) & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_addresses_are_found_and_false_positives_occur() {
        let filter = AddressFilter::default();
        assert!(!filter.may_contain(0x1000));
        filter.add(0x1000);
        assert!(filter.may_contain(0x1000) && !filter.may_contain(0x1004) && !filter.may_contain(0xffc));
        assert!(filter.may_contain(0x1000 + 4 * BITS));
    }
}
