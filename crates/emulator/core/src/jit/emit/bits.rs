//! Emits shifts, bit fields, bit counts, byte order and CRC operations. Source: LoongArch Reference Manual, volume 1,
//! sections 2.2.3, 2.2.4 and 2.2.9; CRC-32 by Barrett reduction after Gopal et al., "Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ" (Intel, 2009).

use std::mem::offset_of;

use iced_x86::{Code, Register};
use longma_loongarch::{Instruction, Op};

use super::{Arg, Emitter};
use crate::{
    cpu::Cpu,
    jit::{
        registers::{low8, low16, low32},
        trampolines::field,
    },
};

impl Emitter<'_> {
    /// Emits a bit operation. Returns false for other instructions.
    pub(super) fn bits(&mut self, i: &Instruction) -> bool {
        if i.d == 0 {
            return false;
        }
        match i.op {
            Op::SllD => self.shift(i, Code::VEX_Shlx_r64_rm64_r64, true),
            Op::SrlD => self.shift(i, Code::VEX_Shrx_r64_rm64_r64, true),
            Op::SraD => self.shift(i, Code::VEX_Sarx_r64_rm64_r64, true),
            Op::SllW => self.shift(i, Code::VEX_Shlx_r32_rm32_r32, false),
            Op::SrlW => self.shift(i, Code::VEX_Shrx_r32_rm32_r32, false),
            Op::SraW => self.shift(i, Code::VEX_Sarx_r32_rm32_r32, false),
            Op::RotrD => self.rotate(i, true),
            Op::RotrW => self.rotate(i, false),
            Op::SlliD => self.shift_constant(i, Code::Shl_rm64_imm8),
            Op::SrliD => self.shift_constant(i, Code::Shr_rm64_imm8),
            Op::SraiD => self.shift_constant(i, Code::Sar_rm64_imm8),
            Op::RotriD => self.rotate_constant(i),
            Op::SlliW => self.shift_constant_narrow(i, Code::Shl_rm32_imm8),
            Op::SrliW => self.shift_constant_narrow(i, Code::Shr_rm32_imm8),
            Op::SraiW => self.shift_constant_narrow(i, Code::Sar_rm32_imm8),
            Op::RotriW => self.rotate_constant_narrow(i),
            Op::ExtWB => self.extend(i, Code::Movsx_r64_rm8, low8),
            Op::ExtWH => self.extend(i, Code::Movsx_r64_rm16, low16),
            Op::BstrpickD => self.pick(i, true),
            Op::BstrpickW => self.pick(i, false),
            Op::BstrinsD => self.insert(i, true),
            Op::BstrinsW => self.insert(i, false),
            Op::ClzD => self.count_bits(i, Code::Lzcnt_r64_rm64, true, false),
            Op::ClzW => self.count_bits(i, Code::Lzcnt_r32_rm32, false, false),
            Op::CtzD => self.count_bits(i, Code::Tzcnt_r64_rm64, true, false),
            Op::CtzW => self.count_bits(i, Code::Tzcnt_r32_rm32, false, false),
            Op::CloD => self.count_bits(i, Code::Lzcnt_r64_rm64, true, true),
            Op::CloW => self.count_bits(i, Code::Lzcnt_r32_rm32, false, true),
            Op::CtoD => self.count_bits(i, Code::Tzcnt_r64_rm64, true, true),
            Op::CtoW => self.count_bits(i, Code::Tzcnt_r32_rm32, false, true),
            Op::RevbD => self.reverse_bytes(i, Code::Bswap_r64, None),
            Op::Revb2w => self.reverse_bytes(i, Code::Bswap_r64, Some(Code::Ror_rm64_imm8)),
            Op::Revb2h => self.reverse_halfword_bytes(i),
            Op::BytepickD => self.pick_bytes(i, true),
            Op::BytepickW => self.pick_bytes(i, false),
            Op::CrcWBW => self.crc_ieee(i, 8),
            Op::CrcWHW => self.crc_ieee(i, 16),
            Op::CrcWWW => self.crc_ieee(i, 32),
            Op::CrcWDW => self.crc_ieee(i, 64),
            Op::CrccWBW => self.crc(i, Code::Crc32_r32_rm8, low8),
            Op::CrccWHW => self.crc(i, Code::Crc32_r32_rm16, low16),
            Op::CrccWWW => self.crc(i, Code::Crc32_r32_rm32, low32),
            Op::CrccWDW => self.crc(i, Code::Crc32_r64_rm64, |r| r),
            _ => return false,
        }
        true
    }

    fn shift(&mut self, i: &Instruction, code: Code, wide: bool) {
        let count = self.read(i.k, Register::RCX);
        let from = if i.j == 0 { Arg::Reg(self.read(0, Register::RAX)) } else { self.sized(i.j, wide) };
        let to = self.target(i.d, Register::RAX);
        if wide {
            self.a.op3(code, to, from, count);
            self.write(i.d, to);
        } else {
            let from = if i.j == 0 { Arg::Reg(Register::EAX) } else { from };
            self.a.op3(code, Register::EAX, from, low32(count));
            self.write_sign_extended(i.d, Register::RAX);
        }
    }

    fn rotate(&mut self, i: &Instruction, wide: bool) {
        self.copy(Register::RCX, i.k);
        self.copy(Register::RAX, i.j);
        if wide {
            self.a.op2(Code::Ror_rm64_CL, Register::RAX, Register::CL);
            self.write(i.d, Register::RAX);
        } else {
            self.a.op2(Code::Ror_rm32_CL, Register::EAX, Register::CL);
            self.write_sign_extended(i.d, Register::RAX);
        }
    }

    fn shift_constant(&mut self, i: &Instruction, code: Code) {
        let to = self.target(i.d, Register::RAX);
        self.copy(to, i.j);
        if i.imm != 0 {
            self.a.op2(code, to, i.imm);
        }
        self.write(i.d, to);
    }

    fn shift_constant_narrow(&mut self, i: &Instruction, code: Code) {
        let to = self.target(i.d, Register::RAX);
        let from = if i.j == 0 { Arg::Reg(low32(self.read(0, Register::RAX))) } else { self.source32(i.j) };
        if i.imm == 0 || code == Code::Sar_rm32_imm8 {
            self.a.op2(Code::Movsxd_r64_rm32, to, from);
            if i.imm != 0 {
                self.a.op2(Code::Sar_rm64_imm8, to, i.imm);
            }
            self.write(i.d, to);
            return;
        }
        if self.host_of(i.j) != Some(to) {
            self.a.op2(Code::Mov_r32_rm32, low32(to), from);
        }
        self.a.op2(code, low32(to), i.imm);
        if code == Code::Shr_rm32_imm8 {
            self.write(i.d, to);
        } else {
            self.write_sign_extended(i.d, to);
        }
    }

    fn rotate_constant(&mut self, i: &Instruction) {
        let from = if i.j == 0 { Arg::Reg(self.read(0, Register::RAX)) } else { self.source(i.j) };
        let to = self.target(i.d, Register::RAX);
        self.a.op3(Code::VEX_Rorx_r64_rm64_imm8, to, from, i.imm);
        self.write(i.d, to);
    }

    fn rotate_constant_narrow(&mut self, i: &Instruction) {
        let from = self.part_of(i.j, low32);
        let to = self.target(i.d, Register::RAX);
        self.a.op3(Code::VEX_Rorx_r32_rm32_imm8, low32(to), from, i.imm);
        self.write_sign_extended(i.d, to);
    }

    /// The low part of guest register `j` as an operand: `part` of its host register, or its memory.
    fn part_of(&mut self, j: u8, part: fn(Register) -> Register) -> Arg {
        match self.host_of(j) {
            Some(host) => Arg::Reg(part(host)),
            None if j == 0 => Arg::Reg(part(self.read(0, Register::RAX))),
            None => self.source(j),
        }
    }

    fn extend(&mut self, i: &Instruction, code: Code, part: fn(Register) -> Register) {
        let from = self.part_of(i.j, part);
        let to = self.target(i.d, Register::RAX);
        self.a.op2(code, to, from);
        self.write(i.d, to);
    }

    fn pick(&mut self, i: &Instruction, wide: bool) {
        let (high, low) = (i.imm, i.imm2);
        let to = self.target(i.d, Register::RAX);
        match (high, low) {
            (31, 0) if !wide => {
                let from = self.part_of(i.j, low32);
                self.a.op2(Code::Movsxd_r64_rm32, to, from);
            }
            (31, 0) => {
                let from = self.part_of(i.j, low32);
                self.a.op2(Code::Mov_r32_rm32, low32(to), from);
            }
            (15, 0) => {
                let from = self.part_of(i.j, low16);
                self.a.op2(Code::Movzx_r32_rm16, low32(to), from);
            }
            (7, 0) => {
                let from = self.part_of(i.j, low8);
                self.a.op2(Code::Movzx_r32_rm8, low32(to), from);
            }
            _ if high < low => {
                self.call_interpreter(i);
                return;
            }
            _ if high < 31 && low == 0 => {
                self.copy_word(to, i.j);
                self.a.op2(Code::And_rm32_imm32, low32(to), (1i32 << (high + 1)).wrapping_sub(1));
            }
            _ if high == 31 => {
                self.copy_word(to, i.j);
                self.a.op2(Code::Shr_rm32_imm8, low32(to), low);
            }
            _ => {
                self.copy(to, i.j);
                if high != 63 {
                    self.a.op2(Code::Shl_rm64_imm8, to, 63 - high);
                }
                self.a.op2(Code::Shr_rm64_imm8, to, 63 - high + low);
            }
        }
        self.write(i.d, to);
    }

    /// Copies the low word of guest register `j`. The following operation clears the upper bits.
    fn copy_word(&mut self, to: Register, j: u8) {
        if self.host_of(j) != Some(to) {
            let from = self.part_of(j, low32);
            self.a.op2(Code::Mov_r32_rm32, low32(to), from);
        }
    }

    fn insert(&mut self, i: &Instruction, wide: bool) {
        let (high, low) = (i.imm, i.imm2);
        if high < low {
            self.call_interpreter(i);
            return;
        }
        let width = high - low + 1;
        let field = (u64::MAX >> (64 - width)) << low;
        self.copy(Register::RAX, i.j);
        if i.j != 0 {
            self.a.op2(Code::Shl_rm64_imm8, Register::RAX, 64 - width);
            if 64 - width - low != 0 {
                self.a.op2(Code::Shr_rm64_imm8, Register::RAX, 64 - width - low);
            }
        }
        self.load_constant(Register::RCX, !field);
        let old = self.source(i.d);
        self.a.op2(Code::And_r64_rm64, Register::RCX, old);
        self.a.op2(Code::Or_r64_rm64, Register::RAX, Register::RCX);
        if wide {
            self.write(i.d, Register::RAX);
        } else {
            self.write_sign_extended(i.d, Register::RAX);
        }
    }

    fn count_bits(&mut self, i: &Instruction, code: Code, wide: bool, ones: bool) {
        self.copy(Register::RAX, i.j);
        if ones {
            self.a.op1(Code::Not_rm64, Register::RAX);
        }
        let register = if wide { Register::RAX } else { Register::EAX };
        self.a.op2(code, register, register);
        self.write(i.d, Register::RAX);
    }

    fn reverse_bytes(&mut self, i: &Instruction, code: Code, then_rotate: Option<Code>) {
        self.copy(Register::RAX, i.j);
        self.a.op1(code, Register::RAX);
        if let Some(rotate) = then_rotate {
            self.a.op2(rotate, Register::RAX, 32);
        }
        self.write(i.d, Register::RAX);
    }

    fn reverse_halfword_bytes(&mut self, i: &Instruction) {
        self.copy(Register::RAX, i.j);
        self.a.op1(Code::Bswap_r32, Register::EAX);
        self.a.op2(Code::Ror_rm32_imm8, Register::EAX, 16);
        self.write_sign_extended(i.d, Register::RAX);
    }

    fn pick_bytes(&mut self, i: &Instruction, wide: bool) {
        self.copy(Register::RAX, i.k);
        self.copy(Register::RCX, i.j);
        let bits = 8 * i.imm;
        if wide {
            if bits != 0 {
                self.a.op3(Code::Shld_rm64_r64_imm8, Register::RAX, Register::RCX, bits);
            }
            self.write(i.d, Register::RAX);
        } else {
            if bits != 0 {
                self.a.op3(Code::Shld_rm32_r32_imm8, Register::EAX, Register::ECX, bits);
            }
            self.write_sign_extended(i.d, Register::RAX);
        }
    }

    /// `d = crc32c(k, j)`. The host's instruction uses the same polynomial and bit order.
    fn crc(&mut self, i: &Instruction, code: Code, part: fn(Register) -> Register) {
        self.copy(Register::RAX, i.k);
        self.copy(Register::RCX, i.j);
        let accumulator = if code == Code::Crc32_r64_rm64 {
            // The 64-bit form requires the upper half of the accumulator to be clear.
            self.a.op2(Code::Mov_r32_rm32, Register::EAX, Register::EAX);
            Register::RAX
        } else {
            Register::EAX
        };
        self.a.op2(code, accumulator, part(Register::RCX));
        self.write_sign_extended(i.d, Register::RAX);
    }

    /// `d = crc32(k, j)` over the low `bits` of j.
    fn crc_ieee(&mut self, i: &Instruction, bits: i32) {
        self.copy(Register::RAX, i.k);
        self.copy(Register::RCX, i.j);
        if bits == 64 {
            self.a.op2(Code::Xor_r32_rm32, Register::EAX, Register::ECX);
            self.reduce_crc();
            self.a.op2(Code::Shr_rm64_imm8, Register::RCX, 32);
        }
        if bits >= 32 {
            self.a.op2(Code::Xor_r32_rm32, Register::EAX, Register::ECX);
            self.reduce_crc();
        } else {
            // Reduce the bits that are shifted out at the low end, and shift the others down.
            self.a.op2(Code::Xor_r32_rm32, Register::ECX, Register::EAX);
            self.a.op2(Code::Mov_r32_rm32, Register::EDX, Register::EAX);
            self.a.op2(Code::Mov_r32_rm32, Register::EAX, Register::ECX);
            self.a.op2(Code::Shl_rm32_imm8, Register::EAX, 32 - bits);
            self.reduce_crc();
            self.a.op2(Code::Shr_rm32_imm8, Register::EDX, bits);
            self.a.op2(Code::Xor_r32_rm32, Register::EAX, Register::EDX);
        }
        self.write_sign_extended(i.d, Register::RAX);
    }

    /// Multiplies EAX by x^32 modulo the polynomial, in the bit order of the CRC.
    fn reduce_crc(&mut self) {
        // Immediates that select a half of the constants.
        const QUOTIENT: i32 = 0x00;
        const POLYNOMIAL: i32 = 0x10;
        let constants = field(offset_of!(Cpu, crc_constants));
        let code = Code::VEX_Vpclmulqdq_xmm_xmm_xmmm128_imm8;
        self.a.op2(Code::VEX_Vmovd_xmm_rm32, Register::XMM0, Register::EAX);
        self.a.op4(code, Register::XMM0, Register::XMM0, constants, QUOTIENT);
        self.a.op2(Code::VEX_Vpmovzxdq_xmm_xmmm64, Register::XMM0, Register::XMM0);
        self.a.op4(code, Register::XMM0, Register::XMM0, constants, POLYNOMIAL);
        self.a.op3(Code::VEX_Vpextrd_rm32_xmm_imm8, Register::EAX, Register::XMM0, 1);
    }
}
