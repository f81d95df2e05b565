//! Scalar floating point. Loads and stores are in `memory.rs`, branches in `control.rs`, arithmetic in `float`. Source:
//! LoongArch Reference Manual, volume 1, sections 3.1.2 (registers) and 3.2.1 to 3.2.4.

use super::{Semantics, sign_extend_word};
use crate::{
    Environment, Fcsr, Instruction, Op, State, Trap,
    float::{self, Double, ExceptionFlags, Format, Integer, RoundingMode, Single},
};

/// `fd = f(fj, fk)`, rounded.
macro_rules! two_rounded {
    ($format:ty, $operation:ident) => {
        |state, i, _| {
            let mode = state.fcsr.rounding_mode();
            let result =
                state.fcsr.rules().apply::<$format, $format, 2>([state.f(i.j), state.f(i.k)], |[j, k]| {
                    float::$operation::<$format>(j, k, mode)
                });
            write_result(state, i, <$format>::BITS, result)
        }
    };
}

/// `fd = f(fj, fk)` for functions that select an operand.
macro_rules! two_chosen {
    ($format:ty, $operation:ident) => {
        |state, i, _| {
            let result = float::$operation::<$format>(state.f(i.j), state.f(i.k));
            write_result(state, i, <$format>::BITS, result)
        }
    };
}

/// `fd = f(fj)`, rounded.
macro_rules! one_rounded {
    ($format:ty, $operation:ident) => {
        |state, i, _| {
            let mode = state.fcsr.rounding_mode();
            let result = state
                .fcsr
                .rules()
                .apply::<$format, $format, 1>([state.f(i.j)], |[j]| float::$operation::<$format>(j, mode));
            write_result(state, i, <$format>::BITS, result)
        }
    };
}

macro_rules! integral {
    ($format:ty,) => {
        |state, i, _| {
            let operand = state.fcsr.rules().flushed::<$format>(state.f(i.j));
            let result = float::round_to_integral::<$format>(operand, state.fcsr.rounding_mode());
            write_result(state, i, <$format>::BITS, result)
        }
    };
}

/// `fd = ±(fj * fk ± fa)`.
macro_rules! multiply_add {
    ($format:ty, $negate_addend:literal, $negate_result:literal) => {
        |state, i, _| {
            let (operands, mode) = ([state.f(i.j), state.f(i.k), state.f(i.a)], state.fcsr.rounding_mode());
            let negations = [$negate_addend, $negate_result];
            let result = state.fcsr.rules().mul_add::<$format>(operands, negations, mode);
            write_result(state, i, <$format>::BITS, result)
        }
    };
}

/// `fd = fj * 2^fk`, where fk is an integer with the width of the format.
macro_rules! scale {
    ($format:ty,) => {
        |state, i, _| {
            let exponent = state.f(i.k);
            let exponent = if <$format>::BITS == 32 { exponent as i32 as i64 } else { exponent as i64 };
            let result = float::scaleb::<$format>(state.f(i.j), exponent, state.fcsr.rounding_mode());
            write_result(state, i, <$format>::BITS, result)
        }
    };
}

macro_rules! logarithm {
    ($format:ty,) => {
        |state, i, _| write_result(state, i, <$format>::BITS, float::logb::<$format>(state.f(i.j)))
    };
}

/// `fd = f(fj, fk)` on bit patterns. Raises no exceptions and leaves FCSR unchanged.
macro_rules! bits {
    ($format:ty, |$j:ident, $k:ident| $value:expr) => {
        |state, i, _| {
            #[allow(dead_code)]
            const SIGN: u64 = <$format>::SIGN;
            let ($j, $k) = (state.f(i.j), state.f(i.k));
            write(state, i.d, <$format>::BITS, $value);
            Ok(())
        }
    };
}

macro_rules! class {
    ($format:ty,) => {
        |state, i, _| {
            write(state, i.d, <$format>::BITS, float::classify::<$format>(state.f(i.j)));
            Ok(())
        }
    };
}

macro_rules! compare {
    ($format:ty) => {
        |state, i, _| {
            // The condition is in bits 19..15 of the instruction word.
            let condition = i.op.row().matched >> 15 & 0x1f;
            let operands = [state.f(i.j), state.f(i.k)];
            let (holds, raised) = state
                .fcsr
                .rules()
                .examine::<$format, _>(operands, |j, k| float::compare_condition::<$format>(j, k, condition));
            state.fcsr.record(raised)?;
            state.fcc[usize::from(i.d)] = holds.into();
            Ok(())
        }
    };
}

