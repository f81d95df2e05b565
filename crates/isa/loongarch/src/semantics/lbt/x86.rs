//! Instructions that compute only x86's flags, and instructions that move and test them. Ordinary LoongArch
//! instructions compute the results. Source: Intel SDM volume 2 for the flags;
//! jiegec/unofficial-loongarch-intrinsics-guide for flags that x86 leaves undefined and for the four differences of
//! LBT, which are marked with "LBT:".

use super::{
    flags::{self, AF, ALL, CF, OF, PF, SF, ZF, replace, when},
    write_rd,
};
use crate::{Environment, Op, semantics::Semantics};

/// Computes new flags from the old ones, two operands and the width in bits.
type FlagsOf = fn(u32, u64, u64, u32) -> u32;

/// The low `bits` bits.
fn low(value: u64, bits: u32) -> u64 {
    value & (u64::MAX >> (64 - bits))
}

/// Bit `index`; 0 for positions above 63.
fn bit(value: u64, index: u32) -> bool {
    value.checked_shr(index).is_some_and(|shifted| shifted & 1 == 1)
}

/// PF, ZF and SF of a result.
fn of_result(result: u64, bits: u32) -> u32 {
    let result = low(result, bits);
    when((result as u8).count_ones().is_multiple_of(2), PF)
        | when(result == 0, ZF)
        | when(bit(result, bits - 1), SF)
}

fn sum(a: u64, b: u64, carry: bool, bits: u32) -> u32 {
    let (a, b) = (low(a, bits), low(b, bits));
    let wide = u128::from(a) + u128::from(b) + u128::from(carry);
    let result = wide as u64;
    of_result(result, bits)
        | when(wide >> bits != 0, CF)
        | when((a ^ b ^ result) & 16 != 0, AF)
        | when(bit(!(a ^ b) & (a ^ result), bits - 1), OF)
}

fn difference(a: u64, b: u64, borrow: bool, bits: u32) -> u32 {
    let (a, b) = (low(a, bits), low(b, bits));
    let result = a.wrapping_sub(b).wrapping_sub(u64::from(borrow));
    of_result(result, bits)
        | when(u128::from(a) < u128::from(b) + u128::from(borrow), CF)
        | when((a ^ b ^ result) & 16 != 0, AF)
        | when(bit((a ^ b) & (a ^ result), bits - 1), OF)
}

fn add(_: u32, a: u64, b: u64, bits: u32) -> u32 {
    sum(a, b, false, bits)
}

fn adc(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    sum(a, b, old & CF != 0, bits)
}

fn sub(_: u32, a: u64, b: u64, bits: u32) -> u32 {
    difference(a, b, false, bits)
}

/// LBT: AF is the borrow of the low digits without the incoming borrow, which x86 includes.
fn sbc(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    replace(difference(a, b, old & CF != 0, bits), AF, when(a & 15 < b & 15, AF))
}

/// LBT: the unsigned forms clear OF.
fn add_unsigned(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    add(old, a, b, bits) & !OF
}

/// LBT: the unsigned forms clear OF.
fn sub_unsigned(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    sub(old, a, b, bits) & !OF
}

fn inc(old: u32, a: u64, _: u64, bits: u32) -> u32 {
    replace(sum(a, 1, false, bits), CF, old)
}

fn dec(old: u32, a: u64, _: u64, bits: u32) -> u32 {
    replace(difference(a, 1, false, bits), CF, old)
}

/// Sets CF and OF if the product does not fit the width. The other flags, undefined on x86, become 0.
fn mul(_: u32, a: u64, b: u64, bits: u32) -> u32 {
    let signed = |value: u64| i128::from((value << (64 - bits)) as i64 >> (64 - bits));
    let product = signed(a) * signed(b);
    let limit = 1i128 << (bits - 1);
    when(product < -limit || product >= limit, CF | OF)
}

fn mul_unsigned(_: u32, a: u64, b: u64, bits: u32) -> u32 {
    let product = u128::from(low(a, bits)) * u128::from(low(b, bits));
    when(product >> bits != 0, CF | OF)
}

