//! Decodes and translates random words as MIPS64 code. Decoded instructions must print, and all code must translate
//! without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_translate_mips::{instruction::decode, unit::translate};

const START: u64 = 0x1_0000;

fuzz_target!(|data: &[u8]| {
    let words: Vec<u32> = data
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    for word in &words {
        if let Some(instruction) = decode(*word) {
            assert!(!instruction.text(START).to_string().is_empty());
        }
    }
    let fetch = |pc: u64| {
        let offset = pc.checked_sub(START).filter(|offset| offset % 4 == 0)?;
        words.get(usize::try_from(offset / 4).ok()?).copied()
    };
    if fetch(START).is_some() {
        let unit = translate(START, &fetch, &|_| false, &Default::default());
        for word in unit.words {
            assert!(longma_loongarch::decode(word).is_some());
        }
    }
});
