//! Reference semantics: one plain function for each instruction, to be read next to the manual. They are the oracle for
//! the translator and not optimized for speed. Source: LoongArch Reference Manual, volume 1; each file names its
//! sections.

mod atomic;
mod bits;
mod control;
mod crypto;
mod fp;
mod integer;
mod lbt;
mod memory;
mod private;
pub mod privileged;
mod vector;

use crate::{Environment, Extension, Fault, Instruction, Op, Scalar, State, Trap};

/// The effect of an instruction. Only branches and jumps, taken or not, update the program counter; [`execute`] updates
/// it for the others. On error, nothing has changed (see [`Trap`]).
pub type Semantics<E> = fn(&mut State, &Instruction, &E) -> Result<(), Trap>;

/// The semantics of `op`. Privileged instructions trap, and instructions without semantics are illegal.
pub fn semantics_of<E: Environment>(op: Op) -> Semantics<E> {
    lookup(op).unwrap_or(match op.row().extension {
        Extension::Privileged | Extension::Lvz => |_, _, _| Err(Trap::PrivilegedInstruction),
        _ => |_, _, _| Err(Trap::IllegalInstruction),
    })
}

/// Whether a user program can execute `op`: it is not privileged and has semantics.
pub fn is_user_instruction(op: Op) -> bool {
    lookup::<Nowhere>(op).is_some()
}

/// Executes `instruction`, which is at `state.pc`, and updates the program counter.
///
/// # Errors
/// The instruction did not complete; `state.pc` still points to it.
pub fn execute<E: Environment>(
    state: &mut State,
    instruction: &Instruction,
    environment: &E,
) -> Result<(), Trap> {
    let next = state.pc.wrapping_add(4);
    semantics_of::<E>(instruction.op)(state, instruction, environment)?;
    if !instruction.op.is_control_flow() {
        state.pc = next;
    }
    Ok(())
}

/// Searches only the one or two files that can define `op`, according to its extension.
fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    match op.row().extension {
        Extension::Base | Extension::Mul | Extension::Bit => integer::lookup(op)
            .or_else(|| memory::lookup(op))
            .or_else(|| control::lookup(op))
            .or_else(|| bits::lookup(op)),
        Extension::Bound => memory::lookup(op).or_else(|| control::lookup(op)),
        Extension::Atomic => atomic::lookup(op),
        Extension::Fp => fp::lookup(op).or_else(|| memory::lookup(op)).or_else(|| control::lookup(op)),
        Extension::Lsx | Extension::Lasx => vector::lookup(op),
        Extension::Lbt => lbt::lookup(op),
        Extension::Private => private::lookup(op),
        Extension::Privileged | Extension::Lvz => None,
    }
}

/// The low 32 bits of `value`, sign-extended, as for all 32-bit results in general registers.
#[inline]
fn sign_extend_word(value: u64) -> u64 {
    value as i32 as u64
}

/// An uninhabited environment, used to test which instructions have semantics.
enum Nowhere {}

impl Environment for Nowhere {
    fn load<T: Scalar>(&self, _: u64) -> Result<T, Fault> {
        match *self {}
    }
    fn store<T: Scalar>(&self, _: u64, _: T) -> Result<(), Fault> {
        match *self {}
    }
    fn compare_exchange<T: Scalar>(&self, _: u64, _: T, _: T) -> Result<T, Fault> {
        match *self {}
    }
    fn fetch(&self, _: u64) -> Result<u32, Fault> {
        match *self {}
    }
    fn stable_counter(&self) -> u64 {
        match *self {}
    }
    fn cpucfg(&self, _: u32) -> u32 {
        match *self {}
    }
}
