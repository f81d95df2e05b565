//! Integer arithmetic, logic, shifts, multiplication and division. Source: LoongArch Reference Manual, volume 1,
//! sections 2.2.1 (arithmetic) and 2.2.2 (shifts).

use super::{Semantics, sign_extend_word as word};
use crate::{Environment, Op};

/// `rd = f(rj, rk)` with 64-bit operands.
macro_rules! register_register {
    (|$j:ident, $k:ident| $value:expr) => {
        |state, i, _| {
            let ($j, $k) = (state.r(i.j), state.r(i.k));
            state.set_r(i.d, $value);
            Ok(())
        }
    };
}

/// `rd = f(rj, imm)`. The immediate is extended to 64 bits as the table specifies.
macro_rules! register_immediate {
    (|$j:ident, $imm:ident| $value:expr) => {
        |state, i, _| {
            let ($j, $imm) = (state.r(i.j), i.imm as i64 as u64);
            state.set_r(i.d, $value);
            Ok(())
        }
    };
}

/// `rd = f(pc, imm)`.
macro_rules! counter_immediate {
    (|$pc:ident, $imm:ident| $value:expr) => {
        |state, i, _| {
            let ($pc, $imm) = (state.pc, i.imm as i64 as u64);
            state.set_r(i.d, $value);
            Ok(())
        }
    };
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::AddW => register_register!(|j, k| word(j.wrapping_add(k))),
        Op::SubW => register_register!(|j, k| word(j.wrapping_sub(k))),
        Op::AddD => register_register!(|j, k| j.wrapping_add(k)),
        Op::SubD => register_register!(|j, k| j.wrapping_sub(k)),
        Op::AddiW => register_immediate!(|j, imm| word(j.wrapping_add(imm))),
        Op::AddiD => register_immediate!(|j, imm| j.wrapping_add(imm)),
        Op::Addu16iD => register_immediate!(|j, imm| j.wrapping_add(imm << 16)),
        Op::AlslW => |state, i, _| {
            let sum = (state.r(i.j) << i.imm).wrapping_add(state.r(i.k));
            state.set_r(i.d, word(sum));
            Ok(())
        },
        Op::AlslWu => |state, i, _| {
            let sum = (state.r(i.j) << i.imm).wrapping_add(state.r(i.k));
            state.set_r(i.d, u64::from(sum as u32));
            Ok(())
        },
        Op::AlslD => |state, i, _| {
            state.set_r(i.d, (state.r(i.j) << i.imm).wrapping_add(state.r(i.k)));
            Ok(())
        },

        Op::Lu12iW => register_immediate!(|_j, imm| imm << 12),
        Op::Lu32iD => |state, i, _| {
            let low = state.r(i.d) & 0xffff_ffff;
            state.set_r(i.d, (i.imm as i64 as u64) << 32 | low);
            Ok(())
        },
        Op::Lu52iD => register_immediate!(|j, imm| imm << 52 | j & ((1 << 52) - 1)),
        Op::Pcaddi => counter_immediate!(|pc, imm| pc.wrapping_add(imm << 2)),
        Op::Pcalau12i => counter_immediate!(|pc, imm| pc.wrapping_add(imm << 12) & !0xfff),
        Op::Pcaddu12i => counter_immediate!(|pc, imm| pc.wrapping_add(imm << 12)),
        Op::Pcaddu18i => counter_immediate!(|pc, imm| pc.wrapping_add(imm << 18)),

        Op::Slt => register_register!(|j, k| u64::from((j as i64) < k as i64)),
        Op::Sltu => register_register!(|j, k| u64::from(j < k)),
        Op::Slti => register_immediate!(|j, imm| u64::from((j as i64) < imm as i64)),
        // The immediate is sign-extended and then compared as unsigned.
        Op::Sltui => register_immediate!(|j, imm| u64::from(j < imm)),
        Op::Maskeqz => register_register!(|j, k| if k == 0 { 0 } else { j }),
        Op::Masknez => register_register!(|j, k| if k == 0 { j } else { 0 }),

        Op::And => register_register!(|j, k| j & k),
        Op::Or => register_register!(|j, k| j | k),
        Op::Nor => register_register!(|j, k| !(j | k)),
        Op::Xor => register_register!(|j, k| j ^ k),
        Op::Andn => register_register!(|j, k| j & !k),
        Op::Orn => register_register!(|j, k| j | !k),
        Op::Andi => register_immediate!(|j, imm| j & imm),
        Op::Ori => register_immediate!(|j, imm| j | imm),
        Op::Xori => register_immediate!(|j, imm| j ^ imm),

        Op::SllW => register_register!(|j, k| word(u64::from((j as u32) << (k & 31)))),
        Op::SrlW => register_register!(|j, k| word(u64::from(j as u32 >> (k & 31)))),
        Op::SraW => register_register!(|j, k| (j as i32 >> (k & 31)) as u64),
        Op::RotrW => register_register!(|j, k| word(u64::from((j as u32).rotate_right(k as u32 & 31)))),
        Op::SlliW => register_immediate!(|j, imm| word(j << imm)),
        Op::SrliW => register_immediate!(|j, imm| word(u64::from(j as u32 >> imm))),
        Op::SraiW => register_immediate!(|j, imm| (j as i32 >> imm) as u64),
        Op::RotriW => register_immediate!(|j, imm| word(u64::from((j as u32).rotate_right(imm as u32)))),
        Op::SllD => register_register!(|j, k| j << (k & 63)),
        Op::SrlD => register_register!(|j, k| j >> (k & 63)),
        Op::SraD => register_register!(|j, k| (j as i64 >> (k & 63)) as u64),
        Op::RotrD => register_register!(|j, k| j.rotate_right(k as u32 & 63)),
        Op::SlliD => register_immediate!(|j, imm| j << imm),
        Op::SrliD => register_immediate!(|j, imm| j >> imm),
        Op::SraiD => register_immediate!(|j, imm| (j as i64 >> imm) as u64),
        Op::RotriD => register_immediate!(|j, imm| j.rotate_right(imm as u32)),

        Op::MulW => register_register!(|j, k| word(j.wrapping_mul(k))),
        Op::MulhW => register_register!(|j, k| ((i64::from(j as i32) * i64::from(k as i32)) >> 32) as u64),
        Op::MulhWu => register_register!(|j, k| word((u64::from(j as u32) * u64::from(k as u32)) >> 32)),
        Op::MulwDW => register_register!(|j, k| (i64::from(j as i32) * i64::from(k as i32)) as u64),
        Op::MulwDWu => register_register!(|j, k| u64::from(j as u32) * u64::from(k as u32)),
        Op::MulD => register_register!(|j, k| j.wrapping_mul(k)),
        Op::MulhD => {
            register_register!(|j, k| ((i128::from(j as i64) * i128::from(k as i64)) >> 64) as u64)
        }
        Op::MulhDu => register_register!(|j, k| ((u128::from(j) * u128::from(k)) >> 64) as u64),

        Op::DivW => register_register!(|j, k| {
            let (j, k) = (j as i32, divisor(k as i32));
            j.wrapping_div(k) as u64
        }),
        Op::ModW => register_register!(|j, k| {
            let (j, k) = (j as i32, divisor(k as i32));
            j.wrapping_rem(k) as u64
        }),
        Op::DivWu => register_register!(|j, k| word(u64::from(j as u32 / divisor(k as u32)))),
        Op::ModWu => register_register!(|j, k| word(u64::from(j as u32 % divisor(k as u32)))),
        Op::DivD => register_register!(|j, k| (j as i64).wrapping_div(divisor(k as i64)) as u64),
        Op::ModD => register_register!(|j, k| (j as i64).wrapping_rem(divisor(k as i64)) as u64),
        Op::DivDu => register_register!(|j, k| j / divisor(k)),
        Op::ModDu => register_register!(|j, k| j % divisor(k)),
        _ => return None,
    })
}

/// The effective divisor. Division by zero does not trap, and the manual leaves its result undefined. Here, as in QEMU,
/// zero is replaced with 1, so that the quotient is the dividend and the remainder 0.
fn divisor<T: From<bool> + Default + PartialEq>(k: T) -> T {
    if k == T::default() { T::from(true) } else { k }
}
