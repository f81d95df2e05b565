//! First in, first out: the ages of LRU, updated only by fills.
//!
//! Source: Hennessy and Patterson, appendix B.

use super::lru::Lru;
use super::{Candidates, ReplacementPolicy};

pub(super) struct Fifo;

impl ReplacementPolicy for Fifo {
    fn reset(ages: &mut [u8], ways: usize) {
        Lru::reset(ages, ways);
    }

    #[inline]
    fn touched(_ages: &mut [u8], _way: usize) {}

    #[inline]
    fn filled(ages: &mut [u8], way: usize) {
        Lru::touched(ages, way);
    }

    #[inline]
    fn victim(ages: &mut [u8], among: Candidates<'_>) -> usize {
        Lru::victim(ages, among)
    }
}
