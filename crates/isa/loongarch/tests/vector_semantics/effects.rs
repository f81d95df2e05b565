//! Effects of vector instructions other than their results: traps, faults, overlapping registers. Source: LoongArch
//! Reference Manual, volume 1, sections 2.1.4 (memory) and 3.1.3 (exceptions).

use std::cell::RefCell;

use longma_loongarch::{
    Access, Environment, Fault, FaultCause, Fcsr, Instruction, Op, Operand, RegisterKind, Scalar, State,
    Trap, Vector, semantics::execute,
};
use proptest::prelude::*;

use crate::case::{Random, VECTOR, instructions, is_memory, vector_ops};

const PAGE: u64 = 0x4000;

/// Two pages, of which only the first is mapped.
#[derive(Default)]
struct OnePage(RefCell<Vec<u8>>);

impl OnePage {
    fn filled(byte: u8) -> Self {
        Self(RefCell::new(vec![byte; PAGE as usize]))
    }

    fn check(address: u64, bytes: usize, access: Access) -> Result<(), Fault> {
        match address + bytes as u64 {
            end if end <= PAGE => Ok(()),
            _ => Err(Fault { address: address.max(PAGE), access, cause: FaultCause::Unmapped }),
        }
    }
}

impl Environment for OnePage {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        Self::check(address, T::BYTES, Access::Read)?;
        let mut value = T::default();
        let memory = self.0.borrow();
        let source = &memory[address as usize..address as usize + T::BYTES];
        // SAFETY: `T` is a plain integer of `BYTES` bytes, as long as the slice.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), (&raw mut value).cast(), T::BYTES) };
        Ok(value)
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        Self::check(address, T::BYTES, Access::Write)?;
        let mut memory = self.0.borrow_mut();
        let target = &mut memory[address as usize..address as usize + T::BYTES];
        // SAFETY: as in `load`.
        unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast(), target.as_mut_ptr(), T::BYTES) };
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        let old: T = self.load(address).map_err(|fault| Fault { access: Access::Write, ..fault })?;
        if old == expected {
            self.store(address, new)?;
        }
        Ok(old)
    }

    fn fetch(&self, _address: u64) -> Result<u32, Fault> {
        unreachable!("the test executes decoded instructions")
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _index: u32) -> u32 {
        0
    }
}

fn with_vectors(values: [[u64; 4]; 4]) -> State {
    let mut state = State { pc: 0x1000, ..State::default() };
    for (number, value) in VECTOR.into_iter().zip(values) {
        state.v[usize::from(number)] = Vector(value);
    }
    state
}

#[test]
fn an_enabled_exception_in_one_lane_traps_and_leaves_the_destination_and_the_flags() {
    let one = 0x3f80_0000_3f80_0000;
    let mut state = with_vectors([[7; 4], [one; 4], [one, one, one, 0x3f80_0000_0000_0000], [0; 4]]);
    let division_by_zero = 8;
    state.fcsr = Fcsr(division_by_zero);
    let before = state.clone();
    let instruction = Instruction { j: 1, k: 2, ..Instruction::new(Op::XvfdivS) };
    assert_eq!(execute(&mut state, &instruction, &OnePage::default()), Err(Trap::FloatingPoint));
    let causes = division_by_zero << 24;
    assert_eq!(state, State { fcsr: Fcsr(division_by_zero | causes), ..before });
}

#[test]
fn an_lsx_instruction_raises_no_exception_of_the_upper_half() {
    let one = 0x3ff0_0000_0000_0000;
    let mut state = with_vectors([[7; 4], [one; 4], [one, one, 0, 0], [0; 4]]);
    state.fcsr = Fcsr(8);
    let instruction = Instruction { j: 1, k: 2, ..Instruction::new(Op::VfdivD) };
    assert_eq!(execute(&mut state, &instruction, &OnePage::default()), Ok(()));
    assert_eq!((state.v[0].0, state.fcsr, state.pc), ([one, one, 7, 7], Fcsr(8), 0x1004));
}

#[test]
fn exceptions_of_all_lanes_are_collected_in_the_causes_and_added_to_the_flags() {
    let (one, zero, infinity) = (0x3ff0_0000_0000_0000, 0, 0x7ff0_0000_0000_0000);
    let three = 0x4008_0000_0000_0000;
    // 1/3 is inexact, 1/0 a division by zero, infinity/infinity invalid, 1/1 raises no exception.
    let mut state = with_vectors([[7; 4], [one, one, infinity, one], [three, zero, infinity, one], [0; 4]]);
    let (overflow, old_cause) = (4 << 16, 4 << 24);
    state.fcsr = Fcsr(overflow | old_cause);
    let instruction = Instruction { j: 1, k: 2, ..Instruction::new(Op::XvfdivD) };
    assert_eq!(execute(&mut state, &instruction, &OnePage::default()), Ok(()));
    let raised = 1 | 8 | 16;
    assert_eq!(state.fcsr, Fcsr(raised << 24 | raised << 16 | overflow));
}

