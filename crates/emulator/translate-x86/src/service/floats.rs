//! MXCSR, and the results of invalid SSE operations, which differ from LoongArch's: the default NaN is negative, and
//! numbers that do not fit an integer become the smallest one. The LoongArch trap for invalid operations is always
//! enabled for this purpose: when it occurs, the engine executes the instruction again without the trap and corrects
//! the result. Source: Intel SDM, volume 1, sections 4.8.3.4 (NaNs), 10.2.3 (MXCSR), 11.5.2 (exceptions), appendix E.4.

use longma_loongarch::{Fcsr, Instruction, State};

use crate::registers::{SSE_CONTROL, ZERO_SUBNORMALS};

/// FCSR's bit that enables the trap of invalid operations.
pub(crate) const INVALID_TRAP: u32 = 1 << 4;

/// The bits of MXCSR that have no equal in FCSR: DAZ, masks of invalid and denormal exceptions, FTZ. The masks are
/// stored inverted.
const KEPT: u32 = DAZ | MASKS | FTZ;
const DAZ: u32 = 1 << ZERO_SUBNORMALS;
const FTZ: u32 = 1 << 15;
const UNDERFLOW_MASK: u32 = 1 << 11;
const INVALID_MASK: u32 = 1 << 7;
const MASKS: u32 = INVALID_MASK | 1 << 8;

/// The positions of flags in MXCSR and FCSR: invalid, divide by zero, overflow, underflow, inexact.
const FLAGS: [(u32, u32); 5] = [(0, 4), (2, 3), (3, 2), (4, 1), (5, 0)];
/// MXCSR's flag of subnormal operands.
const SUBNORMAL: u32 = 1 << 1;

/// FCSR's private rules that every x86-64 program follows.
pub(crate) const INITIAL_FCSR: u32 = INVALID_TRAP | Fcsr::SSE_RULES;

/// Reads MXCSR.
pub(crate) fn control(state: &State) -> u32 {
    let fcsr = state.fcsr.0;
    let mut mxcsr_value = (state.lbt.scratch[usize::from(SSE_CONTROL)] as u32 & KEPT) ^ MASKS;
    for (mxcsr, bit) in FLAGS {
        mxcsr_value |= (fcsr >> (16 + bit) & 1) << mxcsr;
        if mxcsr != 0 {
            mxcsr_value |= (!fcsr >> bit & 1) << (7 + mxcsr);
        }
    }
    if fcsr & Fcsr::SUBNORMAL != 0 {
        mxcsr_value |= SUBNORMAL;
    }
    mxcsr_value | [0, 3, 2, 1][(fcsr >> 8 & 3) as usize] << 13
}

/// Writes MXCSR.
pub(crate) fn set_control(state: &mut State, value: u32) {
    let mut fcsr = [0, 3, 2, 1][(value >> 13 & 3) as usize] << 8 | INITIAL_FCSR;
    // Tiny results are flushed only if underflow is masked.
    let flushes = value & (FTZ | UNDERFLOW_MASK) == FTZ | UNDERFLOW_MASK;
    let rules = [
        (value & SUBNORMAL != 0, Fcsr::SUBNORMAL),
        (value & DAZ != 0, Fcsr::FLUSH_OPERANDS),
        (flushes, Fcsr::FLUSH_RESULTS),
    ];
    fcsr |= rules.iter().filter(|(holds, _)| *holds).map(|(_, bit)| bit).sum::<u32>();
    for (mxcsr, bit) in FLAGS {
        fcsr |= (value >> mxcsr & 1) << (16 + bit);
        fcsr |= (!value >> (7 + mxcsr) & 1) << bit;
    }
    state.fcsr = Fcsr(fcsr);
    state.lbt.scratch[usize::from(SSE_CONTROL)] = u64::from((value ^ MASKS) & KEPT);
}

/// Whether subnormal operands count as zeros.
pub(crate) fn zeroes_subnormals(state: &State) -> bool {
    state.fcsr.0 & Fcsr::FLUSH_OPERANDS != 0
}

/// Disables the trap of invalid operations, if the program masks their exceptions. Returns false otherwise.
pub(crate) fn begin_repair(state: &mut State) -> bool {
    let is_masked = control(state) & INVALID_MASK != 0;
    if is_masked {
        state.fcsr.0 &= !INVALID_TRAP;
    }
    is_masked
}

