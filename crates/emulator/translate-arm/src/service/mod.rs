//! Instructions that the engine executes because they are rare and their generated code would be long. Source: Arm
//! Architecture Reference Manual (Arm DDI 0487), sections C5.2 (FPCR, FPSR) and C7.2.

use longma_loongarch::float::{self, Double, ExceptionFlags, Format, Half, Integer, RoundingMode, Single};
use longma_loongarch::{Fcsr, State};

use crate::code::operands::NONE;
use crate::instruction::{Instruction, Op};
use crate::registers::{FPCR, read, write};
pub mod frame;
mod vector;
use longma_translate::front_end::{ServiceResult, UserMemory};

/// Rounding modes, indexed by FPCR.RMode.
const MODES: [RoundingMode; 4] =
    [RoundingMode::NearestEven, RoundingMode::Upward, RoundingMode::Downward, RoundingMode::TowardZero];

/// FPCR. Only the rounding mode is implemented.
pub(crate) fn control(state: &State) -> u32 {
    let mode = state.fcsr.rounding_mode();
    (MODES.iter().position(|other| *other == mode).unwrap_or_default() as u32) << 22
}

/// Sets FPCR; see [`control`].
pub(crate) fn set_control(state: &mut State, value: u32) {
    let mode = MODES[(value >> 22 & 3) as usize];
    state.fcsr = Fcsr(state.fcsr.0 & !Fcsr::ROUNDING | (mode as u32) << 8);
}

/// FPSR: the accumulated exception flags, in the reverse order of FCSR.
pub(crate) fn status(state: &State) -> u32 {
    (state.fcsr.0 >> 16 & 31).reverse_bits() >> 27
}

/// Sets FPSR.
pub(crate) fn set_status(state: &mut State, value: u32) {
    state.fcsr = Fcsr(state.fcsr.0 & !Fcsr::FLAGS | ((value & 31).reverse_bits() >> 27) << 16);
}

/// Executes `instruction` on `state`. The caller sets the program counter.
pub fn serve(i: Instruction, state: &mut State, memory: &dyn UserMemory) -> ServiceResult {
    let x = |state: &State, number| if number == NONE { 0 } else { read(state, number, memory) };
    match i.op {
        Op::IcIvau => return ServiceResult::Changed(x(state, i.rd())),
        Op::Mrs => {
            let value = if i.system_register() == FPCR { control(state) } else { status(state) };
            put(i, state, value.into(), memory);
        }
        Op::Msr => {
            let value = x(state, i.rd()) as u32;
            if i.system_register() == FPCR {
                set_control(state, value);
            } else {
                set_status(state, value);
            }
        }
        _ => {
            if let Some(served) = vector::serve(i, state, memory) {
                return served;
            }
            let raised = convert(i, state, memory);
            state.fcsr.0 |= (u32::from(raised.0) & 31) << 16;
        }
    }
    ServiceResult::Done
}

fn put(i: Instruction, state: &mut State, value: u64, memory: &dyn UserMemory) {
    if i.rd() != NONE {
        write(state, i.rd(), value, memory);
    }
}

fn put_scalar(i: Instruction, state: &mut State, value: u64) {
    let lanes = &mut state.v[usize::from(i.rd())].0;
    (lanes[0], lanes[1]) = (value, 0);
}

fn convert(i: Instruction, state: &mut State, memory: &dyn UserMemory) -> ExceptionFlags {
    use Op::*;
    let from = state.v[usize::from(i.rn())].0[0];
    let mode = state.fcsr.rounding_mode();
    let (value, raised) = match i.op {
        FcvtHs => float::convert::<Single, Half>(from, mode),
        FcvtHd => float::convert::<Double, Half>(from, mode),
        FcvtSh => float::convert::<Half, Single>(from, mode),
        FcvtDh => float::convert::<Half, Double>(from, mode),
        Frinta if i.is_double() => round_away::<Double>(from),
        Frinta => round_away::<Single>(from),
        ScvtfFixed | UcvtfFixed => {
            let number = if i.rn() == NONE { 0 } else { read(state, i.rn(), memory) };
            if i.is_double() {
                from_fixed::<Double>(i, number, mode)
            } else {
                from_fixed::<Single>(i, number, mode)
            }
        }
        _ => {
            let (value, raised) =
                if i.is_double() { to_integer::<Double>(i, from) } else { to_integer::<Single>(i, from) };
            put(i, state, if i.is_wide() { value } else { value & 0xffff_ffff }, memory);
            return raised;
        }
    };
    put_scalar(i, state, value);
    raised
}

/// The number of fraction bits of a fixed-point number.
fn fraction_bits(i: Instruction) -> i64 {
    64 - i64::from(i.bits(10, 6))
}

fn from_fixed<F: Format>(i: Instruction, number: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    let (whole, raised) = match (i.op, i.is_wide()) {
        (Op::ScvtfFixed, true) => float::from_signed::<F>(number as i64, mode),
        (Op::ScvtfFixed, false) => float::from_signed::<F>((number as i32).into(), mode),
        (_, true) => float::from_unsigned::<F>(number, mode),
        _ => float::from_unsigned::<F>(number & 0xffff_ffff, mode),
    };
    // The scaling is exact: it is by a power of two and cannot underflow.
    let (value, more) = float::scaleb::<F>(whole, -fraction_bits(i), mode);
    (value, raised | more)
}

/// Rounds to the nearest integral value, ties away from zero.
fn round_away<F: Format>(from: u64) -> (u64, ExceptionFlags) {
    let (value, raised) = float::round_to_integral::<F>(from, RoundingMode::NearestEven);
    let is_nan = from & (F::SIGN - 1) > F::INFINITY;
    if is_nan || raised.0 & ExceptionFlags::INEXACT.0 == 0 {
        return (value, raised);
    }
    if F::BITS == 64 {
        (f64::from_bits(from).round().to_bits(), ExceptionFlags::NONE)
    } else {
        (f32::from_bits(from as u32).round().to_bits().into(), ExceptionFlags::NONE)
    }
}

fn to_integer<F: Format>(i: Instruction, from: u64) -> (u64, ExceptionFlags) {
    use Op::*;
    let is_signed = matches!(i.op, Fcvtas | FcvtzsFixed);
    let to = match (i.is_wide(), is_signed) {
        (true, true) => Integer::I64,
        (true, false) => Integer::U64,
        (false, true) => Integer::I32,
        (false, false) => Integer::U32,
    };
    match i.op {
        Fcvtas | Fcvtau => {
            let (whole, raised) = round_away::<F>(from);
            let (value, more) = float::to_integer::<F>(whole, to, RoundingMode::TowardZero);
            let inexact = if whole == from { ExceptionFlags::NONE } else { ExceptionFlags::INEXACT };
            (value, raised | more | inexact)
        }
        FcvtzsFixed | FcvtzuFixed => {
            let (scaled, _) = float::scaleb::<F>(from, fraction_bits(i), RoundingMode::TowardZero);
            float::to_integer::<F>(scaled, to, RoundingMode::TowardZero)
        }
        Fcvtnu => float::to_integer::<F>(from, to, RoundingMode::NearestEven),
        Fcvtpu => float::to_integer::<F>(from, to, RoundingMode::Upward),
        _ => float::to_integer::<F>(from, to, RoundingMode::Downward),
    }
}
