//! Decoding and encoding: decoded words encode back, invalid words are refused, and LLVM agrees. Source: the table, and
//! LLVM's disassembler.

mod llvm;

use std::collections::BTreeSet;

use longma_loongarch::{EncodeError, Extension, Instruction, Op, Operand, decode, encode};
use longma_random::SplitMix64;
use proptest::prelude::*;

/// Instructions that LLVM 19 does not support: the guest-TLB part of the virtualisation extension.
const UNKNOWN_TO_LLVM: [&str; 5] = ["gtlbclr", "gtlbfill", "gtlbrd", "gtlbsrch", "gtlbwr"];
/// LLVM accepts only fcsr0 to fcsr3. The field has five bits, and a 3A5000 executes all values (jiegec/la-inst,
/// NOTES.md).
const MORE_OPERANDS_THAN_LLVM: [&str; 2] = ["movfcsr2gr", "movgr2fcsr"];

/// The word of `op` whose operand fields hold the bits of `filler`.
fn word_of(op: Op, filler: u32) -> u32 {
    let row = op.row();
    row.matched | filler & !row.mask
}

fn any_op() -> impl Strategy<Value = Op> {
    (0..Op::COUNT).prop_map(|index| Op::all().nth(index).expect("index is below COUNT"))
}

/// Pseudorandom words that are the same in each run.
fn words(count: usize) -> impl Iterator<Item = u32> {
    let mut random = SplitMix64::new(1);
    std::iter::repeat_with(move || random.next_u64() as u32).take(count)
}

#[test]
fn every_instruction_decodes_to_itself_and_encodes_back_with_any_operands() {
    let fillers: Vec<u32> = [0, !0, 0x5555_5555, 0xaaaa_aaaa].into_iter().chain(words(60)).collect();
    for op in Op::all() {
        for &filler in &fillers {
            let word = word_of(op, filler);
            let instruction =
                decode(word).unwrap_or_else(|| panic!("{} {word:#010x} decodes", op.mnemonic()));
            assert_eq!(instruction.op, op, "{word:#010x}");
            assert_eq!(encode(&instruction), Ok(word), "{}", op.mnemonic());
        }
    }
}

proptest! {
    #[test]
    fn a_word_that_decodes_encodes_back(word: u32) {
        if let Some(instruction) = decode(word) {
            prop_assert_eq!(encode(&instruction), Ok(word));
        }
    }

    #[test]
    fn operands_round_trip_through_the_word(op in any_op(), filler: u32) {
        let instruction = decode(word_of(op, filler)).expect("a word made from the table");
        let word = encode(&instruction).expect("operands that were decoded");
        prop_assert_eq!(decode(word), Some(instruction));
    }

    #[test]
    fn encoding_any_operands_gives_a_word_that_decodes_to_them_or_an_error(
        op in any_op(), d: u8, j: u8, k: u8, a: u8, imm: i32, imm2: i32,
    ) {
        let original = Instruction { op, d, j, k, a, imm, imm2 };
        if let Ok(word) = encode(&original) {
            let decoded = decode(word).expect("what was encoded decodes");
            prop_assert_eq!(decoded.op, op);
            prop_assert_eq!(encode(&decoded), Ok(word));
            prop_assert_eq!(decoded.to_string(), original.to_string());
        }
    }
}

#[test]
fn a_register_that_does_not_fit_is_an_error_that_names_the_instruction() {
    for op in Op::all() {
        for operand in op.row().operands {
            let &Operand::Register(kind, position) = operand else { continue };
            let mut instruction = decode(op.row().matched).expect("the table's own word");
            let number = 1u8 << kind.field_width();
            match position {
                0 => instruction.d = number,
                5 => instruction.j = number,
                10 => instruction.k = number,
                _ => instruction.a = number,
            }
            match encode(&instruction) {
                Err(EncodeError::Register { mnemonic, number: refused, .. }) => {
                    assert_eq!((mnemonic, refused), (op.mnemonic(), number));
                }
                other => panic!("{} with register {number} gave {other:?}", op.mnemonic()),
            }
        }
    }
}

#[test]
fn an_immediate_one_past_either_end_or_off_its_scale_is_an_error() {
    for op in Op::all() {
        let immediates = op.row().operands.iter().filter_map(|operand| match operand {
            Operand::Immediate(immediate) => Some(*immediate),
            Operand::Register(..) => None,
        });
        for (index, immediate) in immediates.enumerate() {
            let width = u32::from(immediate.width());
            let (min, max) = match immediate.signed {
                true => (-(1i64 << (width - 1)), (1i64 << (width - 1)) - 1),
                false => (0, (1i64 << width) - 1),
            };
            let text = |field: i64| {
                i32::try_from((field << immediate.scale) + i64::from(immediate.plus)).expect("small")
            };
            let with = |value| {
                let mut instruction = decode(op.row().matched).expect("the table's own word");
                *(if index == 0 { &mut instruction.imm } else { &mut instruction.imm2 }) = value;
                encode(&instruction)
            };
            let name = op.mnemonic();
            assert!(with(text(min)).is_ok() && with(text(max)).is_ok(), "{name}: both ends fit");
            let mut invalid = vec![text(min - 1), text(max + 1), i32::MIN, i32::MAX];
            if immediate.scale > 0 {
                invalid.push(text(min) + 1);
            }
            for value in invalid {
                let error = with(value).expect_err(name);
                assert!(error.to_string().starts_with(name), "{error}");
            }
        }
    }
}

#[test]
fn words_near_instructions_and_random_words_decode_exactly_if_llvm_decodes_them() {
    let mut candidates = Vec::new();
    let mut fillers = words(usize::MAX);
    for op in Op::all() {
        let row = op.row();
        for bit in (0..32).filter(|bit| row.mask >> bit & 1 == 1) {
            candidates.push(word_of(op, fillers.next().expect("endless")) ^ 1 << bit);
        }
        candidates.extend(fillers.by_ref().take(4).map(|filler| word_of(op, filler)));
    }
    candidates.extend(words(40_000));

    let (mut only_here, mut only_llvm) = (BTreeSet::new(), BTreeSet::new());
    for (word, text) in candidates.iter().zip(llvm::disassemble(&candidates)) {
        match (decode(*word), text) {
            (Some(instruction), None) => {
                only_here.insert(instruction.op.mnemonic());
            }
            (None, Some(text)) => {
                only_llvm.insert(text.split(' ').next().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }
    let of_no_manual = Op::all().filter(|op| op.row().extension == Extension::Private).map(Op::mnemonic);
    let expected: BTreeSet<_> =
        UNKNOWN_TO_LLVM.into_iter().chain(MORE_OPERANDS_THAN_LLVM).chain(of_no_manual).collect();
    assert_eq!(only_here, expected, "decoded here, refused by LLVM");
    assert_eq!(only_llvm, BTreeSet::new(), "decoded by LLVM, refused here");
}
