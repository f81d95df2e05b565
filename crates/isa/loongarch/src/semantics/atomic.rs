//! Load-linked, store-conditional and atomic memory operations. Source: LoongArch Reference Manual, volume 1, section
//! 2.2.7 (atomic memory access).

use super::{Semantics, memory::aligned};
use crate::{Access, Environment, Instruction, Op, Reservation, Scalar, State, Trap};

/// Defines an atomic read-modify-write instruction by the function from the old value and `rk` to the new value, both
/// with the width of the access. `rd` receives the old value, sign-extended.
macro_rules! modify {
    ($unsigned:ty as $signed:ty, |$old:ident, $k:ident| $new:expr) => {
        |state, i, e| {
            // The manual requires INE, because the address would be overwritten.
            if i.d == i.j {
                return Err(Trap::IllegalInstruction);
            }
            let $k = state.r(i.k) as $unsigned;
            let old = modify(e, state.r(i.j), |$old: $unsigned| $new)?;
            state.set_r(i.d, old as $signed as u64);
            Ok(())
        }
    };
}

macro_rules! compare_and_swap {
    ($unsigned:ty as $signed:ty) => {
        |state, i, e| {
            let address = state.r(i.j);
            aligned(address, size_of::<$unsigned>(), Access::Write)?;
            let (expected, new) = (state.r(i.d) as $unsigned, state.r(i.k) as $unsigned);
            let old = e.compare_exchange(address, expected, new)?;
            state.set_r(i.d, old as $signed as u64);
            Ok(())
        }
    };
}

/// The semantics of `op`; `None` if another file defines it. All operations here are sequentially consistent, so the
/// forms with a barrier (`_db`, `llacq`, `screl`) are the same as those without.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::LlW | Op::LlacqW => |state, i, e| {
            let address = linked_address(state, i, 4, Access::Read)?;
            let value: u32 = e.load(address)?;
            state.reservation = Reservation { address, value: value.into(), neighbour: 0 };
            state.set_r(i.d, value as i32 as u64);
            Ok(())
        },
        Op::LlD | Op::LlacqD => |state, i, e| {
            let address = linked_address(state, i, 8, Access::Read)?;
            // SC.Q must also detect a change to the other half.
            let neighbour = e.load(address ^ 8)?;
            let value = e.load(address)?;
            state.reservation = Reservation { address, value, neighbour };
            state.set_r(i.d, value);
            Ok(())
        },
        Op::ScW | Op::ScrelW => |state, i, e| {
            let address = linked_address(state, i, 4, Access::Write)?;
            let Reservation { address: linked, value, .. } = state.reservation;
            let reserved = (linked == address).then_some((address, value as u32));
            store_conditional(state, i, e, reserved, state.r(i.d) as u32)
        },
        Op::ScD | Op::ScrelD => |state, i, e| {
            let address = linked_address(state, i, 8, Access::Write)?;
            let Reservation { address: linked, value, .. } = state.reservation;
            let reserved = (linked == address).then_some((address, value));
            store_conditional(state, i, e, reserved, state.r(i.d))
        },
        Op::ScQ => |state, i, e| {
            let address = linked_address(state, i, 16, Access::Write)?;
            let Reservation { address: linked, value, neighbour } = state.reservation;
            let (low, high) = if linked == address { (value, neighbour) } else { (neighbour, value) };
            let expected = u128::from(high) << 64 | u128::from(low);
            let new = u128::from(state.r(i.k)) << 64 | u128::from(state.r(i.d));
            // The load-linked may have accessed either half.
            let is_reserved = linked != Reservation::NONE && linked & !15 == address;
            store_conditional(state, i, e, is_reserved.then_some((address, expected)), new)
        },

        Op::AmcasB | Op::AmcasDbB => compare_and_swap!(u8 as i8),
        Op::AmcasH | Op::AmcasDbH => compare_and_swap!(u16 as i16),
        Op::AmcasW | Op::AmcasDbW => compare_and_swap!(u32 as i32),
        Op::AmcasD | Op::AmcasDbD => compare_and_swap!(u64 as i64),

        Op::AmswapB | Op::AmswapDbB => modify!(u8 as i8, |_old, k| k),
        Op::AmswapH | Op::AmswapDbH => modify!(u16 as i16, |_old, k| k),
        Op::AmswapW | Op::AmswapDbW => modify!(u32 as i32, |_old, k| k),
        Op::AmswapD | Op::AmswapDbD => modify!(u64 as i64, |_old, k| k),
        Op::AmaddB | Op::AmaddDbB => modify!(u8 as i8, |old, k| old.wrapping_add(k)),
        Op::AmaddH | Op::AmaddDbH => modify!(u16 as i16, |old, k| old.wrapping_add(k)),
        Op::AmaddW | Op::AmaddDbW => modify!(u32 as i32, |old, k| old.wrapping_add(k)),
        Op::AmaddD | Op::AmaddDbD => modify!(u64 as i64, |old, k| old.wrapping_add(k)),
        Op::AmandW | Op::AmandDbW => modify!(u32 as i32, |old, k| old & k),
        Op::AmandD | Op::AmandDbD => modify!(u64 as i64, |old, k| old & k),
        Op::AmorW | Op::AmorDbW => modify!(u32 as i32, |old, k| old | k),
        Op::AmorD | Op::AmorDbD => modify!(u64 as i64, |old, k| old | k),
        Op::AmxorW | Op::AmxorDbW => modify!(u32 as i32, |old, k| old ^ k),
        Op::AmxorD | Op::AmxorDbD => modify!(u64 as i64, |old, k| old ^ k),
        Op::AmmaxW | Op::AmmaxDbW => modify!(u32 as i32, |old, k| (old as i32).max(k as i32) as u32),
        Op::AmmaxD | Op::AmmaxDbD => modify!(u64 as i64, |old, k| (old as i64).max(k as i64) as u64),
        Op::AmminW | Op::AmminDbW => modify!(u32 as i32, |old, k| (old as i32).min(k as i32) as u32),
        Op::AmminD | Op::AmminDbD => modify!(u64 as i64, |old, k| (old as i64).min(k as i64) as u64),
        Op::AmmaxWu | Op::AmmaxDbWu => modify!(u32 as i32, |old, k| old.max(k)),
        Op::AmmaxDu | Op::AmmaxDbDu => modify!(u64 as i64, |old, k| old.max(k)),
        Op::AmminWu | Op::AmminDbWu => modify!(u32 as i32, |old, k| old.min(k)),
        Op::AmminDu | Op::AmminDbDu => modify!(u64 as i64, |old, k| old.min(k)),
        _ => return None,
    })
}