/// `fd` = fj rounded to an integer, in FCSR's mode or a fixed one.
macro_rules! to_integer {
    ($format:ty, $integer:ident) => {
        |state, i, _| {
            let mode = state.fcsr.rounding_mode();
            let result = state.fcsr.rules().to_integer::<$format>(state.f(i.j), Integer::$integer, mode);
            write_result(state, i, Integer::$integer.bits, result)
        }
    };
    ($format:ty, $integer:ident, $mode:ident) => {
        |state, i, _| {
            let mode = RoundingMode::$mode;
            let result = state.fcsr.rules().to_integer::<$format>(state.f(i.j), Integer::$integer, mode);
            write_result(state, i, Integer::$integer.bits, result)
        }
    };
}

macro_rules! from_integer {
    ($format:ty, $integer:ty) => {
        |state, i, _| {
            let integer = i64::from(state.f(i.j) as $integer);
            let result = float::from_signed::<$format>(integer, state.fcsr.rounding_mode());
            write_result(state, i, <$format>::BITS, result)
        }
    };
}

/// Expands to the match arms of the single- and double-precision forms, given the macro and its arguments other than
/// the format.
macro_rules! forms {
    ($op:expr; $($single:ident $double:ident => $shape:ident($($argument:tt)*),)*) => {
        match $op {
            $(
                Op::$single => $shape!(Single, $($argument)*),
                Op::$double => $shape!(Double, $($argument)*),
            )*
            _ => return None,
        }
    };
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    moves(op).or_else(|| arithmetic(op)).or_else(|| conversions(op)).or_else(|| {
        if (Op::FcmpCafS..=Op::FcmpSuneS).contains(&op) {
            Some(compare!(Single))
        } else if (Op::FcmpCafD..=Op::FcmpSuneD).contains(&op) {
            Some(compare!(Double))
        } else {
            None
        }
    })
}

fn arithmetic<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(forms! { op;
        FaddS FaddD => two_rounded(add),
        FsubS FsubD => two_rounded(sub),
        FmulS FmulD => two_rounded(mul),
        FdivS FdivD => two_rounded(div),
        FmaddS FmaddD => multiply_add(false, false),
        FmsubS FmsubD => multiply_add(true, false),
        FnmaddS FnmaddD => multiply_add(false, true),
        FnmsubS FnmsubD => multiply_add(true, true),
        FmaxS FmaxD => two_chosen(max),
        FminS FminD => two_chosen(min),
        FmaxaS FmaxaD => two_chosen(max_magnitude),
        FminaS FminaD => two_chosen(min_magnitude),
        FsqrtS FsqrtD => one_rounded(sqrt),
        FrecipS FrecipD => one_rounded(recip),
        FrsqrtS FrsqrtD => one_rounded(rsqrt),
        // The manual requires a relative error below 2^-14 and exact results for powers of two, which exact operations
        // satisfy.
        FrecipeS FrecipeD => one_rounded(recip),
        FrsqrteS FrsqrteD => one_rounded(rsqrt),
        FscalebS FscalebD => scale(),
        FlogbS FlogbD => logarithm(),
        FrintS FrintD => integral(),
        FclassS FclassD => class(),
        FabsS FabsD => bits(|j, _k| j & !SIGN),
        FnegS FnegD => bits(|j, _k| j ^ SIGN),
        FcopysignS FcopysignD => bits(|j, k| j & !SIGN | k & SIGN),
        FmovS FmovD => bits(|j, _k| j),
    })
}

