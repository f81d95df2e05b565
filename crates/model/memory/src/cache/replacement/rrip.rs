//! Static re-reference interval prediction (SRRIP) with two bits. A filled line is predicted to be reused after a long
//! interval, and a line that hits, immediately.
//!
//! Source: Jaleel, Theobald, Steely and Emer, High performance cache replacement using RRIP, ISCA 2010, section 4.1.

use super::{Candidates, ReplacementPolicy};

pub(super) struct Rrip;

/// The prediction of a reuse in the distant future. Such lines are evicted first.
const DISTANT: u8 = 3;

impl ReplacementPolicy for Rrip {
    fn reset(ages: &mut [u8], _ways: usize) {
        ages.fill(DISTANT);
    }

    #[inline]
    fn touched(ages: &mut [u8], way: usize) {
        ages[way] = 0;
    }

    #[inline]
    fn filled(ages: &mut [u8], way: usize) {
        ages[way] = DISTANT - 1;
    }

    #[inline]
    fn victim(ages: &mut [u8], among: Candidates<'_>) -> usize {
        let oldest = super::ways(among.allowed).map(|way| ages[way]).max().unwrap_or(DISTANT);
        // Age all allowed ways equally until one is distant.
        super::ways(among.allowed).for_each(|way| ages[way] += DISTANT - oldest);
        super::ways(among.allowed).find(|way| ages[*way] == DISTANT).unwrap_or(0)
    }
}
