//! Shifts, rotations and bit operations of general registers. Source: Intel SDM, volume 2; LoongArch Reference Manual,
//! volume 1.

use iced_x86::{Mnemonic, OpKind, Register, RflagsBits};
use longma_loongarch::{Instruction as Code, Op as La};

use super::forms::number;
use super::known::Facts;
use super::lower::{Lowering, is_register};
use super::operands::{Extension, OperandLocation};
use crate::registers::*;
use longma_translate::assembler::{JumpTarget, Label};

/// A shift count.
#[derive(Clone, Copy, Debug)]
enum Count {
    Known(u32),
    /// In a register, possibly zero.
    Variable(u8),
}

/// The extension that a shift's operand needs. `needs_flags` is true if flags are live.
fn extension_of_shifted(mnemonic: Mnemonic, bytes: usize, needs_flags: bool) -> Extension {
    match mnemonic {
        Mnemonic::Sar if bytes == 4 && !needs_flags => Extension::Any,
        Mnemonic::Sar => Extension::Sign,
        // The word instructions ignore the upper half.
        Mnemonic::Shl if !needs_flags || bytes == 8 => Extension::Any,
        Mnemonic::Shr if bytes == 4 && !needs_flags => Extension::Any,
        _ => Extension::Zero,
    }
}

