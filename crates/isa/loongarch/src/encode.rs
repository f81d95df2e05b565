//! Encodes an [`Instruction`] as a word.

use crate::{
    instruction::Instruction,
    table::{Operand, low_bits},
};

/// An operand does not fit its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A register number is too large for its field.
    #[error("{mnemonic}: register number {number} does not fit the {width}-bit field at bit {position}")]
    Register {
        /// The mnemonic.
        mnemonic: &'static str,
        /// The requested number.
        number: u8,
        /// The lowest bit of the field.
        position: u8,
        /// The width of the field in bits.
        width: u8,
    },
    /// An immediate is out of range or not a multiple of its scale.
    #[error("{mnemonic}: {value} does not fit the {width}-bit immediate (scaled by {scale})", scale = 1 << scale)]
    Immediate {
        /// The mnemonic.
        mnemonic: &'static str,
        /// The requested value.
        value: i32,
        /// The width of the field in bits.
        width: u8,
        /// The field counts units of 2^scale.
        scale: u8,
    },
}

/// Encodes `instruction`.
///
/// # Errors
/// An operand does not fit its field.
pub fn encode(instruction: &Instruction) -> Result<u32, EncodeError> {
    let row = instruction.op.row();
    let mnemonic = row.mnemonic;
    let mut word = row.matched;
    let mut immediates = 0;
    for operand in row.operands {
        match operand {
            Operand::Register(kind, position) => {
                let (number, width) = (instruction.register_at(*position), kind.field_width());
                if u32::from(number) > low_bits(width) {
                    return Err(EncodeError::Register { mnemonic, number, position: *position, width });
                }
                word |= u32::from(number) << position;
            }
            Operand::Immediate(immediate) => {
                let value = if immediates == 0 { instruction.imm } else { instruction.imm2 };
                immediates += 1;
                word |= immediate.insert(value).ok_or(EncodeError::Immediate {
                    mnemonic,
                    value,
                    width: immediate.width(),
                    scale: immediate.scale,
                })?;
            }
        }
    }
    Ok(word)
}
