//! Whatever is done to the map, and whatever its device does to it (power cuts, errors, lost, torn and misdirected writes, flipped bits, old
//! versions of blocks), it does what a `BTreeMap` does, or says what is damaged: nothing is lost in silence, and nothing invented.
#![no_main]

#[path = "../../crates/storage/zoned/tests/support/adversary.rs"]
#[allow(dead_code, reason = "the test counts what the runs went through")]
mod adversary;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    adversary::run(input);
});
