//! Instructions that conditionally compute Arm's N Z C V flags, and instructions that move and test them. Ordinary
//! LoongArch instructions compute the results. Source: Arm ARM, A32 shifts and condition flags;
//! jiegec/unofficial-loongarch-intrinsics-guide for LBT's definitions. Unlike Arm, LBT's `armsub` and `armsbc` write C
//! as a borrow. `armsbc` reads C as Arm does (not borrow).

use super::{
    flags::{self, ALL, CF, OF, SF, ZF, replace, when},
    write_rd,
};
use crate::{Environment, Instruction, Op, State, semantics::Semantics};

/// Computes new flags from the old ones and two 32-bit operands.
type FlagsOf = fn(u32, u32, u32) -> u32;

fn of_result(result: u32) -> u32 {
    when((result as i32) < 0, SF) | when(result == 0, ZF)
}

/// The bits that represent Arm's four flags.
const NZCV: u32 = SF | ZF | CF | OF;

fn sum(old: u32, a: u32, b: u32, carry: bool) -> u32 {
    let wide = u64::from(a) + u64::from(b) + u64::from(carry);
    let signed = i64::from(a as i32) + i64::from(b as i32) + i64::from(carry);
    let new = of_result(wide as u32) | when(wide >> 32 != 0, CF) | when(i32::try_from(signed).is_err(), OF);
    replace(old, NZCV, new)
}

fn difference(old: u32, a: u32, b: u32, borrow: bool) -> u32 {
    let wide = i64::from(a) - i64::from(b) - i64::from(borrow);
    let signed = i64::from(a as i32) - i64::from(b as i32) - i64::from(borrow);
    let new = of_result(wide as u32) | when(wide < 0, CF) | when(i32::try_from(signed).is_err(), OF);
    replace(old, NZCV, new)
}

fn add(old: u32, a: u32, b: u32) -> u32 {
    sum(old, a, b, false)
}

fn adc(old: u32, a: u32, b: u32) -> u32 {
    sum(old, a, b, old & CF != 0)
}

fn sub(old: u32, a: u32, b: u32) -> u32 {
    difference(old, a, b, false)
}

fn sbc(old: u32, a: u32, b: u32) -> u32 {
    difference(old, a, b, old & CF == 0)
}

/// Logical operations preserve C and V.
fn logical(old: u32, result: u32) -> u32 {
    replace(old, SF | ZF, of_result(result))
}

fn and(old: u32, a: u32, b: u32) -> u32 {
    logical(old, a & b)
}

fn or(old: u32, a: u32, b: u32) -> u32 {
    logical(old, a | b)
}

fn xor(old: u32, a: u32, b: u32) -> u32 {
    logical(old, a ^ b)
}

fn not(old: u32, a: u32, _: u32) -> u32 {
    logical(old, !a)
}

fn mov(old: u32, a: u32, _: u32) -> u32 {
    logical(old, a)
}

/// A shift preserves V. C is the last bit shifted out.
fn shifted(old: u32, result: u32, carry: bool) -> u32 {
    replace(old, SF | ZF | CF, of_result(result) | when(carry, CF))
}

/// Arm's shifts by register use the low byte of the register as the count. A count of 0 preserves C.
fn shift(old: u32, a: u32, b: u32, by: impl Fn(u32, u32) -> (u32, bool)) -> u32 {
    match b & 0xff {
        0 => logical(old, a),
        count => {
            let (result, carry) = by(a, count);
            shifted(old, result, carry)
        }
    }
}

fn sll(old: u32, a: u32, b: u32) -> u32 {
    shift(old, a, b, |value, count| {
        // A shift by more than 63 shifts out all of a 32-bit value, including the carry.
        let wide = u64::from(value).checked_shl(count).unwrap_or(0);
        (wide as u32, wide >> 32 & 1 == 1)
    })
}

fn srl(old: u32, a: u32, b: u32) -> u32 {
    shift(old, a, b, |value, count| {
        let last_shifted_out = value.checked_shr(count - 1).unwrap_or(0);
        (last_shifted_out >> 1, last_shifted_out & 1 == 1)
    })
}

