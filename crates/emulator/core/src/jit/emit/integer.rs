//! Emits integer arithmetic and logic. Source: LoongArch Reference Manual, volume 1, sections 2.2.1 and 2.2.2.

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::{Instruction, Op};

use super::{Arg, Condition, Emitter, MAX_SLACK_BYTES};
use crate::jit::registers::{low8, low32};

/// A host instruction with two operands, in both widths.
struct TwoOperand {
    wide: Code,
    narrow: Code,
    commutative: bool,
}

const ADD: TwoOperand =
    TwoOperand { wide: Code::Add_r64_rm64, narrow: Code::Add_r32_rm32, commutative: true };
const SUB: TwoOperand =
    TwoOperand { wide: Code::Sub_r64_rm64, narrow: Code::Sub_r32_rm32, commutative: false };
const AND: TwoOperand =
    TwoOperand { wide: Code::And_r64_rm64, narrow: Code::And_r32_rm32, commutative: true };
const OR: TwoOperand = TwoOperand { wide: Code::Or_r64_rm64, narrow: Code::Or_r32_rm32, commutative: true };
const XOR: TwoOperand =
    TwoOperand { wide: Code::Xor_r64_rm64, narrow: Code::Xor_r32_rm32, commutative: true };
const MUL: TwoOperand =
    TwoOperand { wide: Code::Imul_r64_rm64, narrow: Code::Imul_r32_rm32, commutative: true };