fn conversions<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::FcvtSD => |state, i, _| {
            let result = converted::<Double, Single>(state, i);
            write_result(state, i, 32, result)
        },
        Op::FcvtDS => |state, i, _| {
            let result = converted::<Single, Double>(state, i);
            write_result(state, i, 64, result)
        },
        _ => forms! { op;
            FfintSW FfintDW => from_integer(i32),
            FfintSL FfintDL => from_integer(i64),
            FtintWS FtintWD => to_integer(I32),
            FtintLS FtintLD => to_integer(I64),
            FtintrneWS FtintrneWD => to_integer(I32, NearestEven),
            FtintrneLS FtintrneLD => to_integer(I64, NearestEven),
            FtintrzWS FtintrzWD => to_integer(I32, TowardZero),
            FtintrzLS FtintrzLD => to_integer(I64, TowardZero),
            FtintrpWS FtintrpWD => to_integer(I32, Upward),
            FtintrpLS FtintrpLD => to_integer(I64, Upward),
            FtintrmWS FtintrmWD => to_integer(I32, Downward),
            FtintrmLS FtintrmLD => to_integer(I64, Downward),
        },
    })
}

fn moves<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::Fsel => |state, i, _| {
            let source = if state.fcc[usize::from(i.a)] != 0 { i.k } else { i.j };
            state.set_f(i.d, state.f(source));
            Ok(())
        },
        Op::Movgr2frW => |state, i, _| {
            state.set_f_word(i.d, state.r(i.j) as u32);
            Ok(())
        },
        Op::Movgr2frhW => |state, i, _| {
            let low = state.f(i.d) & 0xffff_ffff;
            state.set_f(i.d, state.r(i.j) << 32 | low);
            Ok(())
        },
        Op::Movgr2frD => |state, i, _| {
            state.set_f(i.d, state.r(i.j));
            Ok(())
        },
        Op::Movfr2grS => |state, i, _| {
            state.set_r(i.d, sign_extend_word(state.f(i.j)));
            Ok(())
        },
        Op::Movfrh2grS => |state, i, _| {
            state.set_r(i.d, sign_extend_word(state.f(i.j) >> 32));
            Ok(())
        },
        Op::Movfr2grD => |state, i, _| {
            state.set_r(i.d, state.f(i.j));
            Ok(())
        },
        Op::Movgr2fcsr => |state, i, _| {
            let fields = control_fields(i.d);
            state.fcsr.0 = state.fcsr.0 & !fields | state.r(i.j) as u32 & fields;
            Ok(())
        },
        Op::Movfcsr2gr => |state, i, _| {
            let value = state.fcsr.0 & control_fields(i.j);
            state.set_r(i.d, sign_extend_word(value.into()));
            Ok(())
        },
        Op::Movfr2cf => |state, i, _| {
            state.fcc[usize::from(i.d)] = (state.f(i.j) & 1) as u8;
            Ok(())
        },
        Op::Movcf2fr => |state, i, _| {
            state.set_f(i.d, state.fcc[usize::from(i.j)].into());
            Ok(())
        },
        Op::Movgr2cf => |state, i, _| {
            state.fcc[usize::from(i.d)] = (state.r(i.j) & 1) as u8;
            Ok(())
        },
        Op::Movcf2gr => |state, i, _| {
            state.set_r(i.d, state.fcc[usize::from(i.j)].into());
            Ok(())
        },
        _ => return None,
    })
}

/// The bits of FCSR0 that FCSR `n` accesses. The manual leaves numbers above 3 undefined; they are empty here.
fn control_fields(n: u8) -> u32 {
    match n {
        0 => Fcsr::ENABLES | Fcsr::ROUNDING | Fcsr::FLAGS | Fcsr::CAUSES,
        1 => Fcsr::ENABLES,
        2 => Fcsr::FLAGS | Fcsr::CAUSES,
        3 => Fcsr::ROUNDING,
        _ => 0,
    }
}

/// fj in another format.
fn converted<From: Format, To: Format>(state: &State, i: &Instruction) -> (u64, ExceptionFlags) {
    let mode = state.fcsr.rounding_mode();
    state.fcsr.rules().apply::<From, To, 1>([state.f(i.j)], |[j]| float::convert::<From, To>(j, mode))
}

/// Records the exceptions of a result and writes it unless one of them traps.
fn write_result(
    state: &mut State,
    i: &Instruction,
    bits: u32,
    (value, raised): (u64, ExceptionFlags),
) -> Result<(), Trap> {
    state.fcsr.record(raised)?;
    write(state, i.d, bits, value);
    Ok(())
}

/// Writes the low `bits` (32 or 64) of a floating-point register. The other bits are unchanged.
fn write(state: &mut State, n: u8, bits: u32, value: u64) {
    match bits {
        32 => state.set_f_word(n, value as u32),
        _ => state.set_f(n, value),
    }
}
