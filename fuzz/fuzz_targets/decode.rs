//! Decodes random words. A decoded instruction must encode to the same word and print without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_loongarch::{decode, encode};

fuzz_target!(|data: &[u8]| {
    for (index, bytes) in data.chunks_exact(4).enumerate() {
        let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if let Some(instruction) = decode(word) {
            assert_eq!(encode(&instruction), Ok(word));
            let pc = 4 * index as u64;
            assert!(instruction.at(pc).to_string().starts_with(&instruction.to_string()[..1]));
            assert_eq!(
                instruction.branch_target(pc).is_some(),
                instruction.at(pc).to_string().contains("0x")
            );
        }
    }
});
