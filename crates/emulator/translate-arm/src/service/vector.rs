//! Advanced SIMD instructions that the engine executes: table lookups, shifts by register, insertions, structure loads
//! and stores. Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2.

use longma_loongarch::float::{self, Double, Single};
use longma_loongarch::{Access, Fault, FaultCause, State, Trap};

use crate::code::operands::NONE;
use crate::code::vector::shifts::amounts;
use crate::code::vector::structures::{count, steps};
use crate::instruction::{Instruction, Op};
use crate::registers::{STACK_POINTER, read, write};
use longma_translate::front_end::{ServiceResult, UserMemory};

/// Reads a vector as bytes.
fn bytes(state: &State, number: u8) -> [u8; 16] {
    let lanes = state.v[usize::from(number)].0;
    std::array::from_fn(|byte| (lanes[byte / 8] >> (8 * (byte % 8))) as u8)
}

/// Writes a vector. A half-width write clears the upper half.
fn put(state: &mut State, number: u8, value: [u8; 16], is_whole: bool) {
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| value[at + byte]));
    let lanes = &mut state.v[usize::from(number)].0;
    (lanes[0], lanes[1]) = (half(0), if is_whole { half(8) } else { 0 });
}

fn lane(from: &[u8; 16], size: usize, index: usize) -> u64 {
    let at = index << size;
    (0..1 << size).fold(0, |sum, byte| sum | u64::from(from[at + byte]) << (8 * byte))
}

fn put_lane(to: &mut [u8; 16], size: usize, index: usize, value: u64) {
    let at = index << size;
    to[at..at + (1 << size)].copy_from_slice(&value.to_le_bytes()[..1 << size]);
}

/// Executes an instruction. Returns `None` for instructions not handled here.
pub(crate) fn serve(i: Instruction, state: &mut State, memory: &dyn UserMemory) -> Option<ServiceResult> {
    use Op::*;
    let is_whole = i.is_whole();
    match i.op {
        Tbl1 | Tbl2 | Tbl3 | Tbl4 | Tbx1 | Tbx2 | Tbx3 | Tbx4 => look_up(i, state),
        SshlV | UshlV => {
            each(i, state, i.size(), |n, m, _, bits| shift(n, m as u8 as i8, bits, i.op == SshlV));
        }
        SriV | SliV => {
            let (size, right, left) = amounts(i);
            each(i, state, size, |n, _, d, bits| {
                let all = u64::MAX >> (64 - bits);
                let (mask, value) = if i.op == SliV {
                    (all << left, n << left)
                } else {
                    (all.checked_shr(right as u32).unwrap_or(0), n.checked_shr(right as u32).unwrap_or(0))
                };
                d & !mask | value & mask
            });
        }
        Sqxtn | Sqxtn2 | Uqxtn | Uqxtn2 | Sqxtun | Sqxtun2 => narrow(i, state),
        RbitV => each(i, state, 0, |n, _, _, _| u64::from((n as u8).reverse_bits())),
        FmaxpV | FminpV => float_pairs(i, state),
        // These shift by the full element width, so the rounding constant is half of the value range.
        SrshrV => each(i, state, amounts(i).0, |_, _, _, _| 0),
        UrshrV => each(i, state, amounts(i).0, |n, _, _, bits| n >> (bits - 1)),
        Ld2 | Ld2Post | Ld3 | Ld3Post | Ld4 | Ld4Post | St2 | St2Post | St3 | St3Post | St4 | St4Post => {
            return Some(structures(i, state, memory));
        }
        _ => return None,
    }
    if !is_whole {
        state.v[usize::from(i.rd())].0[1] = 0;
    }
    Some(ServiceResult::Done)
}

/// Shifts an element left, or right if `by` is negative.
fn shift(value: u64, by: i8, bits: u32, is_signed: bool) -> u64 {
    let signed = (value << (64 - bits)) as i64 >> (64 - bits);
    match by {
        0.. => value.checked_shl(by as u32).filter(|_| (by as u32) < bits).unwrap_or(0),
        _ if is_signed => (signed >> u32::from(by.unsigned_abs()).min(63)) as u64,
        _ => value.checked_shr(by.unsigned_abs().into()).unwrap_or(0),
    }
}

/// Computes each element of Rd from those of Rn, Rm and Rd and the element width in bits.
fn each(i: Instruction, state: &mut State, size: usize, of: impl Fn(u64, u64, u64, u32) -> u64) {
    let (n, m, mut d) = (bytes(state, i.rn()), bytes(state, i.rm()), bytes(state, i.rd()));
    let lanes = if i.is_whole() { 16 } else { 8 } >> size;
    for index in 0..lanes {
        let value = of(lane(&n, size, index), lane(&m, size, index), lane(&d, size, index), 8 << size);
        put_lane(&mut d, size, index, value);
    }
    put(state, i.rd(), d, i.is_whole());
}

