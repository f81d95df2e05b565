//! First in, first out: ages as of LRU, but only filling makes a line young.
//! Not affected by uses.
//! Source: Hennessy and Patterson, appendix B.

#[inline]
pub(super) fn victim(ages: &[u8], ways: usize, allowed: u64) -> usize {
    super::lru::victim(ages, ways, allowed)
}