#[test]
fn a_store_that_reaches_an_unmapped_page_stores_nothing() {
    for (op, bytes) in [(Op::Vst, 16), (Op::Xvst, 32), (Op::Vstx, 16), (Op::Xvstx, 32)] {
        for inside in [1, 15, bytes - 1] {
            let memory = OnePage::filled(0xaa);
            let mut state = with_vectors([[u64::MAX; 4]; 4]);
            state.x[5] = PAGE - inside;
            let before = state.clone();
            let instruction = Instruction { j: 5, k: 6, ..Instruction::new(op) };
            let fault = Fault { address: PAGE, access: Access::Write, cause: FaultCause::Unmapped };
            assert_eq!(
                execute(&mut state, &instruction, &memory),
                Err(Trap::Memory(fault)),
                "{op:?} {inside}"
            );
            assert_eq!(state, before, "{op:?} {inside}");
            assert!(memory.0.borrow().iter().all(|&byte| byte == 0xaa), "{op:?} {inside}");
        }
    }
}

#[test]
fn a_load_that_reaches_an_unmapped_page_loads_nothing() {
    for (op, bytes) in [(Op::Vld, 16), (Op::Xvld, 32), (Op::Vldx, 16), (Op::Xvldx, 32), (Op::VldreplD, 8)] {
        for inside in [1, bytes - 1] {
            let mut state = with_vectors([[7; 4]; 4]);
            state.x[5] = PAGE - inside;
            let before = state.clone();
            let instruction = Instruction { j: 5, k: 6, ..Instruction::new(op) };
            let fault = Fault { address: PAGE, access: Access::Read, cause: FaultCause::Unmapped };
            assert_eq!(
                execute(&mut state, &instruction, &OnePage::filled(1)),
                Err(Trap::Memory(fault)),
                "{op:?}"
            );
            assert_eq!(state, before, "{op:?}");
        }
    }
}

#[test]
fn vldi_modes_29_to_31_are_illegal() {
    for op in [Op::Vldi, Op::Xvldi] {
        for mode in 29..32 {
            let imm = ((mode << 8) << 19) >> 19;
            let mut state = with_vectors([[7; 4]; 4]);
            let before = state.clone();
            let outcome =
                execute(&mut state, &Instruction { imm, ..Instruction::new(op) }, &OnePage::default());
            assert_eq!((outcome, state), (Err(Trap::IllegalInstruction), before));
        }
    }
}

#[test]
fn picking_a_lane_to_r0_leaves_it_zero() {
    let mut state = with_vectors([[u64::MAX; 4]; 4]);
    let instruction = Instruction { j: 1, ..Instruction::new(Op::Vpickve2grD) };
    assert_eq!(execute(&mut state, &instruction, &OnePage::default()), Ok(()));
    assert_eq!(state.x[0], 0);
}

/// Whether the field at `position` is a vector register.
fn is_vector_at(op: Op, position: u8) -> bool {
    op.row().operands.iter().any(|operand| {
        matches!(operand, Operand::Register(RegisterKind::Vector128 | RegisterKind::Vector256, at) if *at == position)
    })
}

proptest! {
    #[test]
    fn an_operand_in_the_destination_register_is_read_before_it_is_written(seed: u64, choice: u16) {
        let ops: Vec<Op> =
            vector_ops().filter(|&op| !is_memory(op) && is_vector_at(op, 0) && is_vector_at(op, 5)).collect();
        let op = ops[usize::from(choice) % ops.len()];
        let mut random = Random::new(seed);
        let choices = instructions(op, &mut random);
        let apart = choices[random.below(choices.len())];
        let value = random.given(op).vectors[1];
        // The same value in different registers must give the same result as one register for all operands.
        let mut separate = with_vectors([value; 4]);
        separate.fcsr.0 = (random.below(4) << 8) as u32;
        let mut shared = separate.clone();
        let k = if is_vector_at(op, 10) { apart.d } else { apart.k };
        let together = Instruction { j: apart.d, k, a: apart.d, ..apart };
        let environment = OnePage::default();
        prop_assert_eq!(execute(&mut separate, &apart, &environment), Ok(()));
        prop_assert_eq!(execute(&mut shared, &together, &environment), Ok(()));
        prop_assert_eq!(separate.v[0], shared.v[0], "{}", op.mnemonic());
        prop_assert_eq!(separate.fcsr, shared.fcsr);
    }
}
