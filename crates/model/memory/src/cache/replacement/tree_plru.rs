//! Tree pseudo-LRU: a binary tree of bits, each pointing to the half that was not used last. Exact for two ways.
//!
//! Source: Al-Zoubi, Milenkovic and Milenkovic, Performance evaluation of cache replacement policies, ACMSE 2004,
//! section 2.

use super::{Candidates, ReplacementPolicy};

/// Node n has the children 2n and 2n + 1. Node 1 is the root; the leaf of a way would be node `leaves + way`.
pub(super) struct TreePlru;

impl ReplacementPolicy for TreePlru {
    #[inline]
    fn touched(ages: &mut [u8], way: usize) {
        let mut node = ages.len() + way;
        while node > 1 {
            // Point to the other child.
            ages[node / 2] = u8::from(node.is_multiple_of(2));
            node /= 2;
        }
    }

    #[inline]
    fn victim(ages: &mut [u8], among: Candidates<'_>) -> usize {
        let leaves = ages.len();
        let (mut node, mut first, mut count) = (1, 0, leaves);
        while count > 1 {
            count /= 2;
            let any = |from: usize| (among.allowed >> from) & (u64::MAX >> (64 - count)) != 0;
            let direction = usize::from(ages[node]);
            // Follow the bit only if the half it points to contains an allowed way.
            let half = if any(first + direction * count) { direction } else { 1 - direction };
            first += half * count;
            node = 2 * node + half;
        }
        first
    }
}
