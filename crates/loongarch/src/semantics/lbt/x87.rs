//! Support for the x87: the top of its stack, its tags, and its 80-bit numbers.
//! Not its arithmetic: the floating-point instructions do that on double precision, with f0-f7 renamed by the top of stack while
//! stack mode is on ([`State::fpr_index`](crate::State::fpr_index)). Vector registers are never renamed.
//! Source: jiegec/la-inst, LBT.md; jiegec/unofficial-loongarch-intrinsics-guide, docs/lbt/x86_fpu.md and its measured `fcvt`
//! formulas; Intel SDM volume 1, section 8.2 (data types).

use super::write_rd;
use crate::{Environment, Instruction, Op, State, Trap, semantics::Semantics};

/// Positions within FCSR's groups of five: enables from bit 0, flags from bit 16, causes from bit 24.
const INVALID: u32 = 1 << 4;
const OVERFLOW: u32 = 1 << 2;
const UNDERFLOW: u32 = 1 << 1;
const INEXACT: u32 = 1;

/// The semantics of `op`, or `None` if it is not of this file.
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
            let extended = Extended::from_double(s.f(i.j));
            write_fd(s, i, extended.significand, extended.exceptions)
        },
        Op::FcvtUdD => |s, i, _| {
            let extended = Extended::from_double(s.f(i.j));
            write_fd(s, i, extended.sign_and_exponent.into(), extended.exceptions)
        },
        Op::FcvtDLd => |s, i, _| {
            let (bits, exceptions) = to_double(s.f(i.j), s.f(i.k) as u16, s.fcsr.0 >> 8 & 3);
            write_fd(s, i, bits, exceptions)
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

/// `x86settag rd, operation, position`: checks bits of a tag word and changes them. Bit `position % 8` is the target, bit
/// `position % 64 / 8` the one that operations 2 to 4 want set as well. A check that fails is a binary-translation exception
/// (number 21), which Linux does not know; it is an illegal instruction here.
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

/// Writes a result and its exceptions, or traps if one of them is enabled.
fn write_fd(state: &mut State, instruction: &Instruction, bits: u64, exceptions: u32) -> Result<(), Trap> {
    let fcsr = &mut state.fcsr.0;
    *fcsr = *fcsr & !(31 << 24) | exceptions << 24;
    if *fcsr & exceptions != 0 {
        return Err(Trap::FloatingPoint);
    }
    *fcsr |= exceptions << 16;
    state.set_f(instruction.d, bits);
    Ok(())
}

/// A number of 80 bits, and what making it raised.
struct Extended {
    sign_and_exponent: u16,
    significand: u64,
    exceptions: u32,
}

const FRACTION_BITS: u32 = 52;
const FRACTION: u64 = (1 << FRACTION_BITS) - 1;
/// What is added to an exponent of the double format for one of the extended format.
const REBIAS: u16 = 16383 - 1023;
/// The explicit integer bit of the extended format.
const INTEGER_BIT: u64 = 1 << 63;
/// The highest bit of the extended format's fraction: a NaN with it is quiet.
const QUIET: u64 = 1 << 62;

impl Extended {
    /// Exact but for signalling NaNs, which become quiet.
    fn from_double(double: u64) -> Self {
        let sign = (double >> 63 << 15) as u16;
        let exponent = (double >> FRACTION_BITS & 0x7ff) as u16;
        let fraction = (double & FRACTION) << (63 - FRACTION_BITS);
        let (exponent, significand, exceptions) = match (exponent, fraction) {
            (0x7ff, 0) => (0x7fff, INTEGER_BIT, 0),
            (0x7ff, _) if fraction & QUIET == 0 => (0x7fff, INTEGER_BIT | QUIET | fraction, INVALID),
            (0x7ff, _) => (0x7fff, INTEGER_BIT | fraction, 0),
            (0, 0) => (0, 0, 0),
            // A subnormal has exponent 1 and no integer bit; the extended format has the room to normalise it.
            (0, _) => {
                let shift = fraction.leading_zeros();
                (1 + REBIAS - shift as u16, fraction << shift, 0)
            }
            _ => (exponent + REBIAS, INTEGER_BIT | fraction, 0),
        };
        Self { sign_and_exponent: sign | exponent, significand, exceptions }
    }
}

/// The double nearest to an extended number in rounding mode `rounding` (FCSR's numbering), and the exceptions.
///
/// Measured on hardware with rounding to nearest only; the other modes and the exceptions are those of every conversion to
/// double. An operand with an exponent but no integer bit, which is no number since the 80387, gives the default NaN.
fn to_double(significand: u64, sign_and_exponent: u16, rounding: u32) -> (u64, u32) {
    const DEFAULT_NAN: u64 = 0x7ff8 << 48;
    const INFINITY: u64 = 0x7ff << FRACTION_BITS;
    let sign = u64::from(sign_and_exponent >> 15) << 63;
    match (sign_and_exponent & 0x7fff, significand) {
        (1.., _) if significand & INTEGER_BIT == 0 => (DEFAULT_NAN, INVALID),
        (0x7fff, INTEGER_BIT) => (sign | INFINITY, 0),
        (0x7fff, _) => {
            let fraction = (significand & !INTEGER_BIT | QUIET) >> (63 - FRACTION_BITS);
            (sign | INFINITY | fraction, if significand & QUIET == 0 { INVALID } else { 0 })
        }
        (_, 0) => (sign, 0),
        (exponent, _) => {
            let shift = significand.leading_zeros();
            let exponent = i32::from(exponent.max(1)) - shift as i32 - i32::from(REBIAS);
            round(sign, exponent, significand << shift, rounding)
        }
    }
}

/// Rounds a normalised significand (bit 63 set) with the double format's biased `exponent`, however far out of its range.
fn round(sign: u64, exponent: i32, significand: u64, rounding: u32) -> (u64, u32) {
    /// Where the significand's lowest bit is kept, less what a normal double drops.
    const DROPPED: u32 = 63 - FRACTION_BITS;
    let up_if_inexact = match rounding {
        0 => None,
        1 => Some(false),
        2 => Some(sign == 0),
        _ => Some(sign != 0),
    };
    // The number, rounded, in units of its last place when `dropped` bits go; and whether that was exact.
    let rounded = |dropped: u32| {
        let wide = u128::from(significand) << 64 >> dropped;
        let (kept, lost) = ((wide >> 64) as u64, wide as u64);
        // Bits beyond the 128 are lost only if there are very many: they count as "something below a half".
        let sticky = dropped > 64 || u128::from(significand) << 64 != wide << dropped;
        let exact = lost == 0 && !sticky;
        let half = 1u64 << 63;
        let nearest_up = lost > half || lost == half && (sticky || kept & 1 == 1);
        (kept + u64::from(!exact && up_if_inexact.unwrap_or(nearest_up)), exact)
    };
    let (normal, normal_exact) = rounded(DROPPED);
    let carried = normal >> (FRACTION_BITS + 1);
    if exponent + carried as i32 > 2046 {
        let infinity = 0x7ff << FRACTION_BITS;
        let magnitude = if up_if_inexact == Some(false) { infinity - 1 } else { infinity };
        return (sign | magnitude, OVERFLOW | INEXACT);
    }
    if exponent >= 1 {
        // Adding the significand with its integer bit to the exponent less one lets a carry move the exponent on.
        let magnitude = ((exponent as u64 - 1) << FRACTION_BITS) + normal;
        return (sign | magnitude, if normal_exact { 0 } else { INEXACT });
    }
    // Tiny is what would be below the least normal number if exponents had no end.
    let tiny = exponent + (carried as i32) < 1;
    let (subnormal, exact) = rounded((DROPPED as i32 + 1 - exponent).min(127) as u32);
    let exceptions = match (exact, tiny) {
        (true, _) => 0,
        (false, true) => UNDERFLOW | INEXACT,
        (false, false) => INEXACT,
    };
    (sign | subnormal, exceptions)
}
