//! Conversions between floating-point formats and to and from general-purpose registers, and comparisons that set the
//! condition flags. Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2 (FCVT, FCVTZS, SCVTF, FCMP
//! and related instructions).

use longma_loongarch::State;
use longma_loongarch::float::{Double, Half, Integer, Single};

use super::super::environment::Environment;
use super::float::{converted, from_integer, in_format, to_integer};
use super::shape::scalar_float_size;
use crate::code::operands::NONE;
use crate::instruction::{Instruction, Op};
use crate::registers::{read, set_flags, write};
use longma_translate::front_end::UserMemory;

/// Executes an instruction. Returns false for instructions not handled here.
pub(super) fn serve(
    i: Instruction,
    state: &mut State,
    environment: &mut Environment,
    memory: &dyn UserMemory,
) -> bool {
    use Op::*;
    let from = state.v[usize::from(i.rn())].0[0];
    let value = match i.op {
        FcvtHs => converted::<Single, Half>(environment, from),
        FcvtHd => converted::<Double, Half>(environment, from),
        FcvtSh => converted::<Half, Single>(environment, from),
        FcvtDh => converted::<Half, Double>(environment, from),
        FcvtDs => converted::<Single, Double>(environment, from),
        FcvtSd => converted::<Double, Single>(environment, from),
        FcmpReg | FcmpZero | FcmpeReg | FcmpeZero | Fccmp | Fccmpe | FcmpRegH | FcmpZeroH | FcmpeRegH
        | FcmpeZeroH | FccmpH | FccmpeH => {
            compare(i, state, environment);
            return true;
        }
        // Fixed-point conversions have bit 21 clear.
        _ if i.bits(24, 7) != 0x1e || i.bits(21, 1) != 0 && i.bits(10, 6) != 0 => return false,
        _ => return with_general(i, state, environment, memory),
    };
    put(i, state, value);
    true
}

fn put(i: Instruction, state: &mut State, value: u64) {
    state.v[usize::from(i.rd())].0[..2].copy_from_slice(&[value, 0]);
}

/// Sets the flags by a comparison. The condition of FCCMP is evaluated elsewhere.
fn compare(i: Instruction, state: &mut State, environment: &mut Environment) {
    let has_zero = i.mnemonic().starts_with("fcmp") && i.bits(3, 1) != 0;
    let m = if has_zero { 0 } else { state.v[usize::from(i.rm())].0[0] };
    let n = state.v[usize::from(i.rn())].0[0];
    let signals = i.mnemonic().ends_with('e');
    let flags = in_format!(8u32 << scalar_float_size(i), F => environment.compare::<F>(n, m, signals));
    set_flags(state, flags << 28);
}

/// Conversions between a floating-point register and a general-purpose register.
fn with_general(
    i: Instruction,
    state: &mut State,
    environment: &mut Environment,
    memory: &dyn UserMemory,
) -> bool {
    let bits = 8 << scalar_float_size(i);
    let is_fixed = i.bits(21, 1) == 0;
    let fraction_bits = if is_fixed { 64 - i64::from(i.bits(10, 6)) } else { 0 };
    let name = i.mnemonic();
    if name.ends_with("cvtf") {
        let number = if i.rn() == NONE { 0 } else { read(state, i.rn(), memory) };
        let is_signed = name == "scvtf";
        let number = match (i.is_wide(), is_signed) {
            (true, _) => number,
            (false, true) => number as i32 as u64,
            (false, false) => number & 0xffff_ffff,
        };
        let value = from_integer(environment, (number, is_signed), bits, fraction_bits);
        put(i, state, value);
        return true;
    }
    let Some(rest) = name.strip_prefix("fcvt") else { return false };
    let mut letters = rest.chars();
    let (Some(letter), Some(sign)) = (letters.next(), letters.next()) else { return false };
    let to = Integer { bits: if i.is_wide() { 64 } else { 32 }, signed: sign == 's' };
    let from = state.v[usize::from(i.rn())].0[0];
    let value = to_integer(environment, (from, bits), to, fraction_bits, letter);
    if i.rd() != NONE {
        write(state, i.rd(), if i.is_wide() { value } else { value & 0xffff_ffff }, memory);
    }
    true
}