/// Enables the trap again, and corrects the result of the LoongArch instruction that has been executed.
pub(crate) fn end_repair(word: &Instruction, before: &State, state: &mut State) {
    state.fcsr.0 |= INVALID_TRAP;
    let name = word.op.mnemonic();
    let (stem, lanes) = match (name.strip_prefix("xv"), name.strip_prefix('v')) {
        (Some(stem), _) => (stem, 4),
        (_, Some(stem)) => (stem, 2),
        _ => (name, 1),
    };
    let Some((stem, format)) = stem.split_once('.') else { return };
    let sources: &[u8] = match stem {
        "fadd" | "fsub" | "fmul" | "fdiv" => &[word.j, word.k],
        "fsqrt" => &[word.j],
        "fmadd" | "fmsub" | "fnmadd" | "fnmsub" => &[word.j, word.k, word.a],
        "ftint" | "ftintrz" if lanes == 1 => return repair_integer(format, word.d, state),
        "ftint" | "ftintrz" => return repair_words(word, lanes, format, before, state),
        _ => return,
    };
    for lane in 0..lanes {
        let old = |register: u8| before.v[usize::from(register)].0[lane];
        let result = &mut state.v[usize::from(word.d)].0[lane];
        if format == "d" {
            *result = repaired(*result, sources.iter().map(|source| old(*source)), 52);
            continue;
        }
        let halves = if lanes == 1 { 1 } else { 2 };
        for half in 0..halves {
            let shift = 32 * half;
            let low = |value: u64| value >> shift & 0xffff_ffff;
            let new = repaired(low(*result), sources.iter().map(|source| low(old(*source))), 23);
            *result = *result & !(0xffff_ffff << shift) | new << shift;
        }
    }
}

/// Whether the trap of an instruction can be avoided by longer code: comparisons, and conversions to 32 bits.
pub(crate) fn is_avoidable(word: &Instruction) -> bool {
    let name = word.op.mnemonic().trim_start_matches(['x', 'v']);
    name.starts_with("fcmp.s") || name.starts_with("ftint") && name.contains(".w.")
}

/// A scalar conversion to an integer raises the exception only if the number does not fit.
fn repair_integer(format: &str, d: u8, state: &mut State) {
    let result = &mut state.v[usize::from(d)].0[0];
    *result = match format.split_once('.') {
        Some(("w", _)) => *result & !0xffff_ffff | 1 << 31,
        _ => 1 << 63,
    };
}

/// Words that NaNs and numbers that round to 2^31 have been converted to. Code compares numbers from 2^31 on itself.
fn repair_words(word: &Instruction, lanes: usize, format: &str, before: &State, state: &mut State) {
    const SMALLEST: u64 = 1 << 31;
    let is_half = format == "w.d";
    let from = before.v[usize::from(if is_half { word.k } else { word.j })].0;
    let result = &mut state.v[usize::from(word.d)].0;
    for at in 0..2 * lanes {
        // Two doubles become the lower half of the words.
        let (does_not_fit, lane, half) = if is_half {
            let value = f64::from_bits(from[at / 2]);
            (value.is_nan() || value.abs() >= 2_147_483_647.5, at / 4 * 2, at / 2 % 2)
        } else {
            let value = f32::from_bits((from[at / 2] >> (32 * (at % 2))) as u32);
            (value.is_nan() || value.abs() >= 2_147_483_648.0, at / 2, at % 2)
        };
        let converted = result[lane] >> (32 * half) & 0xffff_ffff;
        let is_saturated = converted == 0 || converted == SMALLEST - 1;
        if does_not_fit && is_saturated {
            result[lane] = result[lane] & !(0xffff_ffff << (32 * half)) | SMALLEST << (32 * half);
        }
    }
}

/// The result of an operation whose format has `fraction` fraction bits: the first operand that is a NaN, made quiet,
/// or the default NaN.
fn repaired(result: u64, mut sources: impl Iterator<Item = u64>, fraction: u32) -> u64 {
    let (sign, quiet) = if fraction == 52 { (1 << 63, 1 << 51) } else { (1 << 31, 1 << 22) };
    let infinity = (sign - 1) & !((1u64 << fraction) - 1);
    let is_nan = |value: u64| value & (sign - 1) > infinity;
    if !is_nan(result) {
        return result;
    }
    sources.find(|value| is_nan(*value)).map_or(sign | infinity | quiet, |nan| nan | quiet)
}
