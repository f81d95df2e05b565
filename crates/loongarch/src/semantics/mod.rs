//! The reference semantics: one plain function an instruction, readable beside the manual; the oracle for the JIT.
//! Not made for speed.
//! Source: LoongArch Reference Manual, volume 1; each file names its chapters.

mod atomic;
mod bits;
mod control;
mod fp;
mod integer;
mod lbt;
mod memory;
mod vector;

use crate::{Environment, Instruction, Op, State, Trap};

/// What an instruction does. The program counter is moved by branches and jumps only (taken or not); [`execute`] moves it for
/// the others. On error nothing has changed (see [`Trap`]).
pub type Semantics<E> = fn(&mut State, &Instruction, &E) -> Result<(), Trap>;

/// The semantics of `op`; an instruction that no file has is the kernel's.
pub fn semantics_of<E: Environment>(op: Op) -> Semantics<E> {
    integer::lookup(op)
        .or_else(|| memory::lookup(op))
        .or_else(|| control::lookup(op))
        .or_else(|| bits::lookup(op))
        .or_else(|| atomic::lookup(op))
        .or_else(|| fp::lookup(op))
        .or_else(|| vector::lookup(op))
        .or_else(|| lbt::lookup(op))
        .unwrap_or(|_, _, _| Err(Trap::PrivilegedInstruction))
}

/// Executes `instruction`, which stands at `state.pc`, and moves the program counter on.
///
/// # Errors
/// The instruction did not complete; `state.pc` still names it.
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
