//! The binary-translation extension (LBT): flags, conditions and unaligned accesses for translated x86, Arm and MIPS
//! programs. Source: Loongson has published no manual. The formulas were measured on 3A5000 and 3A6000 and published in
//! jiegec/la-inst (LBT.md) and jiegec/unofficial-loongarch-intrinsics-guide (docs/lbt). Where x86 defines the same
//! operation, tests compare with x86.

mod arm;
mod flags;
mod integer;
mod memory;
mod x86;
mod x87;

use super::Semantics;
use crate::{Environment, Instruction, Op, State, Trap};

/// The semantics of `op`; `None` if another module defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    x86::lookup(op)
        .or_else(|| arm::lookup(op))
        .or_else(|| integer::lookup(op))
        .or_else(|| memory::lookup(op))
        .or_else(|| x87::lookup(op))
        .or_else(|| scratch(op))
}

/// The scratch registers and the jumps through them.
fn scratch<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::Movgr2scr => |s, i, _| {
            s.lbt.scratch[usize::from(i.d & 3)] = s.r(i.j);
            Ok(())
        },
        Op::Movscr2gr => |s, i, _| {
            s.set_r(i.d, s.lbt.scratch[usize::from(i.j & 3)]);
            Ok(())
        },
        Op::Jiscr0 => |s, i, _| {
            jump(s, i, 0);
            Ok(())
        },
        // The link is the address of the jump itself, not of the next instruction. Code reached by a patched-in
        // `jiscr1` skips n instructions on return with `jiscr0 4 * n`.
        Op::Jiscr1 => |s, i, _| {
            let link = s.pc;
            jump(s, i, 1);
            s.lbt.scratch[0] = link;
            Ok(())
        },
        _ => return None,
    })
}

fn jump(state: &mut State, instruction: &Instruction, register: usize) {
    state.pc = state.lbt.scratch[register].wrapping_add_signed(i64::from(instruction.imm));
}

/// Writes `value` to rd.
fn write_rd(state: &mut State, instruction: &Instruction, value: u64) -> Result<(), Trap> {
    state.set_r(instruction.d, value);
    Ok(())
}
