//! XCHG, and instructions with a LOCK prefix. Source: Intel SDM, volume 2 and volume 3, section 9.1.2; LoongArch
//! Reference Manual, volume 1, section 2.2.7.

use iced_x86::{Mnemonic, OpKind, Register, RflagsBits};
use longma_loongarch::{Instruction as Code, Op as La};

use super::integer::Arithmetic;
use super::lower::{Lowering, is_register};
use super::operands::{Extension, OperandLocation};
use crate::registers::*;
use longma_translate::assembler::{JumpTarget, Label};

impl Lowering<'_> {
    /// Translates an atomic instruction. Returns false for others.
    pub fn atomic(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        match i.mnemonic() {
            Xchg if i.op0_kind() == OpKind::Memory || i.op1_kind() == OpKind::Memory => self.exchange(),
            Xadd => self.exchange_and_add(),
            Cmpxchg if i.op0_kind() == OpKind::Memory => self.compare_and_exchange(),
            Cmpxchg16b => self.compare_and_exchange_pair(),
            Add | Sub | And | Or | Xor | Inc | Dec | Neg | Not | Adc | Sbb if i.has_lock_prefix() => {
                self.locked_arithmetic();
            }
            Bts | Btr | Btc if i.has_lock_prefix() => self.locked_bit(),
            _ => return false,
        }
        true
    }

    fn branch_to(&mut self, op: La, j: u8, d: u8, label: Label) {
        self.assembler.jump(Code { j, d, ..Code::new(op) }, JumpTarget::Label(label));
    }

    fn atomic_three(&mut self, op: La, d: u8, value: u8, address: u8) {
        self.assembler.push(Code { d, j: address, k: value, ..Code::new(op) });
    }

    /// Atomically replaces memory at `address` with the value that `change` computes in `new`. `old` receives the
    /// previous value, sign-extended.
    fn replace(
        &mut self,
        address: u8,
        bytes: usize,
        [old, new]: [u8; 2],
        mut change: impl FnMut(&mut Self, u8, u8),
    ) {
        let retry = self.assembler.label();
        self.assembler.place(retry);
        if bytes >= 4 {
            let (load, store) = if bytes == 8 { (La::LlD, La::ScD) } else { (La::LlW, La::ScW) };
            self.assembler.immediate(load, old, address, 0);
            change(self, new, old);
            self.assembler.copy(SCRATCH, new);
            self.assembler.immediate(store, SCRATCH, address, 0);
            self.branch_to(La::Beqz, SCRATCH, 0, retry);
        } else {
            let op = if bytes == 1 { La::AmcasDbB } else { La::AmcasDbH };
            self.load_to(old, OperandLocation::Near(address, 0), bytes, Extension::Sign);
            change(self, new, old);
            self.assembler.copy(SCRATCH, old);
            self.atomic_three(op, SCRATCH, new, address);
            self.extend(SCRATCH, SCRATCH, bytes, Extension::Sign);
            self.branch_to(La::Bne, SCRATCH, old, retry);
        }
    }

    fn exchange(&mut self) {
        let i = self.instruction;
        let register = if i.op0_kind() == OpKind::Memory { i.op1_register() } else { i.op0_register() };
        let address = self.address();
        let bytes = register.size();
        let value = self.read_register(register, Extension::Any);
        let old = self.temporary();
        if bytes >= 4 {
            let op = if bytes == 8 { La::AmswapDbD } else { La::AmswapDbW };
            self.atomic_three(op, old, value, address);
        } else {
            let new = self.temporary();
            self.replace(address, bytes, [old, new], |lowering, new, _| lowering.assembler.copy(new, value));
        }
        self.write_register(register, old);
    }

    fn exchange_and_add(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let register = i.op1_register();
        if let Some(first) = is_register(&i, 0) {
            let a = self.read_register(first, Extension::Sign);
            let b = self.read_register(register, Extension::Sign);
            let d = self.temporary();
            self.assembler.three(La::AddD, d, a, b);
            if bytes < 8 {
                self.extend(d, d, bytes, Extension::Sign);
            }
            self.sum_flags([a, b, d], 0);
            self.assembler.copy(SCRATCH, a);
            self.write_register(register, SCRATCH);
            self.write_register(first, d);
            return;
        }
        let address = self.address();
        let b = self.read_register(register, Extension::Sign);
        let (old, d) = (self.temporary(), self.temporary());
        let add = |lowering: &mut Self, new: u8, old: u8| lowering.assembler.three(La::AddD, new, old, b);
        if bytes >= 4 {
            let op = if bytes == 8 { La::AmaddDbD } else { La::AmaddDbW };
            self.atomic_three(op, old, b, address);
            add(self, d, old);
        } else {
            self.replace(address, bytes, [old, d], add);
        }
        if self.live & i.rflags_modified() != 0 {
            if bytes < 8 {
                self.extend(d, d, bytes, Extension::Sign);
            }
            self.sum_flags([old, b, d], 0);
        }
        self.write_register(register, old);
    }

    fn compare_and_exchange(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let register = i.op1_register();
        let accumulator = match bytes {
            8 => Register::RAX,
            4 => Register::EAX,
            2 => Register::AX,
            _ => Register::AL,
        };
        let address = self.address();
        let expected = self.read_register(accumulator, Extension::Sign);
        let old = self.temporary();
        if bytes >= 4 {
            let (load, store) = if bytes == 8 { (La::LlD, La::ScD) } else { (La::LlW, La::ScW) };
            let (retry, write) = (self.assembler.label(), self.assembler.label());
            let from = self.wide(super::forms::number(register));
            self.assembler.place(retry);
            self.assembler.immediate(load, old, address, 0);
            self.assembler.copy(SCRATCH, from);
            self.branch_to(La::Beq, old, expected, write);
            // A failed comparison writes the old value, and thus faults on a page that is not writable.
            self.assembler.copy(SCRATCH, old);
            self.assembler.place(write);
            self.assembler.immediate(store, SCRATCH, address, 0);
            self.branch_to(La::Beqz, SCRATCH, 0, retry);
        } else {
            let value = self.read_register(register, Extension::Any);
            self.assembler.copy(old, expected);
            self.atomic_three(if bytes == 1 { La::AmcasDbB } else { La::AmcasDbH }, old, value, address);
            self.extend(old, old, bytes, Extension::Sign);
        }
        if i.has_lock_prefix() && bytes >= 4 {
            self.assembler.immediate(La::Dbar, 0, 0, 0);
        }
        // The flags are those of comparing the accumulator with the memory operand.
        if self.live & i.rflags_modified() != 0 {
            self.assembler.three(La::SubD, SCRATCH, expected, old);
            if bytes < 8 {
                self.extend(SCRATCH, SCRATCH, bytes, Extension::Sign);
            }
            let difference = self.temporary();
            self.assembler.copy(difference, SCRATCH);
            self.difference_flags([expected, old, difference], 0);
        }
        if bytes == 4 {
            // If the comparison succeeded, EAX is not written, so the upper half of RAX is preserved.
            self.assembler.three(La::Xor, SCRATCH, old, expected);
            self.assembler.field(La::BstrpickD, old, old, 31, 0);
            self.assembler.three(La::Maskeqz, old, old, SCRATCH);
            self.assembler.three(La::Masknez, RAX, RAX, SCRATCH);
            self.assembler.three(La::Or, RAX, RAX, old);
        } else {
            self.write_register(accumulator, old);
        }
    }

    fn compare_and_exchange_pair(&mut self) {
        let address = self.address();
        let (low, high) = (self.temporary(), self.temporary());
        let (retry, differs, end) = (self.assembler.label(), self.assembler.label(), self.assembler.label());
        self.assembler.place(retry);
        self.assembler.immediate(La::LlD, low, address, 0);
        self.assembler.immediate(La::LdD, high, address, 8);
        self.branch_to(La::Bne, low, RAX, differs);
        self.branch_to(La::Bne, high, RDX, differs);
        self.assembler.copy(SCRATCH, RBX);
        self.atomic_three(La::ScQ, SCRATCH, RCX, address);
        self.branch_to(La::Beqz, SCRATCH, 0, retry);
        self.assembler.copy(NOT_ZERO, 0);
        self.assembler.go(JumpTarget::Label(end));
        self.assembler.place(differs);
        self.assembler.copy(SCRATCH, low);
        self.atomic_three(La::ScQ, SCRATCH, high, address);
        // Another thread may have written between the loads.
        self.branch_to(La::Beqz, SCRATCH, 0, retry);
        self.assembler.copy(RAX, low);
        self.assembler.copy(RDX, high);
        self.assembler.immediate(La::Ori, NOT_ZERO, 0, 1);
        self.assembler.place(end);
        self.assembler.immediate(La::Dbar, 0, 0, 0);
    }

    fn locked_arithmetic(&mut self) {
        use Mnemonic::*;
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let address = self.address();
        let b = match i.mnemonic() {
            Inc => self.read_constant(1, bytes, Extension::Sign),
            Dec => self.read_constant(1, bytes, Extension::Sign),
            Neg | Not => 0,
            _ => self.read(1, Extension::Sign),
        };
        let (old, d) = (self.temporary(), self.temporary());
        let needs_flags = self.live & i.rflags_modified() != 0;
        let kind = Arithmetic::of(i.mnemonic()).filter(|_| bytes >= 4);
        let word = bytes == 4;
        let combine = |lowering: &mut Self, new: u8, old: u8| {
            let op = match i.mnemonic() {
                Add | Inc => La::AddD,
                Sub | Dec => La::SubD,
                And => La::And,
                Or => La::Or,
                Xor => La::Xor,
                Neg => return lowering.assembler.three(La::SubD, new, 0, old),
                Not => return lowering.assembler.three(La::Nor, new, 0, old),
                Adc => {
                    lowering.assembler.three(La::AddD, new, old, b);
                    return lowering.assembler.three(La::AddD, new, new, CARRY);
                }
                _ => {
                    lowering.assembler.three(La::SubD, new, old, b);
                    return lowering.assembler.three(La::SubD, new, new, CARRY);
                }
            };
            lowering.assembler.three(op, new, old, b);
        };
        match kind {
            Some(kind) => {
                let (op, value) = match kind {
                    Arithmetic::Add => (if word { La::AmaddDbW } else { La::AmaddDbD }, b),
                    Arithmetic::Subtract => {
                        self.assembler.three(La::SubD, d, 0, b);
                        (if word { La::AmaddDbW } else { La::AmaddDbD }, d)
                    }
                    Arithmetic::And => (if word { La::AmandDbW } else { La::AmandDbD }, b),
                    Arithmetic::Or => (if word { La::AmorDbW } else { La::AmorDbD }, b),
                    Arithmetic::Xor => (if word { La::AmxorDbW } else { La::AmxorDbD }, b),
                };
                self.atomic_three(op, if needs_flags { old } else { 0 }, value, address);
                if needs_flags {
                    combine(self, d, old);
                }
            }
            None => self.replace(address, bytes, [old, d], combine),
        }
        if needs_flags {
            self.locked_flags([old, b, d], bytes);
        }
    }

    fn locked_flags(&mut self, [old, b, d]: [u8; 3], bytes: usize) {
        use Mnemonic::*;
        if bytes < 8 {
            self.extend(d, d, bytes, Extension::Sign);
        }
        match self.instruction.mnemonic() {
            Add => self.sum_flags([old, b, d], 0),
            Inc => self.sum_flags([old, b, d], RflagsBits::CF),
            Sub => self.difference_flags([old, b, d], 0),
            Dec => self.difference_flags([old, b, d], RflagsBits::CF),
            Neg => self.difference_flags([0, old, d], 0),
            And | Or | Xor => self.logic_flags(d),
            Adc => {
                // The intermediate result without the carry.
                let half = self.temporary();
                self.assembler.three(La::AddD, half, old, b);
                self.extend(half, half, bytes, Extension::Sign);
                self.carry_flags([old, b, half, d], true);
            }
            Sbb => {
                let half = self.temporary();
                self.assembler.three(La::SubD, half, old, b);
                self.extend(half, half, bytes, Extension::Sign);
                self.carry_flags([old, b, half, d], false);
            }
            _ => {}
        }
    }

    fn locked_bit(&mut self) {
        let bytes = self.bytes_of(0);
        let (location, bit) = self.bit_place(bytes);
        let address = match location {
            Some(OperandLocation::Near(base, 0)) if base != 0 => base,
            Some(location) => {
                let t = self.temporary();
                self.address_into(t, location);
                t
            }
            None => return,
        };
        let (old, new) = (self.temporary(), self.temporary());
        self.replace(address, bytes, [old, new], |lowering, new, old| {
            lowering.assembler.immediate(La::Ori, SCRATCH, 0, 1);
            match bit {
                Ok(bit) => lowering.assembler.immediate(La::SlliD, SCRATCH, SCRATCH, bit),
                Err(register) => lowering.assembler.three(La::SllD, SCRATCH, SCRATCH, register),
            }
            lowering.change_bit(new, old, SCRATCH);
        });
        if self.live & RflagsBits::CF != 0 {
            match bit {
                Ok(bit) => self.assembler.field(La::BstrpickD, CARRY, old, bit as u8, bit as u8),
                Err(register) => {
                    self.assembler.three(La::SrlD, CARRY, old, register);
                    self.assembler.immediate(La::Andi, CARRY, CARRY, 1);
                }
            }
        }
    }
}
