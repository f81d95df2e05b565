//! The A64 decoder and disassembler.

use longma_translate::front_end::{Exit, FrontEnd as _};
use longma_translate::optimizations::Options;
use longma_translate_arm::Aarch64;
use longma_translate_arm::instruction::{decode, patterns};
use proptest::prelude::*;

fn text(word: u32) -> String {
    decode(word).map_or("none".into(), |instruction| instruction.text(0x1000).to_string())
}

#[test]
fn instructions_print_as_they_are_written() {
    for (word, expected) in [
        (0xa9bf_7bfd, "stp x29, x30, [sp, #-16]!"),
        (0x9100_03fd, "add x29, sp, #0x0"),
        (0xd65f_03c0, "ret x30"),
        (0x5400_0041, "b.ne 0x1008"),
        (0x3860_6928, "ldrb w8, [x9, x0]"),
        (0xb868_d929, "ldr w9, [x9, w8, sxtw #2]"),
        (0x1e61_2800, "fadd d0, d0, d1"),
        (0x9240_1c00, "and x0, x0, #0xff"),
        (0xd2a0_0020, "movz x0, #0x1, lsl #16"),
        (0xeb20_c01f, "subs xzr, x0, w0, sxtw"),
        (0x1e6e_1000, "fmov d0, #1"),
        (0xd53b_d040, "mrs x0, s3_3_c13_c0_2"),
    ] {
        assert_eq!(text(word), expected, "{word:#010x}");
    }
}

#[test]
fn unallocated_words_are_not_decoded() {
    // UDF, a shift by more than the register width, a bitmask of all ones, a system register of EL1.
    for word in [0x0000_0000, 0x0000_1234, 0x0b00_8000, 0x1200_7c00, 0xd518_1000, 0xffff_ffff] {
        assert_eq!(decode(word), None, "{word:#010x} is {}", text(word));
    }
}

/// A word that is a valid instruction in most cases.
fn word() -> impl Strategy<Value = u32> {
    let rows: Vec<(u32, u32)> = patterns().collect();
    (0..rows.len(), any::<u32>()).prop_map(move |(row, bits)| rows[row].0 | bits & !rows[row].1)
}

/// Instructions whose registers are mostly in spill slots, many of them comparisons and users of flags.
fn crowded() -> impl Strategy<Value = u32> {
    let register = || prop::sample::select(vec![5u32, 6, 7, 16, 25, 26, 27, 28, 0, 31]);
    let sets_or_reads = |(value, _): &(u32, u32)| {
        let named = ["subs", "adds", "ands", "csel", "csinc", "csinv", "csneg", "ccmp", "ccmn"];
        decode(*value).is_some_and(|i| named.contains(&i.mnemonic()))
    };
    let rows: Vec<(u32, u32)> = patterns().filter(sets_or_reads).collect();
    let flags = (0..rows.len(), any::<u32>()).prop_map(move |(row, bits)| rows[row].0 | bits & !rows[row].1);
    (prop_oneof![2 => flags, 1 => word()], register(), register(), register(), any::<bool>()).prop_map(
        |(word, d, n, m, is_same)| {
            let m = if is_same { n } else { m };
            let crowded = word & !0x001f_03ff | m << 16 | n << 5 | d;
            if decode(crowded).is_some() { crowded } else { word }
        },
    )
}

proptest! {
    #[test]
    fn any_words_can_be_translated(words in prop::collection::vec(word(), 1..60)) {
        let fetch = |pc: u64| words.get(pc as usize / 4).copied();
        let unit = Aarch64::translate(0, &[], &fetch, &|_| false, &Options::default());
        prop_assert!(!unit.words.is_empty() && unit.entries.iter().any(|(pc, _)| *pc == 0));
    }

    #[test]
    fn any_word_decodes_to_a_printable_instruction_or_none(word: u32, pc: u64) {
        if let Some(instruction) = decode(word) {
            let text = instruction.text(pc & !3).to_string();
            prop_assert!(!text.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Registers in spill slots need temporary host registers, of which there are few.
    #[test]
    fn no_instruction_runs_out_of_temporary_registers(words in prop::collection::vec(crowded(), 1..20)) {
        let fetch = |pc: u64| words.get(pc as usize / 4).copied();
        let unit = Aarch64::translate(0, &[], &fetch, &|_| false, &Options::default());
        for (at, exit) in &unit.exits {
            let position = unit.positions.iter().rev().find(|position| position.offset <= *at).unwrap();
            let instruction = fetch(position.pc).and_then(decode);
            let is_refused = matches!(exit, Exit::Illegal) && instruction.is_some();
            prop_assert!(!is_refused, "{} in {words:x?}", instruction.unwrap().text(position.pc));
        }
    }
}