impl Emitter<'_> {
    /// Emits an instruction whose result is known at translation time. Constants are built from up to four
    /// instructions; only the final result is written if the intermediate ones are not visible.
    pub(super) fn constant(&mut self, i: &Instruction, following: Option<&Instruction>) -> bool {
        let pc = self.pc;
        let imm = i.imm as i64 as u64;
        let value_of = |n: u8| self.known[usize::from(n)];
        let value = match i.op {
            Op::Lu12iW => Some((i.imm << 12) as i64 as u64),
            Op::Pcaddi => Some(pc.wrapping_add(imm << 2)),
            Op::Pcaddu12i => Some(pc.wrapping_add((i.imm << 12) as i64 as u64)),
            Op::Pcaddu18i => Some(pc.wrapping_add((i64::from(i.imm) << 18) as u64)),
            Op::Pcalau12i => Some(pc.wrapping_add((i.imm << 12) as i64 as u64) & !0xfff),
            Op::Lu32iD => value_of(i.d).map(|low| low & 0xffff_ffff | imm << 32),
            Op::Lu52iD => value_of(i.j).map(|low| low & (u64::MAX >> 12) | imm << 52),
            Op::Ori => value_of(i.j).map(|v| v | imm),
            Op::Xori => value_of(i.j).map(|v| v ^ imm),
            Op::Andi => value_of(i.j).map(|v| v & imm),
            Op::AddiD => value_of(i.j).map(|v| v.wrapping_add(imm)),
            Op::AddiW => value_of(i.j).map(|v| v.wrapping_add(imm) as i32 as i64 as u64),
            Op::Addu16iD => value_of(i.j).map(|v| v.wrapping_add(((i64::from(i.imm)) << 16) as u64)),
            Op::SlliD => value_of(i.j).map(|v| v << i.imm),
            _ => None,
        };
        let Some(value) = value else { return false };
        self.wrote_known = Some(value);
        let refined = following.is_some_and(|f| {
            f.d == i.d
                && f.d != 0
                && (f.j == f.d || f.op == Op::Lu32iD)
                && matches!(f.op, Op::Ori | Op::Lu32iD | Op::Lu52iD | Op::AddiD | Op::AddiW)
        });
        if !refined {
            self.write_constant(i.d, value);
        }
        true
    }

    /// Emits an integer instruction. Returns false for other instructions.
    pub(super) fn integer(&mut self, i: &Instruction) -> bool {
        match i.op {
            Op::AddD => self.add_wide(i),
            Op::AddW => self.two_operand(&ADD, i, false),
            Op::SubD => self.two_operand(&SUB, i, true),
            Op::SubW => self.two_operand(&SUB, i, false),
            Op::And => self.two_operand(&AND, i, true),
            Op::Or if i.k == 0 => self.move_general(i.d, i.j),
            Op::Or if i.j == 0 => self.move_general(i.d, i.k),
            Op::Or => self.two_operand(&OR, i, true),
            Op::Xor => self.two_operand(&XOR, i, true),
            Op::MulD => self.two_operand(&MUL, i, true),
            Op::MulW => self.two_operand(&MUL, i, false),
            Op::Nor => self.inverted(&OR, i, false),
            Op::Orn => self.inverted(&OR, i, true),
            Op::Andn => self.and_not(i),
            Op::AddiD => self.add_immediate(i),
            Op::AddiW => self.add_immediate_narrow(i),
            Op::Addu16iD => self.add_constant(i.d, i.j, i64::from(i.imm) << 16),
            Op::Andi => self.immediate(Code::And_rm64_imm8, Code::And_rm64_imm32, i),
            Op::Ori if i.imm == 0 => self.move_general(i.d, i.j),
            Op::Ori => self.immediate(Code::Or_rm64_imm8, Code::Or_rm64_imm32, i),
            Op::Xori => self.immediate(Code::Xor_rm64_imm8, Code::Xor_rm64_imm32, i),
            Op::Slt => self.set_less(i, Condition::Less),
            Op::Sltu => self.set_less(i, Condition::Below),
            Op::Slti => self.set_less_immediate(i, Condition::Less),
            Op::Sltui => self.set_less_immediate(i, Condition::Below),
            Op::Maskeqz => self.mask(i, Code::Cmove_r64_rm64),
            Op::Masknez => self.mask(i, Code::Cmovne_r64_rm64),
            Op::AlslD => self.shift_and_add(i),
            Op::AlslW => self.shift_and_add_narrow(i, true),
            Op::AlslWu => self.shift_and_add_narrow(i, false),
            Op::Lu32iD => self.upper_word(i),
            Op::Lu52iD => self.upper_bits(i),
            Op::MulhD => self.multiply_high(i, Code::Imul_rm64),
            Op::MulhDu => self.multiply_high(i, Code::Mul_rm64),
            Op::MulhW => self.multiply_words(i, Code::Movsxd_r64_rm32, true),
            Op::MulhWu => self.multiply_words_unsigned(i, true),
            Op::MulwDW => self.multiply_words(i, Code::Movsxd_r64_rm32, false),
            Op::MulwDWu => self.multiply_words_unsigned(i, false),
            Op::DivD | Op::ModD => self.divide_wide(i, true, i.op == Op::DivD),
            Op::DivDu | Op::ModDu => self.divide_wide(i, false, i.op == Op::DivDu),
            Op::DivW | Op::ModW => self.divide_narrow(i, true, i.op == Op::DivW),
            Op::DivWu | Op::ModWu => self.divide_narrow(i, false, i.op == Op::DivWu),
            _ => return false,
        }
        true
    }

    pub(super) fn move_general(&mut self, d: u8, j: u8) {
        if d == 0 || d == j {
            self.wrote_known = self.known[usize::from(j)];
            self.wrote_in_range = self.in_range[usize::from(j)];
            return;
        }
        if j == 0 {
            self.write_constant(d, 0);
            self.wrote_known = Some(0);
            return;
        }
        match (self.host_of(d), self.host_of(j)) {
            (Some(to), _) => self.copy(to, j),
            (None, Some(from)) => self.write(d, from),
            (None, None) => {
                self.copy(Register::RAX, j);
                self.write(d, Register::RAX);
            }
        }
        self.wrote_known = self.known[usize::from(j)];
        self.wrote_in_range = self.in_range[usize::from(j)];
    }

    fn operation(&mut self, op: &TwoOperand, to: Register, right: u8, wide: bool) {
        if right == 0 {
            self.a.op2(Code::Xor_r32_rm32, Register::ECX, Register::ECX);
            let (code, to) = if wide { (op.wide, to) } else { (op.narrow, low32(to)) };
            let right = if wide { Register::RCX } else { Register::ECX };
            self.a.op2(code, to, right);
        } else if wide {
            let right = self.source(right);
            self.a.op2(op.wide, to, right);
        } else {
            let right = self.source32(right);
            self.a.op2(op.narrow, low32(to), right);
        }
    }

    /// `d = j op k`. A 32-bit result is sign-extended.
    fn two_operand(&mut self, op: &TwoOperand, i: &Instruction, wide: bool) {
        if i.d == 0 {
            return;
        }
        let (mut left, mut right) = (i.j, i.k);
        let mut to = self.target(i.d, Register::RAX);
        if self.host_of(right) == Some(to) && left != right {
            if op.commutative {
                (left, right) = (right, left);
            } else {
                to = Register::RAX;
            }
        }
        self.copy(to, left);
        self.operation(op, to, right, wide);
        if wide {
            self.write(i.d, to);
        } else {
            self.write_sign_extended(i.d, to);
        }
    }

    /// Writes the low word of `value`, sign-extended.
    pub(super) fn write_sign_extended(&mut self, d: u8, value: Register) {
        let to = self.target(d, value);
        self.a.op2(Code::Movsxd_r64_rm32, to, low32(value));
        self.write(d, to);
    }

    fn add_wide(&mut self, i: &Instruction) {
        match (self.host_of(i.d), self.host_of(i.j), self.host_of(i.k)) {
            (Some(to), Some(j), Some(k)) if to != j && to != k => {
                self.a.op2(Code::Lea_r64_m, to, MemoryOperand::with_base_index(j, k));
            }
            _ if i.k == 0 => self.move_general(i.d, i.j),
            _ if i.j == 0 => self.move_general(i.d, i.k),
            _ => self.two_operand(&ADD, i, true),
        }
    }

    /// `d = j op ~k` if `right_only`, else `d = ~(j op k)`.
    fn inverted(&mut self, op: &TwoOperand, i: &Instruction, right_only: bool) {
        if i.d == 0 {
            return;
        }
        if right_only {
            self.copy(Register::RAX, i.k);
            self.a.op1(Code::Not_rm64, Register::RAX);
            self.operation(op, Register::RAX, i.j, true);
        } else {
            self.copy(Register::RAX, i.j);
            if i.k != 0 {
                self.operation(op, Register::RAX, i.k, true);
            }
            self.a.op1(Code::Not_rm64, Register::RAX);
        }
        self.write(i.d, Register::RAX);
    }

    fn and_not(&mut self, i: &Instruction) {
        let k = self.read(i.k, Register::RAX);
        let j = self.read(i.j, Register::RCX);
        let to = self.target(i.d, Register::RAX);
        self.a.op3(Code::VEX_Andn_r64_r64_rm64, to, k, j);
        self.write(i.d, to);
    }

    fn add_immediate(&mut self, i: &Instruction) {
        let moved = self.in_range[usize::from(i.j)].map(|slack| slack + i64::from(i.imm).abs());
        self.wrote_in_range = moved.filter(|slack| *slack < MAX_SLACK_BYTES);
        if i.imm == 0 {
            let in_range = self.wrote_in_range;
            self.move_general(i.d, i.j);
            self.wrote_in_range = in_range;
        } else {
            self.add_constant(i.d, i.j, i64::from(i.imm));
        }
    }

    fn add_constant(&mut self, d: u8, j: u8, value: i64) {
        let code = if i8::try_from(value).is_ok() { Code::Add_rm64_imm8 } else { Code::Add_rm64_imm32 };
        match self.host_of(d) {
            _ if d == 0 => {}
            _ if j == 0 => self.write_constant(d, value as u64),
            Some(to) if d == j => self.a.op2(code, to, value),
            None if d == j => {
                let slot = self.source(d);
                self.a.op2(code, slot, value);
            }
            host => {
                let to = host.unwrap_or(Register::RAX);
                let from = self.read(j, Register::RAX);
                self.a.op2(Code::Lea_r64_m, to, MemoryOperand::with_base_displ_size(from, value, 1));
                self.write(d, to);
            }
        }
    }

    fn add_immediate_narrow(&mut self, i: &Instruction) {
        if i.d == 0 {
            return;
        }
        if i.imm == 0 && i.j != 0 {
            let to = self.target(i.d, Register::RAX);
            let from = self.source32(i.j);
            self.a.op2(Code::Movsxd_r64_rm32, to, from);
            self.write(i.d, to);
            return;
        }
        let from = self.read(i.j, Register::RAX);
        let to = self.target(i.d, Register::RAX);
        if to == from {
            let code = if i8::try_from(i.imm).is_ok() { Code::Add_rm32_imm8 } else { Code::Add_rm32_imm32 };
            self.a.op2(code, low32(to), i.imm);
        } else {
            let sum = MemoryOperand::with_base_displ_size(from, i64::from(i.imm), 1);
            self.a.op2(Code::Lea_r32_m, low32(to), sum);
        }
        self.write_sign_extended(i.d, to);
    }

    /// Logic with a zero-extended 12-bit immediate.
    fn immediate(&mut self, short: Code, long: Code, i: &Instruction) {
        if i.d == 0 {
            return;
        }
        let to = self.target(i.d, Register::RAX);
        self.copy(to, i.j);
        let code = if i.imm < 128 { short } else { long };
        self.a.op2(code, to, i.imm);
        self.write(i.d, to);
    }

    fn set_less(&mut self, i: &Instruction, condition: Condition) {
        if i.d == 0 {
            return;
        }
        let condition = match (condition, i.j, i.k) {
            // The unsigned comparison 0 < k is k != 0, a common idiom for truth values.
            (Condition::Below, 0, k) => {
                self.compare_registers(k, 0);
                Condition::NotEqual
            }
            _ => {
                let right = self.read(i.k, Register::RCX);
                let left = self.read(i.j, Register::RAX);
                self.a.op2(Code::Cmp_r64_rm64, left, right);
                condition
            }
        };
        self.write_flag(i.d, condition);
    }

    fn set_less_immediate(&mut self, i: &Instruction, condition: Condition) {
        if i.d == 0 {
            return;
        }
        if i.j == 0 {
            self.a.op2(Code::Xor_r32_rm32, Register::EAX, Register::EAX);
            self.a.op2(Code::Cmp_rm64_imm32, Register::RAX, i.imm);
        } else {
            let left = self.source(i.j);
            let code = if i8::try_from(i.imm).is_ok() { Code::Cmp_rm64_imm8 } else { Code::Cmp_rm64_imm32 };
            self.a.op2(code, left, i.imm);
        }
        self.write_flag(i.d, condition);
    }

    /// Writes 1 to register `d` if `condition` holds, else 0.
    fn write_flag(&mut self, d: u8, condition: Condition) {
        let to = self.target(d, Register::RAX);
        self.a.set_if(condition, low8(Register::RAX));
        self.a.op2(Code::Movzx_r32_rm8, low32(to), low8(Register::RAX));
        self.write(d, to);
    }

    /// `d = k is (not) zero ? 0 : j`.
    fn mask(&mut self, i: &Instruction, clear: Code) {
        if i.d == 0 {
            return;
        }
        self.a.op2(Code::Xor_r32_rm32, Register::ECX, Register::ECX);
        self.copy(Register::RAX, i.j);
        if i.k == 0 {
            self.a.op2(Code::Test_rm64_r64, Register::RCX, Register::RCX);
        } else {
            self.compare_registers(i.k, 0);
        }
        self.a.op2(clear, Register::RAX, Register::RCX);
        self.write(i.d, Register::RAX);
    }

    fn shift_and_add(&mut self, i: &Instruction) {
        if i.d == 0 {
            return;
        }
        let to = self.target(i.d, Register::RAX);
        if i.imm == 4 {
            self.copy(Register::RAX, i.j);
            self.a.op2(Code::Shl_rm64_imm8, Register::RAX, 4);
            self.operation(&ADD, Register::RAX, i.k, true);
            self.write(i.d, Register::RAX);
            return;
        }
        let index = self.read(i.j, Register::RAX);
        let base = self.read(i.k, Register::RCX);
        let sum = MemoryOperand::with_base_index_scale(base, index, 1 << i.imm);
        self.a.op2(Code::Lea_r64_m, to, sum);
        self.write(i.d, to);
    }

    fn shift_and_add_narrow(&mut self, i: &Instruction, signed: bool) {
        if i.d == 0 {
            return;
        }
        self.copy(Register::RAX, i.j);
        self.a.op2(Code::Shl_rm32_imm8, Register::EAX, i.imm);
        self.operation(&ADD, Register::RAX, i.k, false);
        if signed {
            self.write_sign_extended(i.d, Register::RAX);
        } else {
            self.write(i.d, Register::RAX);
        }
    }

    fn upper_word(&mut self, i: &Instruction) {
        if i.d == 0 {
            return;
        }
        let low = self.source32(i.d);
        self.a.op2(Code::Mov_r32_rm32, Register::EAX, low);
        self.load_constant(Register::RCX, (i64::from(i.imm) << 32) as u64);
        self.a.op2(Code::Or_r64_rm64, Register::RAX, Register::RCX);
        self.write(i.d, Register::RAX);
    }

    fn upper_bits(&mut self, i: &Instruction) {
        if i.d == 0 {
            return;
        }
        self.copy(Register::RAX, i.j);
        self.load_constant(Register::RCX, u64::MAX >> 12);
        self.a.op2(Code::And_r64_rm64, Register::RAX, Register::RCX);
        self.load_constant(Register::RCX, (i64::from(i.imm) << 52) as u64);
        self.a.op2(Code::Or_r64_rm64, Register::RAX, Register::RCX);
        self.write(i.d, Register::RAX);
    }

    fn multiply_high(&mut self, i: &Instruction, code: Code) {
        self.copy(Register::RCX, i.k);
        self.copy(Register::RAX, i.j);
        self.a.op1(code, Register::RCX);
        self.write(i.d, Register::RDX);
    }

    fn multiply_words(&mut self, i: &Instruction, extend: Code, high: bool) {
        for (to, from) in [(Register::RAX, i.j), (Register::RCX, i.k)] {
            self.copy(to, from);
            self.a.op2(extend, to, low32(to));
        }
        self.multiply_extended(i, high, Code::Sar_rm64_imm8);
    }

    fn multiply_words_unsigned(&mut self, i: &Instruction, high: bool) {
        for (to, from) in [(Register::RAX, i.j), (Register::RCX, i.k)] {
            self.copy(to, from);
            self.a.op2(Code::Mov_r32_rm32, low32(to), low32(to));
        }
        // The high word of an unsigned product is sign-extended too (manual, MULH.WU).
        self.multiply_extended(i, high, Code::Sar_rm64_imm8);
    }

    fn multiply_extended(&mut self, i: &Instruction, high: bool, shift: Code) {
        self.a.op2(Code::Imul_r64_rm64, Register::RAX, Register::RCX);
        if high {
            self.a.op2(shift, Register::RAX, 32);
        }
        self.write(i.d, Register::RAX);
    }

    /// Passes a division by zero, or of the minimum by -1, to the interpreter, because the host would trap.
    fn guard_division(&mut self, i: &Instruction, signed: bool, wide: bool) -> super::Label {
        let (slow, resume) = self.slow_path(i);
        if signed {
            let sum = MemoryOperand::with_base_displ_size(Register::RCX, 1, 1);
            if wide {
                self.a.op2(Code::Lea_r64_m, Register::RDX, sum);
                self.a.op2(Code::Cmp_rm64_imm8, Register::RDX, 1);
            } else {
                self.a.op2(Code::Lea_r32_m, Register::EDX, sum);
                self.a.op2(Code::Cmp_rm32_imm8, Register::EDX, 1);
            }
            self.a.jump_if(Condition::BelowOrEqual, slow);
        } else {
            if wide {
                self.a.op2(Code::Test_rm64_r64, Register::RCX, Register::RCX);
            } else {
                self.a.op2(Code::Test_rm32_r32, Register::ECX, Register::ECX);
            }
            self.a.jump_if(Condition::Equal, slow);
        }
        resume
    }

    fn divide_wide(&mut self, i: &Instruction, signed: bool, quotient: bool) {
        self.copy(Register::RCX, i.k);
        let resume = self.guard_division(i, signed, true);
        self.copy(Register::RAX, i.j);
        if signed {
            self.a.op0(Code::Cqo);
            self.a.op1(Code::Idiv_rm64, Register::RCX);
        } else {
            self.a.op2(Code::Xor_r32_rm32, Register::EDX, Register::EDX);
            self.a.op1(Code::Div_rm64, Register::RCX);
        }
        self.write(i.d, if quotient { Register::RAX } else { Register::RDX });
        self.a.place(resume);
    }

    fn divide_narrow(&mut self, i: &Instruction, signed: bool, quotient: bool) {
        self.copy(Register::RCX, i.k);
        let resume = self.guard_division(i, signed, false);
        self.copy(Register::RAX, i.j);
        if signed {
            self.a.op0(Code::Cdq);
            self.a.op1(Code::Idiv_rm32, Register::ECX);
        } else {
            self.a.op2(Code::Xor_r32_rm32, Register::EDX, Register::EDX);
            self.a.op1(Code::Div_rm32, Register::ECX);
        }
        let result = if quotient { Register::RAX } else { Register::RDX };
        if i.d != 0 {
            self.write_sign_extended(i.d, result);
        }
        self.a.place(resume);
    }

    /// A source operand for the low 32 or all 64 bits of a register.
    pub(super) fn sized(&self, number: u8, wide: bool) -> Arg {
        if wide { self.source(number) } else { self.source32(number) }
    }
}
