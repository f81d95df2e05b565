//! Snapshot tests of the code emitted for single AArch64 instructions. They cover every operand width, lane size and
//! vector width.

use std::collections::{BTreeMap, BTreeSet};

use longma_translate_arm::Aarch64;
use longma_translate_arm::instruction::{Instruction, decode};
use longma_translate_conformance::bytes;
use longma_translate_conformance::emitted::{OUTSIDE, SOURCE, with_and_without_flags};

const HEAD: &str = "\
# The LoongArch code of single instructions, with the number of LoongArch instructions. tests/emitted/main.rs describes how to update this file.
# Each instruction is translated with all flags dead and, if the code differs, with all flags live. \"later\" marks out-of-line code at the end of the block.
# x0 a0 to x6 a6, x8 t0 to x14 t6, x19 a7, x20 s0 to x24 s4, x26 t7, x29 fp, x30 t8, sp sp; v0 vr0 and so on.
# x7 and x15 to x18 are in memory, x25, x27 and x28 in scratch registers. N fcc0, Z fcc1, C fcc2, V fcc3.
# `engine` marks an instruction that the engine executes.

";

/// `subs xzr, x15, x15; ret`, which overwrites all flags, so that the flags of the
/// preceding instruction are dead.
const KILL_FLAGS: [u32; 2] = [0xeb0f_01ff, 0xd65f_03c0];
/// `b` to [`OUTSIDE`].
const JUMP: u32 = 0x1400_0000 | ((OUTSIDE - SOURCE - 4) / 4) as u32;
/// The immediate of test branches and literal loads: the distance in words to an address after [`OUTSIDE`].
const FAR_OFFSET_WORDS: u32 = ((OUTSIDE + 0x100 - SOURCE) / 4) as u32;

/// The decoder's table. Letters in its patterns are fields of an instruction.
const TABLE: &str = include_str!("../../src/instructions.tsv");

/// The snapshot of each instruction group.
pub fn snapshots() -> BTreeMap<&'static str, String> {
    let mut snapshots: BTreeMap<&'static str, String> = BTreeMap::new();
    let kill_flags = bytes(&KILL_FLAGS);
    for row in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let [pattern, name, operands] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("a row needs three columns: {row}")
        };
        // Fields that do not change the code, as in hints and barriers, give duplicates.
        let mut words_seen = BTreeSet::new();
        for instruction in encodings(pattern, operands).into_iter().filter_map(decode) {
            let text = with_and_without_flags::<Aarch64>(&bytes(&[instruction.word, JUMP]), &kill_flags);
            if words_seen.insert(text.clone()) {
                snapshots.entry(group(instruction)).or_insert_with(|| HEAD.into()).push_str(&text);
            }
        }
        assert!(!words_seen.is_empty(), "no encoding of {name} decodes");
    }
    snapshots
}

/// Expands a pattern to the cross product of its fields' test values. Not all are valid instructions.
fn encodings(pattern: &str, operands: &str) -> Vec<u32> {
    let mut words = vec![0];
    for run in pattern.as_bytes().chunk_by(|a, b| a == b && a.is_ascii_alphabetic()) {
        let (letter, width) = (run[0], run.len());
        let values = if letter.is_ascii_digit() {
            vec![u32::from(letter - b'0')]
        } else {
            values(letter, width, operands)
        };
        words = words.iter().flat_map(|word| values.iter().map(move |value| word << width | value)).collect();
    }
    words
}

