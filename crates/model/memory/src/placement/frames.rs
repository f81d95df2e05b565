//! The free page frames of one node and the order of their allocation.
//!
//! Source: Linux's buddy allocator hands out adjacent frames within blocks (pageblocks), but after some uptime the
//! blocks are scattered (Gorman, Understanding the Linux Virtual Memory Manager, chapter 6).

use longma_random::SplitMix64;

/// The order in which a node's frames are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOrder {
    /// Sequential from the lowest address, as directly after boot. Conflicts in physically indexed caches are rarer
    /// than on a machine in use.
    Sequential,
    /// Sequential within blocks of 2 MiB, and the blocks in an order determined by the seed, as on a machine in use.
    Shuffled {
        /// The seed. Equal seeds give equal allocations.
        seed: u64,
    },
}

/// Size of a block: 2 MiB, a pageblock of x86-64. LoongArch's is 32 MiB.
const BLOCK_BYTES_LOG2: u32 = 21;

/// The frames of one node.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    base: u64,
    /// Number of frames of the node.
    frames: u64,
    /// Number of frames in the node's address range.
    addressable: u64,
    /// Frames allocated from the untouched part so far.
    allocated: u64,
    freed: Vec<u64>,
    /// Frames per block; 0 for sequential allocation.
    block: u64,
    blocks: Shuffle,
    current: u64,
}

impl Frames {
    /// Creates `frames` frames from `base` on. The node's address range covers `addressable` frames. A frame has `1 <<
    /// page_shift` bytes.
    pub(super) fn new(base: u64, frames: u64, addressable: u64, page_shift: u32, order: FrameOrder) -> Self {
        let block = 1u64 << BLOCK_BYTES_LOG2.saturating_sub(page_shift);
        let (block, seed) = match order {
            FrameOrder::Sequential => (0, 0),
            FrameOrder::Shuffled { seed } => (block, seed),
        };
        let blocks = Shuffle::new(frames.checked_div(block).unwrap_or(0), seed ^ base);
        Self { base, frames, addressable, allocated: 0, freed: Vec::new(), block, blocks, current: 0 }
    }

    /// Allocates a frame. The most recently freed frame comes first, as in Linux's free lists.
    pub(super) fn take(&mut self) -> Option<u64> {
        if let Some(frame) = self.freed.pop() {
            return Some(frame);
        }
        if self.allocated >= self.frames {
            return None;
        }
        let index = self.allocated;
        self.allocated += 1;
        // Frames after the last whole block keep their order.
        if self.block == 0 || index / self.block >= self.blocks.count {
            return Some(self.base + index);
        }
        if index.is_multiple_of(self.block) {
            self.current = self.blocks.image(index / self.block) * self.block;
        }
        Some(self.base + self.current + index % self.block)
    }

    /// Allocates a frame beyond the node's memory but in its address range.
    pub(super) fn take_beyond(&mut self) -> u64 {
        let index = self.allocated;
        self.allocated += 1;
        self.base + index % self.addressable
    }

    pub(super) fn free(&mut self, frame: u64) {
        self.freed.push(frame);
    }

    pub(super) fn used(&self) -> u64 {
        self.allocated - self.freed.len() as u64
    }
}

/// A permutation of 0 to `count - 1` that is computed without a table.
#[derive(Clone, Copy, Debug)]
struct Shuffle {
    count: u64,
    bits: u32,
    multipliers: [u64; 3],
    offsets: [u64; 3],
}

impl Shuffle {
    fn new(count: u64, seed: u64) -> Self {
        let bits = count.next_power_of_two().trailing_zeros();
        let mut random = SplitMix64::new(seed);
        let mut next = || random.next_u64();
        let multipliers = [next() | 1, next() | 1, next() | 1];
        Self { count, bits, multipliers, offsets: [next(), next(), next()] }
    }

    /// Returns the image of `index`. Each round is a bijection on `bits` bits, and values outside the range are mapped
    /// again, so the whole is a permutation.
    fn image(&self, index: u64) -> u64 {
        let mask = (1u64 << self.bits) - 1;
        let mut value = index;
        loop {
            for (multiplier, offset) in self.multipliers.iter().zip(self.offsets) {
                value = value.wrapping_mul(*multiplier).wrapping_add(offset) & mask;
                value ^= value >> (self.bits / 2).max(1);
            }
            if value < self.count {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_frame_is_allocated_exactly_once(frames in 1u64..3000, seed in any::<u64>(), shuffled in any::<bool>()) {
            let order = if shuffled { FrameOrder::Shuffled { seed } } else { FrameOrder::Sequential };
            let mut node = Frames::new(1000, frames, 1 << 20, 14, order);
            let allocated: BTreeSet<u64> = std::iter::from_fn(|| node.take()).collect();
            prop_assert_eq!(allocated.len() as u64, frames);
            prop_assert_eq!((allocated.first(), allocated.last()), (Some(&1000), Some(&(1000 + frames - 1))));
            prop_assert_eq!(node.used(), frames);
        }
    }

    #[test]
    fn shuffled_blocks_are_contiguous_inside_and_scattered_outside() {
        let mut node = Frames::new(0, 1 << 16, 1 << 20, 14, FrameOrder::Shuffled { seed: 1 });
        let allocated: Vec<u64> = (0..1 << 14).map(|_| node.take().unwrap()).collect();
        let breaks = allocated.windows(2).filter(|w| w[1] != w[0] + 1).count();
        assert!((100..=127).contains(&breaks), "{breaks} breaks between 128 blocks");
    }

    #[test]
    fn different_seeds_give_different_frames() {
        let first = |seed| Frames::new(0, 1 << 20, 1 << 20, 14, FrameOrder::Shuffled { seed }).take();
        assert!((1..9).any(|seed| first(seed) != first(0)));
        assert_eq!(first(5), first(5));
    }

    #[test]
    fn a_freed_frame_is_reused() {
        let mut node = Frames::new(0, 2, 2, 14, FrameOrder::Sequential);
        let (one, _) = (node.take().unwrap(), node.take().unwrap());
        assert_eq!(node.take(), None);
        node.free(one);
        assert_eq!(node.take(), Some(one));
    }
}
