//! Emits loads, stores and barriers. Source: LoongArch Reference Manual, volume 1, sections 2.2.6 and 2.2.8; Linux
//! arch/loongarch/include/asm/barrier.h for the hints of `dbar`.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::{Instruction, Op};

use super::{Condition, Emitter};
use crate::{
    cpu::Cpu,
    jit::{
        registers::{low8, low16, low32, wide},
        trampolines::field,
    },
};

impl Emitter<'_> {
    /// Emits a load, a store or a barrier. Returns false for other instructions.
    pub(super) fn memory(&mut self, i: &Instruction) -> bool {
        match i.op {
            Op::LdB | Op::LdxB => self.load(i, Code::Movsx_r64_rm8),
            Op::LdH | Op::LdxH => self.load(i, Code::Movsx_r64_rm16),
            Op::LdW | Op::LdxW | Op::LdptrW => self.load(i, Code::Movsxd_r64_rm32),
            Op::LdD | Op::LdxD | Op::LdptrD => self.load(i, Code::Mov_r64_rm64),
            Op::LdBu | Op::LdxBu => self.load(i, Code::Movzx_r32_rm8),
            Op::LdHu | Op::LdxHu => self.load(i, Code::Movzx_r32_rm16),
            Op::LdWu | Op::LdxWu => self.load(i, Code::Mov_r32_rm32),
            Op::StB | Op::StxB => self.store(i, Code::Mov_rm8_r8, low8),
            Op::StH | Op::StxH => self.store(i, Code::Mov_rm16_r16, low16),
            Op::StW | Op::StxW | Op::StptrW => self.store(i, Code::Mov_rm32_r32, low32),
            Op::StD | Op::StxD | Op::StptrD => self.store(i, Code::Mov_rm64_r64, |r| r),
            Op::FldS | Op::FldxS => self.load_vector(i, Code::VEX_Vmovss_xmm_m32, |r| r),
            Op::FldD | Op::FldxD => self.load_vector(i, Code::VEX_Vmovsd_xmm_m64, |r| r),
            Op::FstS | Op::FstxS => self.store_vector(i, Code::VEX_Vmovss_m32_xmm, |r| r),
            Op::FstD | Op::FstxD => self.store_vector(i, Code::VEX_Vmovsd_m64_xmm, |r| r),
            Op::Vld | Op::Vldx => self.load_vector(i, Code::VEX_Vmovdqu_xmm_xmmm128, |r| r),
            Op::Vst | Op::Vstx => self.store_vector(i, Code::VEX_Vmovdqu_xmmm128_xmm, |r| r),
            Op::Xvld | Op::Xvldx => self.load_vector(i, Code::VEX_Vmovdqu_ymm_ymmm256, wide),
            Op::Xvst | Op::Xvstx => self.store_vector(i, Code::VEX_Vmovdqu_ymmm256_ymm, wide),
            Op::VldAligned | Op::VldxAligned => {
                self.load_vector(i, Code::VEX_Vmovaps_xmm_xmmm128, |r| r);
            }
            Op::VstAligned | Op::VstxAligned => {
                self.store_vector(i, Code::VEX_Vmovaps_xmmm128_xmm, |r| r);
            }
            Op::XvldAligned | Op::XvldxAligned => self.load_vector(i, Code::VEX_Vmovaps_ymm_ymmm256, wide),
            Op::XvstAligned | Op::XvstxAligned => self.store_vector(i, Code::VEX_Vmovaps_ymmm256_ymm, wide),
            Op::LdHuAligned => self.load_aligned(i, 2, Code::Movzx_r32_rm16),
            Op::LdWuAligned => self.load_aligned(i, 4, Code::Mov_r32_rm32),
            Op::LdDAligned => self.load_aligned(i, 8, Code::Mov_r64_rm64),
            Op::VldreplD => self.load_vector(i, Code::VEX_Vmovddup_xmm_xmmm64, |r| r),
            Op::VldreplW => self.load_vector(i, Code::VEX_Vbroadcastss_xmm_m32, |r| r),
            Op::VldreplH => self.load_vector(i, Code::VEX_Vpbroadcastw_xmm_xmmm16, |r| r),
            Op::VldreplB => self.load_vector(i, Code::VEX_Vpbroadcastb_xmm_xmmm8, |r| r),
            Op::XvldreplD => self.load_vector(i, Code::VEX_Vbroadcastsd_ymm_m64, wide),
            Op::XvldreplW => self.load_vector(i, Code::VEX_Vbroadcastss_ymm_m32, wide),
            Op::XvldreplH => self.load_vector(i, Code::VEX_Vpbroadcastw_ymm_xmmm16, wide),
            Op::XvldreplB => self.load_vector(i, Code::VEX_Vpbroadcastb_ymm_xmmm8, wide),
            Op::Preld | Op::Preldx => {}
            Op::Dbar => self.barrier(i),
            _ => return false,
        }
        true
    }

    /// The memory operand of an instruction with address `j + imm` or `j + k`. Emits a range check that branches out of
    /// line for addresses outside the guest's range, so that translated code never accesses host memory.
    fn address(&mut self, i: &Instruction) -> MemoryOperand {
        let indexed = i.op.row().operands.len() == 3 && i.op.row().operands[2] == INDEX_OPERAND;
        if indexed {
            let (j, k) = (self.read(i.j, Register::RCX), self.read(i.k, Register::RDX));
            // The check computes the sum separately, so the access need not wait for it.
            self.a.op2(Code::Lea_r64_m, Register::RAX, MemoryOperand::with_base_index(j, k));
            self.check_range(Register::RAX);
            let segment = if self.based { Register::GS } else { Register::None };
            return MemoryOperand::new(j, k, 1, 0, 0, false, segment);
        }
        let base = self.read(i.j, Register::RCX);
        if self.in_range[usize::from(i.j)].is_none() {
            self.check_range(base);
            self.in_range[usize::from(i.j)] = Some(0);
        }
        self.guest_memory(base, i64::from(i.imm))
    }

    /// The operand for guest memory at a host register plus a displacement.
    pub(super) fn guest_memory(&self, base: Register, displacement: i64) -> MemoryOperand {
        let size = u32::from(displacement != 0);
        let segment = if self.based { Register::GS } else { Register::None };
        MemoryOperand::new(base, Register::None, 1, displacement, size, false, segment)
    }

    /// Passes the instruction to the run loop if the guest address in `base` is out of range.
    pub(super) fn check_range(&mut self, base: Register) {
        let label = self.interpret_label();
        self.a.op2(Code::Cmp_r64_rm64, base, field(offset_of!(Cpu, limit)));
        self.a.jump_if(Condition::AboveOrEqual, label);
    }

    /// Emits a load. If the address is not a multiple of `bytes`, the run loop executes the instruction. The host has
    /// no loads of general registers that fault at such addresses; for vector registers, MOVAPS does.
    fn load_aligned(&mut self, i: &Instruction, bytes: i32, code: Code) {
        let memory = self.address(i);
        let misaligned = self.interpret_label();
        self.a.op2(Code::Test_rm32_imm32, low32(memory.base), bytes - 1);
        self.a.jump_if(Condition::NotEqual, misaligned);
        self.load_from(i, code, memory);
    }

    fn load(&mut self, i: &Instruction, code: Code) {
        let memory = self.address(i);
        self.load_from(i, code, memory);
    }

    fn load_from(&mut self, i: &Instruction, code: Code, memory: MemoryOperand) {
        let to = self.target(i.d, Register::RAX);
        let narrow = matches!(code, Code::Movzx_r32_rm8 | Code::Movzx_r32_rm16 | Code::Mov_r32_rm32);
        self.a.op2(code, if narrow { low32(to) } else { to }, memory);
        self.write(i.d, to);
    }

    fn store(&mut self, i: &Instruction, code: Code, part: fn(Register) -> Register) {
        let memory = self.address(i);
        let value = self.read(i.d, Register::RAX);
        self.a.op2(code, memory, part(value));
    }

    fn load_vector(&mut self, i: &Instruction, code: Code, form: fn(Register) -> Register) {
        let memory = self.address(i);
        let to = self.vector_target(i.d, Register::XMM0);
        self.a.op2(code, form(to), memory);
        match form(to) {
            register if register.is_ymm() => self.vector_write_wide(i.d, to),
            _ if matches!(i.op, Op::FldS | Op::FldxS | Op::FldD | Op::FldxD) => self.scalar_write(i.d, to),
            _ => self.vector_write(i.d, to),
        }
    }

    fn store_vector(&mut self, i: &Instruction, code: Code, form: fn(Register) -> Register) {
        let memory = self.address(i);
        let value = match form(Register::XMM0) {
            register if register.is_ymm() => self.vector_read_wide(i.d, Register::XMM0),
            _ if matches!(i.op, Op::FstS | Op::FstxS | Op::FstD | Op::FstxD) => {
                self.scalar_read(i.d, Register::XMM0)
            }
            _ => self.vector_read(i.d, Register::XMM0),
        };
        self.a.op2(code, memory, form(value));
    }

    /// Emits `dbar`. x86-64 preserves every order except that of a store before a later load, so a fence is needed only
    /// if the hint requires that order.
    fn barrier(&mut self, i: &Instruction) {
        const EARLIER_STORES: i32 = 1 << 2;
        const LATER_LOADS: i32 = 1 << 1;
        // 0x700 orders loads of one address, which x86-64 always does. In other hints, a bit that is 0 requests the
        // ordering.
        let needs_fence = i.imm != 0x700 && i.imm & (EARLIER_STORES | LATER_LOADS) == 0;
        if needs_fence {
            // A locked operation on a cached line orders like MFENCE and costs half as much.
            let top = MemoryOperand::with_base(Register::RSP);
            self.a.op2(Code::Xor_r32_rm32, Register::ECX, Register::ECX);
            self.a.locked(Code::Or_rm32_r32, top, Register::ECX);
        }
    }
}

pub(super) const INDEX_OPERAND: longma_loongarch::Operand =
    longma_loongarch::Operand::Register(longma_loongarch::RegisterKind::General, 10);
