//! The LoongArch memory access instructions for MIPS loads and stores. Source: LoongArch Reference Manual, volume 1.

use longma_loongarch::Op as La;

use super::instruction::{Instruction, Op};

/// The variants of a memory access: with a 12-bit offset, with a 14-bit word offset if there is one, and with an index
/// register.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub near: La,
    pub words: Option<La>,
    pub indexed: La,
    /// Whether the data register is a floating-point register.
    pub float: bool,
}

/// The address of an access: `j + k + imm`.
#[derive(Clone, Copy)]
pub(super) struct AccessAddress {
    pub j: u8,
    pub k: u8,
    pub imm: i32,
}

impl Instruction {
    /// The access of a load or store. `None` for unaligned (partial) and atomic accesses and for other instructions.
    pub(super) fn access(self) -> Option<Access> {
        let make = |offset_op, words, indexed, float| Some(Access { near: offset_op, words, indexed, float });
        match self.op {
            Op::Lb => make(La::LdB, None, La::LdxB, false),
            Op::Lbu => make(La::LdBu, None, La::LdxBu, false),
            Op::Lh => make(La::LdH, None, La::LdxH, false),
            Op::Lhu => make(La::LdHu, None, La::LdxHu, false),
            Op::Lw => make(La::LdW, Some(La::LdptrW), La::LdxW, false),
            Op::Lwu => make(La::LdWu, None, La::LdxWu, false),
            Op::Ld => make(La::LdD, Some(La::LdptrD), La::LdxD, false),
            Op::Sb => make(La::StB, None, La::StxB, false),
            Op::Sh => make(La::StH, None, La::StxH, false),
            Op::Sw => make(La::StW, Some(La::StptrW), La::StxW, false),
            Op::Sd => make(La::StD, Some(La::StptrD), La::StxD, false),
            Op::Lwc1 => make(La::FldS, None, La::FldxS, true),
            Op::Ldc1 => make(La::FldD, None, La::FldxD, true),
            Op::Swc1 => make(La::FstS, None, La::FstxS, true),
            Op::Sdc1 => make(La::FstD, None, La::FstxD, true),
            _ => None,
        }
    }
}
