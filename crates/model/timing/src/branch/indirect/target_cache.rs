//! Target cache: a tagged table of targets, selected by the branch and the path of recent indirect targets. A branch
//! whose path is unknown is predicted to go to its last target.
//!
//! Source: Chang, Hao and Patt, Target Prediction for Indirect Jumps (ISCA 1997), the tagged cache with path history;
//! Driesen and Hölzle, Accurate Indirect Branch Prediction (ISCA 1998), for whole targets in the path.

use super::{TargetBuffer, WAYS, mix, word};

/// An entry: a tag computed from branch and path, and the target.
type Entry = (u32, u32);

/// A target cache.
#[derive(Debug)]
pub(super) struct TargetCache {
    /// In each set, the most recently used entry is the first.
    sets: Box<[[Entry; WAYS]]>,
    last: TargetBuffer,
    /// The most recent targets, each with the same number of bits, the newest in the lowest.
    path: u64,
    bits_per_target: u32,
    /// The bits of the path that belong to a target of the history.
    path_mask: u64,
}

impl TargetCache {
    /// Creates a cache of at most `entries` targets, selected by the last `history` targets: 1 to 16.
    pub fn new(entries: u32, history: u32) -> Self {
        let sets = (entries as usize / WAYS).max(1);
        let bits_per_target = u64::BITS / history;
        Self {
            sets: vec![[(0, 0); WAYS]; sets].into(),
            last: TargetBuffer::new(entries),
            path: 0,
            bits_per_target,
            path_mask: super::super::ones(bits_per_target * history),
        }
    }

    /// Predicts the target of `branch`, then trains with the actual `target`. Returns whether the prediction was right.
    pub fn resolve(&mut self, branch: u64, target: u64) -> bool {
        let to = word(target);
        let key = mix(mix(word(branch).into()) ^ self.path);
        let (tag, number) = (key as u32, (key >> 32) as usize % self.sets.len());
        let last_was_right = self.last.resolve(branch, target);
        let set = &mut self.sets[number];
        let way = set.iter().position(|entry| entry.0 == tag);
        let right = way.map_or(last_was_right, |way| set[way].1 == to);
        set[..=way.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = (tag, to);
        // Sixteen bits distinguish nearby targets for any alignment of the code.
        let newest = u64::from(to ^ to >> 16) & super::super::ones(self.bits_per_target.min(16));
        let older = self.path.checked_shl(self.bits_per_target).unwrap_or(0);
        self.path = (older | newest) & self.path_mask;
        right
    }
}