impl Lowering<'_> {
    /// Translates a shift, rotation or bit instruction. Returns false for others.
    pub fn bits(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        if i.has_lock_prefix() {
            return false;
        }
        match i.mnemonic() {
            Shl | Shr | Sar => self.shift(),
            Rol | Ror => self.rotate(),
            Shld | Shrd => return self.double_shift(),
            Bt | Bts | Btr | Btc => return self.single_bit(),
            Bsf | Bsr => return self.scan(),
            Tzcnt | Lzcnt => self.count_zeros(),
            Movbe => self.move_swapped(),
            Popcnt => self.population(),
            Bswap => self.swap_bytes(),
            _ => return false,
        }
        true
    }

    /// The masked count of a shift.
    fn count(&mut self, operand: u32, bytes: usize) -> Count {
        let i = self.instruction;
        let mask: u32 = if bytes == 8 { 63 } else { 31 };
        if i.op_kind(operand) == OpKind::Register {
            let t = self.temporary();
            self.assembler.immediate(La::Andi, t, self.at(1), mask as i32);
            return Count::Variable(t);
        }
        Count::Known(i.immediate8() as u32 & mask)
    }

    /// A shift by zero has no effect, except that a 32-bit shift clears the upper half of its register.
    fn shift_by_nothing(&mut self, bytes: usize) {
        if let Some(register) = is_register(&self.instruction, 0).filter(|_| bytes == 4) {
            self.alias(number(register), number(register), false);
        }
    }

    /// If the count is variable, jumps over the flag computation when it is zero.
    fn unless_zero(&mut self, count: Count) -> Option<Label> {
        let Count::Variable(t) = count else { return None };
        let skip = self.assembler.label();
        self.assembler.jump(Code { j: t, ..Code::new(La::Beqz) }, JumpTarget::Label(skip));
        Some(skip)
    }

    fn shift(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let count = self.count(1, bytes);
        let needs_flags = self.live & i.rflags_modified() != 0;
        if let Count::Known(0) = count {
            return self.shift_by_nothing(bytes);
        }
        let (a, location) = self.first(extension_of_shifted(i.mnemonic(), bytes, needs_flags));
        let is_full_register = bytes >= 4 && location.is_none() && !needs_flags;
        let of_a = self.known.of(a);
        let d = if is_full_register { self.define(number(i.op0_register())) } else { self.temporary() };
        let word = bytes == 4 && !needs_flags;
        self.shift_into(d, a, count, word);
        let facts = match count {
            Count::Known(count) if i.mnemonic() == Mnemonic::Shr && bytes >= 4 => {
                Facts::of_width(of_a.width.min(8 * bytes as u8).saturating_sub(count as u8))
            }
            // If the count is zero, the result is the sign-extended word.
            _ if word => Facts::WORD,
            _ => Facts::NONE,
        };
        if location.is_some() {
            self.write_back(d, location);
        }
        if needs_flags {
            let skip = self.unless_zero(count);
            self.shift_flags(a, d, count, bytes);
            if let Some(skip) = skip {
                self.assembler.place(skip);
            }
        }
        if is_full_register {
            let n = number(i.op0_register());
            if bytes == 8 { self.defined_wide(n, facts) } else { self.defined(n, facts) }
        } else if location.is_none() {
            self.write_back(d, location);
        }
    }

    /// Shifts `a` into `d`, as a word or doubleword.
    fn shift_into(&mut self, d: u8, a: u8, count: Count, word: bool) {
        let (constant_op, variable_op) = match (self.instruction.mnemonic(), word) {
            (Mnemonic::Shl, true) => (La::SlliW, La::SllW),
            (Mnemonic::Shl, false) => (La::SlliD, La::SllD),
            (Mnemonic::Sar, true) => (La::SraiW, La::SraW),
            (Mnemonic::Sar, false) => (La::SraiD, La::SraD),
            (_, true) => (La::SrliW, La::SrlW),
            (_, false) => (La::SrliD, La::SrlD),
        };
        match count {
            Count::Known(count) => {
                self.assembler.immediate(constant_op, d, a, count.min(if word { 31 } else { 63 }) as i32);
            }
            Count::Variable(t) => self.assembler.three(variable_op, d, a, t),
        }
    }

    /// Computes the flags of a shift of `a` with result `d`.
    fn shift_flags(&mut self, a: u8, d: u8, count: Count, bytes: usize) {
        let i = self.instruction;
        let bits = 8 * bytes as u32;
        let left = i.mnemonic() == Mnemonic::Shl;
        let live = self.live;
        if live & (RflagsBits::CF | RflagsBits::OF) != 0 {
            // CF is the last bit shifted out.
            match (count, left && bytes == 8) {
                (Count::Known(count), true) => {
                    self.assembler.immediate(La::SrliD, CARRY, a, (64 - count) as i32);
                }
                (Count::Variable(t), true) => {
                    self.assembler.three(La::SubD, CARRY, 0, t);
                    self.assembler.three(La::SrlD, CARRY, a, CARRY);
                }
                (_, false) if left => self.assembler.immediate(La::SrliD, CARRY, d, bits as i32),
                (Count::Known(count), _) => {
                    self.assembler.immediate(La::SrliD, CARRY, a, (count - 1).min(63) as i32);
                }
                (Count::Variable(t), _) => {
                    self.assembler.immediate(La::AddiD, CARRY, t, -1);
                    let op = if i.mnemonic() == Mnemonic::Sar { La::SraD } else { La::SrlD };
                    self.assembler.three(op, CARRY, a, CARRY);
                }
            }
            self.assembler.immediate(La::Andi, CARRY, CARRY, 1);
        }
        if live & RflagsBits::OF != 0 {
            match i.mnemonic() {
                Mnemonic::Shl => {
                    // OF is set if the last step changed the sign.
                    self.extend(SCRATCH, d, bytes, Extension::Sign);
                    self.assembler.three(La::SubD, OVERFLOW, 0, CARRY);
                    self.assembler.three(La::Xor, OVERFLOW, OVERFLOW, SCRATCH);
                }
                Mnemonic::Shr => self.assembler.immediate(La::SlliD, OVERFLOW, a, 64 - bits as i32),
                _ => self.assembler.copy(OVERFLOW, 0),
            }
        }
        if live & (RflagsBits::ZF | RflagsBits::SF | RflagsBits::PF) != 0 {
            if bytes < 8 && i.mnemonic() != Mnemonic::Sar {
                self.extend(SCRATCH, d, bytes, Extension::Sign);
                self.result_flags(SCRATCH);
            } else {
                self.result_flags(d);
            }
        }
    }

    fn rotate(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let count = self.count(1, bytes);
        if let Count::Known(0) = count {
            return self.shift_by_nothing(bytes);
        }
        let needs_flags = self.live & (RflagsBits::CF | RflagsBits::OF) != 0;
        let (a, location) = self.first(if bytes < 4 { Extension::Zero } else { Extension::Any });
        let full_register = is_register(&i, 0).filter(|_| bytes >= 4 && !needs_flags).map(number);
        let d = match full_register {
            Some(n) => self.define(n),
            None => self.temporary(),
        };
        self.rotate_into(d, a, count, bytes);
        if location.is_some() {
            self.write_back(d, location);
        }
        if needs_flags {
            let skip = self.unless_zero(count);
            self.rotation_flags(d, 8 * bytes as i32);
            if let Some(skip) = skip {
                self.assembler.place(skip);
            }
        }
        match full_register {
            Some(n) if bytes == 8 => self.defined_wide(n, Facts::NONE),
            Some(n) => self.defined(n, Facts::WORD),
            None if location.is_none() => self.write_back(d, location),
            None => {}
        }
    }

    /// Rotates `a` into `d`.
    fn rotate_into(&mut self, d: u8, a: u8, count: Count, bytes: usize) {
        let left = self.instruction.mnemonic() == Mnemonic::Rol;
        // Replicate narrow values to fill a word.
        if bytes < 4 {
            self.assembler.copy(d, a);
            self.assembler.field(La::BstrinsD, d, d, 31, 16);
            if bytes == 1 {
                self.assembler.field(La::BstrinsD, d, a, 15, 8);
                self.assembler.field(La::BstrinsD, d, d, 31, 16);
            }
        }
        let from = if bytes < 4 { d } else { a };
        let width = (8 * bytes as i32).max(32);
        match count {
            Count::Known(count) => {
                let count = count as i32 % width;
                let right = if left { (width - count) % width } else { count };
                let op = if bytes == 8 { La::RotriD } else { La::RotriW };
                self.assembler.immediate(op, d, from, right);
            }
            Count::Variable(t) => {
                let right = if left {
                    self.assembler.three(La::SubD, SCRATCH, 0, t);
                    SCRATCH
                } else {
                    t
                };
                self.assembler.three(if bytes == 8 { La::RotrD } else { La::RotrW }, d, from, right);
            }
        }
    }

    /// Computes the flags of a rotation of `bits` bits with result `d`.
    fn rotation_flags(&mut self, d: u8, bits: i32) {
        if self.instruction.mnemonic() == Mnemonic::Rol {
            self.assembler.immediate(La::Andi, CARRY, d, 1);
            self.assembler.immediate(La::SlliD, SCRATCH, d, 64 - bits);
            self.assembler.three(La::SubD, OVERFLOW, 0, CARRY);
        } else {
            self.assembler.field(La::BstrpickD, CARRY, d, bits as u8 - 1, bits as u8 - 1);
            self.assembler.immediate(La::SlliD, SCRATCH, d, 64 - bits);
            self.assembler.immediate(La::SlliD, OVERFLOW, d, 65 - bits);
        }
        self.assembler.three(La::Xor, OVERFLOW, OVERFLOW, SCRATCH);
    }

    /// SHLD and SHRD of 32 and 64 bits.
    fn double_shift(&mut self) -> bool {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let needs_flags = self.live & i.rflags_modified() != 0;
        if bytes == 2 || needs_flags {
            return false;
        }
        let count = self.count(2, bytes);
        if let Count::Known(0) = count {
            self.shift_by_nothing(bytes);
            return true;
        }
        if let (Count::Known(count), Some(register)) = (count, is_register(&i, 0))
            && number(register) != super::known::RSP
            && number(i.op1_register()) != super::known::RSP
        {
            self.known_double_shift(register, count as i32, bytes);
            return true;
        }
        let (a, location) = self.first(Extension::Zero);
        let b = self.read(1, Extension::Zero);
        let d = self.temporary();
        let left = i.mnemonic() == Mnemonic::Shld;
        if bytes == 4 {
            self.double_shift_words(left, d, (a, b), count);
        } else {
            self.double_shift_wide(left, d, (a, b), count);
        }
        self.write_back(d, location);
        true
    }

    /// Concatenates both words in one register and extracts 32 bits.
    fn double_shift_words(&mut self, left: bool, d: u8, (a, b): (u8, u8), count: Count) {
        let (high, low) = if left { (a, b) } else { (b, a) };
        self.assembler.immediate(La::SlliD, d, high, 32);
        self.assembler.three(La::Or, d, d, low);
        match count {
            Count::Known(count) => {
                let op = if left { La::SlliD } else { La::SrliD };
                self.assembler.immediate(op, d, d, count as i32);
            }
            Count::Variable(t) => {
                self.assembler.three(if left { La::SllD } else { La::SrlD }, d, d, t);
            }
        }
        if left {
            self.assembler.immediate(La::SrliD, d, d, 32);
        }
    }

    fn double_shift_wide(&mut self, left: bool, d: u8, (a, b): (u8, u8), count: Count) {
        match count {
            Count::Known(count) => {
                let (shift, opposite_shift) =
                    if left { (La::SlliD, La::SrliD) } else { (La::SrliD, La::SlliD) };
                self.assembler.immediate(opposite_shift, SCRATCH, b, 64 - count as i32);
                self.assembler.immediate(shift, d, a, count as i32);
            }
            Count::Variable(t) => {
                let (shift, opposite_shift) = if left { (La::SllD, La::SrlD) } else { (La::SrlD, La::SllD) };
                // Shift the other way by one and then by the rest, so that a count of zero contributes nothing.
                let once = if left { La::SrliD } else { La::SlliD };
                self.assembler.immediate(once, SCRATCH, b, 1);
                self.assembler.immediate(La::Xori, d, t, 63);
                self.assembler.three(opposite_shift, SCRATCH, SCRATCH, d);
                self.assembler.three(shift, d, a, t);
            }
        }
        self.assembler.three(La::Or, d, d, SCRATCH);
    }

    /// SHLD and SHRD of registers by a constant. If both registers are the same, it is a rotation.
    fn known_double_shift(&mut self, register: Register, count: i32, bytes: usize) {
        let i = self.instruction;
        let left = i.mnemonic() == Mnemonic::Shld;
        let bits = 8 * bytes as i32;
        let word = bytes == 4;
        let a = self.read_register(register, Extension::Any);
        let b = self.read_register(i.op1_register(), Extension::Any);
        let n = number(register);
        if register == i.op1_register() {
            let d = self.define(n);
            let right = if left { bits - count } else { count };
            self.assembler.immediate(if word { La::RotriW } else { La::RotriD }, d, a, right);
        } else {
            let (shift_left, shift_right) =
                if word { (La::SlliW, La::SrliW) } else { (La::SlliD, La::SrliD) };
            let (shift, opposite_shift) =
                if left { (shift_left, shift_right) } else { (shift_right, shift_left) };
            self.assembler.immediate(opposite_shift, SCRATCH, b, bits - count);
            let d = self.define(n);
            self.assembler.immediate(shift, d, a, count);
            self.assembler.three(La::Or, d, d, SCRATCH);
        }
        if word { self.defined(n, Facts::WORD) } else { self.defined_wide(n, Facts::NONE) }
    }

    /// BT, BTS, BTR, BTC.
    fn single_bit(&mut self) -> bool {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let (location, bit) = self.bit_place(bytes);
        let a = match location {
            Some(location) => {
                let t = self.temporary();
                self.load_to(t, location, bytes, Extension::Zero);
                t
            }
            None if bytes == 8 => self.wide(number(i.op0_register())),
            None => self.at(number(i.op0_register())),
        };
        let wants_carry = self.live & RflagsBits::CF != 0;
        let changes = i.mnemonic() != Mnemonic::Bt;
        let t = self.temporary();
        match bit {
            Ok(bit) => {
                if changes {
                    self.assembler.immediate(La::Ori, SCRATCH, 0, 1);
                    self.assembler.immediate(La::SlliD, SCRATCH, SCRATCH, bit);
                    self.change_bit(t, a, SCRATCH);
                    self.write_back_bits(t, location, bytes);
                }
                if wants_carry && !(changes && location.is_none()) {
                    self.assembler.field(La::BstrpickD, CARRY, a, bit as u8, bit as u8);
                }
            }
            Err(register) => {
                if changes {
                    self.assembler.immediate(La::Ori, SCRATCH, 0, 1);
                    self.assembler.three(La::SllD, SCRATCH, SCRATCH, register);
                    self.change_bit(t, a, SCRATCH);
                    self.write_back_bits(t, location, bytes);
                }
                if wants_carry && !(changes && location.is_none()) {
                    self.assembler.three(La::SrlD, CARRY, a, register);
                    self.assembler.immediate(La::Andi, CARRY, CARRY, 1);
                }
            }
        }
        if changes && location.is_none() {
            if wants_carry {
                self.assembler.three(La::And, CARRY, a, SCRATCH);
                self.assembler.three(La::Sltu, CARRY, 0, CARRY);
            }
            self.write_register(i.op0_register(), t);
        }
        true
    }

    fn write_back_bits(&mut self, value: u8, location: Option<OperandLocation>, bytes: usize) {
        if let Some(location) = location {
            self.store_from(value, location, bytes);
        }
    }

    /// Computes `t` from `a` by setting, clearing or inverting the bits in `mask`.
    pub fn change_bit(&mut self, t: u8, a: u8, mask: u8) {
        let op = match self.instruction.mnemonic() {
            Mnemonic::Bts => La::Or,
            Mnemonic::Btr => La::Andn,
            _ => La::Xor,
        };
        self.assembler.three(op, t, a, mask);
    }

    /// The memory operand of BT and its variants, if any, and the bit number: a constant or a register.
    pub fn bit_place(&mut self, bytes: usize) -> (Option<OperandLocation>, Result<i32, u8>) {
        let i = self.instruction;
        let bits = 8 * bytes as i32;
        let in_memory = i.op0_kind() == OpKind::Memory;
        if i.op1_kind() != OpKind::Register {
            let location = in_memory.then(|| self.near());
            return (location, Ok(i32::from(i.immediate8()) & (bits - 1)));
        }
        let register = self.temporary();
        let number =
            if bytes == 8 { self.wide(number(i.op1_register())) } else { self.at(number(i.op1_register())) };
        if !in_memory {
            self.assembler.immediate(La::Andi, register, number, bits - 1);
            return (None, Err(register));
        }
        // With a memory operand, the bit number can address bits outside it, in both directions.
        let shift = bits.trailing_zeros() as i32;
        let address = self.address();
        let t = self.temporary();
        self.extend(t, number, bytes, Extension::Sign);
        self.assembler.immediate(La::SraiD, t, t, shift);
        self.assembler.immediate(La::SlliD, t, t, shift - 3);
        self.assembler.three(La::AddD, t, t, address);
        self.assembler.immediate(La::Andi, register, number, bits - 1);
        (Some(OperandLocation::Near(t, 0)), Err(register))
    }

    fn scan(&mut self) -> bool {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let forward = i.mnemonic() == Mnemonic::Bsf;
        if bytes == 2 {
            return false;
        }
        let a = self.read(1, Extension::Zero);
        let t = self.temporary();
        if forward {
            self.assembler.two(La::CtzD, t, a);
        } else {
            self.assembler.two(La::ClzD, t, a);
            self.assembler.immediate(La::Xori, t, t, 63);
        }
        // If the source is zero, the destination is unchanged.
        let register = i.op0_register();
        let n = number(register);
        let old = self.wide(n);
        self.assembler.three(La::Maskeqz, t, t, a);
        self.assembler.three(La::Masknez, SCRATCH, old, a);
        if self.live & RflagsBits::ZF != 0 {
            self.assembler.copy(NOT_ZERO, a);
        }
        let d = self.define(n);
        self.assembler.three(La::Or, d, t, SCRATCH);
        true
    }

    /// TZCNT and LZCNT.
    fn count_zeros(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let trailing = i.mnemonic() == Mnemonic::Tzcnt;
        let a = self.read(1, if bytes == 2 { Extension::Zero } else { Extension::Any });
        let t = self.temporary();
        match (bytes, trailing) {
            (8, true) => self.assembler.two(La::CtzD, t, a),
            (8, false) => self.assembler.two(La::ClzD, t, a),
            (4, true) => self.assembler.two(La::CtzW, t, a),
            (4, false) => self.assembler.two(La::ClzW, t, a),
            (_, true) => {
                self.assembler.immediate(La::Lu12iW, t, 0, 0x10);
                self.assembler.three(La::Or, t, t, a);
                self.assembler.two(La::CtzW, t, t);
            }
            (_, false) => {
                self.assembler.two(La::ClzW, t, a);
                self.assembler.immediate(La::AddiD, t, t, -16);
            }
        }
        if self.live & RflagsBits::CF != 0 {
            // For a source of zero, the count is the operand size.
            self.assembler.immediate(La::SrliD, CARRY, t, bytes.trailing_zeros() as i32 + 3);
        }
        if self.live & RflagsBits::ZF != 0 {
            self.assembler.copy(NOT_ZERO, t);
        }
        if bytes == 2 {
            return self.write_register(i.op0_register(), t);
        }
        let n = number(i.op0_register());
        let d = self.define(n);
        self.assembler.copy(d, t);
        self.defined_wide(n, Facts::of_width(7));
    }

    /// BSWAP.
    fn swap_bytes(&mut self) {
        let register = self.instruction.op0_register();
        let n = number(register);
        match register.size() {
            8 => {
                let a = self.wide(n);
                let d = self.define(n);
                self.assembler.two(La::RevbD, d, a);
            }
            4 => {
                let a = self.at(n);
                let d = self.define(n);
                self.assembler.two(La::Revb2w, d, a);
                self.defined(n, Facts::NONE);
            }
            // Undefined in the manual; processors return zero.
            _ => self.write_register(register, 0),
        }
    }

    fn population(&mut self) {
        let i = self.instruction;
        let a = self.read(1, Extension::Zero);
        let v = self.vector_temporary();
        self.assembler.two(La::Movgr2frD, v, a);
        self.assembler.two(La::VpcntD, v, v);
        let live = self.live;
        self.live &= !RflagsBits::ZF;
        if live & RflagsBits::ZF != 0 {
            self.assembler.copy(NOT_ZERO, a);
        }
        self.logic_flags(0);
        if live & RflagsBits::PF != 0 {
            self.assembler.immediate(La::Ori, PARITY, 0, 1);
        }
        self.live = live;
        self.assembler.two(La::Movfr2grD, SCRATCH, v);
        self.write_register(i.op0_register(), SCRATCH);
    }
}
