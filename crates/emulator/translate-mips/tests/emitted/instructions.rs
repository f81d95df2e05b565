//! Snapshots of each MIPS64 instruction alone, and of sequences that are common in programs.

use std::collections::BTreeMap;

use longma_translate_conformance::bytes;
use longma_translate_conformance::emitted::{self, OUTSIDE, Source, single};
use longma_translate_mips::Mips64;
use longma_translate_mips::instruction::{decode, patterns};

const HEAD: &str = "\
# The LoongArch code of single instructions, with the number of LoongArch instructions. tests/emitted/main.rs describes how to update this file.
# \"later\" marks code at the end of the block. `engine`: the engine executes the instruction. Branches have a `nop` in their slot.

";

/// Operands: rs a0, rt a1, rd a5, shift amount 7; as an immediate, 18904.
const OPERANDS: u32 = 4 << 21 | 5 << 16 | 9 << 11 | 7 << 6 | 0x18;
const NOP: u32 = 0;
/// `j` to [`OUTSIDE`].
const JUMP: u32 = 2 << 26 | (OUTSIDE / 4) as u32;

/// The text of each group of instructions.
pub fn texts() -> BTreeMap<&'static str, String> {
    let mut texts: BTreeMap<&'static str, String> = BTreeMap::new();
    for (matched, mask) in patterns() {
        let word = matched | OPERANDS & !mask;
        let instruction = decode(word).unwrap_or_else(|| panic!("{word:#x} is in the table"));
        let opcode = word >> 26;
        let group = match opcode {
            _ if instruction.has_delay_slot() => "jumps",
            0x11 | 0x13 => "floats",
            0x1a | 0x1b | 0x20.. => "memory",
            _ => "integers",
        };
        let slot: &[u32] = if instruction.has_delay_slot() { &[NOP] } else { &[] };
        let code = [&[word], slot, &[JUMP, NOP]].concat();
        texts.entry(group).or_insert_with(|| HEAD.into()).push_str(&shown(&code));
    }
    texts
}

fn shown(code: &[u32]) -> String {
    single::<Mips64>(&Source { code: &bytes(code), outside: &[] }).shown()
}

/// Title and words of each sequence.
const SEQUENCES: &[(&str, &[u32])] = &[
    // addu v0, v0, a0; addiu a1, a1, -1; bnez a1, back; nop; jr ra; nop
    ("A counted loop", &[0x0044_1021, 0x24a5_ffff, 0x14a0_fffd, 0, 0x03e0_0008, 0]),
    // lw t0, 0(a0); daddiu a0, a0, 4; bne a0, a1, back; addu v0, v0, t0 in the delay slot; jr ra; nop
    (
        "A loop over memory, with work in the slot",
        &[0x8c8c_0000, 0x6484_0004, 0x1485_fffd, 0x004c_1021, 0x03e0_0008, 0],
    ),
    // jal 0x1018; nop; jr ra; nop; nop; nop; daddu v0, a0, a1; jr ra; nop
    (
        "A call of a function, and its return",
        &[0x0c00_0406, 0, 0x0040_f809, 0, 0x03e0_0008, 0, 0x0085_102d, 0x03e0_0008, 0],
    ),
    // jalr t9; nop; jr v0; nop
    ("A call and a jump of addresses in registers", &[0x0320_f809, 0, 0x0040_0008, 0]),
    // dmult a0, a1; mflo v0; mfhi v1; ddiv zero, a0, a1; mflo a2; jr ra; nop
    (
        "Products and quotients that are read",
        &[0x0085_001c, 0x0000_1012, 0x0000_1810, 0x0085_001e, 0x0000_3012, 0x03e0_0008, 0],
    ),
    // ll t0, 0(a0); addiu t0, t0, 1; sc t0, 0(a0); beqz t0, back; nop; jr ra; nop
    (
        "Load-linked and store-conditional in a loop",
        &[0xc08c_0000, 0x258c_0001, 0xe08c_0000, 0x1180_fffc, 0, 0x03e0_0008, 0],
    ),
    // c.lt.d f0, f2; bc1t over; nop; add.d f0, f0, f2; over: jr ra; nop
    ("A comparison of numbers and a branch", &[0x4622_003c, 0x4501_0002, 0, 0x4622_0000, 0x03e0_0008, 0]),
    // dsll at, a1, 3; daddu at, a0, at; ld v0, 0(at); daddu v1, a0, a2; lbu v1, 0(v1); jr ra; lui at, 3
    (
        "Loads from sums, whose registers are written again",
        &[0x0005_08f8, 0x0081_082d, 0xdc22_0000, 0x0086_182d, 0x9063_0000, 0x03e0_0008, 0x3c01_0003],
    ),
    // ld a3, 0(a2); sltu at, a3, v0; daddiu a2, a2, 8; bnez at, back; daddiu v1, v1, 1; jr ra; lui at, 3
    (
        "A loop that ends by a comparison",
        &[0xdcc7_0000, 0x00e2_082b, 0x64c6_0008, 0x1420_fffc, 0x6463_0001, 0x03e0_0008, 0x3c01_0003],
    ),
    // lui at, 3; daddu at, at, t9; daddiu at, at, -7552; ld at, -32736(at); jr ra; nop
    (
        "A load from the table of addresses",
        &[0x3c01_0003, 0x0039_082d, 0x6421_e280, 0xdc21_8020, 0x03e0_0008, 0],
    ),
    // sll at, a0, 3; addu v0, a1, at; sll v0, v0, 0; jr ra; lui at, 3
    (
        "A sum of words, one of them shifted, that is extended again",
        &[0x0004_08c0, 0x00a1_1021, 0x0002_1000, 0x03e0_0008, 0x3c01_0003],
    ),
    // andi v0, a0, 65280; srl v0, v0, 8; dext v0, v0, 0, 32; jr ra; nop
    ("A field", &[0x3082_ff00, 0x0002_1202, 0x7c42_f803, 0x03e0_0008, 0]),
    // li v0, 5001; syscall; jr ra; nop
    ("A system call", &[0x2402_1389, 0x0000_000c, 0x03e0_0008, 0]),
];

/// The text of all sequences.
pub fn sequences() -> String {
    emitted::sequences::<Mips64>(SEQUENCES.iter().map(|(what, words)| (*what, bytes(words))))
}
