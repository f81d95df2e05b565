//! Arithmetic with carry and rotates of 8 to 64 bits for translated code. These instructions read the carry but write
//! no flags. Source: jiegec/unofficial-loongarch-intrinsics-guide, docs/lbt/integer.md.

use super::{flags::CF, write_rd};
use crate::{Environment, Op, State, semantics::Semantics};

/// Computes a result from the carry, two operands and the width in bits. Only the low `bits` bits of the result are
/// significant.
type ResultOf = fn(bool, u64, u64, u32) -> u64;

fn low(value: u64, bits: u32) -> u64 {
    value & (u64::MAX >> (64 - bits))
}

fn sign_extended(value: u64, bits: u32) -> u64 {
    ((value << (64 - bits)) as i64 >> (64 - bits)) as u64
}

fn adc(carry: bool, a: u64, b: u64, _: u32) -> u64 {
    a.wrapping_add(b).wrapping_add(carry.into())
}

fn sbc(carry: bool, a: u64, b: u64, _: u32) -> u64 {
    a.wrapping_sub(b).wrapping_sub(carry.into())
}

fn rotr(_: bool, a: u64, b: u64, bits: u32) -> u64 {
    let (value, turn) = (u128::from(low(a, bits)), b as u32 % bits);
    ((value | value << bits) >> turn) as u64
}

/// Rotates right through the carry, a ring with one bit more than the width. The count is taken modulo 32, or 64 for
/// 64-bit operands, and then modulo the ring size.
fn rcr(carry: bool, a: u64, b: u64, bits: u32) -> u64 {
    let turn = (b as u32 & if bits == 64 { 63 } else { 31 }) % (bits + 1);
    let ring = u128::from(low(a, bits)) | u128::from(carry) << bits;
    // Shifting a 65-bit ring left can lose bits above bit 127. They lie above the result.
    ((ring >> turn) | (ring << (bits + 1 - turn))) as u64
}

fn carry(state: &State) -> bool {
    state.lbt.eflags & CF != 0
}

/// Generates one `match` that maps instructions of several widths to the function that computes their result.
macro_rules! families {
    ($op:expr; $($shape:ident $f:ident: $($name:ident $bits:literal),*;)*) => {
        match $op {
            $($(Op::$name => families!($shape $f $bits),)*)*
            _ => return None,
        }
    };
    (registers $f:ident $bits:literal) => {
        |s, i, _| {
            const RESULT_OF: ResultOf = $f;
            write_rd(s, i, sign_extended(RESULT_OF(carry(s), s.r(i.j), s.r(i.k), $bits), $bits))
        }
    };
    (immediate $f:ident $bits:literal) => {
        |s, i, _| {
            const RESULT_OF: ResultOf = $f;
            write_rd(s, i, sign_extended(RESULT_OF(carry(s), s.r(i.j), i.imm as u64, $bits), $bits))
        }
    };
    (upper $f:ident $bits:literal) => {
        |s, i, _| {
            const RESULT_OF: ResultOf = $f;
            let upper = (i64::from(i.imm) << 12) as u64;
            write_rd(s, i, sign_extended(RESULT_OF(false, s.r(i.j), upper, $bits), $bits))
        }
    };
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(families!(op;
        registers adc: AdcB 8, AdcH 16, AdcW 32, AdcD 64;
        registers sbc: SbcB 8, SbcH 16, SbcW 32, SbcD 64;
        registers rotr: RotrB 8, RotrH 16;
        immediate rotr: RotriB 8, RotriH 16;
        registers rcr: RcrB 8, RcrH 16, RcrW 32, RcrD 64;
        immediate rcr: RcriB 8, RcriH 16, RcriW 32, RcriD 64;
        upper adc: Addu12iW 32, Addu12iD 64;
    ))
}
