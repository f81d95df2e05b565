//! Emits LASX instructions that move data between the 128-bit halves, or for which the host's 256-bit and 128-bit forms
//! differ. The interpreter executes those that are missing here. Source: the manual's LASX volume; Intel SDM, volume 2.

use iced_x86::{Code, Register};
use longma_loongarch::{Instruction, Op};

use super::{Emitter, host_vectors::*};
use crate::jit::registers::{low32, wide};

const A: Register = Register::XMM0;
const B: Register = Register::XMM1;

/// VPERMQ selector that exchanges the two middle doublewords: it gathers the lower doublewords of both halves in the
/// lower half, or distributes the two doublewords of the lower half over both halves.
const EXCHANGE_MIDDLE: i32 = 0b11_01_10_00;

/// Replicates one element over 256 bits.
fn broadcast(op: Op) -> Option<Code> {
    Some(match op {
        Op::Xvreplve0B => Code::VEX_Vpbroadcastb_ymm_xmmm8,
        Op::Xvreplve0H => Code::VEX_Vpbroadcastw_ymm_xmmm16,
        Op::Xvreplve0W => Code::VEX_Vpbroadcastd_ymm_xmmm32,
        Op::Xvreplve0D => Code::VEX_Vpbroadcastq_ymm_xmmm64,
        _ => return None,
    })
}

/// Widens the lower elements.
fn widening(op: Op) -> Option<Code> {
    Some(match op {
        Op::Vext2xvHB => Code::VEX_Vpmovsxbw_ymm_xmmm128,
        Op::Vext2xvWB => Code::VEX_Vpmovsxbd_ymm_xmmm64,
        Op::Vext2xvDB => Code::VEX_Vpmovsxbq_ymm_xmmm32,
        Op::Vext2xvWH => Code::VEX_Vpmovsxwd_ymm_xmmm128,
        Op::Vext2xvDH => Code::VEX_Vpmovsxwq_ymm_xmmm64,
        Op::Vext2xvDW => Code::VEX_Vpmovsxdq_ymm_xmmm128,
        Op::Vext2xvHuBu => Code::VEX_Vpmovzxbw_ymm_xmmm128,
        Op::Vext2xvWuBu => Code::VEX_Vpmovzxbd_ymm_xmmm64,
        Op::Vext2xvDuBu => Code::VEX_Vpmovzxbq_ymm_xmmm32,
        Op::Vext2xvWuHu => Code::VEX_Vpmovzxwd_ymm_xmmm128,
        Op::Vext2xvDuHu => Code::VEX_Vpmovzxwq_ymm_xmmm64,
        Op::Vext2xvDuWu => Code::VEX_Vpmovzxdq_ymm_xmmm128,
        _ => return None,
    })
}

