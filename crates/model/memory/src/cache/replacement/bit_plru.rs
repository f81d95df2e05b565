//! Bit PLRU: a use sets the way's bit. If that sets the last clear bit, all other bits are cleared. The victim is the
//! first way whose bit is clear, so the last used line is never evicted.
//!
//! Source: Al-Zoubi, Milenkovic and Milenkovic, Performance evaluation of cache replacement policies, ACMSE 2004,
//! section 2 (PLRUm).

use super::{Candidates, ReplacementPolicy};

pub(super) struct BitPlru;

const UNUSED: u8 = 0;
const USED: u8 = 1;
/// Padding after the last way.
const NO_WAY: u8 = 2;

impl ReplacementPolicy for BitPlru {
    fn reset(ages: &mut [u8], ways: usize) {
        ages.fill(NO_WAY);
        ages[..ways].fill(UNUSED);
    }

    #[inline]
    fn touched(ages: &mut [u8], way: usize) {
        ages[way] = USED;
        if !ages.contains(&UNUSED) {
            ages.iter_mut().filter(|age| **age == USED).for_each(|age| *age = UNUSED);
            ages[way] = USED;
        }
    }

    #[inline]
    fn victim(ages: &mut [u8], among: Candidates<'_>) -> usize {
        let first = among.allowed.trailing_zeros() as usize;
        super::ways(among.allowed).find(|way| ages[*way] == UNUSED).unwrap_or(first)
    }
}
