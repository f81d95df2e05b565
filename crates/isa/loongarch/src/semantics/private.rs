//! The private instructions of translated code: aligned accesses, and rounding that is never inexact. `crypto.rs` has
//! cryptography. Source: Intel SDM, volume 2 (MOVAPS, ROUNDPD); Arm Architecture Reference Manual (Arm DDI 0487), section
//! B2.5 (alignment of LDAR).

use super::memory::{aligned, indexed, offset};
use super::{Semantics, crypto, semantics_of};
use crate::float::{self, Double, ExceptionFlags, Format, RoundingMode, Single};
use crate::{Access, Environment, Instruction, Op, State, Trap};

/// The access of instruction `$plain`, if the address is a multiple of `$bytes`.
macro_rules! aligned_access {
    ($plain:ident, $address:ident, $bytes:literal, $access:ident) => {
        |state, i, e| {
            permit(e)?;
            aligned($address(state, i)?, $bytes, Access::$access)?;
            semantics_of::<E>(Op::$plain)(state, i, e)
        }
    };
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    crypto::lookup(op).or_else(|| other(op))
}

fn other<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::VldAligned => aligned_access!(Vld, offset, 16, Read),
        Op::VstAligned => aligned_access!(Vst, offset, 16, Write),
        Op::XvldAligned => aligned_access!(Xvld, offset, 32, Read),
        Op::XvstAligned => aligned_access!(Xvst, offset, 32, Write),
        Op::VldxAligned => aligned_access!(Vldx, indexed, 16, Read),
        Op::VstxAligned => aligned_access!(Vstx, indexed, 16, Write),
        Op::XvldxAligned => aligned_access!(Xvldx, indexed, 32, Read),
        Op::XvstxAligned => aligned_access!(Xvstx, indexed, 32, Write),
        Op::LdHuAligned => aligned_access!(LdHu, offset, 2, Read),
        Op::LdWuAligned => aligned_access!(LdWu, offset, 4, Read),
        Op::LdDAligned => aligned_access!(LdD, offset, 8, Read),
        Op::VfrintSExact => |s, i, e| round::<E, Single>(s, i, e, 2),
        Op::VfrintDExact => |s, i, e| round::<E, Double>(s, i, e, 2),
        Op::XvfrintSExact => |s, i, e| round::<E, Single>(s, i, e, 4),
        Op::XvfrintDExact => |s, i, e| round::<E, Double>(s, i, e, 4),
        _ => return None,
    })
}

/// Refuses private instructions in programs for LoongArch.
pub(super) fn permit(environment: &impl Environment) -> Result<(), Trap> {
    if environment.permits_private() { Ok(()) } else { Err(Trap::IllegalInstruction) }
}

/// Rounds the elements in the first `lanes` doublewords.
fn round<E: Environment, F: Format>(
    state: &mut State,
    i: &Instruction,
    environment: &E,
    lanes: usize,
) -> Result<(), Trap> {
    permit(environment)?;
    let mode = RoundingMode::ALL.get(i.imm as usize).copied().unwrap_or(state.fcsr.rounding_mode());
    let mask = u64::MAX >> (64 - F::BITS);
    let mut raised = ExceptionFlags::NONE;
    let mut result = state.v[usize::from(i.j)].0;
    for lane in &mut result[..lanes] {
        *lane = (0..64).step_by(F::BITS as usize).fold(0, |rounded, at| {
            let value = state.fcsr.rules().flushed::<F>(*lane >> at & mask);
            let (value, flags) = float::round_to_integral::<F>(value, mode);
            raised |= flags;
            rounded | (value & mask) << at
        });
    }
    state.fcsr.record(raised.without(ExceptionFlags::INEXACT))?;
    state.v[usize::from(i.d)].0[..lanes].copy_from_slice(&result[..lanes]);
    Ok(())
}
