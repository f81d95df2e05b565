//! Loads and stores, including bound-checking ones, prefetch and barriers. Source: LoongArch Reference Manual, volume
//! 1, sections 2.2.5 (memory access), 2.2.6 (bound check), 2.2.8 (barriers), 3.2.6, 3.2.7.

use super::Semantics;
use crate::{Access, Environment, Fault, FaultCause, Instruction, Op, State, Trap};

/// `rd` = the integer at the address, sign-extended from `$signed` if given.
macro_rules! load {
    ($address:ident, $unsigned:ty $(as $signed:ty)?) => {
        |state, i, e| {
            let value: $unsigned = e.load($address(state, i)?)?;
            state.set_r(i.d, value $(as $signed)? as u64);
            Ok(())
        }
    };
}

macro_rules! store {
    ($address:ident, $unsigned:ty) => {
        |state, i, e| Ok(e.store($address(state, i)?, state.r(i.d) as $unsigned)?)
    };
}

macro_rules! load_float {
    ($address:ident, $unsigned:ty) => {
        |state, i, e| {
            let value: $unsigned = e.load($address(state, i)?)?;
            write_float(state, i.d, value.into(), size_of::<$unsigned>());
            Ok(())
        }
    };
}

macro_rules! store_float {
    ($address:ident, $unsigned:ty) => {
        |state, i, e| Ok(e.store($address(state, i)?, state.f(i.d) as $unsigned)?)
    };
}

/// Bound-checking accesses: `$check` is the comparison of rj with rk. The address is rj and must be naturally aligned.
macro_rules! bounded {
    ($access:ident, $kind:ident, $check:tt, $unsigned:ty $(as $signed:ty)?) => {{
        fn address(state: &State, i: &Instruction) -> Result<u64, Trap> {
            let (j, k) = (state.r(i.j), state.r(i.k));
            aligned(j, size_of::<$unsigned>(), Access::$kind)?;
            if (j as i64) $check k as i64 { Ok(j) } else { Err(Trap::BoundCheck) }
        }
        $access!(address, $unsigned $(as $signed)?)
    }};
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::LdB => load!(offset, u8 as i8),
        Op::LdH => load!(offset, u16 as i16),
        Op::LdW | Op::LdptrW => load!(offset, u32 as i32),
        Op::LdD | Op::LdptrD => load!(offset, u64),
        Op::LdBu => load!(offset, u8),
        Op::LdHu => load!(offset, u16),
        Op::LdWu => load!(offset, u32),
        Op::StB => store!(offset, u8),
        Op::StH => store!(offset, u16),
        Op::StW | Op::StptrW => store!(offset, u32),
        Op::StD | Op::StptrD => store!(offset, u64),
        Op::FldS => load_float!(offset, u32),
        Op::FldD => load_float!(offset, u64),
        Op::FstS => store_float!(offset, u32),
        Op::FstD => store_float!(offset, u64),

        Op::LdxB => load!(indexed, u8 as i8),
        Op::LdxH => load!(indexed, u16 as i16),
        Op::LdxW => load!(indexed, u32 as i32),
        Op::LdxD => load!(indexed, u64),
        Op::LdxBu => load!(indexed, u8),
        Op::LdxHu => load!(indexed, u16),
        Op::LdxWu => load!(indexed, u32),
        Op::StxB => store!(indexed, u8),
        Op::StxH => store!(indexed, u16),
        Op::StxW => store!(indexed, u32),
        Op::StxD => store!(indexed, u64),
        Op::FldxS => load_float!(indexed, u32),
        Op::FldxD => load_float!(indexed, u64),
        Op::FstxS => store_float!(indexed, u32),
        Op::FstxD => store_float!(indexed, u64),

        Op::LdgtB => bounded!(load, Read, >, u8 as i8),
        Op::LdgtH => bounded!(load, Read, >, u16 as i16),
        Op::LdgtW => bounded!(load, Read, >, u32 as i32),
        Op::LdgtD => bounded!(load, Read, >, u64),
        Op::LdleB => bounded!(load, Read, <=, u8 as i8),
        Op::LdleH => bounded!(load, Read, <=, u16 as i16),
        Op::LdleW => bounded!(load, Read, <=, u32 as i32),
        Op::LdleD => bounded!(load, Read, <=, u64),
        Op::StgtB => bounded!(store, Write, >, u8),
        Op::StgtH => bounded!(store, Write, >, u16),
        Op::StgtW => bounded!(store, Write, >, u32),
        Op::StgtD => bounded!(store, Write, >, u64),
        Op::StleB => bounded!(store, Write, <=, u8),
        Op::StleH => bounded!(store, Write, <=, u16),
        Op::StleW => bounded!(store, Write, <=, u32),
        Op::StleD => bounded!(store, Write, <=, u64),
        Op::FldgtS => bounded!(load_float, Read, >, u32),
        Op::FldgtD => bounded!(load_float, Read, >, u64),
        Op::FldleS => bounded!(load_float, Read, <=, u32),
        Op::FldleD => bounded!(load_float, Read, <=, u64),
        Op::FstgtS => bounded!(store_float, Write, >, u32),
        Op::FstgtD => bounded!(store_float, Write, >, u64),
        Op::FstleS => bounded!(store_float, Write, <=, u32),
        Op::FstleD => bounded!(store_float, Write, <=, u64),

        // A hint without visible effects, not even a fault.
        Op::Preld | Op::Preldx => |_, _, _| Ok(()),
        Op::Dbar => |_, _, e| {
            e.barrier();
            Ok(())
        },
        // The interpreter fetches each word again, so the barrier is a no-op. An implementation that caches code must
        // end a block here.
        Op::Ibar => |_, _, _| Ok(()),
        _ => return None,
    })
}

#[inline]
pub(super) fn offset(state: &State, i: &Instruction) -> Result<u64, Trap> {
    Ok(state.r(i.j).wrapping_add(i.imm as i64 as u64))
}

#[inline]
pub(super) fn indexed(state: &State, i: &Instruction) -> Result<u64, Trap> {
    Ok(state.r(i.j).wrapping_add(state.r(i.k)))
}

/// Writes a loaded floating-point register. A single-precision load leaves the upper half unchanged, which the manual
/// leaves undefined.
#[inline]
fn write_float(state: &mut State, n: u8, value: u64, bytes: usize) {
    match bytes {
        4 => state.set_f_word(n, value as u32),
        _ => state.set_f(n, value),
    }
}

/// Checks that `address` is a multiple of `bytes`.
#[inline]
pub(super) fn aligned(address: u64, bytes: usize, access: Access) -> Result<(), Trap> {
    match address % bytes as u64 {
        0 => Ok(()),
        _ => Err(Fault { address, access, cause: FaultCause::Misaligned }.into()),
    }
}
