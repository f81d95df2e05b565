//! AES, carry-less multiplication and SHA, by the cryptographic instructions that translated code may contain. Source:
//! Intel SDM, volume 2 (AESENC, PCLMULQDQ, SHA1RNDS4, SHA256RNDS2 and relatives).

use iced_x86::{Mnemonic, Register};
use longma_loongarch::{Instruction as Code, Op as La};

use super::lower::Lowering;
use super::vex::first;
use crate::registers::*;

impl Lowering<'_> {
    /// Translates a cryptographic instruction. Returns false for others.
    pub(super) fn cryptography(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let op = match self.mnemonic() {
            Aesenc => La::Vaesenc,
            Aesenclast => La::Vaesenclast,
            Aesdec => La::Vaesdec,
            Aesdeclast => La::Vaesdeclast,
            Aesimc => La::Vaesimc,
            Aeskeygenassist => La::Vaeskeygen,
            Pclmulqdq => La::Vclmul,
            Sha1rnds4 => La::Vsha1rnds4,
            Sha1nexte => La::Vsha1nexte,
            Sha1msg1 => La::Vsha1msg1,
            Sha1msg2 => La::Vsha1msg2,
            Sha256rnds2 => La::Vsha256rnds2,
            Sha256msg1 => La::Vsha256su0,
            Sha256msg2 => La::Vsha256msg2,
            _ => return false,
        };
        // The forms of 256 bits belong to later extensions.
        if self.is_wide {
            return false;
        }
        let s = self.source();
        let d = vector(i.op0_register());
        match op {
            La::Vaesenc | La::Vaesenclast | La::Vaesdec | La::Vaesdeclast => {
                let a = self.first_source();
                self.assembler.three(op, d, a, s);
            }
            La::Vclmul => {
                // Bits 0 and 4 select the halves of the operands.
                let (order, a) = (i32::from(i.immediate8()), vector(i.op_register(first(&i))));
                let imm = order & 1 | (order >> 4 & 1) << 1;
                self.assembler.push(Code { d, j: a, k: s, imm, ..Code::new(op) });
            }
            La::Vaeskeygen => self.assembler.immediate(op, d, s, i.immediate8().into()),
            La::Vsha1rnds4 => self.assembler.immediate(op, d, s, i32::from(i.immediate8() & 3)),
            La::Vsha256rnds2 => self.assembler.three(op, d, s, vector(Register::XMM0)),
            _ => self.assembler.two(op, d, s),
        }
        true
    }
}
