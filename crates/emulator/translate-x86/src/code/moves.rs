//! Moves: registers, extensions, addresses, and the stack. Source: Intel SDM, volume 2; LoongArch Reference Manual,
//! volume 1.

use iced_x86::{Mnemonic, OpKind, Register};
use longma_loongarch::Op as La;

use super::forms::number;
use super::known::{Facts, RSP};
use super::lower::{Lowering, is_register};
use super::operands::{Extension, OperandLocation};
use crate::registers::*;

/// The number of instructions to scan for the next use of a register.
const LOOKAHEAD: usize = 12;

impl Lowering<'_> {
    fn convert(&mut self, register: Register, op: La) {
        let n = number(register);
        let a = self.at(n);
        if register.size() == 4 {
            let d = self.define(n);
            self.assembler.two(op, d, a);
            self.defined(n, Facts::WORD);
        } else {
            self.assembler.two(op, SCRATCH, a);
            self.write_register(register, SCRATCH);
        }
    }

    /// CBW, CWDE and CDQE, which extend within RAX; CWD, CDQ and CQO, which fill RDX with the sign.
    pub(super) fn extend_accumulator(&mut self) {
        match self.instruction.mnemonic() {
            Mnemonic::Cbw => self.convert(Register::AX, La::ExtWB),
            Mnemonic::Cwde => self.convert(Register::EAX, La::ExtWH),
            Mnemonic::Cdqe => self.sign_extend(0, 0),
            Mnemonic::Cwd => {
                self.assembler.two(La::ExtWH, SCRATCH, self.at(0));
                self.assembler.immediate(La::SraiD, SCRATCH, SCRATCH, 15);
                self.write_register(Register::DX, SCRATCH);
            }
            Mnemonic::Cdq => {
                let a = self.at(0);
                let d = self.define(2);
                self.assembler.immediate(La::SraiW, d, a, 31);
                self.defined(2, Facts::WORD);
            }
            _ => {
                let a = self.wide(0);
                let d = self.define(2);
                self.assembler.immediate(La::SraiD, d, a, 63);
                self.defined_wide(2, Facts::WORD);
            }
        }
    }

    /// XCHG of two registers.
    pub(super) fn exchange_registers(&mut self) {
        let i = self.instruction;
        let a = self.read(0, Extension::Any);
        let b = self.read(1, Extension::Any);
        self.assembler.copy(SCRATCH, a);
        self.write_register(i.op0_register(), b);
        self.write_register(i.op1_register(), SCRATCH);
    }

    /// LEAVE.
    pub(super) fn leave_frame(&mut self) {
        let frame = self.wide(number(Register::RBP));
        self.assembler.immediate(La::LdD, SCRATCH, frame, 0);
        let stack = self.define(RSP);
        self.assembler.immediate(La::AddiD, stack, frame, 8);
        let d = self.define(number(Register::RBP));
        self.assembler.copy(d, SCRATCH);
    }

    pub(super) fn sign_extend(&mut self, n: usize, from: usize) {
        if self.known.value(from).sign && from != RSP && n != RSP {
            self.alias(n, from, true);
            self.known.narrow &= !(1 << n);
            if self.known.value(n).width <= 32 {
                self.known.narrow |= 1 << n;
            }
            return;
        }
        let a = if from == RSP { self.wide(from) } else { self.at(from) };
        let d = self.define(n);
        self.assembler.immediate(La::SlliW, d, a, 0);
        self.defined_wide(n, Facts::WORD);
    }

    /// MOVZX, MOVSX and MOVSXD.
    pub(super) fn move_extended(&mut self, extension: Extension) {
        let i = self.instruction;
        let register = i.op0_register();
        let (n, size) = (number(register), register.size());
        if size == 2 {
            let value = self.read(1, extension);
            self.write(value);
            return;
        }
        let (from, bytes) = (is_register(&i, 1), self.bytes_of(1));
        let signed = extension == Extension::Sign;
        let facts = if signed { Facts::WORD } else { Facts::of_width(8 * bytes as u8) };
        match from {
            None => {
                let t = self.temporary();
                let location = self.place(t);
                let d = self.define(n);
                self.load_to(d, location, bytes, extension);
            }
            Some(from) if signed && bytes == 4 && size == 8 => {
                self.sign_extend(n, number(from));
                return;
            }
            Some(from) if signed && bytes == 4 => {
                let _ = size;
                let value = self.read_register(from, Extension::Sign);
                let d = self.define(n);
                self.assembler.copy(d, value);
            }
            Some(from) => {
                let m = number(from);
                if m == RSP {
                    self.step_stack(0, true);
                }
                let (at, known, high) = (self.at(m), self.known.value(m), is_high(from));
                let bits = 8 * bytes as u8;
                let limit = if signed { bits - 1 } else { bits };
                if !high && known.width <= limit && n != RSP && m != RSP {
                    self.alias(n, m, false);
                    return;
                }
                let d = self.define(n);
                match (signed, bytes) {
                    (false, _) if high => self.assembler.field(La::BstrpickD, d, at, 15, 8),
                    (false, _) => self.assembler.field(La::BstrpickD, d, at, bits - 1, 0),
                    (true, 2) => self.assembler.two(La::ExtWH, d, at),
                    _ if high => {
                        self.assembler.immediate(La::SrliD, d, at, 8);
                        self.assembler.two(La::ExtWB, d, d);
                    }
                    _ => self.assembler.two(La::ExtWB, d, at),
                }
            }
        }
        if size == 8 { self.defined_wide(n, facts) } else { self.defined(n, facts) }
    }

    /// Whether the next use of register `n` in the block needs all 64 bits, so that zero-extension is better than
    /// sign-extension.
    fn prefers_zero(&self, n: usize) -> bool {
        for i in self.block.iter().skip(self.index + 1).take(LOOKAHEAD) {
            let is_it = |register: Register| register.is_gpr() && number(register) == n;
            if is_it(i.memory_base()) || is_it(i.memory_index()) {
                return true;
            }
            let reads = |operand: u32| is_register(i, operand).filter(|register| is_it(*register));
            match (reads(0), reads(1)) {
                (Some(register), _) | (_, Some(register)) if register.size() == 8 => {
                    let is_push = i.op_count() == 1 || i.mnemonic() != Mnemonic::Mov;
                    return is_push || reads(1).is_some();
                }
                (_, Some(_)) if i.mnemonic() == Mnemonic::Movsxd => return false,
                (Some(_), _) | (_, Some(_)) => {
                    // A copy says nothing about the form, and arithmetic produces sign-extended results anyway.
                    return false;
                }
                _ => {}
            }
        }
        false
    }

    pub(super) fn move_general(&mut self) -> bool {
        let i = self.instruction;
        let general_or_memory = |operand: u32| is_register(&i, operand).is_none_or(Register::is_gpr);
        if !general_or_memory(0) || !general_or_memory(1) {
            // Segment, control and debug registers.
            return false;
        }
        match (is_register(&i, 0), i.op1_kind()) {
            (Some(register), OpKind::Memory) if register.size() >= 4 => self.load_register(register),
            (Some(register), OpKind::Immediate64 | OpKind::Immediate32to64 | OpKind::Immediate32) => {
                self.load_constant(register);
            }
            (Some(register), OpKind::Register) if register.size() >= 4 => self.copy_register(register),
            (Some(register), _) => {
                let value = self.read(1, Extension::Any);
                self.write_register(register, value);
            }
            (None, _) => {
                let value = self.read(1, Extension::Any);
                self.write(value);
            }
        }
        true
    }

    /// Loads a 32-bit or 64-bit register from memory.
    fn load_register(&mut self, register: Register) {
        let n = number(register);
        let t = self.temporary();
        let location = self.place(t);
        let zero = register.size() == 8 || self.prefers_zero(n);
        let d = self.define(n);
        if zero {
            self.load_to(d, location, register.size(), Extension::Zero);
        } else {
            self.load_to(d, location, 4, Extension::Sign);
        }
        match (register.size(), zero) {
            (8, _) => self.defined_wide(n, Facts::NONE),
            (_, true) => self.defined(n, Facts::ZERO_EXTENDED),
            _ => self.defined(n, Facts::WORD),
        }
    }

    /// Loads a constant into a 32-bit or 64-bit register.
    fn load_constant(&mut self, register: Register) {
        let i = self.instruction;
        let n = number(register);
        let wide = register.size() == 8;
        let value = if wide { i.immediate(1) as i64 } else { i64::from(i.immediate32()) };
        if n == RSP {
            let d = self.define(n);
            self.assembler.constant(d, value);
        } else if value == 0 {
            self.clear(n);
        } else {
            let value = if wide || self.prefers_zero(n) { value } else { i64::from(value as i32) };
            let d = self.define(n);
            self.assembler.constant(d, value);
            let facts =
                Facts { width: (64 - value.leading_zeros()) as u8, sign: i64::from(value as i32) == value };
            if wide { self.defined_wide(n, facts) } else { self.defined(n, facts) }
        }
    }

    /// Copies a 32-bit or 64-bit register.
    fn copy_register(&mut self, register: Register) {
        let i = self.instruction;
        let (n, from, wide) = (number(register), number(i.op1_register()), register.size() == 8);
        if from == RSP && wide && n != RSP {
            let d = self.define(n);
            self.add_constant(d, STACK_POINTER, self.known.stack.into());
        } else if n == RSP || from == RSP {
            let value = self.read(1, Extension::Any);
            self.write_register(register, value);
        } else {
            self.alias(n, from, wide);
        }
    }

    pub(super) fn load_address(&mut self) {
        let i = self.instruction;
        let register = i.op0_register();
        let n = number(register);
        let (base, index) = (i.memory_base(), i.memory_index());
        if base.is_ip() && register.size() == 8 {
            let d = self.define(n);
            self.assembler.constant(d, i.memory_displacement64() as i64);
            return;
        }
        if register.size() == 4 && n != RSP && !base.is_ip() {
            self.load_short_address(n);
            return;
        }
        if register.size() != 8 || n == RSP {
            let t = self.temporary();
            let location = self.place(t);
            self.address_into(t, location);
            self.write_register(register, t);
            return;
        }
        // Compute directly into the register, unless that would overwrite the base before it is used.
        let own = GENERAL[n];
        let is_own_register = |register: Register| {
            register != Register::None && number(register) != RSP && self.at(number(register)) == own
        };
        let displacement = i.memory_displacement64() as i64;
        let needs_own =
            index == Register::None && is_own_register(base) && !(-1000..1000).contains(&displacement);
        let t = if needs_own || base.size() == 4 || index.size() == 4 {
            self.temporary()
        } else {
            let parts = [base, index];
            for part in parts.into_iter().filter(|part| *part != Register::None && number(*part) != RSP) {
                self.wide(number(part));
            }
            self.make_room(n);
            own
        };
        let location = self.place(t);
        if let OperandLocation::Near(at, 0) = location
            && at != own
            && let Some(from) = super::known::owner(at)
            && from != RSP
            && at != t
        {
            self.alias(n, from, true);
            return;
        }
        let d = self.define(n);
        self.address_into(d, location);
    }

    /// LEA of 32 bits.
    fn load_short_address(&mut self, n: usize) {
        let i = self.instruction;
        let part = |lowering: &Self, register: Register| match register {
            Register::None => 0,
            _ if number(register) == RSP => STACK_POINTER,
            _ => lowering.at(number(register)),
        };
        let (base, index) = (part(self, i.memory_base()), part(self, i.memory_index()));
        let is_stack = i.memory_base() != Register::None && number(i.memory_base()) == RSP;
        let displacement = i.memory_displacement64() as i32;
        let displacement = if is_stack { displacement.wrapping_add(self.known.stack) } else { displacement };
        let shift = i.memory_index_scale().trailing_zeros() as i32;
        let d = self.define(n);
        let mut from = base;
        if i.memory_index() != Register::None {
            match (shift, base) {
                (0, _) => self.assembler.three(La::AddW, d, base, index),
                (_, 0) => self.assembler.immediate(La::SlliW, d, index, shift),
                _ => self.assembler.push(longma_loongarch::Instruction {
                    d,
                    j: index,
                    k: base,
                    imm: shift,
                    ..longma_loongarch::Instruction::new(La::AlslW)
                }),
            }
            from = d;
        }
        if (-2048..2048).contains(&displacement) {
            if displacement != 0 || from != d {
                self.assembler.immediate(La::AddiW, d, from, displacement);
            }
        } else {
            self.assembler.constant(SCRATCH, displacement.into());
            self.assembler.three(La::AddW, d, from, SCRATCH);
        }
        self.defined(n, Facts::WORD);
    }

    pub(super) fn push(&mut self) -> bool {
        let i = self.instruction;
        let bytes: i32 = -i.stack_pointer_increment();
        if is_register(&i, 0).is_some_and(|register| !register.is_gpr()) || bytes != 8 && bytes != 2 {
            return false;
        }
        self.reserve_stack(bytes);
        let value = match i.op0_kind() {
            OpKind::Register if bytes == 8 => self.wide(number(i.op0_register())),
            OpKind::Register => self.read_register(i.op0_register(), Extension::Any),
            OpKind::Memory => self.read(0, Extension::Any),
            _ => self.read_constant(i.immediate(0) as i64, 8, Extension::Sign),
        };
        self.store_from(
            value,
            OperandLocation::Near(STACK_POINTER, self.known.stack - bytes),
            bytes as usize,
        );
        self.known.stack -= bytes;
        true
    }

    pub(super) fn pop(&mut self) -> bool {
        let i = self.instruction;
        let bytes = i.stack_pointer_increment();
        match is_register(&i, 0) {
            Some(register) if register.is_gpr64() => {
                self.reserve_stack(8);
                let n = number(register);
                let stack = self.known.stack;
                if n == RSP {
                    self.assembler.immediate(La::LdD, STACK_POINTER, STACK_POINTER, stack);
                    self.known.stack = 0;
                } else {
                    let d = self.define(n);
                    self.assembler.immediate(La::LdD, d, STACK_POINTER, stack);
                    self.known.stack += 8;
                }
                true
            }
            Some(register) if register.is_gpr16() && bytes == 2 && number(register) != RSP => {
                self.reserve_stack(2);
                self.assembler.immediate(La::LdHu, SCRATCH, STACK_POINTER, self.known.stack);
                self.known.stack += 2;
                self.write_register(register, SCRATCH);
                true
            }
            _ => false,
        }
    }
}
