//! `vldi`: constants encoded in 13 bits. Source: `vldi` in the unofficial LoongArch intrinsics guide, tested there on
//! hardware.

use super::{half::splat, write_halves};
use crate::{Environment, Instruction, Op, State, Trap, semantics::Semantics};

/// The semantics of `op`; `None` if it is another instruction.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    match op {
        Op::Vldi => Some(|state, instruction, _| load_constant::<1>(state, instruction)),
        Op::Xvldi => Some(|state, instruction, _| load_constant::<2>(state, instruction)),
        _ => None,
    }
}

fn load_constant<const HALVES: usize>(state: &mut State, instruction: &Instruction) -> Result<(), Trap> {
    let constant = constant(instruction.imm).ok_or(Trap::IllegalInstruction)?;
    write_halves::<HALVES>(state, instruction.d, [constant; 2]);
    Ok(())
}

/// The 128 bits that the immediate encodes; `None` for the last three modes, which are unused.
fn constant(imm: i32) -> Option<u128> {
    let signed = (imm << 22) >> 22;
    let byte = imm as u8;
    Some(match imm >> 8 & 31 {
        0..=3 => splat(byte),
        4..=7 => splat(signed as i16),
        8..=11 => splat(signed),
        12..=15 => splat(i64::from(signed)),
        shift @ 16..=19 => splat(u32::from(byte) << (8 * (shift - 16))),
        20 => splat(u16::from(byte)),
        21 => splat(u16::from(byte) << 8),
        22 => splat(u32::from(byte) << 8 | 0xff),
        23 => splat(u32::from(byte) << 16 | 0xffff),
        24 => splat(byte),
        25 => splat((0..8).fold(0u64, |word, i| word | (u64::from(byte >> i & 1) * 0xff) << (8 * i))),
        26 => splat(short_single(byte)),
        27 => splat(u64::from(short_single(byte))),
        28 => splat(short_double(byte)),
        _ => return None,
    })
}

/// A single-precision number of one sign bit, three exponent bits and four fraction bits.
fn short_single(byte: u8) -> u32 {
    let (sign, small, rest) = (u32::from(byte >> 7), u32::from(byte >> 6 & 1), u32::from(byte & 63));
    sign << 31 | (1 - small) << 30 | (small * 0x1f) << 25 | rest << 19
}

/// As [`short_single`], in double precision.
fn short_double(byte: u8) -> u64 {
    let (sign, small, rest) = (u64::from(byte >> 7), u64::from(byte >> 6 & 1), u64::from(byte & 63));
    sign << 63 | (1 - small) << 62 | (small * 0xff) << 54 | rest << 48
}
