//! The loads and stores of the left or the right part of an unaligned value, at all alignments. Source: MIPS64
//! Architecture, volume II, figures of LDL, LDR, SDL, SDR (little endian).

use longma_loongarch::{Access, Fault, FaultCause, Instruction, Op, State, Trap, semantics::execute};

use super::{BASE, Memory};

pub fn tested() -> Vec<Op> {
    use Op::{LdlD, LdlW, LdrD, LdrW, StlD, StlW, StrD, StrW};
    vec![LdlW, LdrW, LdlD, LdrD, StlW, StrW, StlD, StrD]
}

fn at(op: Op, imm: i32) -> Instruction {
    Instruction { d: 4, j: 5, imm, ..Instruction::new(op) }
}

/// A state with r4 = `value` and r5 = `address`.
fn state(value: u64, address: u64) -> State {
    let mut state = State::default();
    (state.x[4], state.x[5]) = (value, address);
    state
}

const BYTES: [u8; 24] = [
    0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0x0f,
    0x1e, 0x2d, 0x3c, 0x4b, 0x5a, 0x69, 0x78,
];

#[test]
fn a_left_and_a_right_load_in_either_order_load_an_unaligned_value() {
    for offset in 0..16 {
        let bytes: [u8; 8] = BYTES[offset..offset + 8].try_into().unwrap();
        let doubleword = u64::from_le_bytes(bytes);
        let word = i32::from_le_bytes(bytes[..4].try_into().unwrap()) as u64;
        for (left, right, last, expected) in
            [(Op::LdlD, Op::LdrD, 7, doubleword), (Op::LdlW, Op::LdrW, 3, word)]
        {
            let memory = Memory::new(&BYTES);
            for order in [[at(left, last), at(right, 0)], [at(right, 0), at(left, last)]] {
                let mut state = state(0xaaaa_aaaa_aaaa_aaaa, BASE + offset as u64);
                for instruction in order {
                    execute(&mut state, &instruction, &memory).expect("mapped");
                }
                assert_eq!(state.x[4], expected, "{} at offset {offset}", left.mnemonic());
            }
        }
    }
}

#[test]
fn a_left_or_right_load_changes_only_its_bytes_of_the_register() {
    // The bytes are 01, 02, ... in memory and a1, a2, ... in the register. The expected values are those of the figures.
    let memory = Memory::new(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let register = 0xa1a2_a3a4_a5a6_a7a8;
    for (op, offset, expected) in [
        (Op::LdlD, 0, 0x01a2_a3a4_a5a6_a7a8),
        (Op::LdlD, 2, 0x0302_01a4_a5a6_a7a8),
        (Op::LdlD, 7, 0x0807_0605_0403_0201),
        (Op::LdrD, 0, 0x0807_0605_0403_0201),
        (Op::LdrD, 5, 0xa1a2_a3a4_a508_0706),
        (Op::LdrD, 7, 0xa1a2_a3a4_a5a6_a708),
        (Op::LdlW, 0, 0x0000_0000_01a6_a7a8),
        (Op::LdlW, 3, 0x0000_0000_0403_0201),
        (Op::LdlW, 6, 0x0000_0000_0706_05a8),
        (Op::LdrW, 1, 0xffff_ffff_a504_0302),
        (Op::LdrW, 3, 0xffff_ffff_a5a6_a704),
        (Op::LdrW, 4, 0x0000_0000_0807_0605),
    ] {
        let mut state = state(register, BASE);
        execute(&mut state, &at(op, offset), &memory).expect("mapped");
        assert_eq!(state.x[4], expected, "{} at offset {offset}", op.mnemonic());
    }
}

#[test]
fn a_right_and_a_left_store_write_the_bytes_of_an_unaligned_value_and_no_others() {
    for offset in 0..16usize {
        for (left, right, size) in [(Op::StlD, Op::StrD, 8), (Op::StlW, Op::StrW, 4)] {
            let value = 0xf1e2_d3c4_b5a6_9788u64;
            let memory = Memory::new(&BYTES);
            let mut state = state(value, BASE + offset as u64);
            execute(&mut state, &at(right, 0), &memory).expect("mapped");
            execute(&mut state, &at(left, size - 1), &memory).expect("mapped");
            let mut expected = BYTES;
            let size = size as usize;
            expected[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
            assert_eq!(*memory.0.borrow(), expected, "{} at offset {offset}", left.mnemonic());
        }
    }
}

#[test]
fn a_faulting_access_reports_the_accessed_address_and_changes_nothing() {
    for op in tested() {
        let memory = Memory::new(&[9; 8]);
        let mut state = state(7, BASE + 0x100);
        let before = state.clone();
        let access = if op.mnemonic().starts_with("ld") { Access::Read } else { Access::Write };
        let error = execute(&mut state, &at(op, 2), &memory).expect_err("unmapped");
        assert_eq!(error, Trap::Memory(Fault { address: BASE + 0x102, access, cause: FaultCause::Unmapped }));
        assert_eq!((state, memory.0.take()), (before, vec![9; 8]));
    }
}