fn sra(old: u32, a: u32, b: u32) -> u32 {
    shift(old, a, b, |value, count| {
        let last_shifted_out = value as i32 >> (count - 1).min(31);
        ((last_shifted_out >> 1) as u32, last_shifted_out & 1 == 1)
    })
}

fn rotr(old: u32, a: u32, b: u32) -> u32 {
    shift(old, a, b, |value, count| {
        let result = value.rotate_right(count);
        (result, result >> 31 == 1)
    })
}

/// Rotates right by one through C.
fn rrx(old: u32, a: u32, _: u32) -> u32 {
    shifted(old, a >> 1 | (old & CF) << 31, a & 1 == 1)
}

/// Updates the flags if the condition holds.
fn conditionally(state: &mut State, condition: i32, new: impl FnOnce(u32, &State) -> u32) {
    let old = state.lbt.eflags;
    if flags::arm_condition(old, condition) {
        state.lbt.eflags = new(old, state);
    }
}

fn on_registers(state: &mut State, instruction: &Instruction, flags_of: FlagsOf) {
    let Instruction { j, k, imm: condition, .. } = *instruction;
    conditionally(state, condition, |old, s| flags_of(old, s.r(j) as u32, s.r(k) as u32));
}

fn on_immediate(state: &mut State, instruction: &Instruction, flags_of: FlagsOf) {
    let Instruction { j, imm, imm2: condition, .. } = *instruction;
    conditionally(state, condition, |old, s| flags_of(old, s.r(j) as u32, imm as u32));
}

/// Maps instructions to the functions that compute their flags.
macro_rules! rows {
    ($op:expr; $($name:ident => $shape:ident($f:path),)*) => {
        match $op {
            $(Op::$name => |s, i, _| {
                $shape(s, i, $f);
                Ok(())
            },)*
            _ => return None,
        }
    };
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    moves(op).or_else(|| {
        Some(rows!(op;
            ArmaddW => on_registers(add),
            ArmsubW => on_registers(sub),
            ArmadcW => on_registers(adc),
            ArmsbcW => on_registers(sbc),
            ArmandW => on_registers(and),
            ArmorW => on_registers(or),
            ArmxorW => on_registers(xor),
            ArmsllW => on_registers(sll),
            ArmsrlW => on_registers(srl),
            ArmsraW => on_registers(sra),
            ArmrotrW => on_registers(rotr),
            // One operand: the field at bit 10 is the condition, so `k` is not a register.
            ArmnotW => on_registers(not),
            ArmmovW => on_registers(mov),
            ArmrrxW => on_registers(rrx),
            ArmslliW => on_immediate(sll),
            ArmsrliW => on_immediate(srl),
            ArmsraiW => on_immediate(sra),
            ArmrotriW => on_immediate(rotr),
        ))
    })
}

/// Moves and tests of the flags, and the conditional move.
fn moves<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::ArmmovD => |s, i, _| {
            let value = s.r(i.j);
            conditionally(s, i.imm, |old, _| {
                replace(old, SF | ZF, when((value as i64) < 0, SF) | when(value == 0, ZF))
            });
            Ok(())
        },
        Op::Armmove => |s, i, _| {
            if flags::arm_condition(s.lbt.eflags, i.imm) {
                s.set_r(i.d, s.r(i.j));
            }
            Ok(())
        },
        Op::Setarmj => |s, i, _| write_rd(s, i, flags::arm_condition(s.lbt.eflags, i.imm).into()),
        Op::Armmfflag => |s, i, _| write_rd(s, i, flags::to_nzcv(s.lbt.eflags & flags::selected(i.imm))),
        Op::Armmtflag => |s, i, _| {
            let selected = flags::selected(i.imm) & NZCV;
            s.lbt.eflags = replace(s.lbt.eflags, selected, flags::from_nzcv(s.r(i.d))) & ALL;
            Ok(())
        },
        _ => return None,
    })
}
