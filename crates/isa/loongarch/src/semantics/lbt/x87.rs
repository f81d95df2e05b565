//! Support for the x87: top of stack, tags, and 80-bit numbers (see `float/extended.rs`). The ordinary floating-point
//! instructions perform the arithmetic in double precision; in stack mode the top of stack renames f0 to f7
//! ([`State::fpr_index`](crate::State::fpr_index)). Vector registers are never renamed. Source: jiegec/la-inst, LBT.md;
//! jiegec/unofficial-loongarch-intrinsics-guide, docs/lbt/x86_fpu.md.

use super::write_rd;
use crate::{
    Environment, Instruction, Op, State, Trap,
    float::{ExceptionFlags, Extended},
    semantics::Semantics,
};

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::X86mttop => |s, i, _| set_top(s, i.imm as u8),
        Op::X86mftop => |s, i, _| write_rd(s, i, s.lbt.top.into()),
        Op::X86inctop => |s, _, _| set_top(s, s.lbt.top.wrapping_add(1)),
        Op::X86dectop => |s, _, _| set_top(s, s.lbt.top.wrapping_sub(1)),
        Op::X86settm => |s, _, _| set_stack_mode(s, true),
        Op::X86clrtm => |s, _, _| set_stack_mode(s, false),
        Op::X86settag => |s, i, _| set_tag(s, i),
        Op::FcvtLdD => |s, i, _| {
            let (extended, raised) = Extended::from_double(s.f(i.j));
            write_fd(s, i, extended.significand, raised)
        },
        Op::FcvtUdD => |s, i, _| {
            let (extended, raised) = Extended::from_double(s.f(i.j));
            write_fd(s, i, extended.sign_and_exponent.into(), raised)
        },
        // Hardware was measured only with rounding to nearest. Other modes are assumed to work as in other conversions.
        Op::FcvtDLd => |s, i, _| {
            let extended = Extended { significand: s.f(i.j), sign_and_exponent: s.f(i.k) as u16 };
            let (bits, raised) = extended.to_double(s.fcsr.rounding_mode());
            write_fd(s, i, bits, raised)
        },
        _ => return None,
    })
}

fn set_top(state: &mut State, top: u8) -> Result<(), Trap> {
    state.lbt.top = top & 7;
    Ok(())
}

fn set_stack_mode(state: &mut State, on: bool) -> Result<(), Trap> {
    state.lbt.stack_mode = on;
    Ok(())
}

/// `x86settag rd, operation, position`: checks and changes bits of a tag word. Bit `position % 8` is the target. Bit
/// `position % 64 / 8` must also be set for operations 2 to 4. A failed check raises a binary-translation exception
/// (number 21), which Linux does not handle; here it is an illegal instruction.
fn set_tag(state: &mut State, instruction: &Instruction) -> Result<(), Trap> {
    let tags = state.r(instruction.d);
    let target = 1u64 << (instruction.imm2 & 7);
    let companion = 1u64 << (instruction.imm2 >> 3 & 7);
    let (target_set, companion_set) = (tags & target != 0, tags & companion != 0);
    let (permitted, new) = match instruction.imm & 7 {
        0 => (!target_set, tags | target),
        1 => (target_set, tags & !target),
        2 => (companion_set && target_set, tags),
        3 => (companion_set && target_set, tags & !target),
        4 => (companion_set && target_set, tags & !target & !companion),
        _ => (true, tags),
    };
    if !permitted {
        return Err(Trap::IllegalInstruction);
    }
    write_rd(state, instruction, new)
}

/// Records the exceptions of a result and writes it unless one of them traps.
fn write_fd(
    state: &mut State,
    instruction: &Instruction,
    bits: u64,
    raised: ExceptionFlags,
) -> Result<(), Trap> {
    state.fcsr.record(raised)?;
    state.set_f(instruction.d, bits);
    Ok(())
}
