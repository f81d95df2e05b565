//! Last in, first out: ages as of FIFO, the other end.
//! Not affected by uses.

use super::lru::Lru;
use super::{Candidates, Replaces, ways};

pub(super) struct Lifo;

impl Replaces for Lifo {
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
        ways(among.allowed).min_by_key(|way| ages[*way]).unwrap_or(0)
    }
}
