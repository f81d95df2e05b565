//! Which line of a set goes: the named replacement policies.
//! Not which ways may be used at all: `lock` and `partition` say that with a mask.
//! Source: each policy's own file.

mod bit_plru;
mod fifo;
mod lru;
mod nru;
mod random;
mod rrip;
mod tree_plru;

use longma_topology::parts::Replacement;

/// The lines of a set that one may be chosen from to be given up.
struct Candidates<'a> {
    /// Ways of the set.
    ways: usize,
    /// A bit for each way that may go; at least one.
    allowed: u64,
    /// State of the cache's random numbers.
    random: &'a mut u64,
}

/// What a policy does. Its state is one byte a way ("age"), in an array that is a power of two long.
trait Replaces {
    /// Puts the ages of an empty set of so many ways into order.
    fn reset(ages: &mut [u8], _ways: usize) {
        ages.fill(0);
    }

    /// A line was used. Doing this twice to one way, with no other in between, changes nothing: `Filter` relies on it.
    fn touched(ages: &mut [u8], way: usize);

    /// A line was put in.
    #[inline]
    fn filled(ages: &mut [u8], way: usize) {
        Self::touched(ages, way);
    }

    /// The way to give up, one of those allowed.
    fn victim(ages: &mut [u8], among: Candidates<'_>) -> usize;
}

/// Makes `Policy` of the policies' types, each named as machine files' [`Replacement`] names it.
macro_rules! policies {
    ($($module:ident::$policy:ident),* $(,)?) => {
        /// A replacement policy.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Policy {
            $($policy),*
        }

        impl From<Replacement> for Policy {
            /// An unknown policy is taken as LRU: what most makers' documents imply where they speak of "the oldest line", and the
            /// usual assumption of other simulators.
            fn from(named: Replacement) -> Self {
                match named {
                    Replacement::Unknown => Self::Lru,
                    $(Replacement::$policy => Self::$policy),*
                }
            }
        }

        impl Policy {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$policy),*];

            /// Puts the ages of an empty set of so many ways into order.
            pub fn reset(self, ages: &mut [u8], ways: usize) {
                match self {
                    $(Self::$policy => $module::$policy::reset(ages, ways)),*
                }
            }

            /// A line was used.
            #[inline]
            pub fn touched(self, ages: &mut [u8], way: usize) {
                match self {
                    $(Self::$policy => $module::$policy::touched(ages, way)),*
                }
            }

            /// A line was put in.
            #[inline]
            pub fn filled(self, ages: &mut [u8], way: usize) {
                match self {
                    $(Self::$policy => $module::$policy::filled(ages, way)),*
                }
            }

            /// The way of `ways` to give up, one of `allowed`, which has at least one.
            #[inline]
            pub fn victim(self, ages: &mut [u8], ways: usize, allowed: u64, random: &mut u64) -> usize {
                let among = Candidates { ways, allowed, random };
                match self {
                    $(Self::$policy => $module::$policy::victim(ages, among)),*
                }
            }
        }
    };
}

policies! { bit_plru::BitPlru, fifo::Fifo, lru::Lru, nru::Nru, random::Random, rrip::Rrip, tree_plru::TreePlru }

/// The ways in a mask, lowest first.
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

    fn set(policy: Policy, ways: usize) -> Vec<u8> {
        let mut ages = vec![0; ways.next_power_of_two()];
        policy.reset(&mut ages, ways);
        (0..ways).for_each(|way| policy.filled(&mut ages, way));
        ages
    }

    #[test]
    fn lru_gives_up_the_line_used_longest_ago_and_fifo_the_one_filled_first() {
        for (policy, expected) in [(Policy::Lru, 1), (Policy::Fifo, 0)] {
            let mut ages = set(policy, 4);
            policy.touched(&mut ages, 0);
            assert_eq!(policy.victim(&mut ages, 4, 0b1111, &mut 1), expected, "{policy:?}");
        }
    }

    #[test]
    fn the_tree_points_away_from_the_last_two_uses() {
        let mut ages = set(Policy::TreePlru, 4);
        Policy::TreePlru.touched(&mut ages, 0);
        assert_eq!(Policy::TreePlru.victim(&mut ages, 4, 0b1111, &mut 1), 2);
        Policy::TreePlru.touched(&mut ages, 2);
        assert_eq!(Policy::TreePlru.victim(&mut ages, 4, 0b1111, &mut 1), 1);
    }

    #[test]
    fn bit_plru_never_gives_up_the_last_line_used_and_starts_again_when_all_are() {
        let mut ages = set(Policy::BitPlru, 3);
        // Filling the third cleared the others.
        assert_eq!(Policy::BitPlru.victim(&mut ages, 3, 0b111, &mut 1), 0);
        Policy::BitPlru.touched(&mut ages, 0);
        assert_eq!(Policy::BitPlru.victim(&mut ages, 3, 0b111, &mut 1), 1);
        Policy::BitPlru.touched(&mut ages, 1);
        assert_eq!(Policy::BitPlru.victim(&mut ages, 3, 0b111, &mut 1), 0);
    }

    #[test]
    fn rrip_keeps_a_line_that_was_used_again_through_a_scan() {
        let mut ages = set(Policy::Rrip, 4);
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
            for &policy in Policy::ALL {
                let mut ages = set(policy, count);
                uses.iter().filter(|way| **way < count).for_each(|way| policy.touched(&mut ages, *way));
                let all = u64::MAX >> (64 - count);
                let allowed = if mask & all == 0 { all } else { mask & all };
                let mut random = seed;
                let way = policy.victim(&mut ages, count, allowed, &mut random);
                prop_assert!(allowed >> way & 1 == 1, "{:?} gave up way {} of {:b}", policy, way, allowed);
            }
        }

        #[test]
        fn a_second_use_in_a_row_changes_nothing(count in 1usize..=20, uses in prop::collection::vec(0usize..20, 1..60)) {
            for &policy in Policy::ALL {
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
        fn lru_is_the_textbooks_list(count in 1usize..=20, uses in prop::collection::vec(0usize..20, 0..60)) {
            let mut ages = set(Policy::Lru, count);
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
