//! Operands: memory addresses, and reads and writes in each size. Source: Intel SDM, volume 1, sections 3.4.1 (partial
//! registers) and 3.7.5 (addresses).

use iced_x86::{OpKind, Register};
use longma_loongarch::{Instruction as Code, Op as La};

use super::forms::number;
use super::known::{Facts, RSP};
use super::lower::{Lowering, MAX_STACK_OFFSET, Scaled};
use crate::registers::*;

/// The state of the bits above an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extension {
    Zero,
    Sign,
    /// Irrelevant.
    Any,
}

/// A memory address.
#[derive(Clone, Copy, Debug)]
pub(super) enum OperandLocation {
    /// A register plus a 12-bit offset.
    Near(u8, i32),
    /// The sum of two registers.
    Sum(u8, u8),
}

impl Lowering<'_> {
    /// The address of the memory operand; `t` is a register that may be used for it.
    pub fn place(&mut self, t: u8) -> OperandLocation {
        let i = self.instruction;
        let base = i.memory_base();
        let index = i.memory_index();
        if is_narrow(base, index) && base != Register::None && number(base) == RSP {
            self.step_stack(0, true);
        }
        let narrow = base.size() == 4 && base != Register::EIP || index.size() == 4;
        let segment = match i.memory_segment() {
            Register::FS => Some(THREAD_POINTER),
            Register::GS => Some(SCRATCH),
            _ => None,
        };
        let location = if matches!(base, Register::RIP | Register::EIP) {
            self.offset_place(t, 0, i.memory_displacement64() as i64)
        } else {
            self.plain_place(t, base, index)
        };
        let location = if narrow {
            self.address_into(t, location);
            self.assembler.field(La::BstrpickD, t, t, 31, 0);
            OperandLocation::Near(t, 0)
        } else {
            location
        };
        let Some(segment) = segment else { return location };
        if segment == SCRATCH {
            self.address_into(t, location);
            self.assembler.two(La::Movscr2gr, SCRATCH, GS_BASE);
            self.assembler.three(La::AddD, t, t, SCRATCH);
            return OperandLocation::Near(t, 0);
        }
        match location {
            OperandLocation::Near(0, offset) => OperandLocation::Near(segment, offset),
            OperandLocation::Near(register, 0) => OperandLocation::Sum(register, segment),
            OperandLocation::Near(register, offset) => {
                self.assembler.three(La::AddD, t, register, segment);
                OperandLocation::Near(t, offset)
            }
            OperandLocation::Sum(..) => {
                self.address_into(t, location);
                OperandLocation::Sum(t, segment)
            }
        }
    }

    fn plain_place(&mut self, t: u8, base: Register, index: Register) -> OperandLocation {
        let i = self.instruction;
        let displacement = i.memory_displacement64() as i64;
        let displacement =
            if i.memory_displ_size() == 8 { displacement } else { i64::from(displacement as i32) };
        let is_stack = base != Register::None && number(base) == RSP;
        let displacement =
            if is_stack { displacement.wrapping_add(self.known.stack.into()) } else { displacement };
        let base_number = (base != Register::None).then(|| number(base));
        let base = if base == Register::None { 0 } else { self.address_part(base) };
        if index == Register::None {
            return self.offset_place(t, base, displacement);
        }
        let index_number = number(index);
        let shift = i.memory_index_scale().trailing_zeros();
        let keeps = shift != 0
            && !is_stack
            && !is_narrow(i.memory_base(), index)
            && i.memory_segment() != Register::FS
            && i.memory_segment() != Register::GS
            && (-2048..2048).contains(&displacement);
        if keeps && let Some(at) = self.scaled(base_number, index_number, shift) {
            return OperandLocation::Near(at, displacement as i32);
        }
        let index = self.address_part(index);
        // Cache the sum for the next instruction, unless it is computed directly into a guest register.
        let t = if keeps && TEMPORARIES.contains(&t) {
            let at = self.temporary();
            if at == SCRATCH {
                t
            } else {
                self.scaled = Some(Scaled { base: base_number, index: index_number, shift, at });
                at
            }
        } else {
            t
        };
        self.sum_place(t, base, (index, shift), displacement)
    }

    /// The address `base` (0 for none) plus shifted `index` plus displacement; `t` is a register for it.
    fn sum_place(
        &mut self,
        t: u8,
        base: u8,
        (index, shift): (u8, u32),
        displacement: i64,
    ) -> OperandLocation {
        let scaled = |k: u8| Code { d: t, j: index, k, imm: shift as i32, ..Code::new(La::AlslD) };
        let is_near = (-2048..2048).contains(&displacement);
        let low = displacement << 52 >> 52;
        // A table at a constant address.
        if shift != 0 && base == 0 && !is_near {
            self.assembler.constant(SCRATCH, displacement.wrapping_sub(low));
            self.assembler.push(scaled(SCRATCH));
            return OperandLocation::Near(t, low as i32);
        }
        match (shift, base) {
            (0, 0) => return self.offset_place(t, index, displacement),
            (0, _) if displacement == 0 => return OperandLocation::Sum(base, index),
            (0, _) => self.assembler.three(La::AddD, t, base, index),
            (_, 0) => self.assembler.immediate(La::SlliD, t, index, shift as i32),
            _ => self.assembler.push(scaled(base)),
        }
        if is_near {
            return OperandLocation::Near(t, displacement as i32);
        }
        self.assembler.constant(SCRATCH, displacement - low);
        self.assembler.three(La::AddD, t, t, SCRATCH);
        OperandLocation::Near(t, low as i32)
    }

    /// A register of an address: all of it, or its low half for 32-bit addresses.
    fn address_part(&mut self, register: Register) -> u8 {
        match number(register) {
            RSP => STACK_POINTER,
            n if register.size() == 8 => self.wide(n),
            n => self.at(n),
        }
    }

    fn offset_place(&mut self, t: u8, base: u8, displacement: i64) -> OperandLocation {
        if (-2048..2048).contains(&displacement) {
            return OperandLocation::Near(base, displacement as i32);
        }
        let low = displacement << 52 >> 52;
        if t == base {
            // `t` holds the base, so it must not be overwritten.
            self.assembler.constant(SCRATCH, displacement.wrapping_sub(low));
            self.assembler.three(La::AddD, t, base, SCRATCH);
            return OperandLocation::Near(t, low as i32);
        }
        self.assembler.constant(t, displacement.wrapping_sub(low));
        if base == 0 {
            return OperandLocation::Near(t, low as i32);
        }
        if low == 0 {
            return OperandLocation::Sum(base, t);
        }
        self.assembler.three(La::AddD, t, base, t);
        OperandLocation::Near(t, low as i32)
    }

    /// Computes an address into a register.
    pub fn address_into(&mut self, d: u8, location: OperandLocation) {
        match location {
            OperandLocation::Near(base, 0) => self.assembler.copy(d, base),
            OperandLocation::Near(base, offset) => self.assembler.immediate(La::AddiD, d, base, offset),
            OperandLocation::Sum(base, index) => self.assembler.three(La::AddD, d, base, index),
        }
    }

    /// The address of the memory operand in a single register.
    pub fn address(&mut self) -> u8 {
        let t = self.temporary();
        match self.place(t) {
            OperandLocation::Near(base, 0) if base != 0 => base,
            place => {
                self.address_into(t, place);
                t
            }
        }
    }

    /// The address of a memory operand that is accessed twice, in a form to which an offset can be added.
    pub fn near(&mut self) -> OperandLocation {
        let t = self.temporary();
        match self.place(t) {
            OperandLocation::Sum(base, index) => {
                self.assembler.three(La::AddD, t, base, index);
                OperandLocation::Near(t, 0)
            }
            near => near,
        }
    }

    /// Loads `bytes` bytes.
    pub fn load_to(&mut self, d: u8, location: OperandLocation, bytes: usize, extension: Extension) {
        let zero = extension != Extension::Sign;
        let (offset_op, sum_op) = match (bytes, zero) {
            (1, true) => (La::LdBu, La::LdxBu),
            (1, false) => (La::LdB, La::LdxB),
            (2, true) => (La::LdHu, La::LdxHu),
            (2, false) => (La::LdH, La::LdxH),
            (4, true) => (La::LdWu, La::LdxWu),
            (4, false) => (La::LdW, La::LdxW),
            _ => (La::LdD, La::LdxD),
        };
        self.access(offset_op, sum_op, d, location);
    }

    /// Stores `bytes` bytes.
    pub fn store_from(&mut self, value: u8, location: OperandLocation, bytes: usize) {
        let (offset_op, sum_op) = match bytes {
            1 => (La::StB, La::StxB),
            2 => (La::StH, La::StxH),
            4 => (La::StW, La::StxW),
            _ => (La::StD, La::StxD),
        };
        self.access(offset_op, sum_op, value, location);
    }

    /// A load or store of any register.
    pub fn access(&mut self, offset_op: La, sum_op: La, d: u8, location: OperandLocation) {
        match location {
            OperandLocation::Near(base, offset) => self.assembler.immediate(offset_op, d, base, offset),
            OperandLocation::Sum(base, index) => self.assembler.three(sum_op, d, base, index),
        }
    }

    /// The size of an operand in bytes.
    pub fn bytes_of(&self, operand: u32) -> usize {
        let i = self.instruction;
        match i.op_kind(operand) {
            OpKind::Register => i.op_register(operand).size(),
            OpKind::Memory => i.memory_size().size(),
            OpKind::Immediate8 => 1,
            OpKind::Immediate16 | OpKind::Immediate8to16 => 2,
            OpKind::Immediate32 | OpKind::Immediate8to32 => 4,
            _ => 8,
        }
    }

    /// A register that holds the value of an operand.
    pub fn read(&mut self, operand: u32, extension: Extension) -> u8 {
        let i = self.instruction;
        match i.op_kind(operand) {
            OpKind::Register => self.read_register(i.op_register(operand), extension),
            OpKind::Memory => {
                let t = self.temporary();
                let location = self.place(t);
                self.load_to(t, location, i.memory_size().size(), extension);
                t
            }
            _ => {
                // Immediates have the size of the first operand.
                let bytes = self.bytes_of(0);
                self.read_constant(i.immediate(operand) as i64, bytes, extension)
            }
        }
    }

    /// A register that holds a constant, extended from `bytes` bytes.
    pub fn read_constant(&mut self, value: i64, bytes: usize, extension: Extension) -> u8 {
        let unused = 64 - 8 * bytes as u32;
        let value = match extension {
            Extension::Zero => ((value as u64) << unused >> unused) as i64,
            _ => value << unused >> unused,
        };
        if value == 0 {
            return 0;
        }
        let t = self.temporary();
        self.assembler.constant(t, value);
        t
    }

    /// A register that holds the value of a general register of any size.
    pub fn read_register(&mut self, register: Register, extension: Extension) -> u8 {
        let n = number(register);
        if n == RSP {
            self.step_stack(0, true);
        }
        let (bytes, high) = (register.size(), is_high(register));
        let (from, facts) = (self.at(n), self.known.value(n));
        match (bytes, extension) {
            (8, _) => return self.wide(n),
            (_, Extension::Any) if !high => return from,
            (4, Extension::Sign) => return self.signed(n),
            (4, _) => return self.unsigned(n),
            (2, Extension::Zero) if facts.width <= 16 => return from,
            (1, Extension::Zero) if facts.width <= 8 && !high => return from,
            (2, Extension::Sign) if facts.width < 16 => return from,
            (1, Extension::Sign) if facts.width < 8 && !high => return from,
            _ => {}
        }
        let t = self.temporary();
        match (bytes, extension) {
            (2, Extension::Sign) => self.assembler.two(La::ExtWH, t, from),
            (2, _) => self.assembler.field(La::BstrpickD, t, from, 15, 0),
            (_, Extension::Sign) if high => {
                self.assembler.immediate(La::SrliD, t, from, 8);
                self.assembler.two(La::ExtWB, t, t);
            }
            (_, Extension::Sign) => self.assembler.two(La::ExtWB, t, from),
            _ if high => self.assembler.field(La::BstrpickD, t, from, 15, 8),
            _ => self.assembler.field(La::BstrpickD, t, from, 7, 0),
        }
        t
    }

    /// Extends a value of `bytes` bytes.
    pub fn extend(&mut self, d: u8, from: u8, bytes: usize, extension: Extension) {
        match (bytes, extension) {
            (8, _) | (_, Extension::Any) => self.assembler.copy(d, from),
            (4, Extension::Sign) => self.assembler.immediate(La::SlliW, d, from, 0),
            (2, Extension::Sign) => self.assembler.two(La::ExtWH, d, from),
            (1, Extension::Sign) => self.assembler.two(La::ExtWB, d, from),
            _ => self.assembler.field(La::BstrpickD, d, from, 8 * bytes as u8 - 1, 0),
        }
    }

    /// Writes a register of any size. A 32-bit write clears the upper half; narrower ones preserve the other bits.
    pub fn write_register(&mut self, register: Register, value: u8) {
        let n = number(register);
        let of_value = self.known.of(value);
        match register.size() {
            8 => {
                let d = self.define(n);
                self.assembler.copy(d, value);
                self.defined_wide(n, of_value);
            }
            4 => {
                let d = self.define(n);
                self.assembler.field(La::BstrpickD, d, value, 31, 0);
                self.defined(n, Facts::ZERO_EXTENDED);
            }
            bytes => {
                let high = is_high(register);
                let old_facts = self.known.value(n);
                if old_facts.width == 0 && !high {
                    let d = self.define(n);
                    self.assembler.field(La::BstrpickD, d, value, 8 * bytes as u8 - 1, 0);
                    self.defined(n, Facts::of_width(8 * bytes as u8));
                    return;
                }
                if n == RSP {
                    self.step_stack(0, true);
                }
                let d = self.own(n);
                let (last, first) = match (bytes, high) {
                    (2, _) => (15, 0),
                    (_, true) => (15, 8),
                    _ => (7, 0),
                };
                self.assembler.field(La::BstrinsD, d, value, last, first);
                self.known.facts[n] = Facts { width: old_facts.width.max(last + 1), ..old_facts };
            }
        }
    }

    /// Whether a change of RSP by this amount can be deferred.
    pub fn is_step(value: i64) -> bool {
        value.abs() <= MAX_STACK_OFFSET.into()
    }
}

fn is_narrow(base: Register, index: Register) -> bool {
    base.size() == 4 && base != Register::EIP || index.size() == 4
}
