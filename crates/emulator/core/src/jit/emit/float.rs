//! Emits scalar floating-point operations. The interpreter executes the rare ones (scale, exponent, classify,
//! reciprocal square root) and moves to and from FCSR. Source: LoongArch Reference Manual, volume 1, chapter 3.
//!
//! Host results differ from LoongArch only for signalling NaN operands and invalid operations. Both trap on the host
//! (see `GUEST_MXCSR`), and the interpreter then executes the instruction. Fused operations with several NaN operands
//! may also return a different one, so the emitted code checks for NaNs.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::{Instruction, Op};

use super::{Arg, Condition, Emitter, control::condition_flag};
use crate::{
    cpu::{Cpu, SignMasks},
    jit::{
        registers::{VECTOR_HOSTS, low8, low32, wide},
        trampolines::{field, vector_slot},
    },
};

const SCRATCH: Register = Register::XMM0;
const SCRATCH2: Register = Register::XMM1;

/// The memory operand with the sign-bit mask of a precision.
fn sign_bits(single: bool) -> MemoryOperand {
    let offset = if single { offset_of!(SignMasks, single) } else { offset_of!(SignMasks, double) };
    field(offset_of!(Cpu, sign_masks) + offset)
}

fn one(single: bool) -> MemoryOperand {
    let offset = if single { offset_of!(SignMasks, one_single) } else { offset_of!(SignMasks, one_double) };
    field(offset_of!(Cpu, sign_masks) + offset)
}