/// rj + imm (0 if there is none), which must be a multiple of `bytes`.
#[inline]
fn linked_address(state: &State, i: &Instruction, bytes: usize, access: Access) -> Result<u64, Trap> {
    let address = state.r(i.j).wrapping_add(i.imm as i64 as u64);
    aligned(address, bytes, access)?;
    Ok(address)
}

/// Stores `new` if the reservation covers the address and memory there still holds the expected value; `reserved` has
/// both, or is `None` if the reservation is for another address. `rd` receives 1 on success and 0 otherwise. As in
/// QEMU, a store to memory that changed and changed back succeeds, because the value does not reveal the change.
fn store_conditional<E: Environment, T: Scalar>(
    state: &mut State,
    i: &Instruction,
    e: &E,
    reserved: Option<(u64, T)>,
    new: T,
) -> Result<(), Trap> {
    let stored = match reserved {
        Some((address, expected)) => e.compare_exchange(address, expected, new)? == expected,
        None => false,
    };
    state.reservation = Reservation::default();
    state.set_r(i.d, stored.into());
    Ok(())
}

/// Atomically replaces the integer at `address` with `new` applied to it, and returns the old value.
fn modify<E: Environment, T: Scalar>(e: &E, address: u64, new: impl Fn(T) -> T) -> Result<T, Trap> {
    aligned(address, T::BYTES, Access::Write)?;
    let mut old: T = e.load(address)?;
    loop {
        let current = e.compare_exchange(address, old, new(old))?;
        if current == old {
            return Ok(old);
        }
        old = current;
    }
}
