//! Tests private instructions and floating-point rules of translated code against standard test vectors and the host's
//! instructions, and that LoongArch programs cannot use them. Source: FIPS 197, appendices A and B; FIPS 180-4; NIST SP
//! 800-38D.

mod accesses;
#[path = "../checked/mod.rs"]
mod checked;
#[cfg(target_arch = "x86_64")]
mod floats;
#[cfg(target_arch = "x86_64")]
mod host;
mod vectors;

use longma_loongarch::{
    Environment, Extension, Fault, Instruction, Op, Scalar, State, Trap, semantics::execute,
};

/// An environment without memory.
struct Code {
    is_translated: bool,
}

impl Environment for Code {
    fn load<T: Scalar>(&self, _: u64) -> Result<T, Fault> {
        unreachable!("the instructions access no memory")
    }

    fn store<T: Scalar>(&self, _: u64, _: T) -> Result<(), Fault> {
        unreachable!("the instructions access no memory")
    }

    fn compare_exchange<T: Scalar>(&self, _: u64, _: T, _: T) -> Result<T, Fault> {
        unreachable!("the instructions access no memory")
    }

    fn fetch(&self, _: u64) -> Result<u32, Fault> {
        unreachable!("the test executes decoded instructions")
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _: u32) -> u32 {
        0
    }

    fn permits_private(&self) -> bool {
        self.is_translated
    }
}

/// The result of `op` with these values of `d`, `j` and `k`, and this immediate.
fn result(op: Op, operands: [u128; 3], imm: i32) -> u128 {
    let mut state = State::default();
    for (number, value) in (4..).zip(operands) {
        state.v[number].0 = [value as u64, (value >> 64) as u64, 0x5a5a, 0xa5a5];
    }
    let instruction = Instruction { d: 4, j: 5, k: 6, imm, ..Instruction::new(op) };
    execute(&mut state, &instruction, &Code { is_translated: true }).expect("it executes");
    assert_eq!(state.v[4].0[2..], [0x5a5a, 0xa5a5], "{}: the bits above 127 change", op.mnemonic());
    u128::from(state.v[4].0[1]) << 64 | u128::from(state.v[4].0[0])
}

fn all() -> impl Iterator<Item = Op> {
    Op::all().filter(|op| op.row().extension == Extension::Private)
}

#[test]
fn programs_of_loongarch_have_no_such_instructions() {
    for op in all() {
        let mut state = State::default();
        state.v[5].0 = [1, 2, 3, 4];
        let before = state.clone();
        let instruction = Instruction { d: 4, j: 5, k: 6, ..Instruction::new(op) };
        let result = execute(&mut state, &instruction, &Code { is_translated: false });
        assert_eq!(result, Err(Trap::IllegalInstruction), "{}", op.mnemonic());
        assert_eq!(state, before, "{}", op.mnemonic());
    }
}

#[test]
fn every_instruction_is_compared_with_a_standard_or_the_host() {
    let tested: Vec<Op> = vectors::tested().into_iter().chain(accesses::tested()).collect();
    checked::assert_listed("formula-private", tested.clone());
    #[cfg(target_arch = "x86_64")]
    let tested: Vec<Op> = tested.into_iter().chain(host::tested()).collect();
    for op in all().filter(|_| cfg!(target_arch = "x86_64")) {
        assert!(tested.contains(&op), "{}", op.mnemonic());
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn instructions_of_x86_are_compared_with_the_host() {
    if host::can_compare() {
        checked::assert_listed("host-private", host::tested());
    }
}
