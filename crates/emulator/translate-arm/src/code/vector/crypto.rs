//! Lowers AES, SHA-1, SHA-256 and products of polynomials of degree below 64 to the cryptographic instructions that
//! translated code may contain. Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2 (AESE, PMULL,
//! SHA1C, SHA256H and relatives).

use longma_loongarch::{Instruction as Code, Op as La};

use crate::code::lower::Lowering;
use crate::instruction::{Instruction, Op};

/// The part of `vclmul` that selects the upper halves of both operands.
const UPPER_HALVES: i32 = 3;

impl Lowering<'_> {
    pub(super) fn cryptography(&mut self, i: Instruction) -> bool {
        let op = match i.op {
            Op::Aesmc | Op::Aesimc => {
                let (op, n) =
                    (if i.op == Op::Aesmc { La::Vaesmc } else { La::Vaesimc }, self.lanes(i.rn(), true));
                self.assembler.two(op, i.rd(), n);
                self.put_lanes(i.rd(), true);
                return true;
            }
            Op::PmullVD => {
                let (n, m) = (self.lanes(i.rn(), i.is_whole()), self.lanes(i.rm(), i.is_whole()));
                let imm = if i.is_whole() { UPPER_HALVES } else { 0 };
                self.assembler.push(Code { d: i.rd(), j: n, k: m, imm, ..Code::new(La::Vclmul) });
                self.put_lanes(i.rd(), true);
                return true;
            }
            Op::Sha1h => {
                // A rotation to the left by 30.
                self.assembler.immediate(La::VrotriW, i.rd(), i.rn(), 2);
                self.put_scalar(i.rd(), false);
                return true;
            }
            Op::Aese => La::Vaese,
            Op::Aesd => La::Vaesd,
            Op::Sha1c => La::Vsha1c,
            Op::Sha1p => La::Vsha1p,
            Op::Sha1m => La::Vsha1m,
            Op::Sha1su0 => La::Vsha1su0,
            Op::Sha1su1 => La::Vsha1su1,
            Op::Sha256h => La::Vsha256h,
            Op::Sha256h2 => La::Vsha256h2,
            Op::Sha256su0 => La::Vsha256su0,
            Op::Sha256su1 => La::Vsha256su1,
            _ => return false,
        };
        let d = self.lanes(i.rd(), true);
        // The rounds of SHA-1 read only the first word of N.
        let is_scalar = matches!(i.op, Op::Sha1c | Op::Sha1p | Op::Sha1m);
        let n = if is_scalar { i.rn() } else { self.lanes(i.rn(), true) };
        let has_two = matches!(i.op, Op::Aese | Op::Aesd | Op::Sha1su1 | Op::Sha256su0);
        let m = if has_two { 0 } else { self.lanes(i.rm(), true) };
        self.assembler.three(op, d, n, m);
        self.put_lanes(d, true);
        true
    }
}
