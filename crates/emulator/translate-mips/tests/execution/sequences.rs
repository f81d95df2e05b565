//! Random sequences of MIPS64 instructions with branches. A unit must have the same effect as its instructions
//! translated one by one, even if a signal or a failing access interrupts it and it is then resumed. `instructions.rs`
//! compares single instructions with QEMU.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;

use longma_loongarch::{Access, Environment, Fault, FaultCause, Scalar, State, Trap, decode, semantics};
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd, Memory, UserMemory};
use longma_translate::optimizations::{Optimization, Optimizations};
use longma_translate_mips::Mips64;
use longma_translate_mips::registers::{TABLE, general};

const SOURCE: u64 = 0x1000;
const CODE: Range<u64> = 0x1000_0000..0x1010_0000;
const TABLE_AT: u64 = 0x2000_0000;
/// The address at which single-instruction units are executed.
const ALONE: u64 = 0x3000_0000;
const SEQUENCES: u64 = 4000;

fn mixed(mut number: u64) -> u64 {
    number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    number = (number ^ number >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ number >> 33
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 += 1;
        mixed(self.0) % end
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Memory with contents at every address. While `refuses` is set, some accesses fail.
struct World {
    source: Vec<u32>,
    code: RefCell<HashMap<u64, u32>>,
    written: RefCell<HashMap<u64, u8>>,
    refuses: Cell<bool>,
}

impl World {
    fn byte(&self, address: u64) -> u8 {
        let written_byte = self.written.borrow().get(&address).copied();
        written_byte.unwrap_or_else(|| mixed(address / 8).to_le_bytes()[address as usize % 8])
    }

    fn check(&self, address: u64, access: Access) -> Result<(), Fault> {
        let fault = Fault { address, access, cause: FaultCause::Unmapped };
        if self.refuses.get() && mixed(address).is_multiple_of(6) { Err(fault) } else { Ok(()) }
    }
}

impl Environment for World {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        self.check(address, Access::Read)?;
        let bytes: [u8; 32] = std::array::from_fn(|byte| self.byte(address.wrapping_add(byte as u64)));
        // SAFETY: a scalar is at most as long as the array, and every bit pattern is valid.
        Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        self.check(address, Access::Write)?;
        let mut bytes = [0u8; 32];
        // SAFETY: a scalar is at most as long as the array.
        unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(value) };
        let addresses = (0..).map(|at| address.wrapping_add(at));
        self.written.borrow_mut().extend(addresses.zip(bytes[..size_of::<T>()].iter().copied()));
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, _: u64, _: T, _: T) -> Result<T, Fault> {
        unreachable!("no instruction here is atomic")
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        Ok(self.code.borrow()[&address])
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _: u32) -> u32 {
        0
    }
}

impl Memory for World {
    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        let word = address.checked_sub(SOURCE).and_then(|at| self.source.get(at as usize / 4)).copied();
        word.ok_or(Fault { address, access: Access::Execute, cause: FaultCause::Unmapped })
    }

    fn place(&self, address: u64, words: &[u32]) -> Result<(), Fault> {
        let addresses = (address..).step_by(4);
        self.code.borrow_mut().extend(addresses.zip(words.iter().copied()));
        Ok(())
    }

    fn forget(&self, _: Range<u64>) -> Result<(), Fault> {
        Ok(())
    }
}

impl UserMemory for World {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn write(&self, _: u64, _: &[u8]) -> bool {
        false
    }

    fn writable(&self, _: u64, _: u64) -> u64 {
        0
    }

    fn clock_ns(&self) -> u64 {
        0
    }
}

fn immediate(op: u32, rs: u32, rt: u32, imm: u32) -> u32 {
    op << 26 | rs << 21 | rt << 16 | imm & 0xffff
}