/// The test values for a field of this letter and width, in an instruction with these operands.
fn values(letter: u8, width: usize, operands: &str) -> Vec<u32> {
    let has = |operand: &str| operands.split(',').any(|other| other == operand);
    match (letter, width) {
        // Registers: 1 is a destination, 2 the base, 3 and 4 other sources.
        (b'd' | b't', 5) => vec![1],
        (b'n', 5) => vec![2],
        // In a structure access, post-index register 31 selects an increment by the access size.
        (b'm', 5) if has("@s") => vec![3, 31],
        (b'm' | b'z', 4 | 5) => vec![3],
        (b'a' | b'u', 5) => vec![4],
        // Operand width (64 or 32 bits), or vector width (128 or 64 bits).
        (b's', 1) if has("@r") => vec![1],
        (b's' | b'q' | b't', 1) => vec![0, 1],
        // Double or single precision.
        (b'z', 1) => vec![0, 1],
        // Lane size.
        (b'z', 2) => vec![0, 1, 2, 3],
        // A left shift, or a halfword index.
        (b'h', 2) => vec![if has("#shift") { 0 } else { 1 }],
        (b'i', 6) if has("#shift") => vec![0, 3],
        // UXTW, UXTX and SXTW.
        (b'o', 3) => vec![2, 3, 6],
        // Conditions. GT (12) reads three flags; no condition reads more.
        (b'c', 4) if has("#modified0") || has("#modified1") => vec![0, 8, 12, 14, 15],
        (b'c', 4) if has("#to19") => (0..15).collect(),
        (b'c', 4) => vec![12],
        // N and C.
        (b'v', 4) => vec![0b1010],
        (b'b', 5) => vec![9],
        // Acquire and release.
        (b'a' | b'r', 1) => vec![1],
        (b'i', 14 | 19 | 26) => vec![FAR_OFFSET_WORDS],
        // A shift amount or an element index, with the lane size encoded in it.
        (b'i', 7) if operands.contains("#amount") || operands.contains("#fixed") => {
            vec![0b000_1011, 0b001_0011, 0b010_0011, 0b100_0011]
        }
        (b'i', 5) if has("#element") => vec![0b00011, 0b00110, 0b01100, 0b11000],
        // An element index for doublewords and for smaller lanes.
        (b'i', 3) if operands.contains("Qt") || operands.contains("#list") => vec![0b001, 0b100],
        // 16 fraction bits.
        (b'i', 6) if has("#fbits") => vec![64 - 16],
        // N, immr and imms: an 11-bit mask from bit 3 on.
        (b'i', 13) => vec![3 << 6 | 10, 1 << 12 | 3 << 6 | 10],
        (b'i', 1) => vec![0, 1],
        (b'i', 15) => SYSTEM_REGISTERS.iter().map(|register| register & 0x7fff).collect(),
        (b'i', 16) => vec![0x1234],
        (b'i', 8 | 9 | 12) => vec![0x18],
        (b'i' | b'j', _) => vec![3],
        _ => vec![0],
    }
}

/// NZCV, FPCR, FPSR, TPIDR_EL0, CTR_EL0, DCZID_EL0 and CNTVCT_EL0, as op0 to op2.
const SYSTEM_REGISTERS: [u32; 7] = [0xda10, 0xda20, 0xda21, 0xde82, 0xd801, 0xd807, 0xdf02];

/// The snapshot file of an instruction, by the encoding groups of the manual, section C4.1.
fn group(instruction: Instruction) -> &'static str {
    let word = instruction.word;
    let is_simd = word >> 26 & 1 != 0;
    match word >> 25 & 15 {
        8 | 9 => "data_processing_immediate",
        10 | 11 if word >> 24 == 0xd5 => "system",
        10 | 11 => "branches",
        5 | 13 => "data_processing_register",
        7 | 15 if word >> 28 & 1 != 0 => "scalars",
        7 | 15 if word >> 24 & 1 != 0 => "vectors_by_element",
        7 | 15 if word >> 21 & 1 != 0 && word >> 10 & 1 != 0 => "simd_three_same",
        7 | 15 => "vectors",
        _ if is_simd && word >> 28 & 3 == 0 => "structures",
        _ if is_simd => "vector_memory",
        _ if word >> 28 & 3 == 0 || word >> 28 & 3 == 3 && word >> 21 & 1 != 0 && word >> 10 & 3 == 0 => {
            "atomic"
        }
        _ => "memory",
    }
}