fn and(_: u32, a: u64, b: u64, bits: u32) -> u32 {
    of_result(a & b, bits)
}

fn or(_: u32, a: u64, b: u64, bits: u32) -> u32 {
    of_result(a | b, bits)
}

fn xor(_: u32, a: u64, b: u64, bits: u32) -> u32 {
    of_result(a ^ b, bits)
}

/// The count of a shift or rotate, modulo 32, or modulo 64 for 64-bit operands.
fn count_of(operand: u64, bits: u32) -> u32 {
    operand as u32 & if bits == 64 { 63 } else { 31 }
}

/// The flags after a shift by `count`, which is not 0. AF is unchanged, and OF changes only for a count of one.
fn shifted(old: u32, result: u64, bits: u32, count: u32, carry: bool, overflow: bool) -> u32 {
    let mask = CF | PF | ZF | SF | when(count == 1, OF);
    replace(old, mask, of_result(result, bits) | when(carry, CF) | when(overflow, OF))
}

fn sll(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    let (value, count) = (low(a, bits), count_of(b, bits));
    if count == 0 {
        return old;
    }
    let wide = u128::from(value) << count;
    let overflow = bit(value ^ wide as u64, bits - 1);
    shifted(old, wide as u64, bits, count, wide >> bits & 1 == 1, overflow)
}

fn srl(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    let (value, count) = (low(a, bits), count_of(b, bits));
    if count == 0 {
        return old;
    }
    let result = value.checked_shr(count).unwrap_or(0);
    shifted(old, result, bits, count, bit(value, count - 1), bit(value, bits - 1))
}

fn sra(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    let count = count_of(b, bits);
    if count == 0 {
        return old;
    }
    // Sign-extended to 64 bits, so that counts beyond the width need no special case.
    let value = (a << (64 - bits)) as i64 >> (64 - bits);
    shifted(old, (value >> count) as u64, bits, count, bit(value as u64, count - 1), false)
}

/// The flags after a rotate. CF always changes, OF only for a count of one.
fn rotated(old: u32, count: u32, carry: bool, overflow: bool) -> u32 {
    replace(old, CF | when(count == 1, OF), when(carry, CF) | when(overflow, OF))
}

/// LBT: CF is the lowest bit of the result even for a count of 0, for which x86 changes no flags.
fn rotl(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    let (value, count) = (low(a, bits), count_of(b, bits));
    let carry = bit(value, (bits - count % bits) % bits);
    rotated(old, count, carry, bit(value, bits - 1) != bit(value, bits - 2))
}

/// LBT: CF is the highest bit of the result even for a count of 0, for which x86 changes no flags.
fn rotr(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    let (value, count) = (low(a, bits), count_of(b, bits));
    let carry = bit(value, (count % bits + bits - 1) % bits);
    rotated(old, count, carry, bit(value, 0) != bit(value, bits - 1))
}

fn rcl(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    let (value, count) = (low(a, bits), count_of(b, bits));
    match count % (bits + 1) {
        0 => old,
        turn => {
            let carry = bit(value, bits - turn);
            rotated(old, count, carry, bit(value, bits - 1) != bit(value, bits - 2))
        }
    }
}

fn rcr(old: u32, a: u64, b: u64, bits: u32) -> u32 {
    let (value, count) = (low(a, bits), count_of(b, bits));
    match count % (bits + 1) {
        0 => old,
        turn => rotated(old, count, bit(value, turn - 1), (old & CF != 0) != bit(value, bits - 1)),
    }
}

