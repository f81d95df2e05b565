//! Which LoongArch instructions an access can be, and where it can go.
//! Not the code (`plain`), nor what of its address is taken up (`deferred`).
//! Source: LoongArch Reference Manual, volume 1.

use longma_loongarch::Op as La;

use super::instruction::{Instruction, Op};

/// An access to memory: the instruction with 12 bits of offset, the one with 14 bits in words if there is one, the one with an index.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub near: La,
    pub words: Option<La>,
    pub indexed: La,
    /// Whether the register is a floating-point one.
    pub float: bool,
}

/// Where an access goes: `j + k + imm`.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub j: u8,
    pub k: u8,
    pub imm: i32,
}

impl Instruction {
    /// The access of a load or store that is no part of another and not atomic.
    pub(super) fn access(self) -> Option<Access> {
        let make = |near, words, indexed, float| Some(Access { near, words, indexed, float });
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
