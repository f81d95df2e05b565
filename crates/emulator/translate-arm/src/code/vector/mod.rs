//! Advanced SIMD as LSX: one file a group of rows. What has no short sequence the engine executes (`service`).
//! Not scalar floating point, nor the plain loads and stores of vectors.
//! Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2; LoongArch Reference Manual, volume 2.

mod arithmetic;
mod long;
mod lookup;
mod moves;
mod reduce;
mod scalar;
pub(crate) mod shifts;
pub(crate) mod structures;

pub(super) use structures::count;

use longma_loongarch::{Instruction as Code, Op as La};

use super::lower::Lowering;
use crate::instruction::Instruction;

/// One operation on lanes of 8, 16, 32 and 64 bits.
type Sizes = [La; 4];

impl Lowering<'_> {
    /// Instructions of Advanced SIMD.
    pub fn vector(&mut self, i: Instruction) -> bool {
        self.vector_arithmetic(i)
            || self.vector_move(i)
            || self.vector_reduce(i)
            || self.vector_shift(i)
            || self.vector_scalar(i)
            || self.vector_long(i)
            || self.look_up(i)
            || self.narrow_saturating(i)
            || self.structures(i)
    }

    /// A vector source: as many bytes as are read of it are as they are to be.
    fn lanes(&mut self, number: u8, is_whole: bool) -> u8 {
        self.widen(number, if is_whole { 16 } else { 8 });
        number
    }

    /// A vector has been written, of 16 bytes or of eight with zero above.
    fn put_lanes(&mut self, number: u8, is_whole: bool) {
        self.put_vector(number, if is_whole { 16 } else { 8 });
    }

    /// `vilvl.d`: the low half of `k`, and above it that of `j`.
    fn join_halves(&mut self, d: u8, j: u8, k: u8) {
        self.assembler.three(La::VilvlD, d, j, k);
    }

    fn four(&mut self, op: La, [d, j, k, a]: [u8; 4]) {
        self.assembler.push(Code { d, j, k, a, ..Code::new(op) });
    }
}

impl Instruction {
    /// Whether all 128 bits are worked on.
    pub(crate) fn is_whole(self) -> bool {
        self.bits(30, 1) != 0
    }

    /// The size of lanes: 0 for bytes to 3 for 64 bits.
    pub(crate) fn size(self) -> usize {
        self.bits(22, 2) as usize
    }
}
