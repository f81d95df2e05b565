//! Measures the cost of a mispredicted branch: the same loop over zeros, and over random bits that no predictor can
//! learn.
//!
//! Source: the method of Agner Fog, The microarchitecture of Intel, AMD and VIA CPUs, section on branch prediction:
//! half of random branches are mispredicted.

use crate::Effort;
use std::hint::black_box;
use std::time::Instant;

/// Branches between two clock readings.
const BRANCHES: usize = 1 << 13;

/// Picoseconds from fetching a mispredicted branch on a loaded byte to fetching its correct successor, which includes
/// the load and the comparison. The minimum of many runs, each with new bits.
pub fn mispredict_ps(effort: &Effort) -> u64 {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut bits = vec![0u8; BRANCHES];
    let (mut predictable, mut random_ns) = (u64::MAX, u64::MAX);
    let began = Instant::now();
    while began.elapsed() < effort.run * 2 {
        bits.fill(0);
        predictable = predictable.min(run_ns(&bits));
        for bit in &mut bits {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *bit = (random >> 40 & 1) as u8;
        }
        random_ns = random_ns.min(run_ns(&bits));
    }
    random_ns.saturating_sub(predictable) * 1000 / (BRANCHES as u64 / 2)
}

fn run_ns(bits: &[u8]) -> u64 {
    let began = Instant::now();
    for bit in black_box(bits) {
        // The compiler cannot make this code branch-free.
        if *bit != 0 {
            black_box(bit);
        }
    }
    began.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Thoroughness;

    #[test]
    fn a_mispredicted_branch_costs_more_than_a_load_and_less_than_memory() {
        let ps = mispredict_ps(&Effort::of(Thoroughness::Quick));
        assert!((500..200_000).contains(&ps), "{ps} ps");
    }
}
