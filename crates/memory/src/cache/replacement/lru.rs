//! Least recently used, exactly: a way's age is how many ways were used after it.
//! Not an approximation.
//! Source: Hennessy and Patterson, appendix B.

pub(super) fn reset(ages: &mut [u8]) {
    (0..).zip(ages).for_each(|(rank, age)| *age = rank);
}

#[inline]
pub(super) fn touched(ages: &mut [u8], way: usize) {
    let rank = ages[way];
    if rank > 0 {
        ages.iter_mut().for_each(|age| *age += u8::from(*age < rank));
        ages[way] = 0;
    }
}

#[inline]
pub(super) fn victim(ages: &[u8], ways: usize, allowed: u64) -> usize {
    let oldest = ways as u8 - 1;
    match ages[..ways].iter().position(|age| *age == oldest) {
        Some(way) if allowed >> way & 1 == 1 => way,
        _ => super::ways(allowed).max_by_key(|way| ages[*way]).unwrap_or(0),
    }
}
