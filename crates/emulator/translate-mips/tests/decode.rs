//! The decoder and disassembler of MIPS64 instructions.

use longma_translate_mips::instruction::{Op, decode};
use proptest::prelude::*;

fn text(word: u32) -> String {
    decode(word).map_or("none".into(), |instruction| instruction.text(0x1000).to_string())
}

#[test]
fn instructions_print_as_they_are_written() {
    for (word, expected) in [
        (0x0000_0000, "nop"),
        (0x67bd_ffe0, "daddiu $sp, $sp, -32"),
        (0xffbf_0018, "sd $ra, 24($sp)"),
        (0x0411_0007, "bgezal $zero, 0x1020"),
        (0x03e0_0008, "jr $ra"),
        (0x0320_f809, "jalr $ra, $t9"),
        (0x4620_003c, "c.lt.d $fcc0, $f0, $f0"),
        (0x4501_fffe, "bc1t $fcc0, 0xffc"),
        (0x7c03_e83b, "rdhwr $v1, 29"),
        (0x7082_1021, "clo $v0, $a0"),
        (0x0c00_0400, "jal 0x1000"),
    ] {
        assert_eq!(text(word), expected, "{word:#010x}");
    }
}

#[test]
fn unallocated_words_are_not_decoded() {
    // sll with a source register, jr with a link register, an insertion that ends before it begins, an extraction
    // beyond bit 31.
    for word in
        [0x0020_0000, 0x03e0_f808, 0x7c00_0044 | 5 << 6, 0x7c00_0000 | 20 << 11 | 20 << 6, 0x3fff_ffff_u32]
    {
        assert_eq!(decode(word), None, "{word:#010x} is {}", text(word));
    }
}

proptest! {
    #[test]
    fn any_word_decodes_to_a_printable_instruction_or_none(word: u32, pc: u64) {
        if let Some(instruction) = decode(word) {
            let text = instruction.text(pc & !3).to_string();
            prop_assert!(instruction.op == Op::Sll && word == 0 || text.starts_with(instruction.mnemonic()));
        }
    }
}
