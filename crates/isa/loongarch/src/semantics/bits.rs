//! Bit operations and CRC. Source: LoongArch Reference Manual, volume 1, sections 2.2.3 (bit manipulation) and 2.2.9
//! (CRC).

use super::{Semantics, sign_extend_word as word};
use crate::{Environment, Op};

/// The generator polynomials, least significant bit first.
const IEEE_802_3: u32 = 0xedb8_8320;
const CASTAGNOLI: u32 = 0x82f6_3b78;

/// `rd = f(rj)`.
macro_rules! register {
    (|$j:ident| $value:expr) => {
        |state, i, _| {
            let $j = state.r(i.j);
            state.set_r(i.d, $value);
            Ok(())
        }
    };
}

/// `rd = f(rj)` with a 32-bit source and a sign-extended 32-bit result.
macro_rules! register_word {
    (|$j:ident| $value:expr) => {
        register!(|j| {
            let $j = j as u32;
            word(u64::from($value))
        })
    };
}

/// `rd` = the CRC of the low `bits` of `rj`, starting from `rk`.
macro_rules! checksum {
    ($polynomial:expr, $bits:expr) => {
        |state, i, _| {
            let value = crc(state.r(i.k) as u32, state.r(i.j), $bits, $polynomial);
            state.set_r(i.d, word(u64::from(value)));
            Ok(())
        }
    };
}

/// The semantics of `op`; `None` if another file defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    Some(match op {
        Op::ExtWB => register!(|j| j as i8 as u64),
        Op::ExtWH => register!(|j| j as i16 as u64),
        Op::CloW => register_word!(|j| j.leading_ones()),
        Op::ClzW => register_word!(|j| j.leading_zeros()),
        Op::CtoW => register_word!(|j| j.trailing_ones()),
        Op::CtzW => register_word!(|j| j.trailing_zeros()),
        Op::CloD => register!(|j| u64::from(j.leading_ones())),
        Op::ClzD => register!(|j| u64::from(j.leading_zeros())),
        Op::CtoD => register!(|j| u64::from(j.trailing_ones())),
        Op::CtzD => register!(|j| u64::from(j.trailing_zeros())),
        Op::Revb2h => register_word!(|j| j.swap_bytes().rotate_left(16)),
        Op::Revb4h => register!(|j| swap_bytes_in_halfwords(j)),
        Op::Revb2w => register!(|j| j.swap_bytes().rotate_left(32)),
        Op::RevbD => register!(|j| j.swap_bytes()),
        Op::Revh2w => register!(|j| swap_bytes_in_halfwords(j.swap_bytes().rotate_left(32))),
        Op::RevhD => register!(|j| swap_bytes_in_halfwords(j.swap_bytes())),
        Op::Bitrev4b => register_word!(|j| j.swap_bytes().reverse_bits()),
        Op::Bitrev8b => register!(|j| j.swap_bytes().reverse_bits()),
        Op::BitrevW => register_word!(|j| j.reverse_bits()),
        Op::BitrevD => register!(|j| j.reverse_bits()),

        Op::BytepickW => |state, i, _| {
            let concatenated = state.r(i.k) << 32 | u64::from(state.r(i.j) as u32);
            state.set_r(i.d, word(concatenated << (8 * i.imm) >> 32));
            Ok(())
        },
        Op::BytepickD => |state, i, _| {
            let concatenated = u128::from(state.r(i.k)) << 64 | u128::from(state.r(i.j));
            state.set_r(i.d, (concatenated << (8 * i.imm) >> 64) as u64);
            Ok(())
        },
        // The manual requires msb >= lsb. Otherwise it is an illegal instruction here, as in QEMU.
        Op::BstrinsW => |state, i, _| {
            let mask = field_mask(i.imm, i.imm2)?;
            let value = state.r(i.d) & !mask | state.r(i.j) << i.imm2 & mask;
            state.set_r(i.d, word(value));
            Ok(())
        },
        Op::BstrinsD => |state, i, _| {
            let mask = field_mask(i.imm, i.imm2)?;
            state.set_r(i.d, state.r(i.d) & !mask | state.r(i.j) << i.imm2 & mask);
            Ok(())
        },
        Op::BstrpickW => |state, i, _| {
            let mask = field_mask(i.imm, i.imm2)?;
            state.set_r(i.d, word((state.r(i.j) & mask) >> i.imm2));
            Ok(())
        },
        Op::BstrpickD => |state, i, _| {
            let mask = field_mask(i.imm, i.imm2)?;
            state.set_r(i.d, (state.r(i.j) & mask) >> i.imm2);
            Ok(())
        },

        Op::CrcWBW => checksum!(IEEE_802_3, 8),
        Op::CrcWHW => checksum!(IEEE_802_3, 16),
        Op::CrcWWW => checksum!(IEEE_802_3, 32),
        Op::CrcWDW => checksum!(IEEE_802_3, 64),
        Op::CrccWBW => checksum!(CASTAGNOLI, 8),
        Op::CrccWHW => checksum!(CASTAGNOLI, 16),
        Op::CrccWWW => checksum!(CASTAGNOLI, 32),
        Op::CrccWDW => checksum!(CASTAGNOLI, 64),
        _ => return None,
    })
}

#[inline]
fn swap_bytes_in_halfwords(value: u64) -> u64 {
    const LOW_BYTES: u64 = 0x00ff_00ff_00ff_00ff;
    (value & LOW_BYTES) << 8 | value >> 8 & LOW_BYTES
}

/// A mask of the bits `msb` down to `lsb`.
#[inline]
fn field_mask(msb: i32, lsb: i32) -> Result<u64, crate::Trap> {
    if msb < lsb {
        return Err(crate::Trap::IllegalInstruction);
    }
    Ok(u64::MAX >> (63 - (msb - lsb)) << lsb)
}

/// The cyclic redundancy check of the low `bits` of `data`, starting from `checksum`, without inversion at the start or
/// the end.
fn crc(checksum: u32, data: u64, bits: u32, polynomial: u32) -> u32 {
    let data = if bits == 64 { data } else { data & ((1 << bits) - 1) };
    let mut remainder = u64::from(checksum) ^ data;
    for _ in 0..bits {
        let quotient = remainder & 1;
        remainder = (remainder >> 1) ^ (quotient * u64::from(polynomial));
    }
    remainder as u32
}
