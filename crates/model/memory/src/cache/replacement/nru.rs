//! Not recently used: a use sets the way's bit, and the victim is the first way whose bit is clear. The search always
//! starts at the first way; there is no clock hand.
//!
//! Source: the description of the UltraSPARC T2's L2 in Jaleel et al., ISCA 2010, section 2.

use super::{Candidates, ReplacementPolicy};

pub(super) struct Nru;

impl ReplacementPolicy for Nru {
    #[inline]
    fn touched(ages: &mut [u8], way: usize) {
        ages[way] = 1;
    }

    #[inline]
    fn victim(ages: &mut [u8], among: Candidates<'_>) -> usize {
        if super::ways(among.allowed).all(|way| ages[way] == 1) {
            // All bits are set: clear them.
            super::ways(among.allowed).for_each(|way| ages[way] = 0);
        }
        super::ways(among.allowed).find(|way| ages[*way] == 0).unwrap_or(0)
    }
}
