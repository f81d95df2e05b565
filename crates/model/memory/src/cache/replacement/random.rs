//! Random replacement with a seeded generator, so that runs are reproducible.
//!
//! Source: Marsaglia, Xorshift RNGs, Journal of Statistical Software 8(14), 2003.

use super::{Candidates, ReplacementPolicy};

pub(super) struct Random;

impl ReplacementPolicy for Random {
    #[inline]
    fn touched(_ages: &mut [u8], _way: usize) {}

    #[inline]
    fn victim(_ages: &mut [u8], among: Candidates<'_>) -> usize {
        let random = among.random;
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let index = ((*random >> 32) * u64::from(among.allowed.count_ones())) >> 32;
        super::ways(among.allowed).nth(index as usize).unwrap_or(0)
    }
}
