//! Emits the cryptography of translated code with AES-NI, PCLMULQDQ and SHA-NI. The interpreter executes instructions
//! that the host does not support. Source: Intel SDM, volume 2 (AESENC, PCLMULQDQ, SHA1RNDS4, SHA256RNDS2 and
//! relatives).

use iced_x86::{Code, Register};
use longma_loongarch::{Instruction, Op};

use super::{Emitter, host_vectors::*, origin::OriginSupport};

const A: Register = Register::XMM0;
const B: Register = Register::XMM1;
const C: Register = Register::XMM2;

/// Immediates of PSHUFD: reverse the words, swap neighbouring words, move the upper half to the lower half, broadcast
/// the first word.
const REVERSED: i32 = 0x1b;
const SWAPPED: i32 = 0xb1;
const UPPER: i32 = 0x0e;
const FIRST: i32 = 0;

impl Emitter<'_> {
    /// Emits a cryptographic instruction. Returns false for other instructions and for those that the host lacks.
    pub(super) fn cryptography(&mut self, i: &Instruction) -> bool {
        let OriginSupport { aes, sha, .. } = self.origin;
        aes && self.aes(i) || sha && self.sha(i) || self.without_extension(i)
    }

    fn aes(&mut self, i: &Instruction) -> bool {
        let encrypt = Code::VEX_Vaesenc_xmm_xmm_xmmm128;
        let (last, last_back) =
            (Code::VEX_Vaesenclast_xmm_xmm_xmmm128, Code::VEX_Vaesdeclast_xmm_xmm_xmmm128);
        match i.op {
            Op::Vaesenc => self.three_vectors(i, encrypt),
            Op::Vaesenclast => self.three_vectors(i, last),
            Op::Vaesdec => self.three_vectors(i, Code::VEX_Vaesdec_xmm_xmm_xmmm128),
            Op::Vaesdeclast => self.three_vectors(i, last_back),
            Op::Vaesimc => {
                let (from, to) = (self.vector_source(i.j, false), self.vector_target(i.d, A));
                self.a.op2(Code::VEX_Vaesimc_xmm_xmmm128, to, from);
                self.vector_write(i.d, to);
            }
            Op::Vaeskeygen => {
                let (from, to) = (self.vector_source(i.j, false), self.vector_target(i.d, A));
                self.a.op3(Code::VEX_Vaeskeygenassist_xmm_xmmm128_imm8, to, from, i.imm);
                self.vector_write(i.d, to);
            }
            Op::Vaesmc => {
                // The last decryption round undoes an encryption round, except for the mixing of columns.
                let from = self.vector_read(i.j, A);
                self.a.op3(PXOR.of(false), B, B, B);
                self.a.op3(last_back, A, from, B);
                let to = self.vector_target(i.d, A);
                self.a.op3(encrypt, to, A, B);
                self.vector_write(i.d, to);
            }
            Op::Vaese | Op::Vaesd => {
                let (state, key) = (self.vector_read(i.d, A), self.vector_source(i.j, false));
                self.a.op3(PXOR.of(false), A, state, key);
                self.a.op3(PXOR.of(false), B, B, B);
                let to = self.vector_target(i.d, A);
                self.a.op3(if i.op == Op::Vaese { last } else { last_back }, to, A, B);
                self.vector_write(i.d, to);
            }
            _ => return false,
        }
        true
    }

    fn sha(&mut self, i: &Instruction) -> bool {
        match i.op {
            Op::Vsha1rnds4 => {
                let (state, added) = (self.vector_read(i.d, A), self.vector_source(i.j, false));
                self.a.op3(Code::Sha1rnds4_xmm_xmmm128_imm8, state, added, i.imm);
                self.vector_write(i.d, state);
            }
            Op::Vsha1nexte => self.in_place(i, Code::Sha1nexte_xmm_xmmm128),
            Op::Vsha1msg1 => self.in_place(i, Code::Sha1msg1_xmm_xmmm128),
            Op::Vsha1msg2 => self.in_place(i, Code::Sha1msg2_xmm_xmmm128),
            Op::Vsha256su0 => self.in_place(i, Code::Sha256msg1_xmm_xmmm128),
            Op::Vsha256msg2 => self.in_place(i, Code::Sha256msg2_xmm_xmmm128),
            Op::Vsha256rnds2 => {
                self.copy_vector(A, i.k);
                let (state, other) = (self.vector_read(i.d, B), self.vector_source(i.j, false));
                self.a.op2(Code::Sha256rnds2_xmm_xmmm128, state, other);
                self.vector_write(i.d, state);
            }
            Op::Vsha256su1 => {
                let (high, low) = (self.vector_read(i.k, B), self.vector_source(i.j, false));
                self.a.op4(Code::VEX_Vpalignr_xmm_xmm_xmmm128_imm8, A, high, low, 4);
                let sum = self.vector_source(i.d, false);
                self.a.op3(PADDD.of(false), A, A, sum);
                self.a.op2(Code::Sha256msg2_xmm_xmmm128, A, high);
                self.vector_write(i.d, A);
            }
            Op::Vsha256h => self.sha256_rounds(i, [i.d, i.j], PUNPCKHQDQ),
            Op::Vsha256h2 => self.sha256_rounds(i, [i.j, i.d], PUNPCKLQDQ),
            Op::Vsha1c => self.sha1_rounds(i, 0, 0x5a82_7999),
            Op::Vsha1p => self.sha1_rounds(i, 1, 0x6ed9_eba1),
            Op::Vsha1m => self.sha1_rounds(i, 2, 0x8f1b_bcdc),
            _ => return false,
        }
        true
    }

    fn without_extension(&mut self, i: &Instruction) -> bool {
        match i.op {
            Op::Vclmul => {
                let (left, right) = (self.vector_read(i.j, A), self.vector_source(i.k, false));
                let to = self.vector_target(i.d, A);
                let choice = i.imm & 1 | (i.imm >> 1) << 4;
                self.a.op4(Code::VEX_Vpclmulqdq_xmm_xmm_xmmm128_imm8, to, left, right, choice);
                self.vector_write(i.d, to);
            }
            Op::Vsha1su0 => {
                let (first, second) = (self.vector_read(i.d, A), self.vector_read(i.j, B));
                self.a.op4(SHUFPD.of(false), C, first, second, 1);
                self.a.op3(PXOR.of(false), C, C, first);
                let third = self.vector_source(i.k, false);
                let to = self.vector_target(i.d, A);
                self.a.op3(PXOR.of(false), to, C, third);
                self.vector_write(i.d, to);
            }
            Op::Vsha1su1 => {
                let next = self.vector_read(i.j, A);
                self.a.op3(PSRLDQ.of(false), A, next, 4);
                let sum = self.vector_source(i.d, false);
                self.a.op3(PXOR.of(false), A, A, sum);
                self.rotate_words(B, A);
                // The last word also depends on the new first word, rotated by one more bit.
                self.a.op3(PSLLDQ.of(false), A, B, 12);
                self.rotate_words(A, A);
                self.a.op3(PXOR.of(false), A, A, B);
                self.vector_write(i.d, A);
            }
            _ => return false,
        }
        true
    }

    /// Rotates the words of `from` left by one. Changes C.
    fn rotate_words(&mut self, to: Register, from: Register) {
        self.a.op3(PSRLD.of(false), C, from, 31);
        self.a.op3(PSLLD.of(false), to, from, 1);
        self.a.op3(POR.of(false), to, to, C);
    }

    fn three_vectors(&mut self, i: &Instruction, code: Code) {
        let (left, right) = (self.vector_read(i.j, A), self.vector_source(i.k, false));
        let to = self.vector_target(i.d, A);
        self.a.op3(code, to, left, right);
        self.vector_write(i.d, to);
    }

    /// A host instruction whose first operand is source and destination.
    fn in_place(&mut self, i: &Instruction, code: Code) {
        let (first, second) = (self.vector_read(i.d, A), self.vector_source(i.j, false));
        self.a.op2(code, first, second);
        self.vector_write(i.d, first);
    }

    fn copy_vector(&mut self, to: Register, number: u8) {
        let from = self.vector_source(number, false);
        self.a.op2(MOVDQU.of(false), to, from);
    }

    /// Four rounds of SHA-256 on A B C D and E F G H, in this order. The host takes them as A B E F and C D G H, in
    /// descending order. `part` takes half of the result.
    fn sha256_rounds(&mut self, i: &Instruction, [abcd, efgh]: [u8; 2], part: Pair) {
        let (first, second) = (self.vector_source(abcd, false), self.vector_source(efgh, false));
        self.a.op3(PSHUFD.of(false), A, first, SWAPPED);
        self.a.op3(PSHUFD.of(false), B, second, SWAPPED);
        self.a.op3(PUNPCKHQDQ.of(false), C, B, A);
        self.a.op3(PUNPCKLQDQ.of(false), B, B, A);
        self.copy_vector(A, i.k);
        self.a.op2(Code::Sha256rnds2_xmm_xmmm128, C, B);
        self.a.op3(PSHUFD.of(false), A, A, UPPER);
        self.a.op2(Code::Sha256rnds2_xmm_xmmm128, B, C);
        self.a.op3(part.of(false), A, B, C);
        let to = self.vector_target(i.d, A);
        self.a.op3(PSHUFD.of(false), to, A, SWAPPED);
        self.vector_write(i.d, to);
    }

    /// Four rounds of SHA-1. The host takes the words in descending order, E in the first added word, and adds the
    /// constant, which is already in the guest's words.
    fn sha1_rounds(&mut self, i: &Instruction, stage: i32, constant: u32) {
        let words = self.vector_source(i.k, false);
        self.a.op3(PSHUFD.of(false), B, words, REVERSED);
        let e = self.vector_read(i.j, A);
        self.a.op3(PSLLDQ.of(false), A, e, 12);
        self.a.op3(PADDD.of(false), B, B, A);
        self.a.op2(Code::Mov_r32_imm32, Register::EAX, constant as i32);
        self.a.op2(Code::VEX_Vmovd_xmm_rm32, A, Register::EAX);
        self.a.op3(PSHUFD.of(false), A, A, FIRST);
        self.a.op3(PSUBD.of(false), B, B, A);
        let state = self.vector_source(i.d, false);
        self.a.op3(PSHUFD.of(false), A, state, REVERSED);
        self.a.op3(Code::Sha1rnds4_xmm_xmmm128_imm8, A, B, stage);
        let to = self.vector_target(i.d, A);
        self.a.op3(PSHUFD.of(false), to, A, REVERSED);
        self.vector_write(i.d, to);
    }
}