/// A random instruction that is not a branch. Few registers are used, so that instructions depend on each other.
fn plain(random: &mut Random) -> u32 {
    let registers = [0, 1, 1, 2, 3, 4, 5, 6, 29];
    let [s, t, d] = [(); 3].map(|()| random.of(&registers));
    let small = random.of(&[0, 1, 8, 16, 0xffff, 0x7ff, 0x800, 0x1000, 0x8001, 0x9ca8, 0x7ff8, 0xff00]);
    let three = |function| s << 21 | t << 16 | d << 11 | function;
    match random.below(20) {
        // or, daddu and addu with zero, which are copies
        0 | 1 => s << 21 | d << 11 | random.of(&[0x25, 0x2d, 0x21]),
        2..=5 => three(random.of(&[0x21, 0x2d, 0x2d, 0x23, 0x24, 0x26, 0x2a, 0x2b, 0xa, 0xb])),
        6 | 7 => {
            t << 16 | d << 11 | random.of(&[0, 1, 2, 3, 4, 8, 9]) << 6 | random.of(&[0, 0x38, 0x38, 2, 0x3e])
        }
        // addiu, slti, sltiu, andi, ori; daddiu; lui
        8 => immediate(random.of(&[9, 0xa, 0xb, 0xc, 0xd]), s, t, small),
        9 | 10 => immediate(0x19, s, t, small),
        11 => immediate(0xf, 0, t, random.of(&[3, 0xffff, 0x8000])),
        // dext of the lowest bits
        12 => 0x1f << 26 | s << 21 | t << 16 | random.of(&[7, 31, 15]) << 11 | 3,
        // dmult, mflo, mfhi
        13 => s << 21 | t << 16 | 0x1c,
        14 => d << 11 | random.of(&[0x10, 0x12]),
        // lb to lwu, ld; sb to sw, sd
        15..=17 => immediate(random.of(&[0x20, 0x21, 0x23, 0x24, 0x25, 0x27, 0x37, 0x37]), s, t, small),
        _ => immediate(random.of(&[0x28, 0x29, 0x2b, 0x3f]), s, t, small),
    }
}

/// Blocks that end in forward branches, and a jump to an address without code.
fn sequence(random: &mut Random) -> Vec<u32> {
    let mut words = Vec::new();
    for _ in 0..4 {
        words.extend((0..3 + random.below(8)).map(|_| plain(random)));
        let [s, t] = [(); 2].map(|()| random.of(&[0, 1, 1, 2, 3, 4, 5]));
        // beq, bne, blez, bgtz, bltz, bgez
        let (op, t) = random.of(&[(4, 0), (5, 0), (4, t), (5, t), (6, 0), (7, 0), (1, 0), (1, 1)]);
        words.push(immediate(op, s, t, 1 + random.below(4) as u32));
        words.push(plain(random));
    }
    words.extend((0..5).map(|_| plain(random)));
    words.extend([2 << 26 | 0x40_0000, 0]);
    words
}

/// The target of the jump at the end.
const END: u64 = 0x100_0000;

fn begin(random: &mut Random) -> State {
    let mut state = State::default();
    for register in (2..32).filter(|register| *register != TABLE) {
        let bits = random.of(&[3, 31, 32, 63]);
        state.x[usize::from(register)] = mixed(random.below(u64::MAX)) >> (63 - bits);
    }
    state.set_r(TABLE, TABLE_AT);
    state
}

/// Executes the instruction at the source address in `state`, including its delay slot.
fn run_one(state: &mut State, world: &World) -> Result<(), Trap> {
    let fetch = |address| Memory::fetch(world, address).ok();
    let unit = Mips64::translate_one(state.pc, &fetch);
    state.pc = ALONE + 4 * u64::from(unit.entries[0].1);
    loop {
        let at = (state.pc - ALONE) / 4;
        let word = decode(unit.words[at as usize]).expect("it is code");
        let Err(trap) = semantics::execute(state, &word, world) else { continue };
        match unit.exits.iter().find(|exit| u64::from(exit.0) == at) {
            Some((_, Exit::To(pc))) => state.pc = *pc,
            _ => return Err(trap),
        }
        return Ok(());
    }
}

/// Executes instructions one by one from the current address on.
fn run_single_steps(state: &mut State, world: &World) {
    while state.pc != END {
        run_one(state, world).expect("nothing is refused");
    }
}

