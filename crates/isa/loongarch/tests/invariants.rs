//! Properties of all instructions with any operands: they do not panic, and a trap leaves the state unchanged. Source:
//! the contracts of `semantics::Semantics` and `Trap`.

#[path = "qemu_oracle/array.rs"]
mod array;
#[path = "qemu_oracle/cases.rs"]
#[allow(dead_code)]
mod cases;

use array::Array;
use cases::Random;
use longma_loongarch::{
    ExtendedFlags, Fcsr, Instruction, Op, Reservation, State, Trap, Vector, decode, encode,
    semantics::execute,
};

const MEMORY_BYTES: u64 = 256;
/// The memory ends at a 16 KiB page boundary, so an access that fails partway crosses pages, as in a process.
const BASE: u64 = 0x8000 - MEMORY_BYTES;

/// A random state, in which one register in three points to the memory.
fn any_state(random: &mut Random) -> State {
    let mut state = State { pc: random.next() & !3, ..State::default() };
    for n in 1..32 {
        state.x[n] = match random.below(3) {
            0 => BASE + random.below(MEMORY_BYTES),
            1 => random.below(256) * 8,
            _ => random.integer(),
        };
    }
    for vector in &mut state.v {
        *vector = Vector([(); 4].map(|()| match random.below(3) {
            0 => random.double(),
            1 => random.single() << 32 | random.single() & 0xffff_ffff,
            _ => random.integer(),
        }));
    }
    state.fcc = [(); 8].map(|()| random.below(2) as u8);
    let enables = if random.below(2) == 0 { 0 } else { random.next() as u32 & 0x1f };
    state.fcsr = Fcsr(random.next() as u32 & 0x1f1f_0300 | enables);
    state.reservation =
        Reservation { address: BASE + random.below(32) * 8, value: random.below(3), neighbour: 0 };
    state.lbt = ExtendedFlags {
        scratch: [(); 4].map(|()| random.next()),
        eflags: random.next() as u32 & 0x8d5,
        top: random.below(8) as u8,
        stack_mode: random.below(2) == 0,
    };
    state
}

#[test]
fn every_instruction_on_any_state_completes_or_traps_without_side_effects() {
    let mut random = Random(0x1111_2222_3333_4444);
    for op in Op::all() {
        for _ in 0..100 {
            let word = op.row().matched | random.next() as u32 & !op.row().mask;
            let instruction = decode(word).expect("a row with any operands decodes");
            assert_eq!(instruction.op, op);
            holds_on(&instruction, &mut random);
        }
    }
}

fn holds_on(instruction: &Instruction, random: &mut Random) {
    let before = any_state(random);
    let data: Vec<u8> = (0..MEMORY_BYTES).map(|_| random.below(3) as u8).collect();
    let memory = Array::new(BASE, data.clone(), 0, &[]);
    let mut after = before.clone();
    let result = execute(&mut after, instruction, &memory);
    let context = || {
        let word = encode(instruction).unwrap_or_default();
        format!("{} {word:#010x} {instruction:?}", instruction.op.mnemonic())
    };
    assert_eq!(after.x[0], 0, "{}", context());
    assert!(after.fcc.iter().all(|flag| *flag < 2), "{}", context());
    match result {
        Ok(()) if instruction.op.is_control_flow() => {}
        Ok(()) => assert_eq!(after.pc, before.pc.wrapping_add(4), "{}", context()),
        Err(trap) => {
            if trap == Trap::FloatingPoint {
                assert_ne!(after.fcsr.0 >> 24 & after.fcsr.0 & 0x1f, 0, "{}", context());
                after.fcsr.0 = after.fcsr.0 & !Fcsr::CAUSES | before.fcsr.0 & Fcsr::CAUSES;
            }
            assert_eq!(after, before, "{}: {trap}", context());
            assert_eq!(*memory.data.borrow(), data, "{}: {trap}", context());
        }
    }
}

#[test]
fn a_refused_store_conditional_of_a_quadword_keeps_the_reservation() {
    let address = BASE + MEMORY_BYTES;
    // The load-linked accessed the other half of the 16 bytes.
    let reservation = Reservation { address: address + 8, value: 1, neighbour: 2 };
    let mut before = State { reservation, ..State::default() };
    before.x[5] = address;
    let instruction = Instruction { d: 4, j: 5, k: 6, ..Instruction::new(Op::ScQ) };
    let memory = Array::new(BASE, vec![0; MEMORY_BYTES as usize], 0, &[]);
    let mut after = before.clone();
    assert!(matches!(execute(&mut after, &instruction, &memory), Err(Trap::Memory(_))));
    assert_eq!(after, before);
}
