//! Tests that every front end of `longma-translate` must pass, and support for the front ends' own tests. The crate
//! depends on no front end: each runs these tests from its own test program.

pub mod changes;
pub mod debug_mode;
pub mod emitted;
pub mod hotness;
pub mod memory;
pub mod snapshots;
pub mod whole_units;

/// The bytes of instruction words.
pub fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