/// Executes the sequence as a unit until the first interruptible position after `words` words, or until an access
/// fails. Executes the rest one by one.
fn run_as_unit(state: &mut State, world: &World, optimizations: Optimizations, words: u64) {
    let layout = Layout { code: CODE, table: TABLE_AT, limit: 0x200_0000 };
    let mut engine = Engine::<Mips64>::new(layout, optimizations);
    state.pc = engine.code_of(SOURCE, world).expect("there is code");
    for executed in 0.. {
        let position = engine.position(state.pc).filter(|position| executed >= words && position.is_boundary);
        if let Some(position) = position {
            if let Some(pending) = position.pending {
                Mips64::settle(pending, state, world);
            }
            state.pc = position.pc;
            break;
        }
        let word = decode(Environment::fetch(world, state.pc).expect("it is code")).expect("it is code");
        match semantics::execute(state, &word, world) {
            Ok(()) => {}
            Err(Trap::Break(_)) => match engine.exit_at(state.pc) {
                Some(Exit::To(END)) => {
                    state.pc = END;
                    break;
                }
                Some(Exit::To(pc)) => state.pc = engine.follow(state.pc, pc, world).expect("there is code"),
                other => panic!("{other:?}"),
            },
            Err(_) => {
                let position = engine.position_of_fault(state.pc).expect("it is code");
                if let Some(pending) = position.pending {
                    Mips64::settle(pending, state, world);
                }
                state.pc = position.pc;
                let outcome = run_one(&mut state.clone(), world);
                assert!(
                    matches!(outcome, Err(Trap::Memory(_))),
                    "the fault reports the failed access, not of {:#x}",
                    state.pc
                );
                break;
            }
        }
    }
    world.refuses.set(false);
    run_single_steps(state, world);
}

#[test]
fn interrupted_sequences_match_their_single_instructions() {
    let usual = Optimizations::default();
    let choices = [
        usual,
        usual,
        usual,
        usual.with(Optimization::Loops, false),
        usual.with(Optimization::Fusion, false),
    ];
    for seed in 0..SEQUENCES {
        let mut random = Random(seed << 32);
        let world = |source: &[u32], refuses| World {
            source: source.to_vec(),
            code: RefCell::default(),
            written: RefCell::default(),
            refuses: Cell::new(refuses),
        };
        let source = sequence(&mut random);
        let beginning = begin(&mut random);
        let (mut reference_state, expected) =
            (State { pc: SOURCE, ..beginning.clone() }, world(&source, false));
        run_single_steps(&mut reference_state, &expected);
        for _ in 0..4 {
            let (mut actual, other) = (beginning.clone(), world(&source, random.below(2) == 0));
            let (optimizations, words) = (random.of(&choices), random.of(&[random.0 % 60, u64::MAX]));
            run_as_unit(&mut actual, &other, optimizations, words);
            let compared_registers = |state: &State| (state.x[2..].to_vec(), state.lbt.scratch[..2].to_vec());
            assert_eq!(
                compared_registers(&actual),
                compared_registers(&reference_state),
                "sequence {seed}, {optimizations}, interrupted after {words}: {source:x?}"
            );
            assert_eq!(*other.written.borrow(), *expected.written.borrow(), "sequence {seed}: {source:x?}");
        }
    }
}

#[test]
fn a_fault_in_a_delay_slot_restarts_the_branch_with_its_original_operands() {
    let source = [
        immediate(0x19, 2, 5, 8),           // daddiu a1, v0, 8
        immediate(0x19, 2, 6, 16),          // daddiu a2, v0, 16
        immediate(0x19, 2, 7, 24),          // daddiu a3, v0, 24
        2 << 21 | 3 << 16 | 4 << 11 | 0x2a, // slt a0, v0, v1
        immediate(5, 4, 0, 2),              // bnez a0, over
        immediate(0x37, 8, 9, 0),           // ld a5, (a4)
        immediate(0x19, 5, 5, 1),           // daddiu a1, a1, 1
        immediate(0xd, 0, 4, 0),            // over: ori a0, zero, 0
        2 << 26 | 0x40_0000,                // j away
        0,
    ];
    let unwritable = (0..).step_by(8).find(|address| mixed(*address).is_multiple_of(6)).expect("some are");
    for (less, expected) in [(0, 9), (1, 8)] {
        let world = World {
            source: source.to_vec(),
            code: RefCell::default(),
            written: RefCell::default(),
            refuses: Cell::new(true),
        };
        let mut state = State::default();
        state.set_r(TABLE, TABLE_AT);
        // The last comparison has the opposite result.
        for (register, value) in [(3, less), (4, 1 - less), (8, unwritable)] {
            state.set_r(general(register), value);
        }
        run_as_unit(&mut state, &world, Optimizations::default(), u64::MAX);
        assert_eq!([5, 6, 7].map(|register| state.r(register)), [expected, 16, 24]);
    }
}