/// SQXTN, UQXTN and SQXTUN: narrows with saturation.
fn narrow(i: Instruction, state: &mut State) {
    let (n, size) = (bytes(state, i.rn()), i.size());
    let (from, to) = (16u32 << size, 8u32 << size);
    let mut result = bytes(state, i.rd());
    let first = if i.is_whole() { 8 >> size } else { 0 };
    for index in 0..8 >> size {
        let lane = lane(&n, size + 1, index);
        let signed = i128::from((lane << (64 - from)) as i64 >> (64 - from));
        let value = match i.op {
            Op::Sqxtn | Op::Sqxtn2 => signed.clamp(-(1 << (to - 1)), (1 << (to - 1)) - 1),
            Op::Uqxtn | Op::Uqxtn2 => i128::from(lane).min((1 << to) - 1),
            _ => signed.clamp(0, (1 << to) - 1),
        };
        put_lane(&mut result, size, first + index, value as u64);
    }
    put(state, i.rd(), result, i.is_whole());
}

/// FMAXP and FMINP: reduces adjacent pairs of Rn, then of Rm. NaNs propagate.
fn float_pairs(i: Instruction, state: &mut State) {
    let (n, m, size) = (bytes(state, i.rn()), bytes(state, i.rm()), if i.is_double() { 3 } else { 2 });
    let lanes = if i.is_whole() { 16 } else { 8 } >> size;
    let mut result = [0; 16];
    let mode = float::RoundingMode::NearestEven;
    for index in 0..lanes {
        let (from, at) = if index < lanes / 2 { (&n, 2 * index) } else { (&m, 2 * index - lanes) };
        let (a, b) = (lane(from, size, at), lane(from, size, at + 1));
        let is_nan = |value: u64| {
            if size == 3 { f64::from_bits(value).is_nan() } else { f32::from_bits(value as u32).is_nan() }
        };
        let value = match (size == 3, is_nan(a) || is_nan(b), i.op == Op::FmaxpV) {
            (true, true, _) => float::add::<Double>(a, b, mode).0,
            (false, true, _) => float::add::<Single>(a, b, mode).0,
            (true, _, true) => float::max::<Double>(a, b).0,
            (true, _, false) => float::min::<Double>(a, b).0,
            (false, _, true) => float::max::<Single>(a, b).0,
            (false, _, false) => float::min::<Single>(a, b).0,
        };
        put_lane(&mut result, size, index, value);
    }
    put(state, i.rd(), result, i.is_whole());
}

/// TBL and TBX.
fn look_up(i: Instruction, state: &mut State) {
    let vectors = i.bits(13, 2) as u8 + 1;
    let table: Vec<u8> = (0..vectors).flat_map(|index| bytes(state, (i.rn() + index) & 31)).collect();
    let (indices, before) = (bytes(state, i.rm()), bytes(state, i.rd()));
    let keeps = i.bits(12, 1) != 0;
    let result = std::array::from_fn(|byte| {
        let other = if keeps { before[byte] } else { 0 };
        table.get(usize::from(indices[byte])).copied().unwrap_or(other)
    });
    put(state, i.rd(), result, i.is_whole());
}

/// LD2 to LD4, ST2 to ST4: the elements of a structure are adjacent in memory.
fn structures(i: Instruction, state: &mut State, memory: &dyn UserMemory) -> ServiceResult {
    let (loads, size, vectors) = (i.bits(22, 1) != 0, i.bits(10, 2) as usize, count(i).unwrap_or(1));
    let lanes = if i.is_whole() { 16 } else { 8 } >> size;
    let address = if i.rn() == NONE { state.r(STACK_POINTER) } else { read(state, i.rn(), memory) };
    let total = (usize::from(vectors) * lanes) << size;
    let mut all = vec![0; total];
    let place = |index: usize, vector: usize| (index * usize::from(vectors) + vector) << size;
    let number = |vector: usize| (i.rd() + vector as u8) & 31;
    let fault =
        |access| ServiceResult::Trap(Trap::Memory(Fault { address, access, cause: FaultCause::Unmapped }));
    if loads {
        if !memory.read(address, &mut all) {
            return fault(Access::Read);
        }
        for vector in 0..usize::from(vectors) {
            let mut value = [0; 16];
            for index in 0..lanes {
                let at = place(index, vector);
                value[index << size..(index + 1) << size].copy_from_slice(&all[at..at + (1 << size)]);
            }
            put(state, number(vector), value, i.is_whole());
        }
    } else {
        for vector in 0..usize::from(vectors) {
            let value = bytes(state, number(vector));
            for index in 0..lanes {
                let at = place(index, vector);
                all[at..at + (1 << size)].copy_from_slice(&value[index << size..(index + 1) << size]);
            }
        }
        if !memory.write(address, &all) {
            return fault(Access::Write);
        }
    }
    if steps(i) {
        let step = if i.rm() == NONE { total as u64 } else { read(state, i.rm(), memory) };
        if i.rn() == NONE {
            state.set_r(STACK_POINTER, address.wrapping_add(step));
        } else {
            write(state, i.rn(), address.wrapping_add(step), memory);
        }
    }
    ServiceResult::Done
}