impl Emitter<'_> {
    /// Emits a scalar floating-point instruction. Returns false for other instructions.
    pub(super) fn float(&mut self, i: &Instruction) -> bool {
        match i.op {
            Op::FaddD => self.scalar(i, Code::VEX_Vaddsd_xmm_xmm_xmmm64),
            Op::FsubD => self.scalar(i, Code::VEX_Vsubsd_xmm_xmm_xmmm64),
            Op::FmulD => self.scalar(i, Code::VEX_Vmulsd_xmm_xmm_xmmm64),
            Op::FdivD => self.scalar(i, Code::VEX_Vdivsd_xmm_xmm_xmmm64),
            Op::FaddS => self.scalar(i, Code::VEX_Vaddss_xmm_xmm_xmmm32),
            Op::FsubS => self.scalar(i, Code::VEX_Vsubss_xmm_xmm_xmmm32),
            Op::FmulS => self.scalar(i, Code::VEX_Vmulss_xmm_xmm_xmmm32),
            Op::FdivS => self.scalar(i, Code::VEX_Vdivss_xmm_xmm_xmmm32),
            Op::FsqrtD => self.scalar_unary(i, Code::VEX_Vsqrtsd_xmm_xmm_xmmm64),
            Op::FsqrtS => self.scalar_unary(i, Code::VEX_Vsqrtss_xmm_xmm_xmmm32),
            Op::FrecipD => self.reciprocal(i, Code::VEX_Vdivsd_xmm_xmm_xmmm64, false),
            Op::FrecipS => self.reciprocal(i, Code::VEX_Vdivss_xmm_xmm_xmmm32, true),
            Op::FcvtSD => self.scalar_unary(i, Code::VEX_Vcvtsd2ss_xmm_xmm_xmmm64),
            Op::FcvtDS => self.scalar_unary(i, Code::VEX_Vcvtss2sd_xmm_xmm_xmmm32),
            Op::FmaddD => self.fused_multiply(i, Code::VEX_Vfmadd213sd_xmm_xmm_xmmm64, false, false),
            Op::FmaddS => self.fused_multiply(i, Code::VEX_Vfmadd213ss_xmm_xmm_xmmm32, true, false),
            Op::FmsubD => self.fused_multiply(i, Code::VEX_Vfmsub213sd_xmm_xmm_xmmm64, false, false),
            Op::FmsubS => self.fused_multiply(i, Code::VEX_Vfmsub213ss_xmm_xmm_xmmm32, true, false),
            Op::FnmaddD => self.fused_multiply(i, Code::VEX_Vfmadd213sd_xmm_xmm_xmmm64, false, true),
            Op::FnmaddS => self.fused_multiply(i, Code::VEX_Vfmadd213ss_xmm_xmm_xmmm32, true, true),
            Op::FnmsubD => self.fused_multiply(i, Code::VEX_Vfmsub213sd_xmm_xmm_xmmm64, false, true),
            Op::FnmsubS => self.fused_multiply(i, Code::VEX_Vfmsub213ss_xmm_xmm_xmmm32, true, true),
            Op::FabsD => self.sign(i, Code::VEX_Vandnpd_xmm_xmm_xmmm128, false),
            Op::FabsS => self.sign(i, Code::VEX_Vandnps_xmm_xmm_xmmm128, true),
            Op::FnegD => self.sign(i, Code::VEX_Vxorpd_xmm_xmm_xmmm128, false),
            Op::FnegS => self.sign(i, Code::VEX_Vxorps_xmm_xmm_xmmm128, true),
            Op::FcopysignD => self.copy_sign(i, false),
            Op::FcopysignS => self.copy_sign(i, true),
            Op::FmaxD => self.extreme(i, Code::VEX_Vmaxsd_xmm_xmm_xmmm64, false, true),
            Op::FmaxS => self.extreme(i, Code::VEX_Vmaxss_xmm_xmm_xmmm32, true, true),
            Op::FminD => self.extreme(i, Code::VEX_Vminsd_xmm_xmm_xmmm64, false, false),
            Op::FminS => self.extreme(i, Code::VEX_Vminss_xmm_xmm_xmmm32, true, false),
            Op::FmovD | Op::FmovS => self.move_float(i),
            Op::Fsel => self.select(i),
            Op::Movgr2frD => self.move_from_general(i, true),
            Op::Movgr2frW => self.move_from_general(i, false),
            Op::Movfr2grD => self.move_to_general(i, true),
            Op::Movfr2grS => self.move_to_general(i, false),
            Op::Movfr2cf | Op::Movcf2fr => return false,
            Op::Movcf2gr => self.flag_to_general(i),
            Op::Movgr2cf => self.general_to_flag(i),
            Op::FfintDL => self.convert_from_integer(i, Code::VEX_Vcvtsi2sd_xmm_xmm_rm64, true),
            Op::FfintDW => self.convert_from_integer(i, Code::VEX_Vcvtsi2sd_xmm_xmm_rm32, false),
            Op::FfintSL => self.convert_from_integer(i, Code::VEX_Vcvtsi2ss_xmm_xmm_rm64, true),
            Op::FfintSW => self.convert_from_integer(i, Code::VEX_Vcvtsi2ss_xmm_xmm_rm32, false),
            Op::FtintrzLD => self.convert_to_integer(i, Code::VEX_Vcvttsd2si_r64_xmmm64, true),
            Op::FtintrzWD => self.convert_to_integer(i, Code::VEX_Vcvttsd2si_r32_xmmm64, false),
            Op::FtintrzLS => self.convert_to_integer(i, Code::VEX_Vcvttss2si_r64_xmmm32, true),
            Op::FtintrzWS => self.convert_to_integer(i, Code::VEX_Vcvttss2si_r32_xmmm32, false),
            Op::FtintLD => self.convert_to_integer(i, Code::VEX_Vcvtsd2si_r64_xmmm64, true),
            Op::FtintWD => self.convert_to_integer(i, Code::VEX_Vcvtsd2si_r32_xmmm64, false),
            Op::FtintLS => self.convert_to_integer(i, Code::VEX_Vcvtss2si_r64_xmmm32, true),
            Op::FtintWS => self.convert_to_integer(i, Code::VEX_Vcvtss2si_r32_xmmm32, false),
            Op::FrintD => self.round(i, Code::VEX_Vroundsd_xmm_xmm_xmmm64_imm8),
            Op::FrintS => self.round(i, Code::VEX_Vroundss_xmm_xmm_xmmm32_imm8),
            _ => return self.float_compare(i).is_some(),
        }
        true
    }

    // Registers.

    fn vector_host(&self, number: u8) -> Option<Register> {
        self.allocation.vector_host[usize::from(number)].map(|index| VECTOR_HOSTS[usize::from(index)])
    }

    /// Returns the host register with the low 64 bits of a vector register, or loads them into `scratch` if the
    /// register has no host register.
    pub(super) fn scalar_read(&mut self, number: u8, scratch: Register) -> Register {
        self.vector_host(number).unwrap_or_else(|| {
            self.a.op2(Code::VEX_Vmovsd_xmm_m64, scratch, vector_slot(number));
            scratch
        })
    }

    /// The register as a source operand of at most 64 bits: its host register or its memory slot.
    fn scalar_source(&self, number: u8) -> Arg {
        self.vector_host(number).map_or_else(|| vector_slot(number).into(), Arg::Reg)
    }

    pub(super) fn scalar_write(&mut self, number: u8, value: Register) {
        match self.vector_host(number) {
            Some(host) if host == value => {}
            Some(host) => self.a.op2(Code::VEX_Vmovaps_xmm_xmmm128, host, value),
            None => self.a.op2(Code::VEX_Vmovsd_m64_xmm, vector_slot(number), value),
        }
    }

    pub(super) fn vector_target(&self, number: u8, scratch: Register) -> Register {
        self.vector_host(number).unwrap_or(scratch)
    }

    pub(super) fn vector_read(&mut self, number: u8, scratch: Register) -> Register {
        self.vector_host(number).unwrap_or_else(|| {
            self.a.op2(Code::VEX_Vmovdqu_xmm_xmmm128, scratch, vector_slot(number));
            scratch
        })
    }

    pub(super) fn vector_read_wide(&mut self, number: u8, scratch: Register) -> Register {
        self.vector_host(number).unwrap_or_else(|| {
            self.a.op2(Code::VEX_Vmovdqu_ymm_ymmm256, wide(scratch), vector_slot(number));
            scratch
        })
    }

    pub(super) fn vector_write(&mut self, number: u8, value: Register) {
        match self.vector_host(number) {
            Some(host) if host == value => {}
            Some(host) => self.a.op2(Code::VEX_Vmovdqa_xmm_xmmm128, host, value),
            None => self.a.op2(Code::VEX_Vmovdqu_xmmm128_xmm, vector_slot(number), value),
        }
    }

    pub(super) fn vector_write_wide(&mut self, number: u8, value: Register) {
        match self.vector_host(number) {
            Some(host) if host == value => {}
            Some(host) => self.a.op2(Code::VEX_Vmovdqa_ymm_ymmm256, wide(host), wide(value)),
            None => self.a.op2(Code::VEX_Vmovdqu_ymmm256_ymm, vector_slot(number), wide(value)),
        }
    }

    // Arithmetic.

    fn scalar(&mut self, i: &Instruction, code: Code) {
        let left = self.scalar_read(i.j, SCRATCH);
        let right = self.scalar_source(i.k);
        let to = self.vector_target(i.d, SCRATCH);
        self.a.op3(code, to, left, right);
        self.scalar_write(i.d, to);
    }

    fn scalar_unary(&mut self, i: &Instruction, code: Code) {
        let from = self.scalar_read(i.j, SCRATCH);
        let to = self.vector_target(i.d, SCRATCH);
        // The first source only fills the upper half. Using the same register avoids a dependency on another one.
        self.a.op3(code, to, from, from);
        self.scalar_write(i.d, to);
    }

    fn reciprocal(&mut self, i: &Instruction, code: Code, single: bool) {
        let load = if single { Code::VEX_Vmovss_xmm_m32 } else { Code::VEX_Vmovsd_xmm_m64 };
        self.a.op2(load, SCRATCH, one(single));
        let from = self.scalar_source(i.j);
        let to = self.vector_target(i.d, SCRATCH);
        self.a.op3(code, to, SCRATCH, from);
        self.scalar_write(i.d, to);
    }

    /// `d = ±(j * k ± a)`.
    fn fused_multiply(&mut self, i: &Instruction, code: Code, single: bool, negated: bool) {
        if self.origin.has_sse_rules && !negated {
            return self.fused_scalar_by_sse_rules(i, code);
        }
        let (slow, resume) = self.slow_path(i);
        let j = self.scalar_read(i.j, SCRATCH);
        if j != SCRATCH {
            self.a.op2(Code::VEX_Vmovaps_xmm_xmmm128, SCRATCH, j);
        }
        let k = self.scalar_read(i.k, SCRATCH2);
        let addend = self.scalar_source(i.a);
        self.a.op3(code, SCRATCH, k, addend);
        let compare = if single { Code::VEX_Vucomiss_xmm_xmmm32 } else { Code::VEX_Vucomisd_xmm_xmmm64 };
        self.a.op2(compare, SCRATCH, SCRATCH);
        self.a.jump_if(Condition::Parity, slow);
        if negated {
            let code =
                if single { Code::VEX_Vxorps_xmm_xmm_xmmm128 } else { Code::VEX_Vxorpd_xmm_xmm_xmmm128 };
            self.a.op3(code, SCRATCH, SCRATCH, sign_bits(single));
        }
        self.scalar_write(i.d, SCRATCH);
        self.a.place(resume);
    }

    /// `d = j * k ± a`. The host chooses the same NaN: that of its second operand, then its first, then its third.
    fn fused_scalar_by_sse_rules(&mut self, i: &Instruction, code: Code) {
        let k = self.scalar_read(i.k, SCRATCH);
        if k != SCRATCH {
            self.a.op2(Code::VEX_Vmovaps_xmm_xmmm128, SCRATCH, k);
        }
        let j = self.scalar_read(i.j, SCRATCH2);
        let addend = self.scalar_source(i.a);
        self.a.op3(code, SCRATCH, j, addend);
        self.scalar_write(i.d, SCRATCH);
    }

    fn sign(&mut self, i: &Instruction, code: Code, single: bool) {
        let load = if single { Code::VEX_Vmovaps_xmm_xmmm128 } else { Code::VEX_Vmovapd_xmm_xmmm128 };
        self.a.op2(load, SCRATCH, sign_bits(single));
        let from = self.scalar_read(i.j, SCRATCH2);
        let to = self.vector_target(i.d, SCRATCH);
        self.a.op3(code, to, SCRATCH, from);
        self.scalar_write(i.d, to);
    }

    fn copy_sign(&mut self, i: &Instruction, single: bool) {
        let mask = sign_bits(single);
        let k = self.scalar_read(i.k, SCRATCH);
        self.a.op3(Code::VEX_Vandps_xmm_xmm_xmmm128, SCRATCH, k, mask);
        self.a.op2(Code::VEX_Vmovaps_xmm_xmmm128, SCRATCH2, mask);
        let j = self.scalar_read(i.j, Register::XMM2);
        self.a.op3(Code::VEX_Vandnps_xmm_xmm_xmmm128, SCRATCH2, SCRATCH2, j);
        self.a.op3(Code::VEX_Vorps_xmm_xmm_xmmm128, SCRATCH, SCRATCH, SCRATCH2);
        self.scalar_write(i.d, SCRATCH);
    }

    /// The maximum or minimum. If an operand is NaN, the interpreter executes the instruction. The two zeros compare
    /// equal, so their sign bits are combined instead.
    fn extreme(&mut self, i: &Instruction, code: Code, single: bool, greater: bool) {
        let (slow, resume) = self.slow_path(i);
        let j = self.scalar_read(i.j, SCRATCH);
        let k = self.scalar_read(i.k, SCRATCH2);
        let compare = if single { Code::VEX_Vucomiss_xmm_xmmm32 } else { Code::VEX_Vucomisd_xmm_xmmm64 };
        self.a.op2(compare, j, k);
        self.a.jump_if(Condition::Parity, slow);
        let equal = self.a.label();
        let end = self.a.label();
        self.a.jump_if(Condition::Equal, equal);
        self.a.op3(code, SCRATCH, j, k);
        self.a.jump(end);
        self.a.place(equal);
        let merge = if greater { Code::VEX_Vandps_xmm_xmm_xmmm128 } else { Code::VEX_Vorps_xmm_xmm_xmmm128 };
        self.a.op3(merge, SCRATCH, j, k);
        self.a.place(end);
        self.scalar_write(i.d, SCRATCH);
        self.a.place(resume);
    }

    fn round(&mut self, i: &Instruction, code: Code) {
        const BY_MXCSR: i32 = 4;
        let from = self.scalar_read(i.j, SCRATCH);
        let to = self.vector_target(i.d, SCRATCH);
        self.a.op4(code, to, from, from, BY_MXCSR);
        self.scalar_write(i.d, to);
    }

    // Moves and conversions.

    fn move_float(&mut self, i: &Instruction) {
        let from = self.scalar_read(i.j, SCRATCH);
        self.scalar_write(i.d, from);
    }

    fn select(&mut self, i: &Instruction) {
        let j = self.scalar_read(i.j, SCRATCH);
        if j != SCRATCH {
            self.a.op2(Code::VEX_Vmovaps_xmm_xmmm128, SCRATCH, j);
        }
        let k = self.scalar_read(i.k, SCRATCH2);
        let end = self.a.label();
        self.a.op2(Code::Cmp_rm8_imm8, condition_flag(i.a), 0);
        self.a.jump_if(Condition::Equal, end);
        self.a.op2(Code::VEX_Vmovaps_xmm_xmmm128, SCRATCH, k);
        self.a.place(end);
        self.scalar_write(i.d, SCRATCH);
    }

    /// Moves a general register to a floating-point register. Without `doubleword`, bits 32 and above become undefined.
    fn move_from_general(&mut self, i: &Instruction, doubleword: bool) {
        let from = self.read(i.j, Register::RAX);
        match self.vector_host(i.d) {
            Some(to) if doubleword => self.a.op2(Code::VEX_Vmovq_xmm_rm64, to, from),
            Some(to) => self.a.op2(Code::VEX_Vmovd_xmm_rm32, to, low32(from)),
            None if doubleword => self.a.op2(Code::Mov_rm64_r64, vector_slot(i.d), from),
            None => self.a.op2(Code::Mov_rm32_r32, vector_slot(i.d), low32(from)),
        }
    }

    fn move_to_general(&mut self, i: &Instruction, doubleword: bool) {
        if i.d == 0 {
            return;
        }
        let to = self.target(i.d, Register::RAX);
        match self.vector_host(i.j) {
            Some(from) if doubleword => self.a.op2(Code::VEX_Vmovq_rm64_xmm, to, from),
            None if doubleword => self.a.op2(Code::Mov_r64_rm64, to, vector_slot(i.j)),
            Some(from) => {
                self.a.op2(Code::VEX_Vmovd_rm32_xmm, low32(to), from);
                self.a.op2(Code::Movsxd_r64_rm32, to, low32(to));
            }
            None => self.a.op2(Code::Movsxd_r64_rm32, to, vector_slot(i.j)),
        }
        self.write(i.d, to);
    }

    fn flag_to_general(&mut self, i: &Instruction) {
        let to = self.target(i.d, Register::RAX);
        self.a.op2(Code::Movzx_r32_rm8, low32(to), condition_flag(i.j));
        self.write(i.d, to);
    }

    /// Moves the lowest bit of a general register to a condition flag.
    fn general_to_flag(&mut self, i: &Instruction) {
        let from = self.read(i.j, Register::RAX);
        self.a.op2(Code::Mov_r32_rm32, Register::EAX, low32(from));
        self.a.op2(Code::And_rm32_imm8, Register::EAX, 1);
        self.a.op2(Code::Mov_rm8_r8, condition_flag(i.d), low8(Register::RAX));
    }

    fn convert_from_integer(&mut self, i: &Instruction, code: Code, doubleword: bool) {
        match self.vector_host(i.j) {
            Some(from) if doubleword => self.a.op2(Code::VEX_Vmovq_rm64_xmm, Register::RAX, from),
            Some(from) => self.a.op2(Code::VEX_Vmovd_rm32_xmm, Register::EAX, from),
            None => self.a.op2(Code::Mov_r64_rm64, Register::RAX, vector_slot(i.j)),
        }
        self.a.op3(Code::VEX_Vxorps_xmm_xmm_xmmm128, SCRATCH, SCRATCH, SCRATCH);
        let to = self.vector_target(i.d, SCRATCH);
        self.a.op3(code, to, SCRATCH, if doubleword { Register::RAX } else { Register::EAX });
        self.scalar_write(i.d, to);
    }

    /// Converts to an integer. If the value is out of range, the host traps, and the interpreter executes the
    /// instruction.
    fn convert_to_integer(&mut self, i: &Instruction, code: Code, doubleword: bool) {
        let from = self.scalar_source(i.j);
        self.a.op2(code, if doubleword { Register::RAX } else { Register::EAX }, from);
        let to = self.vector_target(i.d, SCRATCH);
        let insert = if doubleword { Code::VEX_Vmovq_xmm_rm64 } else { Code::VEX_Vmovd_xmm_rm32 };
        self.a.op2(insert, to, if doubleword { Register::RAX } else { Register::EAX });
        self.scalar_write(i.d, to);
    }

    // Comparison.

    /// Emits a comparison. Returns `None` for other instructions. If the result equals a single host condition right
    /// after the emitted code, returns that condition.
    fn float_compare(&mut self, i: &Instruction) -> Option<Option<Condition>> {
        let comparison = Comparison::of(i.op)?;
        let (mut left, mut right) = (i.j, i.k);
        if comparison.swapped {
            std::mem::swap(&mut left, &mut right);
        }
        let code = match (comparison.signalling, comparison.single) {
            (true, true) => Code::VEX_Vcomiss_xmm_xmmm32,
            (true, false) => Code::VEX_Vcomisd_xmm_xmmm64,
            (false, true) => Code::VEX_Vucomiss_xmm_xmmm32,
            (false, false) => Code::VEX_Vucomisd_xmm_xmmm64,
        };
        let left = self.scalar_read(left, SCRATCH);
        let right = self.scalar_source(right);
        self.a.op2(code, left, right);
        self.a.set_if(comparison.condition, low8(Register::RAX));
        match comparison.parity {
            Some((parity, code)) => {
                self.a.set_if(parity, low8(Register::RCX));
                self.a.op2(code, low8(Register::RAX), low8(Register::RCX));
                self.a.op2(Code::Mov_rm8_r8, condition_flag(i.d), low8(Register::RAX));
                Some(None)
            }
            None => {
                self.a.op2(Code::Mov_rm8_r8, condition_flag(i.d), low8(Register::RAX));
                Some(Some(comparison.condition))
            }
        }
    }

    /// Emits a comparison and the branch on its flag. Returns the host condition of the branch, or `None` if the two
    /// instructions are not such a pair or the comparison needs two host conditions.
    pub(super) fn compare_and_branch(&mut self, i: &Instruction, branch: &Instruction) -> Option<Condition> {
        let expected = match branch.op {
            Op::Bcnez if branch.j == i.d => true,
            Op::Bceqz if branch.j == i.d => false,
            _ => return None,
        };
        Comparison::of(i.op).filter(|c| c.parity.is_none())?;
        let condition = self.float_compare(i)??;
        Some(if expected { condition } else { condition.inverted() })
    }
}