/// Generates one `match` that maps instructions of several widths to the function that computes their flags.
macro_rules! families {
    ($op:expr; $($shape:ident $f:ident: $($name:ident $bits:literal),*;)*) => {
        match $op {
            $($(Op::$name => families!($shape $f $bits),)*)*
            _ => return None,
        }
    };
    (registers $f:ident $bits:literal) => {
        |s, i, _| {
            const FLAGS_OF: FlagsOf = $f;
            s.lbt.eflags = FLAGS_OF(s.lbt.eflags, s.r(i.j), s.r(i.k), $bits);
            Ok(())
        }
    };
    (immediate $f:ident $bits:literal) => {
        |s, i, _| {
            const FLAGS_OF: FlagsOf = $f;
            s.lbt.eflags = FLAGS_OF(s.lbt.eflags, s.r(i.j), i.imm as u64, $bits);
            Ok(())
        }
    };
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    moves(op).or_else(|| {
        Some(families!(op;
            registers add: X86addB 8, X86addH 16, X86addW 32, X86addD 64;
            registers add_unsigned: X86addWu 32, X86addDu 64;
            registers adc: X86adcB 8, X86adcH 16, X86adcW 32, X86adcD 64;
            registers sub: X86subB 8, X86subH 16, X86subW 32, X86subD 64;
            registers sub_unsigned: X86subWu 32, X86subDu 64;
            registers sbc: X86sbcB 8, X86sbcH 16, X86sbcW 32, X86sbcD 64;
            registers inc: X86incB 8, X86incH 16, X86incW 32, X86incD 64;
            registers dec: X86decB 8, X86decH 16, X86decW 32, X86decD 64;
            registers mul: X86mulB 8, X86mulH 16, X86mulW 32, X86mulD 64;
            registers mul_unsigned: X86mulBu 8, X86mulHu 16, X86mulWu 32, X86mulDu 64;
            registers and: X86andB 8, X86andH 16, X86andW 32, X86andD 64;
            registers or: X86orB 8, X86orH 16, X86orW 32, X86orD 64;
            registers xor: X86xorB 8, X86xorH 16, X86xorW 32, X86xorD 64;
            registers sll: X86sllB 8, X86sllH 16, X86sllW 32, X86sllD 64;
            registers srl: X86srlB 8, X86srlH 16, X86srlW 32, X86srlD 64;
            registers sra: X86sraB 8, X86sraH 16, X86sraW 32, X86sraD 64;
            registers rotl: X86rotlB 8, X86rotlH 16, X86rotlW 32, X86rotlD 64;
            registers rotr: X86rotrB 8, X86rotrH 16, X86rotrW 32, X86rotrD 64;
            registers rcl: X86rclB 8, X86rclH 16, X86rclW 32, X86rclD 64;
            registers rcr: X86rcrB 8, X86rcrH 16, X86rcrW 32, X86rcrD 64;
            immediate sll: X86slliB 8, X86slliH 16, X86slliW 32, X86slliD 64;
            immediate srl: X86srliB 8, X86srliH 16, X86srliW 32, X86srliD 64;
            immediate sra: X86sraiB 8, X86sraiH 16, X86sraiW 32, X86sraiD 64;
            immediate rotl: X86rotliB 8, X86rotliH 16, X86rotliW 32, X86rotliD 64;
            immediate rotr: X86rotriB 8, X86rotriH 16, X86rotriW 32, X86rotriD 64;
            immediate rcl: X86rcliB 8, X86rcliH 16, X86rcliW 32, X86rcliD 64;
            immediate rcr: X86rcriB 8, X86rcriH 16, X86rcriW 32, X86rcriD 64;
        ))
    })
}

/// Moves and tests of the flags.
fn moves<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::X86mfflag => |s, i, _| write_rd(s, i, u64::from(s.lbt.eflags & flags::selected(i.imm))),
        Op::X86mtflag => |s, i, _| {
            s.lbt.eflags = replace(s.lbt.eflags, flags::selected(i.imm), s.r(i.d) as u32 & ALL);
            Ok(())
        },
        Op::Setx86j => |s, i, _| write_rd(s, i, flags::x86_condition(s.lbt.eflags, i.imm).into()),
        Op::Setx86loope => |s, i, _| write_rd(s, i, (s.r(i.j) != 0 && s.lbt.eflags & ZF != 0).into()),
        Op::Setx86loopne => |s, i, _| write_rd(s, i, (s.r(i.j) != 0 && s.lbt.eflags & ZF == 0).into()),
        _ => return None,
    })
}
