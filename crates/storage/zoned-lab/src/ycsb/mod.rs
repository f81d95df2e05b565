//! The YCSB workloads with their exact distributions, as streams of operations on record numbers.
//!
//! Source: Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010, and the generators of YCSB 0.17
//! (site.ycsb.generator); Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994.

mod distribution;
mod workload;
mod zipfian;

pub use distribution::{Chooser, Distribution};
pub use longma_random::SplitMix64 as Rng;
pub use workload::{Mix, Operation, Stream, Workload};
pub use zipfian::{ScrambledZipfian, Zipfian};

/// Hashes a record number as YCSB does, to spread records over the key space: the absolute value of the FNV-1a hash of
/// its eight bytes, least significant first.
pub fn scatter(number: u64) -> u64 {
    const BASIS: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 1_099_511_628_211;
    let hash =
        number.to_le_bytes().iter().fold(BASIS, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    hash.cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattering_is_fnv_1a() {
        // The reference vectors of 64-bit FNV-1a: eight zero bytes, and "foobar" with two zero bytes appended.
        assert_eq!(scatter(0), 0xA8C7_F832_281A_39C5_u64.cast_signed().unsigned_abs());
        let foobar = u64::from_le_bytes(*b"foobar\0\0");
        let by_hand = 0x8594_4171_F739_67E8_u64; // FNV-1a of "foobar"
        let zero = |hash: u64| hash.wrapping_mul(1_099_511_628_211);
        assert_eq!(scatter(foobar), zero(zero(by_hand)).cast_signed().unsigned_abs());
    }
}
