//! A set of guest addresses that may say of one too many that it is in it: what the run loop asks before it takes a lock, since most code that it
//! comes to while a program starts has not been translated.
//! Not where the code is.
//! Source: Bloom, "Space/time trade-offs in hash coding with allowable errors" (1970), with one bit an address.

use std::sync::atomic::{AtomicU64, Ordering};

/// A power of two; addresses of instructions that are so many apart share one.
const BITS: u64 = 1 << 20;

pub(super) struct Sketch(Box<[AtomicU64]>);

impl Default for Sketch {
    fn default() -> Self {
        Self((0..BITS / 64).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Sketch {
    fn place(&self, pc: u64) -> (&AtomicU64, u64) {
        let bit = (pc >> 2) % BITS;
        (&self.0[(bit / 64) as usize], 1 << (bit % 64))
    }

    /// Puts an address into the set, for good. Whoever does so before he tells of it under a lock has been seen by who has heard of it.
    pub fn add(&self, pc: u64) {
        let (word, bit) = self.place(pc);
        word.fetch_or(bit, Ordering::Relaxed);
    }

    /// False if the address is not in the set, or has been put there only just now.
    pub fn may_have(&self, pc: u64) -> bool {
        let (word, bit) = self.place(pc);
        word.load(Ordering::Relaxed) & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_set_stays_there_and_others_may_share_its_bit() {
        let sketch = Sketch::default();
        assert!(!sketch.may_have(0x1000));
        sketch.add(0x1000);
        assert!(sketch.may_have(0x1000) && !sketch.may_have(0x1004) && !sketch.may_have(0xffc));
        assert!(sketch.may_have(0x1000 + 4 * BITS));
    }
}
