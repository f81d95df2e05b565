//! The elements that a floating-point or Advanced SIMD instruction operates on. Source: Arm Architecture Reference
//! Manual (Arm DDI 0487), sections C4.1.94 to C4.1.97 (encoding groups).

use crate::instruction::{Instruction, lane_of};

/// The elements of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// log2 of the element size in bytes, as the instruction encodes it.
    pub size: usize,
    /// Whether there is a single element.
    pub is_scalar: bool,
    /// The kind of the last operand.
    pub last: Last,
}

/// The last operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Last {
    /// No operand, or the constant zero.
    None,
    /// Rm.
    Vector(u8),
    /// One lane of a register.
    Lane(u8, usize),
    /// immh:immb.
    Immediate(u32),
}

impl Shape {
    pub fn of(i: Instruction) -> Self {
        let last = Last::Vector(i.rm());
        if i.bits(24, 5) >= 0b11110 && i.bits(30, 1) == 0 {
            return Self { size: scalar_float_size(i), is_scalar: true, last };
        }
        let is_scalar = i.bits(28, 1) != 0;
        let has_immediate_or_lane = i.bits(24, 1) != 0;
        if !has_immediate_or_lane {
            let is_of_one = i.bits(21, 1) != 0 && i.bits(10, 2) == 2;
            let last = if is_of_one { Last::None } else { last };
            return Self { size: element_size(i), is_scalar, last };
        }
        if i.bits(10, 1) != 0 {
            let immediate = i.bits(16, 7);
            let size = (immediate >> 3).max(1).ilog2() as usize;
            return Self { size, is_scalar, last: Last::Immediate(immediate) };
        }
        let is_float = matches!(i.bits(12, 4), 1 | 5 | 9);
        let size = match i.bits(22, 2) {
            0 if is_float => 1,
            size => size as usize,
        };
        let (register, lane) = lane_of(i);
        Self { size, is_scalar, last: Last::Lane(register, lane as usize) }
    }
}

/// The size of a scalar floating-point instruction, which has its own encoding group.
pub(super) fn scalar_float_size(i: Instruction) -> usize {
    match i.bits(22, 2) {
        3 => 1,
        double => 2 + (double & 1) as usize,
    }
}

/// The element size of an instruction without immediate and lane.
fn element_size(i: Instruction) -> usize {
    let float = 2 + i.bits(22, 1) as usize;
    let integer = i.size();
    let opcode = i.bits(12, 5);
    match (i.bits(21, 1), i.bits(10, 2)) {
        // Three registers of the same type.
        (1, 1 | 3) if i.bits(14, 2) == 3 => float,
        (1, 1 | 3) => integer,
        // Two registers, half precision.
        (1, 2) if i.bits(17, 4) == 0b1100 => 1,
        // Across lanes, and scalar pairs.
        (1, 2) if i.bits(17, 4) == 0b1000 => match (opcode & 0xf, i.bits(29, 1)) {
            (0b1100 | 0b1101 | 0b1111, 0) => 1,
            (0b1100 | 0b1101 | 0b1111, _) => float,
            _ => integer,
        },
        (1, 2) if opcode >= 0b10110 || matches!(opcode, 0b01100..=0b01111) && integer > 1 => float,
        (0, 1 | 3) if i.bits(14, 2) == 0 && i.bits(22, 1) == 1 => 1,
        _ => integer,
    }
}
