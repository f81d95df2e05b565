//! Random operations and faults never lose data silently. `support/adversary.rs` defines the operations.

use crate::adversary::{Encountered, run};
use longma_zoned_lab::ycsb::Rng;
use proptest::prelude::*;
use std::time::{Duration, Instant};

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_data_is_present_or_reading_it_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
        run(&bytes);
    }
}

/// LONGMA_ZONED_FAULTS sets the minimum number of power cuts and faults, LONGMA_ZONED_SEED the first seed.
#[test]
fn no_power_cut_or_fault_loses_data_silently() {
    let number = |name: &str, ordinary: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(ordinary)
    };
    let (wanted, first) = (number("LONGMA_ZONED_FAULTS", 1_000), number("LONGMA_ZONED_SEED", 1));
    let (mut faced, mut reported) = (Encountered::default(), Instant::now());
    for seed in first.. {
        let mut rng = Rng::new(seed);
        let length = 200 + rng.below(3_000);
        let bytes: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
        match std::panic::catch_unwind(|| run(&bytes)) {
            Ok(run) => faced.add(&run),
            Err(_) => panic!("run {seed}: LONGMA_ZONED_SEED={seed} LONGMA_ZONED_FAULTS=1 does it again"),
        }
        if reported.elapsed() > Duration::from_secs(20) {
            println!("run {seed}: {} power cuts and faults so far", faced.faults());
            reported = Instant::now();
        }
        if faced.faults() >= wanted {
            break;
        }
    }
    println!("{} power cuts and faults without a silent loss: {faced:#?}", faced.faults());
    assert!(wanted < 1_000 || (faced.repairs > 0 && faced.cuts > 0 && faced.old_versions > 0), "{faced:?}");
}
