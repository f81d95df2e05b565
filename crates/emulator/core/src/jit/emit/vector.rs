//! Emits LSX and LASX instructions for which AVX2 has one or two equivalents. The interpreter executes those that have
//! no emitter. Source: the manual's LSX and LASX volumes; Intel SDM, volume 2. The halves of a 256-bit register are
//! independent in both architectures. The manual leaves the bits above 127 undefined after an LSX instruction.

use std::mem::offset_of;

use iced_x86::{Code, Register};
use longma_loongarch::{Instruction, Op, State, semantics::semantics_of};

use super::{Arg, Condition, Emitter, control::condition_flag, host_vectors::*, vector_table::*};
use crate::{
    cpu::{Cpu, ShiftCountMasks},
    guest::NoEnvironment,
    jit::{
        registers::{VECTOR_HOSTS, low32, wide},
        trampolines::{field, vector_slot},
    },
};

const A: Register = Register::XMM0;
const B: Register = Register::XMM1;
const C: Register = Register::XMM2;

/// A vector register in the 128-bit or 256-bit form.
pub(super) fn sized(register: Register, is_wide: bool) -> Register {
    if is_wide { wide(register) } else { register }
}

impl Emitter<'_> {
    /// Emits a vector instruction. Returns false for other instructions.
    pub(super) fn vector(&mut self, i: &Instruction) -> bool {
        if let Some((row, is_wide)) = BINARY.find(i.op) {
            self.binary(i, row, is_wide);
        } else if let Some((code, is_wide)) = SHIFT.find(i.op) {
            self.shift_all(i, *code, is_wide);
        } else if let Some(((code, element), is_wide)) = VARIABLE_SHIFT.find(i.op) {
            self.shift_each(i, *code, *element, is_wide);
        } else if let Some(((code, subtract), is_wide)) = FUSED.find(i.op) {
            self.fused_vector(i, *code, *subtract, is_wide);
        } else if let Some((row, is_wide)) = UNARY.find(i.op) {
            let from = self.vector_source(i.j, is_wide);
            let to = sized(self.vector_target(i.d, A), is_wide);
            self.a.op2(row.of(is_wide), to, from);
            self.write_vector(i.d, to, is_wide);
        } else if let Some((code, predicate, is_wide)) = compare_of(i.op) {
            let left = self.read_vector(i.j, A, is_wide);
            let right = self.vector_source(i.k, is_wide);
            let to = sized(self.vector_target(i.d, A), is_wide);
            self.a.op4(code, to, left, right, predicate);
            self.write_vector(i.d, to, is_wide);
        } else {
            return self.irregular(i);
        }
        true
    }

    pub(super) fn read_vector(&mut self, number: u8, scratch: Register, is_wide: bool) -> Register {
        if is_wide { wide(self.vector_read_wide(number, scratch)) } else { self.vector_read(number, scratch) }
    }

    pub(super) fn vector_source(&self, number: u8, is_wide: bool) -> Arg {
        match self.allocation.vector_host[usize::from(number)] {
            Some(index) => sized(VECTOR_HOSTS[usize::from(index)], is_wide).into(),
            None => vector_slot(number).into(),
        }
    }

    /// Writes a register computed in either width.
    pub(super) fn write_vector(&mut self, number: u8, value: Register, is_wide: bool) {
        if is_wide {
            let narrow = Register::XMM0 + (value as u32 - Register::YMM0 as u32);
            self.vector_write_wide(number, narrow);
        } else {
            self.vector_write(number, value);
        }
    }

    fn binary(&mut self, i: &Instruction, row: &Binary, is_wide: bool) {
        let (first, second) = if row.swapped { (i.k, i.j) } else { (i.j, i.k) };
        let left = self.read_vector(first, A, is_wide);
        let right = self.vector_source(second, is_wide);
        let to = if row.inverted { sized(A, is_wide) } else { sized(self.vector_target(i.d, A), is_wide) };
        self.a.op3(row.code.of(is_wide), to, left, right);
        if row.inverted {
            self.invert(to, is_wide);
        }
        self.write_vector(i.d, to, is_wide);
    }

    fn set_all_ones(&mut self, to: Register, is_wide: bool) {
        self.a.op3(PCMPEQD.of(is_wide), sized(to, is_wide), sized(to, is_wide), sized(to, is_wide));
    }

    fn invert(&mut self, register: Register, is_wide: bool) {
        self.set_all_ones(B, is_wide);
        self.a.op3(PXOR.of(is_wide), register, register, sized(B, is_wide));
    }

    fn shift_all(&mut self, i: &Instruction, code: Pair, is_wide: bool) {
        let from = self.read_vector(i.j, A, is_wide);
        let to = sized(self.vector_target(i.d, A), is_wide);
        self.a.op3(code.of(is_wide), to, from, i.imm);
        self.write_vector(i.d, to, is_wide);
    }

    /// Shifts each element by a separate count, which LoongArch reduces modulo the element width.
    fn shift_each(&mut self, i: &Instruction, code: Pair, element: ElementWidth, is_wide: bool) {
        let offset = match element {
            ElementWidth::Word => offset_of!(ShiftCountMasks, word),
            ElementWidth::Doubleword => offset_of!(ShiftCountMasks, doubleword),
        };
        let counts = self.read_vector(i.k, B, is_wide);
        let mask = field(offset_of!(Cpu, shift_count_masks) + offset);
        self.a.op3(PAND.of(is_wide), sized(B, is_wide), counts, mask);
        let from = self.read_vector(i.j, A, is_wide);
        let to = sized(self.vector_target(i.d, A), is_wide);
        self.a.op3(code.of(is_wide), to, from, sized(B, is_wide));
        self.write_vector(i.d, to, is_wide);
    }

    /// `d = j * k ± a`. If the result contains a NaN, the interpreter executes the instruction, because it knows which
    /// NaN to return.
    fn fused_vector(&mut self, i: &Instruction, code: Pair, unordered: Pair, is_wide: bool) {
        if self.origin.has_sse_rules {
            return self.fused_by_sse_rules(i, code, is_wide);
        }
        let (slow, resume) = self.slow_path(i);
        let j = self.read_vector(i.j, A, is_wide);
        if j != sized(A, is_wide) {
            self.a.op2(MOVAPS.of(is_wide), sized(A, is_wide), j);
        }
        let k = self.read_vector(i.k, B, is_wide);
        let addend = self.vector_source(i.a, is_wide);
        self.a.op3(code.of(is_wide), sized(A, is_wide), k, addend);
        const UNORDERED: i32 = 3;
        let (result, mask) = (sized(A, is_wide), sized(C, is_wide));
        self.a.op4(unordered.of(is_wide), mask, result, result, UNORDERED);
        self.a.op2(PTEST.of(is_wide), mask, mask);
        self.a.jump_if(Condition::NotEqual, slow);
        self.write_vector(i.d, result, is_wide);
        self.a.place(resume);
    }

    /// `d = j * k ± a`. The host chooses the same NaN: that of its second operand, then its first, then its third.
    fn fused_by_sse_rules(&mut self, i: &Instruction, code: Pair, is_wide: bool) {
        let k = self.read_vector(i.k, A, is_wide);
        if k != sized(A, is_wide) {
            self.a.op2(MOVAPS.of(is_wide), sized(A, is_wide), k);
        }
        let j = self.read_vector(i.j, B, is_wide);
        let addend = self.vector_source(i.a, is_wide);
        self.a.op3(code.of(is_wide), sized(A, is_wide), j, addend);
        self.write_vector(i.d, sized(A, is_wide), is_wide);
    }

    /// Replaces the lowest element of `d` with that of `j`.
    fn merge_low(&mut self, i: &Instruction, code: Code) {
        let old = self.vector_read(i.d, A);
        let low = self.vector_read(i.j, B);
        let to = self.vector_target(i.d, A);
        self.a.op3(code, to, old, low);
        self.vector_write(i.d, to);
    }

    /// Selects two of the four halves of `d` and `j` by two bits each.
    fn shuffle_halves(&mut self, i: &Instruction) {
        let (old, other) = (self.vector_read(i.d, A), self.vector_read(i.j, B));
        let [low, high] = [i.imm & 3, i.imm >> 2 & 3];
        let [first, second] = [low, high].map(|half| if half < 2 { old } else { other });
        let to = self.vector_target(i.d, A);
        self.a.op4(Code::VEX_Vshufpd_xmm_xmm_xmmm128_imm8, to, first, second, low & 1 | (high & 1) << 1);
        self.vector_write(i.d, to);
    }

    fn irregular(&mut self, i: &Instruction) -> bool {
        match i.op {
            Op::VnorV | Op::XvnorV => self.or_inverted(i, i.op == Op::XvnorV, true),
            Op::VornV | Op::XvornV => self.or_inverted(i, i.op == Op::XvornV, false),
            Op::VbitselV | Op::XvbitselV => self.select_bits(i, i.op == Op::XvbitselV),
            Op::Vldi | Op::Xvldi => return self.vector_constant(i, i.op == Op::Xvldi),
            Op::Vreplgr2vrB => self.replicate(i, Code::VEX_Vpbroadcastb_xmm_xmmm8, false),
            Op::Vreplgr2vrH => self.replicate(i, Code::VEX_Vpbroadcastw_xmm_xmmm16, false),
            Op::Vreplgr2vrW => self.replicate(i, Code::VEX_Vpbroadcastd_xmm_xmmm32, false),
            Op::Vreplgr2vrD => self.replicate(i, Code::VEX_Vpbroadcastq_xmm_xmmm64, false),
            Op::Xvreplgr2vrB => self.replicate(i, Code::VEX_Vpbroadcastb_ymm_xmmm8, true),
            Op::Xvreplgr2vrH => self.replicate(i, Code::VEX_Vpbroadcastw_ymm_xmmm16, true),
            Op::Xvreplgr2vrW => self.replicate(i, Code::VEX_Vpbroadcastd_ymm_xmmm32, true),
            Op::Xvreplgr2vrD => self.replicate(i, Code::VEX_Vpbroadcastq_ymm_xmmm64, true),
            Op::Vinsgr2vrB => self.insert_element(i, Code::VEX_Vpinsrb_xmm_xmm_r32m8_imm8, false),
            Op::Vinsgr2vrH => self.insert_element(i, Code::VEX_Vpinsrw_xmm_xmm_r32m16_imm8, false),
            Op::Vinsgr2vrW => self.insert_element(i, Code::VEX_Vpinsrd_xmm_xmm_rm32_imm8, false),
            Op::Vinsgr2vrD => self.insert_element(i, Code::VEX_Vpinsrq_xmm_xmm_rm64_imm8, true),
            Op::Vpickve2grB => {
                self.pick_element(i, Code::VEX_Vpextrb_r32m8_xmm_imm8, Some(Code::Movsx_r64_rm8))
            }
            Op::Vpickve2grH => {
                self.pick_element(i, Code::VEX_Vpextrw_r32_xmm_imm8, Some(Code::Movsx_r64_rm16))
            }
            Op::Vpickve2grW => {
                self.pick_element(i, Code::VEX_Vpextrd_rm32_xmm_imm8, Some(Code::Movsxd_r64_rm32))
            }
            Op::Vpickve2grBu => self.pick_element(i, Code::VEX_Vpextrb_r32m8_xmm_imm8, None),
            Op::Vpickve2grHu => self.pick_element(i, Code::VEX_Vpextrw_r32_xmm_imm8, None),
            Op::Vpickve2grWu => self.pick_element(i, Code::VEX_Vpextrd_rm32_xmm_imm8, None),
            Op::Vpickve2grD | Op::Vpickve2grDu => self.pick_element(i, Code::VEX_Vpextrq_rm64_xmm_imm8, None),
            // Common in translated scalar code: move the lowest element to the lowest position.
            Op::VextrinsD if i.imm == 0 => self.merge_low(i, Code::VEX_Vmovsd_xmm_xmm_xmm),
            Op::VextrinsW if i.imm == 0 => self.merge_low(i, Code::VEX_Vmovss_xmm_xmm_xmm),
            Op::VextrinsB => {
                self.move_element(
                    i,
                    Code::VEX_Vpextrb_r32m8_xmm_imm8,
                    Code::VEX_Vpinsrb_xmm_xmm_r32m8_imm8,
                    15,
                );
            }
            Op::VextrinsH => {
                self.move_element(
                    i,
                    Code::VEX_Vpextrw_r32_xmm_imm8,
                    Code::VEX_Vpinsrw_xmm_xmm_r32m16_imm8,
                    7,
                );
            }
            Op::VextrinsW => self.move_word(i),
            Op::VmskltzB => self.sign_mask(i, Code::VEX_Vpmovmskb_r32_xmm),
            Op::VmskltzW => self.sign_mask(i, Code::VEX_Vmovmskps_r32_xmm),
            Op::VmskltzD => self.sign_mask(i, Code::VEX_Vmovmskpd_r32_xmm),
            Op::VreplveiW => self.shuffle_words(i, i.imm * 0x55, false),
            Op::VreplveiD => self.shuffle_words(i, [0x44, 0xee][i.imm as usize & 1], false),
            Op::Vshuf4iD => self.shuffle_halves(i),
            Op::Vshuf4iW => self.shuffle_words(i, i.imm, false),
            Op::Xvshuf4iW => self.shuffle_words(i, i.imm, true),
            Op::VfrintSExact => self.round_exactly(i, ROUNDPS, false),
            Op::VfrintDExact => self.round_exactly(i, ROUNDPD, false),
            Op::XvfrintSExact => self.round_exactly(i, ROUNDPS, true),
            Op::XvfrintDExact => self.round_exactly(i, ROUNDPD, true),
            Op::XvpermiD => {
                let from = self.vector_source(i.j, true);
                let to = wide(self.vector_target(i.d, A));
                self.a.op3(Code::VEX_Vpermq_ymm_ymmm256_imm8, to, from, i.imm);
                self.write_vector(i.d, to, true);
            }
            Op::VseteqzV | Op::XvseteqzV => self.test_all(i, Condition::Equal, i.op == Op::XvseteqzV),
            Op::VsetnezV | Op::XvsetnezV => self.test_all(i, Condition::NotEqual, i.op == Op::XvsetnezV),
            _ => return self.across_halves(i) || self.test_elements(i),
        }
        true
    }

    fn or_inverted(&mut self, i: &Instruction, is_wide: bool, nor: bool) {
        let (result, other) = (sized(A, is_wide), sized(B, is_wide));
        if nor {
            let j = self.read_vector(i.j, A, is_wide);
            let k = self.vector_source(i.k, is_wide);
            self.a.op3(POR.of(is_wide), result, j, k);
            self.invert(result, is_wide);
        } else {
            self.set_all_ones(B, is_wide);
            let k = self.vector_source(i.k, is_wide);
            self.a.op3(PXOR.of(is_wide), other, other, k);
            let j = self.vector_source(i.j, is_wide);
            self.a.op3(POR.of(is_wide), result, other, j);
        }
        self.write_vector(i.d, result, is_wide);
    }

    /// `d = a ? k : j` for each bit.
    fn select_bits(&mut self, i: &Instruction, is_wide: bool) {
        let (selected, other) = (sized(A, is_wide), sized(B, is_wide));
        let mask = self.read_vector(i.a, C, is_wide);
        let k = self.vector_source(i.k, is_wide);
        self.a.op3(PAND.of(is_wide), selected, mask, k);
        let j = self.vector_source(i.j, is_wide);
        self.a.op3(PANDN.of(is_wide), other, mask, j);
        self.a.op3(POR.of(is_wide), selected, selected, other);
        self.write_vector(i.d, selected, is_wide);
    }

    /// Loads a constant that the reference semantics compute during translation.
    fn vector_constant(&mut self, i: &Instruction, is_wide: bool) -> bool {
        let mut state = State::default();
        if semantics_of(i.op)(&mut state, i, &NoEnvironment).is_err() {
            return false;
        }
        let value = state.v[usize::from(i.d)].0[0];
        let to = sized(self.vector_target(i.d, A), is_wide);
        if value == 0 {
            self.a.op3(PXOR.of(is_wide), to, to, to);
        } else {
            self.load_constant(Register::RAX, value);
            self.a.op2(Code::VEX_Vmovq_xmm_rm64, A, Register::RAX);
            self.a.op2(PBROADCASTQ.of(is_wide), to, A);
        }
        self.write_vector(i.d, to, is_wide);
        true
    }

    fn replicate(&mut self, i: &Instruction, code: Code, is_wide: bool) {
        let from = self.read(i.j, Register::RAX);
        self.a.op2(Code::VEX_Vmovq_xmm_rm64, A, from);
        let to = sized(self.vector_target(i.d, A), is_wide);
        self.a.op2(code, to, A);
        self.write_vector(i.d, to, is_wide);
    }

    fn insert_element(&mut self, i: &Instruction, code: Code, doubleword: bool) {
        let value = self.read(i.j, Register::RAX);
        let old = self.vector_read(i.d, A);
        self.a.op4(code, old, old, if doubleword { value } else { low32(value) }, i.imm);
        self.vector_write(i.d, old);
    }

    /// Replaces an element of `d` with one of `j` through a general register.
    fn move_element(&mut self, i: &Instruction, pick: Code, insert: Code, last_index: i32) {
        let from = self.vector_read(i.j, A);
        self.a.op3(pick, Register::EAX, from, i.imm & last_index);
        let old = self.vector_read(i.d, A);
        self.a.op4(insert, old, old, Register::EAX, i.imm >> 4 & last_index);
        self.vector_write(i.d, old);
    }

    /// Replaces a word of `d` with one of `j`, which needs only one host instruction.
    fn move_word(&mut self, i: &Instruction) {
        let (old, from) = (self.vector_read(i.d, A), self.vector_read(i.j, B));
        let to = self.vector_target(i.d, A);
        let choice = (i.imm & 3) << 6 | (i.imm >> 4 & 3) << 4;
        self.a.op4(Code::VEX_Vinsertps_xmm_xmm_xmmm32_imm8, to, old, from, choice);
        self.vector_write(i.d, to);
    }

    /// Collects the highest bits of the elements.
    fn sign_mask(&mut self, i: &Instruction, code: Code) {
        let from = self.vector_read(i.j, A);
        self.a.op2(code, Register::EAX, from);
        let to = self.vector_target(i.d, A);
        self.a.op2(Code::VEX_Vmovd_xmm_rm32, to, Register::EAX);
        self.vector_write(i.d, to);
    }

    fn pick_element(&mut self, i: &Instruction, code: Code, extend: Option<Code>) {
        let from = self.vector_read(i.j, A);
        let is_doubleword = code == Code::VEX_Vpextrq_rm64_xmm_imm8;
        let to = if is_doubleword { Register::RAX } else { Register::EAX };
        self.a.op3(code, to, from, i.imm);
        if let Some(extend) = extend {
            let part = match extend {
                Code::Movsx_r64_rm8 => Register::AL,
                Code::Movsx_r64_rm16 => Register::AX,
                _ => Register::EAX,
            };
            self.a.op2(extend, Register::RAX, part);
        }
        self.write(i.d, Register::RAX);
    }

    fn shuffle_words(&mut self, i: &Instruction, order: i32, is_wide: bool) {
        let from = self.vector_source(i.j, is_wide);
        let to = sized(self.vector_target(i.d, A), is_wide);
        self.a.op3(PSHUFD.of(is_wide), to, from, order);
        self.write_vector(i.d, to, is_wide);
    }

    /// Rounds without recording inexact results.
    fn round_exactly(&mut self, i: &Instruction, code: Pair, is_wide: bool) {
        const NEVER_INEXACT: i32 = 8;
        // The host's number of the rounding mode, or 4 for MXCSR's mode.
        let mode = [0, 3, 2, 1].get(i.imm as usize).copied().unwrap_or(4);
        let from = self.vector_source(i.j, is_wide);
        let to = sized(self.vector_target(i.d, A), is_wide);
        self.a.op3(code.of(is_wide), to, from, mode | NEVER_INEXACT);
        self.write_vector(i.d, to, is_wide);
    }

    fn test_all(&mut self, i: &Instruction, condition: Condition, is_wide: bool) {
        let from = self.read_vector(i.j, A, is_wide);
        self.a.op2(PTEST.of(is_wide), from, from);
        self.a.set_if(condition, condition_flag(i.d));
    }

    /// Tests whether some element is zero, or whether none is.
    fn test_elements(&mut self, i: &Instruction) -> bool {
        let Some((row, is_wide)) = ELEMENT_TESTS.find(i.op) else { return false };
        let (zero, equal) = (sized(A, is_wide), sized(B, is_wide));
        self.a.op3(PXOR.of(is_wide), zero, zero, zero);
        let from = self.vector_source(i.j, is_wide);
        self.a.op3(row.0.of(is_wide), equal, zero, from);
        self.a.op2(PTEST.of(is_wide), equal, equal);
        self.a.set_if(if row.1 { Condition::NotEqual } else { Condition::Equal }, condition_flag(i.d));
        true
    }
}
