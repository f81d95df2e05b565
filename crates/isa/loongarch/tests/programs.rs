//! Small programs run by a fetch-decode-execute loop on an array. Their only system call ends the program. Source:
//! textbook algorithms; the host computes the expected results.

#[path = "qemu_oracle/array.rs"]
mod array;

use array::Array;
use longma_loongarch::{Environment, Instruction, Op, State, Trap, decode, encode, semantics::execute};
use proptest::prelude::*;

const CODE: u64 = 0x1_0000;
const DATA: u64 = 0x2_0000;

fn rrr(op: Op, d: u8, j: u8, k: u8) -> Instruction {
    Instruction { d, j, k, ..Instruction::new(op) }
}

fn rri(op: Op, d: u8, j: u8, imm: i32) -> Instruction {
    Instruction { d, j, imm, ..Instruction::new(op) }
}

/// Runs until `syscall 0` and returns the final state.
fn run(program: &[Instruction], arguments: &[u64], data: &[u64]) -> (State, Vec<u64>) {
    let code: Vec<u32> = program.iter().map(|i| encode(i).expect("the program is encodable")).collect();
    let bytes = data.iter().flat_map(|value| value.to_le_bytes()).chain([0; 64]).collect();
    let memory = Array::new(DATA, bytes, CODE, &code);
    let mut state = State { pc: CODE, ..State::default() };
    for (n, argument) in arguments.iter().enumerate() {
        state.set_r(4 + n as u8, *argument);
    }
    for _ in 0..1_000_000 {
        let word = memory.fetch(state.pc).expect("the program stays in its code");
        match execute(&mut state, &decode(word).expect("the program decodes"), &memory) {
            Ok(()) => {}
            Err(Trap::Syscall(0)) => {
                let bytes = memory.data.take();
                let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                return (state, words.take(data.len()).collect());
            }
            Err(trap) => panic!("{trap} at {:#x}", state.pc),
        }
    }
    panic!("the program does not end");
}

/// r4 = n -> r4 = the n-th Fibonacci number, by recursion with a stack at r3.
fn fibonacci() -> Vec<Instruction> {
    vec![
        rri(Op::Lu12iW, 3, 0, ((DATA + 0x1000) >> 12) as i32),
        rri(Op::Bl, 0, 0, 8),
        Instruction::new(Op::Syscall),
        // fibonacci:
        rri(Op::Slti, 12, 4, 2),
        rri(Op::Bnez, 0, 12, 60),
        rri(Op::AddiD, 3, 3, -24),
        rri(Op::StD, 1, 3, 0),
        rri(Op::StD, 23, 3, 8),
        rri(Op::StD, 4, 3, 16),
        rri(Op::AddiD, 4, 4, -1),
        rri(Op::Bl, 0, 0, -28),
        rrr(Op::Or, 23, 4, 0),
        rri(Op::LdD, 4, 3, 16),
        rri(Op::AddiD, 4, 4, -2),
        rri(Op::Bl, 0, 0, -44),
        rrr(Op::AddD, 4, 4, 23),
        rri(Op::LdD, 1, 3, 0),
        rri(Op::LdD, 23, 3, 8),
        rri(Op::AddiD, 3, 3, 24),
        rri(Op::Jirl, 0, 1, 0),
    ]
}

#[test]
fn a_recursive_program_computes_fibonacci_numbers() {
    for (n, expected) in [(0, 0), (1, 1), (2, 1), (10, 55), (17, 1597)] {
        let (state, _) = run(&fibonacci(), &[n], &[0; 600]);
        assert_eq!(state.r(4), expected, "fibonacci({n})");
        assert_eq!(state.r(3), DATA + 0x1000, "the stack is balanced");
    }
}

/// Insertion sort of r5 signed doublewords at address r4.
fn insertion_sort() -> Vec<Instruction> {
    vec![
        rri(Op::Ori, 12, 0, 1),
        // next: (r12 = the index to insert)
        rri(Op::Bge, 5, 12, 56),
        Instruction { imm: 3, ..rrr(Op::AlslD, 13, 12, 4) },
        rri(Op::LdD, 14, 13, 0),
        // shift: (r13 = where r14 is inserted)
        rri(Op::Beq, 4, 13, 28),
        rri(Op::LdD, 15, 13, -8),
        rri(Op::Bge, 15, 14, 20),
        rri(Op::StD, 15, 13, 0),
        rri(Op::AddiD, 13, 13, -8),
        rri(Op::B, 0, 0, -20),
        Instruction::new(Op::Break),
        // place:
        rri(Op::StD, 14, 13, 0),
        rri(Op::AddiD, 12, 12, 1),
        rri(Op::B, 0, 0, -48),
        Instruction::new(Op::Break),
        Instruction::new(Op::Syscall),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_program_sorts_any_array(values in prop::collection::vec(any::<i64>(), 1..40)) {
        let data: Vec<u64> = values.iter().map(|value| *value as u64).collect();
        let (_, left) = run(&insertion_sort(), &[DATA, data.len() as u64], &data);
        let mut sorted = values;
        sorted.sort_unstable();
        prop_assert_eq!(left, sorted.iter().map(|value| *value as u64).collect::<Vec<_>>());
    }
}

/// r4 = the address of r5 doubles; f0 = the square root of the sum of their squares.
#[test]
fn a_program_computes_a_norm() {
    let float = |op, d, j, k, a| Instruction { d, j, k, a, ..Instruction::new(op) };
    let program = vec![
        rri(Op::Movgr2frD, 0, 0, 0),
        rri(Op::FldD, 1, 4, 0),
        float(Op::FmaddD, 0, 1, 1, 0),
        rri(Op::AddiD, 4, 4, 8),
        rri(Op::AddiD, 5, 5, -1),
        rri(Op::Bnez, 0, 5, -16),
        float(Op::FsqrtD, 0, 0, 0, 0),
        Instruction::new(Op::Syscall),
    ];
    let values: Vec<f64> = (0..100).map(|n| f64::from(n) * 0.37 - 11.0).collect();
    let data: Vec<u64> = values.iter().map(|value| value.to_bits()).collect();
    let (state, _) = run(&program, &[DATA, data.len() as u64], &data);
    let expected = values.iter().fold(0.0, |sum, value| value.mul_add(*value, sum)).sqrt();
    assert_eq!(f64::from_bits(state.f(0)), expected);
}
