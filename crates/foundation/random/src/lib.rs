//! SplitMix64: a seeded random number generator whose numbers are the same on every machine and in every version. It is
//! fast, has 64 bits of state, and is not cryptographically secure.
//!
//! Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 17; its
//! finalizer is David Stafford's variant 13.

/// The step of the state: 2^64 divided by the golden ratio, rounded to an odd number.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers that is determined by its seed.
///
/// A clone continues with the same numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Creates the stream of a seed. Any seed is as good as any other.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The seed from which the remaining numbers follow.
    pub const fn state(&self) -> u64 {
        self.state
    }

    /// The next 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A number in `0..end`, from the high bits of the next 64. `end` must not be 0: the result is then 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.next_u64() as u128 * end as u128) >> 64) as u64
    }

    /// An index of a slice of `len` elements, as [`SplitMix64::below`].
    pub const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number in `0.0..1.0`, a multiple of 2^-53.
    pub const fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills `bytes` with the next numbers, least significant byte first. The last number may be used in part.
    pub fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Scrambles a number. The function is a bijection, and its values look random even for consecutive numbers; 0 stays 0.
pub const fn mix(number: u64) -> u64 {
    let mut bits = number;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand_xoshiro::rand_core::SeedableRng as _;

    #[test]
    fn the_stream_is_that_of_the_reference_implementation() {
        // The first outputs of Vigna's splitmix64.c for the seed 1234567.
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(published.map(|_| random.next_u64()), published);
    }

    #[test]
    fn numbers_are_spread_over_their_range() {
        let mut random = SplitMix64::new(1);
        let mut counts = [0; 7];
        for _ in 0..7_000 {
            counts[random.index(7)] += 1;
            assert!((0.0..1.0).contains(&random.fraction()));
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert_eq!([random.below(1), random.below(0)], [0, 0]);
    }

    proptest! {
        #[test]
        fn another_implementation_gives_the_same_bits(seed: u64, count in 1usize..50) {
            let mut other = rand_xoshiro::SplitMix64::from_seed(seed.to_le_bytes());
            let mut random = SplitMix64::new(seed);
            for _ in 0..count {
                prop_assert_eq!(random.next_u64(), other.next_u64());
            }
        }

        #[test]
        fn a_stream_continues_from_its_state(seed: u64, end in 1u64..) {
            let mut random = SplitMix64::new(seed);
            prop_assert!(random.below(end) < end);
            prop_assert_eq!(SplitMix64::new(random.state()), random);
        }

        #[test]
        fn bytes_are_the_numbers_in_little_endian_order(seed: u64, len in 0usize..40) {
            let mut random = SplitMix64::new(seed);
            let expected: Vec<u8> = (0..5).flat_map(|_| random.next_u64().to_le_bytes()).take(len).collect();
            let mut bytes = vec![0; len];
            SplitMix64::new(seed).fill_bytes(&mut bytes);
            prop_assert_eq!(bytes, expected);
        }
    }
}

/// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
