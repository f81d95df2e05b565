//! Replacement policies: which line of a set is evicted.

mod bit_plru;
mod fifo;
mod lru;
mod nru;
mod random;
mod rrip;
mod tree_plru;

use longma_plugin::{CacheShape, PluginError, ReplacementPlugin};
use longma_topology::parts::{Cache, Replacement};

/// The lines of a set among which a policy chooses the victim.
struct Candidates<'a> {
    /// Number of ways of the set.
    ways: usize,
    /// Mask of ways that may be evicted; never empty.
    allowed: u64,
    /// State of the cache's random number generator.
    random: &'a mut u64,
}

/// A replacement policy. Its state is one byte a way ("age"), in an array whose length is a power of two.
trait ReplacementPolicy {
    /// Initializes the ages of an empty set.
    fn reset(ages: &mut [u8], _ways: usize) {
        ages.fill(0);
    }

    /// Records a use of a way. A second use of the same way without another in between must not change the ages:
    /// `Filter` relies on it.
    fn touched(ages: &mut [u8], way: usize);

    /// Records a fill of a way.
    #[inline]
    fn filled(ages: &mut [u8], way: usize) {
        Self::touched(ages, way);
    }

    /// Chooses the victim among the allowed ways.
    fn victim(ages: &mut [u8], among: Candidates<'_>) -> usize;
}

/// Defines `Policy` from the list of policy types. The names match those of [`Replacement`] in machine files.
macro_rules! policies {
    ($($module:ident::$policy:ident),* $(,)?) => {
        /// A replacement policy. The functions are those of the built-in policies; `Tags` calls a plug-in itself.
        #[derive(Debug)]
        pub(crate) enum Policy {
            $($policy,)*
            /// A WebAssembly module.
            Plugin(Box<ReplacementPlugin>),
        }

        impl Policy {
            #[cfg(test)]
            const BUILT_IN: [Self; [$(stringify!($policy)),*].len()] = [$(Self::$policy),*];

            /// Creates the policy of a cache of type `cache`. Models an unknown policy as LRU, the usual assumption of
            /// other simulators and the meaning of "the oldest line" in vendors' documents.
            ///
            /// # Errors
            /// If it is a plug-in that cannot be used.
            pub fn new(cache: &Cache, shape: CacheShape) -> Result<Self, PluginError> {
                Ok(match cache.replacement {
                    Replacement::Unknown => Self::Lru,
                    $(Replacement::$policy => Self::$policy,)*
                    Replacement::Plugin => {
                        let module = cache.replacement_module.as_ref().map(|module| module.bytes());
                        Self::Plugin(Box::new(ReplacementPlugin::new(module.unwrap_or_default(), shape)?))
                    }
                })
            }

            /// Why a plug-in has failed; `None` if it has not.
            pub fn failure(&self) -> Option<&PluginError> {
                match self {
                    Self::Plugin(plugin) => plugin.failure(),
                    _ => None,
                }
            }

            /// Initializes the ages of an empty set of `ways` ways.
            pub fn reset(&self, ages: &mut [u8], ways: usize) {
                match self {
                    $(Self::$policy => $module::$policy::reset(ages, ways),)*
                    Self::Plugin(_) => {}
                }
            }

            /// Records a use of a way.
            #[inline]
            pub fn touched(&self, ages: &mut [u8], way: usize) {
                match self {
                    $(Self::$policy => $module::$policy::touched(ages, way),)*
                    Self::Plugin(_) => {}
                }
            }

            /// Records a fill of a way.
            #[inline]
            pub fn filled(&self, ages: &mut [u8], way: usize) {
                match self {
                    $(Self::$policy => $module::$policy::filled(ages, way),)*
                    Self::Plugin(_) => {}
                }
            }

            /// Chooses the victim among the ways in the mask `allowed`, which must not be empty, of a set of `ways`
            /// ways.
            #[inline]
            pub fn victim(&self, ages: &mut [u8], ways: usize, allowed: u64, random: &mut u64) -> usize {
                let among = Candidates { ways, allowed, random };
                match self {
                    $(Self::$policy => $module::$policy::victim(ages, among),)*
                    Self::Plugin(_) => allowed.trailing_zeros() as usize,
                }
            }
        }
    };
}

policies! { bit_plru::BitPlru, fifo::Fifo, lru::Lru, nru::Nru, random::Random, rrip::Rrip, tree_plru::TreePlru }

/// Iterates over the ways in a mask, lowest first.
fn ways(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let way = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (way < 64).then_some(way)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(policy: &Policy, ways: usize) -> Vec<u8> {
        let mut ages = vec![0; ways.next_power_of_two()];
        policy.reset(&mut ages, ways);
        (0..ways).for_each(|way| policy.filled(&mut ages, way));
        ages
    }

    #[test]
    fn lru_evicts_the_least_recently_used_line_and_fifo_the_oldest() {
        for (policy, expected) in [(Policy::Lru, 1), (Policy::Fifo, 0)] {
            let mut ages = set(&policy, 4);
            policy.touched(&mut ages, 0);
            assert_eq!(policy.victim(&mut ages, 4, 0b1111, &mut 1), expected, "{policy:?}");
        }
    }

    #[test]
    fn the_tree_points_away_from_the_last_two_uses() {
        let mut ages = set(&Policy::TreePlru, 4);
        Policy::TreePlru.touched(&mut ages, 0);
        assert_eq!(Policy::TreePlru.victim(&mut ages, 4, 0b1111, &mut 1), 2);
        Policy::TreePlru.touched(&mut ages, 2);
        assert_eq!(Policy::TreePlru.victim(&mut ages, 4, 0b1111, &mut 1), 1);
    }

    #[test]
    fn bit_plru_never_evicts_the_last_used_line_and_resets_when_all_are_used() {
        let mut ages = set(&Policy::BitPlru, 3);
        // Filling the third way cleared the bits of the others.
        assert_eq!(Policy::BitPlru.victim(&mut ages, 3, 0b111, &mut 1), 0);
        Policy::BitPlru.touched(&mut ages, 0);
        assert_eq!(Policy::BitPlru.victim(&mut ages, 3, 0b111, &mut 1), 1);
        Policy::BitPlru.touched(&mut ages, 1);
        assert_eq!(Policy::BitPlru.victim(&mut ages, 3, 0b111, &mut 1), 0);
    }

    #[test]
    fn rrip_keeps_a_reused_line_during_a_scan() {
        let mut ages = set(&Policy::Rrip, 4);
        Policy::Rrip.touched(&mut ages, 3);
        for _ in 0..3 {
            let way = Policy::Rrip.victim(&mut ages, 4, 0b1111, &mut 1);
            assert_ne!(way, 3);
            Policy::Rrip.filled(&mut ages, way);
        }
    }

    proptest! {
        #[test]
        fn a_victim_is_always_one_of_the_allowed_ways(
            count in 1usize..=20, uses in prop::collection::vec(0usize..20, 0..60), mask in any::<u64>(), seed in 1u64..,
        ) {
            for policy in &Policy::BUILT_IN {
                let mut ages = set(policy, count);
                uses.iter().filter(|way| **way < count).for_each(|way| policy.touched(&mut ages, *way));
                let all = u64::MAX >> (64 - count);
                let allowed = if mask & all == 0 { all } else { mask & all };
                let mut random = seed;
                let way = policy.victim(&mut ages, count, allowed, &mut random);
                prop_assert!(allowed >> way & 1 == 1, "{:?} evicted way {} of {:b}", policy, way, allowed);
            }
        }

        #[test]
        fn a_second_use_in_a_row_changes_nothing(count in 1usize..=20, uses in prop::collection::vec(0usize..20, 1..60)) {
            for policy in &Policy::BUILT_IN {
                let mut ages = set(policy, count);
                for way in uses.iter().filter(|way| **way < count) {
                    policy.touched(&mut ages, *way);
                    let before = ages.clone();
                    policy.touched(&mut ages, *way);
                    prop_assert_eq!(&before, &ages, "{:?}", policy);
                }
            }
        }

        #[test]
        fn lru_matches_a_recency_list(count in 1usize..=20, uses in prop::collection::vec(0usize..20, 0..60)) {
            let mut ages = set(&Policy::Lru, count);
            let mut list: Vec<_> = (0..count).collect();
            for way in uses.into_iter().filter(|way| *way < count) {
                Policy::Lru.touched(&mut ages, way);
                list.retain(|w| *w != way);
                list.push(way);
                prop_assert_eq!(Policy::Lru.victim(&mut ages, count, u64::MAX >> (64 - count), &mut 1), list[0]);
            }
        }
    }
}
