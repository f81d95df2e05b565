//! Lowers Advanced SIMD to LSX, one module per group of instructions. The engine executes instructions without a short
//! LSX sequence (`service`). Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2; LoongArch
//! Reference Manual, volume 2.

mod arithmetic;
mod crypto;
mod long;
mod lookup;
mod moves;
mod narrowing;
mod reduce;
pub(crate) mod rounding;
mod scalar;
pub(crate) mod shifts;
pub(crate) mod structures;

pub(super) use structures::count;

use longma_loongarch::{Instruction as Code, Op as La};

use super::lower::Lowering;
use crate::instruction::Instruction;
use crate::registers::{SLOT_OF_SATURATION, SLOTS};

/// The variants of an operation for 8, 16, 32 and 64-bit lanes.
type Sizes = [La; 4];

impl Lowering<'_> {
    /// Lowers the instruction. Returns false for other instructions.
    pub fn vector(&mut self, i: Instruction) -> bool {
        self.vector_arithmetic(i)
            || self.vector_move(i)
            || self.vector_reduce(i)
            || self.vector_shift(i)
            || self.vector_scalar(i)
            || self.vector_long(i)
            || self.look_up(i)
            || self.narrow_saturating(i)
            || self.vector_rounding(i)
            || self.vector_narrowing(i)
            || self.structures(i)
            || self.cryptography(i)
    }

    /// Returns the register of a vector operand. All bytes that the instruction reads are valid.
    fn lanes(&mut self, number: u8, is_whole: bool) -> u8 {
        self.widen(number, if is_whole { 16 } else { 8 });
        number
    }

    /// Copies of two operands in which `op` repeats the lowest element, so that the other elements raise no additional
    /// exceptions. One copy is in the destination, which the instruction overwrites.
    fn repeated(&mut self, op: La, [n, m]: [u8; 2], d: u8) -> [u8; 2] {
        let copy = |lowering: &mut Self, to: u8, from: u8| {
            lowering.assembler.immediate(op, to, from, 0);
            to
        };
        if n == m {
            return [copy(self, d, n); 2];
        }
        let other = self.borrow_vector(&[d, n, m]);
        if d == m {
            [copy(self, other, n), copy(self, d, m)]
        } else {
            [copy(self, d, n), copy(self, other, m)]
        }
    }

    /// The operands, or copies of half vectors with two equal halves.
    fn own_elements(&mut self, operands: [u8; 2], d: u8, is_whole: bool) -> [u8; 2] {
        if is_whole { operands } else { self.repeated(La::VreplveiD, operands, d) }
    }

    /// Records that a vector has been written: 16 bytes, or 8 with the upper half architecturally zero.
    fn put_lanes(&mut self, number: u8, is_whole: bool) {
        self.put_vector(number, if is_whole { 16 } else { 8 });
    }

    /// `vilvl.d`: the low half is that of `k`, and the upper half is the low half of `j`.
    fn join_halves(&mut self, d: u8, j: u8, k: u8) {
        self.assembler.three(La::VilvlD, d, j, k);
    }

    /// Sets FPSR.QC if `differences` is not zero. `old_status` is a borrowed vector.
    fn note_saturation(&mut self, differences: u8, old_status: u8, is_whole: bool) {
        if !is_whole {
            self.assembler.immediate(La::Vinsgr2vrD, differences, 0, 1);
        }
        self.assembler.immediate(La::Vld, old_status, SLOTS, SLOT_OF_SATURATION);
        self.assembler.three(La::VorV, old_status, old_status, differences);
        self.assembler.immediate(La::Vst, old_status, SLOTS, SLOT_OF_SATURATION);
    }

    fn four(&mut self, op: La, [d, j, k, a]: [u8; 4]) {
        self.assembler.push(Code { d, j, k, a, ..Code::new(op) });
    }
}

impl Instruction {
    /// Whether the instruction operates on all 128 bits.
    pub(crate) fn is_whole(self) -> bool {
        self.bits(30, 1) != 0
    }

    /// The lane size: 0 for bytes to 3 for 64 bits.
    pub(crate) fn size(self) -> usize {
        self.bits(22, 2) as usize
    }
}
