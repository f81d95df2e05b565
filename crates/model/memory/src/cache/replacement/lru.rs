//! Exact least recently used: the age of a way is the number of ways used after it.
//!
//! Source: Hennessy and Patterson, appendix B.

use super::{Candidates, ReplacementPolicy};
use crate::host;

pub(super) struct Lru;

impl ReplacementPolicy for Lru {
    fn reset(ages: &mut [u8], _ways: usize) {
        (0..).zip(ages).for_each(|(rank, age)| *age = rank);
    }

    #[inline]
    fn touched(ages: &mut [u8], way: usize) {
        // With a length known at compile time, the host updates all ages at once.
        match ages.as_chunks_mut() {
            ([ages], []) => rejuvenate::<4>(ages, way),
            _ => match ages.as_chunks_mut() {
                ([ages], []) => rejuvenate::<16>(ages, way),
                _ => match ages.as_chunks_mut() {
                    ([ages], []) => rejuvenate::<32>(ages, way),
                    _ => rejuvenate_any(ages, way),
                },
            },
        }
    }

    #[inline]
    fn victim(ages: &mut [u8], among: Candidates<'_>) -> usize {
        let oldest = among.ways as u8 - 1;
        let way = match ages.as_chunks() {
            ([ages], []) => host::equal_bytes(ages, oldest).trailing_zeros() as usize,
            _ => ages[..among.ways].iter().position(|age| *age == oldest).unwrap_or(usize::MAX),
        };
        if way < among.ways && among.allowed >> way & 1 == 1 {
            return way;
        }
        super::ways(among.allowed).max_by_key(|way| ages[*way]).unwrap_or(0)
    }
}

#[inline]
fn rejuvenate<const WAYS: usize>(ages: &mut [u8; WAYS], way: usize) {
    let way = way & (WAYS - 1);
    let rank = ages[way];
    for age in ages.iter_mut() {
        *age += u8::from(*age < rank);
    }
    ages[way] = 0;
}

fn rejuvenate_any(ages: &mut [u8], way: usize) {
    let rank = ages[way];
    if rank > 0 {
        ages.iter_mut().for_each(|age| *age += u8::from(*age < rank));
        ages[way] = 0;
    }
}
