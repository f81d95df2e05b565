//! Maps a line to its set and its bank.
//!
//! Source: Loongson 3A5000 manual for indices by address bits (bank select above the line offset). Hashed indices model
//! the unpublished slice hashes of Intel and AMD.

use super::Line;
use longma_topology::parts::{Cache, CacheIndex};

/// The index function of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Index {
    sets: u64,
    banks: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Low bits select the set; some of them select the bank.
    Bits { set_mask: u64, bank_shift: u32 },
    /// Low bits select the set in a bank, and a hash of all bits selects the bank. For bank counts that are not a power
    /// of two.
    HashedBank { set_mask: u64, sets_per_bank: u64 },
    /// A hash of all bits selects both.
    Hashed,
}

/// Maps a hash uniformly onto 0..`n` without a division (Lemire, Fast random integer generation in an interval, 2019).
#[inline]
fn scale(hash: u64, n: u64) -> u64 {
    ((hash >> 32) * n) >> 32
}

impl Index {
    /// Creates the index of a cache of type `cache`. `bank_bit` is the lowest address bit that selects the bank, if the
    /// machine file states it.
    pub fn new(cache: &Cache, bank_bit: Option<u32>) -> Self {
        let sets = cache.sets().max(1);
        let banks = u64::from(cache.banks.max(1)).min(sets);
        let line_bits = cache.line.bytes().max(1).ilog2();
        let sets_per_bank = sets / banks;
        let kind = match cache.index {
            CacheIndex::Bits if sets.is_power_of_two() && banks.is_power_of_two() => {
                let bank_shift = bank_bit.map_or(0, |bit| bit.saturating_sub(line_bits)).min(32);
                Kind::Bits { set_mask: sets - 1, bank_shift }
            }
            CacheIndex::Bits if sets_per_bank.is_power_of_two() && sets.is_multiple_of(banks) => {
                Kind::HashedBank { set_mask: sets_per_bank - 1, sets_per_bank }
            }
            _ => Kind::Hashed,
        };
        Self { sets, banks, kind }
    }

    /// Number of sets in all banks together.
    pub fn sets(&self) -> usize {
        self.sets as usize
    }

    /// Number of banks.
    pub fn banks(&self) -> usize {
        self.banks as usize
    }

    /// Returns the set of `line`, numbered over all banks.
    #[inline]
    pub fn set(&self, line: Line) -> usize {
        let set = match self.kind {
            Kind::Bits { set_mask, .. } => line.0 & set_mask,
            Kind::HashedBank { set_mask, sets_per_bank } => {
                scale(line.hash(), self.banks) * sets_per_bank + (line.0 & set_mask)
            }
            Kind::Hashed => scale(line.hash(), self.sets),
        };
        set as usize
    }

    /// Returns the bank of `line`.
    #[inline]
    pub fn bank(&self, line: Line) -> usize {
        let bank = match self.kind {
            Kind::Bits { bank_shift, .. } => line.0 >> bank_shift & (self.banks - 1),
            Kind::HashedBank { .. } | Kind::Hashed => scale(line.hash(), self.banks),
        };
        bank as usize
    }
}
