//! Advanced SIMD instructions that the engine executes: table lookups, shifts by register, insertions, structure loads
//! and stores. Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2.

use longma_loongarch::{Access, Fault, FaultCause, State, Trap};

use crate::code::operands::NONE;
use crate::code::vector::shifts::amounts;
use crate::code::vector::structures::{count, steps};
use crate::instruction::{Instruction, Op};
use crate::registers::{IGNORED_ADDRESS_BITS, STACK_POINTER, read, write};
use longma_translate::front_end::{ServiceResult, UserMemory};

/// Reads a vector as bytes.
pub(super) fn bytes(state: &State, number: u8) -> [u8; 16] {
    let lanes = state.v[usize::from(number)].0;
    std::array::from_fn(|byte| (lanes[byte / 8] >> (8 * (byte % 8))) as u8)
}

/// Writes a vector. A half-width write clears the upper half.
pub(super) fn put(state: &mut State, number: u8, value: [u8; 16], is_whole: bool) {
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| value[at + byte]));
    let lanes = &mut state.v[usize::from(number)].0;
    (lanes[0], lanes[1]) = (half(0), if is_whole { half(8) } else { 0 });
}

pub(super) fn lane(from: &[u8; 16], size: usize, index: usize) -> u64 {
    let at = index << size;
    (0..1 << size).fold(0, |sum, byte| sum | u64::from(from[at + byte]) << (8 * byte))
}

pub(super) fn put_lane(to: &mut [u8; 16], size: usize, index: usize, value: u64) {
    let at = index << size;
    to[at..at + (1 << size)].copy_from_slice(&value.to_le_bytes()[..1 << size]);
}

/// Executes an instruction. Returns `None` for instructions not handled here.
pub(crate) fn serve(i: Instruction, state: &mut State, memory: &dyn UserMemory) -> Option<ServiceResult> {
    use Op::*;
    let is_whole = i.is_whole();
    match i.op {
        Tbl1 | Tbl2 | Tbl3 | Tbl4 | Tbx1 | Tbx2 | Tbx3 | Tbx4 => look_up(i, state),
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
        RbitV => each(i, state, 0, |n, _, _, _| u64::from((n as u8).reverse_bits())),
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

/// Computes each element of Rd from those of Rn, Rm and Rd and the element width in bits.
fn each(i: Instruction, state: &mut State, size: usize, operation: impl Fn(u64, u64, u64, u32) -> u64) {
    let (n, m, mut d) = (bytes(state, i.rn()), bytes(state, i.rm()), bytes(state, i.rd()));
    let lanes = if i.is_whole() { 16 } else { 8 } >> size;
    for index in 0..lanes {
        let value = operation(lane(&n, size, index), lane(&m, size, index), lane(&d, size, index), 8 << size);
        put_lane(&mut d, size, index, value);
    }
    put(state, i.rd(), d, i.is_whole());
}

/// TBL and TBX.
fn look_up(i: Instruction, state: &mut State) {
    let vectors = i.bits(13, 2) as u8 + 1;
    let table: Vec<u8> = (0..vectors).flat_map(|index| bytes(state, (i.rn() + index) & 31)).collect();
    let (indices, old_bytes) = (bytes(state, i.rm()), bytes(state, i.rd()));
    let keeps = i.bits(12, 1) != 0;
    let result = std::array::from_fn(|byte| {
        let other = if keeps { old_bytes[byte] } else { 0 };
        table.get(usize::from(indices[byte])).copied().unwrap_or(other)
    });
    put(state, i.rd(), result, i.is_whole());
}

/// LD2 to LD4, ST2 to ST4: the elements of a structure are adjacent in memory.
fn structures(i: Instruction, state: &mut State, memory: &dyn UserMemory) -> ServiceResult {
    let (loads, size, vectors) = (i.bits(22, 1) != 0, i.bits(10, 2) as usize, count(i).unwrap_or(1));
    let lanes = if i.is_whole() { 16 } else { 8 } >> size;
    let address = if i.rn() == NONE { state.r(STACK_POINTER) } else { read(state, i.rn(), memory) };
    let untagged = address & !IGNORED_ADDRESS_BITS;
    let total = (usize::from(vectors) * lanes) << size;
    let mut all = vec![0; total];
    let offset = |index: usize, vector: usize| (index * usize::from(vectors) + vector) << size;
    let number = |vector: usize| (i.rd() + vector as u8) & 31;
    let fault = |access| {
        ServiceResult::Trap(Trap::Memory(Fault { address: untagged, access, cause: FaultCause::Unmapped }))
    };
    if loads {
        if !memory.read(untagged, &mut all) {
            return fault(Access::Read);
        }
        for vector in 0..usize::from(vectors) {
            let mut value = [0; 16];
            for index in 0..lanes {
                let at = offset(index, vector);
                value[index << size..(index + 1) << size].copy_from_slice(&all[at..at + (1 << size)]);
            }
            put(state, number(vector), value, i.is_whole());
        }
    } else {
        for vector in 0..usize::from(vectors) {
            let value = bytes(state, number(vector));
            for index in 0..lanes {
                let at = offset(index, vector);
                all[at..at + (1 << size)].copy_from_slice(&value[index << size..(index + 1) << size]);
            }
        }
        if !memory.write(untagged, &all) {
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
