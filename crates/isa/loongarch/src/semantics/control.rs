//! Branches, jumps, system calls, breaks, counters and configuration words. Source: LoongArch Reference Manual, volume
//! 1, sections 2.2.4 (branches), 2.2.10 (miscellaneous), 3.2.5 (floating-point branches).

use super::{Semantics, sign_extend_word};
use crate::{Environment, Instruction, Op, State, Trap};

/// A relative jump if the condition holds.
macro_rules! branch {
    (|$state:ident, $i:ident| $taken:expr) => {
        |$state, $i, _| {
            let taken = $taken;
            branch($state, $i, taken);
            Ok(())
        }
    };
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::Beqz => branch!(|s, i| s.r(i.j) == 0),
        Op::Bnez => branch!(|s, i| s.r(i.j) != 0),
        Op::Bceqz => branch!(|s, i| s.fcc[usize::from(i.j)] == 0),
        Op::Bcnez => branch!(|s, i| s.fcc[usize::from(i.j)] != 0),
        Op::Beq => branch!(|s, i| s.r(i.j) == s.r(i.d)),
        Op::Bne => branch!(|s, i| s.r(i.j) != s.r(i.d)),
        Op::Blt => branch!(|s, i| (s.r(i.j) as i64) < s.r(i.d) as i64),
        Op::Bge => branch!(|s, i| s.r(i.j) as i64 >= s.r(i.d) as i64),
        Op::Bltu => branch!(|s, i| s.r(i.j) < s.r(i.d)),
        Op::Bgeu => branch!(|s, i| s.r(i.j) >= s.r(i.d)),
        Op::B => branch!(|_s, _i| true),
        Op::Bl => |state, i, _| {
            state.set_r(1, state.pc.wrapping_add(4));
            branch(state, i, true);
            Ok(())
        },
        Op::Jirl => |state, i, _| {
            // Read the target first, since rd may be rj.
            let target = state.r(i.j).wrapping_add(i.imm as i64 as u64);
            state.set_r(i.d, state.pc.wrapping_add(4));
            state.pc = target;
            Ok(())
        },

        Op::Syscall => |_, i, _| Err(Trap::Syscall(i.imm as u32)),
        Op::Break => |_, i, _| Err(Trap::Break(i.imm as u32)),
        // Without a debugger, a debugger call acts as `break 0`. Its code is in a different number space from BREAK's.
        Op::Dbcl => |_, _, _| Err(Trap::Break(0)),
        Op::AsrtleD => |state, i, _| match state.r(i.j) as i64 <= state.r(i.k) as i64 {
            true => Ok(()),
            false => Err(Trap::BoundCheck),
        },
        Op::AsrtgtD => |state, i, _| match state.r(i.j) as i64 > state.r(i.k) as i64 {
            true => Ok(()),
            false => Err(Trap::BoundCheck),
        },

        Op::RdtimelW => |state, i, e| {
            read_counter(state, i, e, sign_extend_word);
            Ok(())
        },
        Op::RdtimehW => |state, i, e| {
            read_counter(state, i, e, |counter| sign_extend_word(counter >> 32));
            Ok(())
        },
        Op::RdtimeD => |state, i, e| {
            read_counter(state, i, e, |counter| counter);
            Ok(())
        },
        Op::Cpucfg => |state, i, e| {
            let word = e.cpucfg(state.r(i.j) as u32);
            state.set_r(i.d, sign_extend_word(u64::from(word)));
            Ok(())
        },
        _ => return None,
    })
}

#[inline]
fn branch(state: &mut State, i: &Instruction, taken: bool) {
    let offset = if taken { i.imm as i64 as u64 } else { 4 };
    state.pc = state.pc.wrapping_add(offset);
}

/// `rd` = the part of the counter that `part` selects, `rj` = the counter id.
fn read_counter<E: Environment>(state: &mut State, i: &Instruction, e: &E, part: fn(u64) -> u64) {
    state.set_r(i.d, part(e.stable_counter()));
    state.set_r(i.j, e.counter_id());
}
