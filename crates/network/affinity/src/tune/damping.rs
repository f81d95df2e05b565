//! Damps changes: a change is made only if two consecutive observations call for it, and not too often for the same
//! object.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of changes to one object within [`WINDOW`].
pub const MAX_CHANGES: usize = 3;
/// Period over which changes are counted.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Number of consecutive observations that must call for a change.
const CONFIRMATIONS: u32 = 2;

/// Decision about a proposed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Wait for another observation.
    Wait,
    /// Make the change.
    Make,
    /// The object was changed too often recently.
    Hold,
}

/// History of the objects.
#[derive(Debug, Default)]
pub struct ChangeDamper<K> {
    wanted: BTreeMap<K, u32>,
    made: BTreeMap<K, Vec<Duration>>,
}

impl<K: Ord + Clone> ChangeDamper<K> {
    /// Creates an empty history.
    pub fn new() -> Self {
        Self { wanted: BTreeMap::new(), made: BTreeMap::new() }
    }

    /// Decides on the changes proposed by one observation at time `now` since the start. Counts [`Verdict::Make`] as
    /// made.
    pub fn judge(&mut self, wishes: &[K], now: Duration) -> Vec<Verdict> {
        let wished: BTreeSet<&K> = wishes.iter().collect();
        self.wanted.retain(|thing, _| wished.contains(thing));
        self.made.retain(|_, times| {
            times.retain(|time| now.saturating_sub(*time) < WINDOW);
            !times.is_empty()
        });
        wishes.iter().map(|thing| self.judge_one(thing, now)).collect()
    }

    fn judge_one(&mut self, thing: &K, now: Duration) -> Verdict {
        let looks = self.wanted.entry(thing.clone()).or_default();
        *looks += 1;
        if *looks < CONFIRMATIONS {
            return Verdict::Wait;
        }
        let made = self.made.entry(thing.clone()).or_default();
        if made.len() >= MAX_CHANGES {
            return Verdict::Hold;
        }
        made.push(now);
        self.wanted.remove(thing);
        Verdict::Make
    }

    /// Returns whether a proposed change awaits confirmation, so that the next observation should come soon.
    pub fn is_waiting(&self) -> bool {
        self.wanted.values().any(|looks| *looks < CONFIRMATIONS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_persistent_targets_are_applied() {
        let mut damper = ChangeDamper::new();
        let at = |second| Duration::from_secs(second);
        assert_eq!(damper.judge(&["a"], at(1)), [Verdict::Wait]);
        assert!(damper.is_waiting());
        assert!(damper.judge(&[], at(2)).is_empty());
        assert_eq!(damper.judge(&["a"], at(3)), [Verdict::Wait]);
        assert_eq!(damper.judge(&["a", "b"], at(4)), [Verdict::Make, Verdict::Wait]);
        assert_eq!(damper.judge(&["b"], at(5)), [Verdict::Make]);
        assert!(!damper.is_waiting());
    }

    proptest! {
        #[test]
        fn changes_are_rare_for_any_sequence_of_targets(wishes in proptest::collection::vec((0u64..3000, proptest::collection::btree_set(0u8..4, 0..4)), 1..400)) {
            let mut damper = ChangeDamper::new();
            let (mut now, mut made) = (0, Vec::new());
            for (pause_ms, wanted) in wishes {
                now += pause_ms;
                let wanted: Vec<u8> = wanted.into_iter().collect();
                let verdicts = damper.judge(&wanted, Duration::from_millis(now));
                for (thing, _) in wanted.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Make) {
                    made.push((*thing, now));
                }
            }
            for (thing, time) in &made {
                let inside = made.iter().filter(|(other, at)| other == thing && at >= time && at - time < 60_000);
                prop_assert!(inside.count() <= MAX_CHANGES);
            }
        }
    }
}