/// How the host performs a comparison.
struct Comparison {
    single: bool,
    signalling: bool,
    /// Whether the operands are swapped. The host has no condition for "less and not unordered".
    swapped: bool,
    condition: Condition,
    /// A second condition on the parity flag (set if unordered), and the operation that combines it with the first.
    parity: Option<(Condition, Code)>,
}

impl Comparison {
    fn of(op: Op) -> Option<Self> {
        let name = op.mnemonic().strip_prefix("fcmp.")?;
        let (name, single) = match name.strip_suffix(".s") {
            Some(name) => (name, true),
            None => (name.strip_suffix(".d")?, false),
        };
        let (kind, relation) = name.split_at(1);
        let and_ordered = Some((Condition::NoParity, Code::And_r8_rm8));
        let or_unordered = Some((Condition::Parity, Code::Or_r8_rm8));
        let (swapped, condition, parity) = match relation {
            "lt" => (true, Condition::Above, None),
            "le" => (true, Condition::AboveOrEqual, None),
            "eq" => (false, Condition::Equal, and_ordered),
            "ne" => (false, Condition::NotEqual, and_ordered),
            "un" => (false, Condition::Parity, None),
            "ult" => (false, Condition::Below, None),
            "ule" => (false, Condition::BelowOrEqual, None),
            "ueq" => (false, Condition::Equal, None),
            "une" => (false, Condition::NotEqual, or_unordered),
            "or" => (false, Condition::NoParity, None),
            _ => return None, // "af": always false, but it raises exceptions
        };
        Some(Self { single, signalling: kind == "s", swapped, condition, parity })
    }
}