impl Emitter<'_> {
    /// Emits a LASX instruction that does not apply an LSX operation to both halves. Returns false for other
    /// instructions.
    pub(super) fn across_halves(&mut self, i: &Instruction) -> bool {
        if let Some(code) = broadcast(i.op).or_else(|| widening(i.op)) {
            let from = self.vector_source(i.j, false);
            let to = wide(self.vector_target(i.d, A));
            self.a.op2(code, to, from);
            self.write_vector(i.d, to, true);
            return true;
        }
        match i.op {
            Op::XvpermiQ => self.permute_halves(i),
            Op::XvpermW => {
                let indices = self.read_vector(i.k, A, true);
                let words = self.vector_source(i.j, true);
                let to = wide(self.vector_target(i.d, A));
                self.a.op3(Code::VEX_Vpermd_ymm_ymm_ymmm256, to, indices, words);
                self.write_vector(i.d, to, true);
            }
            Op::XvpickveD if i.imm == 0 => {
                let from = self.vector_source(i.j, false);
                let to = self.vector_target(i.d, A);
                self.a.op2(Code::VEX_Vmovq_xmm_xmmm64, to, from);
                self.write_vector(i.d, wide(to), true);
            }
            Op::XvpickveW if i.imm == 0 => {
                let from = self.vector_read(i.j, A);
                let to = self.vector_target(i.d, A);
                const LOWEST_ALONE: i32 = 0b1110;
                self.a.op4(Code::VEX_Vinsertps_xmm_xmm_xmmm32_imm8, to, from, from, LOWEST_ALONE);
                self.write_vector(i.d, wide(to), true);
            }
            Op::Xvpickve2grD | Op::Xvpickve2grDu => {
                self.pick_wide(i, 2, Code::VEX_Vpextrq_rm64_xmm_imm8, Register::RAX);
                self.write(i.d, Register::RAX);
            }
            Op::Xvpickve2grW => {
                self.pick_wide(i, 4, Code::VEX_Vpextrd_rm32_xmm_imm8, Register::EAX);
                self.a.op2(Code::Movsxd_r64_rm32, Register::RAX, Register::EAX);
                self.write(i.d, Register::RAX);
            }
            Op::Xvinsgr2vrW => self.insert_wide(i, 4, Code::VEX_Vpinsrd_xmm_xmm_rm32_imm8),
            Op::Xvinsgr2vrD => self.insert_wide(i, 2, Code::VEX_Vpinsrq_xmm_xmm_rm64_imm8),
            Op::Xvpickve2grWu => {
                self.pick_wide(i, 4, Code::VEX_Vpextrd_rm32_xmm_imm8, Register::EAX);
                self.write(i.d, Register::RAX);
            }
            Op::XvmskltzB => self.byte_sign_mask(i),
            Op::XvmskltzW => self.lane_sign_mask(i, Code::VEX_Vmovmskps_r32_xmm),
            Op::XvmskltzD => self.lane_sign_mask(i, Code::VEX_Vmovmskpd_r32_xmm),
            Op::XvextrinsD | Op::XvextrinsW | Op::XvextrinsH => return self.insert_in_halves(i),
            Op::XvfcvtlDS => self.widen_floats(i, Code::VEX_Vcvtps2pd_ymm_xmmm128),
            Op::XvffintlDW => self.widen_floats(i, Code::VEX_Vcvtdq2pd_ymm_xmmm128),
            Op::XvfcvtSD => self.narrow_doubles(i),
            _ => return false,
        }
        true
    }

    fn permute_halves(&mut self, i: &Instruction) {
        let from = self.read_vector(i.j, A, true);
        let old = self.vector_source(i.d, true);
        let to = wide(self.vector_target(i.d, A));
        self.a.op4(Code::VEX_Vperm2i128_ymm_ymm_ymmm256_imm8, to, from, old, i.imm & 0x33);
        self.write_vector(i.d, to, true);
    }

    /// Extracts an element of a 256-bit register into `to`; `count` is the number of elements in each half.
    fn pick_wide(&mut self, i: &Instruction, count: i32, code: Code, to: Register) {
        let mut from = self.read_vector(i.j, A, true);
        if i.imm >= count {
            self.a.op3(Code::VEX_Vextracti128_xmmm128_ymm_imm8, A, from, 1);
            from = wide(A);
        }
        let narrow = Register::XMM0 + (from as u32 - Register::YMM0 as u32);
        self.a.op3(code, to, narrow, i.imm % count);
    }

    /// Inserts a general register as an element of a 256-bit register; `count` is the number of elements in each half.
    fn insert_wide(&mut self, i: &Instruction, count: i32, code: Code) {
        let value = self.read(i.j, Register::RAX);
        let value = if count == 4 { low32(value) } else { value };
        let old = self.read_vector(i.d, A, true);
        let is_upper = i.imm >= count;
        if is_upper {
            self.a.op3(Code::VEX_Vextracti128_xmmm128_ymm_imm8, B, old, 1);
        } else {
            self.a.op2(MOVDQU.of(true), wide(B), old);
        }
        self.a.op4(code, B, B, value, i.imm % count);
        let to = wide(self.vector_target(i.d, A));
        let half = i32::from(is_upper);
        self.a.op4(Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8, to, old, B, half);
        self.write_vector(i.d, to, true);
    }

    /// Collects the highest bits of bytes: sixteen at the bottom of each half.
    fn byte_sign_mask(&mut self, i: &Instruction) {
        let from = self.read_vector(i.j, A, true);
        self.a.op2(Code::VEX_Vpmovmskb_r32_ymm, Register::EAX, from);
        self.a.op2(Code::VEX_Vmovd_xmm_rm32, A, Register::EAX);
        self.a.op2(Code::VEX_Vpmovzxwq_xmm_xmmm32, A, A);
        let to = wide(self.vector_target(i.d, A));
        self.a.op3(Code::VEX_Vpermq_ymm_ymmm256_imm8, to, wide(A), EXCHANGE_MIDDLE);
        self.write_vector(i.d, to, true);
    }

    /// Collects the highest bits of larger elements.
    fn lane_sign_mask(&mut self, i: &Instruction, code: Code) {
        let from = self.read_vector(i.j, A, true);
        self.a.op3(Code::VEX_Vextracti128_xmmm128_ymm_imm8, B, from, 1);
        let narrow = Register::XMM0 + (from as u32 - Register::YMM0 as u32);
        self.a.op2(code, Register::EAX, narrow);
        self.a.op2(Code::VEX_Vmovd_xmm_rm32, A, Register::EAX);
        self.a.op2(code, Register::EAX, B);
        self.a.op2(Code::VEX_Vmovd_xmm_rm32, B, Register::EAX);
        let to = wide(self.vector_target(i.d, A));
        self.a.op4(Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8, to, wide(A), B, 1);
        self.write_vector(i.d, to, true);
    }

    /// Replaces one element in each half of one register with an element of the same half of another.
    fn insert_in_halves(&mut self, i: &Instruction) -> bool {
        let bits = match i.op {
            Op::XvextrinsD => 1,
            Op::XvextrinsW => 3,
            _ => 7,
        };
        let (to_at, from_at) = (i.imm >> 4 & bits, i.imm & bits);
        if i.op == Op::XvextrinsH && to_at != from_at {
            return false;
        }
        let old = self.read_vector(i.d, A, true);
        let to = wide(self.vector_target(i.d, A));
        if i.op == Op::XvextrinsD {
            let from = self.read_vector(i.j, B, true);
            let (left, right, order) =
                if to_at == 0 { (from, old, from_at | 2) } else { (old, from, from_at << 1) };
            self.a.op4(SHUFPD.of(true), to, left, right, order * 5);
        } else if i.op == Op::XvextrinsH {
            let from = self.vector_source(i.j, true);
            self.a.op4(PBLENDW.of(true), to, old, from, 1 << to_at);
        } else {
            let from = self.vector_source(i.j, true);
            self.a.op3(PSHUFD.of(true), wide(B), from, from_at * 0x55);
            self.a.op4(PBLENDD.of(true), to, old, wide(B), 0x11 << to_at);
        }
        self.write_vector(i.d, to, true);
        true
    }

    /// Widens the lower floating-point numbers of each half.
    fn widen_floats(&mut self, i: &Instruction, code: Code) {
        let from = self.vector_source(i.j, true);
        self.a.op3(Code::VEX_Vpermq_ymm_ymmm256_imm8, wide(A), from, EXCHANGE_MIDDLE);
        let to = wide(self.vector_target(i.d, A));
        self.a.op2(code, to, A);
        self.write_vector(i.d, to, true);
    }

    /// Narrows the doubles of k and j in each half.
    fn narrow_doubles(&mut self, i: &Instruction) {
        let k = self.vector_source(i.k, true);
        self.a.op2(Code::VEX_Vcvtpd2ps_xmm_ymmm256, A, k);
        let j = self.vector_source(i.j, true);
        self.a.op2(Code::VEX_Vcvtpd2ps_xmm_ymmm256, B, j);
        let to = wide(self.vector_target(i.d, A));
        self.a.op4(Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8, wide(A), wide(A), B, 1);
        self.a.op3(Code::VEX_Vpermq_ymm_ymmm256_imm8, to, wide(A), EXCHANGE_MIDDLE);
        self.write_vector(i.d, to, true);
    }
}
