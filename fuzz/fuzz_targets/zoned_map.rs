//! Runs random operations on a map whose device fails (power cuts, errors, lost, torn and misdirected writes, flipped
//! bits, stale blocks). The map must behave like a `BTreeMap` or report damage; it must not lose or invent data
//! silently.
#![no_main]

#[path = "../../crates/storage/zoned/tests/support/adversary.rs"]
#[allow(dead_code, reason = "the test counts the kinds of faults")]
mod adversary;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    adversary::run(input);
});
