//! What integer instructions become: moves, arithmetic, comparisons, products, the stack.
//! Not shifts and single bits (`bits`), nor what is atomic or repeated.
//! Source: Intel SDM, volume 2; LoongArch Reference Manual, volume 1.

use iced_x86::{Instruction, Mnemonic, OpKind, Register, RflagsBits};
use longma_loongarch::Op as La;

use super::flags::{Comparison, is_cmovcc, is_setcc};
use super::lower::{Lowering, is_register};
use super::operands::{Extension, Place};
use super::registers::*;
use crate::assembler::Goal;

/// The flags that need more than the result.
const BEYOND_RESULT: u32 = RflagsBits::CF | RflagsBits::OF | RflagsBits::AF;

/// Arithmetic of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    And,
    Or,
    Xor,
}

impl Arithmetic {
    pub(super) fn of(mnemonic: Mnemonic) -> Option<Self> {
        Some(match mnemonic {
            Mnemonic::Add | Mnemonic::Inc => Self::Add,
            Mnemonic::Sub | Mnemonic::Dec | Mnemonic::Cmp => Self::Subtract,
            Mnemonic::And | Mnemonic::Test => Self::And,
            Mnemonic::Or => Self::Or,
            Mnemonic::Xor => Self::Xor,
            _ => return None,
        })
    }

    pub(super) fn is_logic(self) -> bool {
        !matches!(self, Self::Add | Self::Subtract)
    }
}

/// The second operand.
#[derive(Clone, Copy, Debug)]
enum Second {
    Register(u8),
    Constant(i64),
}

/// Whether it is INC or DEC, which leave CF.
fn steps(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Inc | Mnemonic::Dec)
}

/// Whether an instruction makes something of a register and itself that is zero.
fn is_zeroing(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Xor | Mnemonic::Sub)
        && matches!((is_register(i, 0), is_register(i, 1)), (Some(a), Some(b)) if a == b)
}

impl Lowering<'_> {
    /// Writes the first operand's register, or what `near` has found if that is in memory.
    pub fn write(&mut self, value: u8) {
        let i = self.instruction;
        match is_register(&i, 0) {
            Some(register) => self.write_register(register, value),
            None => {
                let t = self.temporary();
                let place = self.place(t);
                self.store_from(value, place, i.memory_size().size());
            }
        }
    }

    /// Comparisons and arithmetic together with what reads their flags.
    pub fn fused(&mut self, next: Option<u64>) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        if i.has_lock_prefix() {
            return false;
        }
        match i.mnemonic() {
            Cmp => {
                if !self.can_read_directly(Comparison::Difference(0, 0)) {
                    return false;
                }
                let a = self.read(0, Extension::Sign);
                let b = self.read(1, Extension::Sign);
                self.read_directly(Comparison::Difference(a, b), next);
            }
            Ucomisd | Comisd | Ucomiss | Comiss => {
                let is_double = matches!(i.mnemonic(), Ucomisd | Comisd);
                if !self.can_read_directly(Comparison::Floats(0, 0, is_double)) {
                    return false;
                }
                let (a, b) = self.float_operands(is_double);
                self.read_directly(Comparison::Floats(a, b, is_double), next);
            }
            Test | And | Or | Xor | Add | Sub | Inc | Dec | Neg => {
                let logic = matches!(i.mnemonic(), Test | And | Or | Xor);
                let sample = if logic { Comparison::Result(0) } else { Comparison::Sum(0) };
                if !self.can_read_directly(sample) {
                    return false;
                }
                let live = self.live;
                self.live &= !i.rflags_modified();
                let result = self.arithmetic(true);
                self.live = live;
                let comparison = if logic { Comparison::Result(result) } else { Comparison::Sum(result) };
                self.read_directly(comparison, next);
            }
            _ => return false,
        }
        true
    }

    /// Translates an integer instruction, or says that it is none of this file's.
    pub fn integer(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        if i.has_lock_prefix() {
            return false;
        }
        match i.mnemonic() {
            Mov | Movnti => return self.move_general(),
            Movzx => {
                let value = self.read(1, Extension::Zero);
                match i.op0_register().size() {
                    2 => self.write(value),
                    _ => self.assembler.copy(general(i.op0_register()), value),
                }
            }
            Movsx | Movsxd => {
                let value = self.read(1, Extension::Sign);
                self.write(value);
            }
            Lea => self.load_address(),
            Push => return self.push(),
            Pop => return self.pop(),
            Leave => {
                self.assembler.immediate(La::LdD, SCRATCH, RBP, 0);
                self.assembler.immediate(La::AddiD, STACK_POINTER, RBP, 8);
                self.assembler.copy(RBP, SCRATCH);
            }
            Add | Sub | And | Or | Xor | Inc | Dec | Neg | Cmp | Test => {
                self.arithmetic(false);
            }
            Not => {
                let (a, place) = self.first(Extension::Any);
                let t = self.temporary();
                self.assembler.three(La::Nor, t, a, 0);
                self.write_back(t, place);
            }
            Adc | Sbb => self.with_carry(),
            Xchg if i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register => {
                let a = self.read(0, Extension::Any);
                let b = self.read(1, Extension::Any);
                self.assembler.copy(SCRATCH, a);
                self.write_register(i.op0_register(), b);
                self.write_register(i.op1_register(), SCRATCH);
            }
            Cbw => self.convert(Register::AX, La::ExtWB),
            Cwde => self.convert(Register::EAX, La::ExtWH),
            Cdqe => self.assembler.immediate(La::SlliW, RAX, RAX, 0),
            Cwd => {
                self.assembler.two(La::ExtWH, SCRATCH, RAX);
                self.assembler.immediate(La::SraiD, SCRATCH, SCRATCH, 15);
                self.write_register(Register::DX, SCRATCH);
            }
            Cdq => {
                self.assembler.immediate(La::SraiW, SCRATCH, RAX, 31);
                self.write_register(Register::EDX, SCRATCH);
            }
            Cqo => self.assembler.immediate(La::SraiD, RDX, RAX, 63),
            Imul if i.op_count() > 1 => self.product(),
            Imul | Mul => self.wide_product(),
            Div | Idiv => return self.division(),
            Bswap => {
                let register = i.op0_register();
                match register.size() {
                    8 => self.assembler.two(La::RevbD, general(register), general(register)),
                    4 => {
                        self.assembler.two(La::Revb2w, SCRATCH, general(register));
                        self.write_register(register, SCRATCH);
                    }
                    // The manual leaves it open; processors give zero.
                    _ => self.write_register(register, 0),
                }
            }
            Nop | Endbr64 | Endbr32 | Prefetcht0 | Prefetcht1 | Prefetcht2 | Prefetchnta | Prefetchw
            | Clflush | Clflushopt | Clwb | Rdsspd | Rdsspq => {}
            Pause => {}
            Mfence => self.assembler.immediate(La::Dbar, 0, 0, 0),
            Lfence | Sfence => {}
            Clc => self.assembler.copy(CARRY, 0),
            Stc => self.assembler.immediate(La::Ori, CARRY, 0, 1),
            Cmc => self.assembler.immediate(La::Xori, CARRY, CARRY, 1),
            Cld => self.assembler.two(La::Movgr2scr, DIRECTION, 0),
            Std => {
                self.assembler.immediate(La::Ori, SCRATCH, 0, 1);
                self.assembler.two(La::Movgr2scr, DIRECTION, SCRATCH);
            }
            _ if is_setcc(&i) => {
                let (value, if_zero) = self.condition_value(i.condition_code());
                self.set_byte(value, if_zero);
            }
            _ if is_cmovcc(&i) => {
                let (value, if_zero) = self.condition_value(i.condition_code());
                self.conditional_move(value, if_zero);
            }
            _ => return false,
        }
        true
    }

    fn convert(&mut self, register: Register, op: La) {
        self.assembler.two(op, SCRATCH, RAX);
        self.write_register(register, SCRATCH);
    }

    fn move_general(&mut self) -> bool {
        let i = self.instruction;
        let general_or_memory = |operand: u32| is_register(&i, operand).is_none_or(Register::is_gpr);
        if !general_or_memory(0) || !general_or_memory(1) {
            // Segment, control and debug registers.
            return false;
        }
        match (is_register(&i, 0), i.op1_kind()) {
            (Some(register), OpKind::Memory) if register.size() >= 4 => {
                let d = general(register);
                let t = self.temporary();
                let place = self.place(t);
                self.load_to(d, place, register.size(), Extension::Zero);
            }
            (Some(register), OpKind::Immediate64 | OpKind::Immediate32to64) => {
                self.assembler.constant(general(register), i.immediate(1) as i64);
            }
            (Some(register), OpKind::Immediate32) => {
                self.assembler.constant(general(register), i64::from(i.immediate32()));
            }
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

    fn load_address(&mut self) {
        let i = self.instruction;
        let register = i.op0_register();
        let d = general(register);
        let base = i.memory_base();
        if base.is_ip() {
            self.assembler.constant(d, i.memory_displacement64() as i64);
            return;
        }
        let t = self.temporary();
        let place = self.place(t);
        match register.size() {
            8 => self.address_into(d, place),
            4 => {
                self.address_into(t, place);
                self.write_register(register, t);
            }
            _ => {
                self.address_into(t, place);
                self.write_register(register, t);
            }
        }
    }

    fn push(&mut self) -> bool {
        let i = self.instruction;
        let bytes: i32 = -i.stack_pointer_increment();
        if is_register(&i, 0).is_some_and(|register| !register.is_gpr()) || bytes != 8 && bytes != 2 {
            return false;
        }
        let value = match i.op0_kind() {
            OpKind::Register => general(i.op0_register()),
            OpKind::Memory => self.read(0, Extension::Any),
            _ => self.read_constant(i.immediate(0) as i64, 8, Extension::Sign),
        };
        self.store_from(value, Place::Near(STACK_POINTER, -bytes), bytes as usize);
        self.assembler.immediate(La::AddiD, STACK_POINTER, STACK_POINTER, -bytes);
        true
    }

    fn pop(&mut self) -> bool {
        let i = self.instruction;
        let bytes = i.stack_pointer_increment();
        match is_register(&i, 0) {
            Some(register) if register.is_gpr64() => {
                let d = general(register);
                if d == STACK_POINTER {
                    self.assembler.immediate(La::LdD, STACK_POINTER, STACK_POINTER, 0);
                } else {
                    self.assembler.immediate(La::LdD, d, STACK_POINTER, 0);
                    self.assembler.immediate(La::AddiD, STACK_POINTER, STACK_POINTER, 8);
                }
                true
            }
            Some(register) if register.is_gpr16() && bytes == 2 => {
                self.assembler.immediate(La::LdHu, SCRATCH, STACK_POINTER, 0);
                self.assembler.immediate(La::AddiD, STACK_POINTER, STACK_POINTER, 2);
                self.write_register(register, SCRATCH);
                true
            }
            _ => false,
        }
    }

    /// The first operand, and its place if that is in memory.
    pub fn first(&mut self, extension: Extension) -> (u8, Option<Place>) {
        let i = self.instruction;
        match is_register(&i, 0) {
            Some(register) => (self.read_register(register, extension), None),
            None => {
                let place = self.near();
                let t = self.temporary();
                self.load_to(t, place, i.memory_size().size(), extension);
                (t, Some(place))
            }
        }
    }

    /// Writes the first operand where [`Self::first`] has found it.
    pub fn write_back(&mut self, value: u8, place: Option<Place>) {
        let i = self.instruction;
        match place {
            Some(place) => self.store_from(value, place, i.memory_size().size()),
            None => self.write_register(i.op0_register(), value),
        }
    }

    fn second(&mut self, kind: Arithmetic, bytes: usize, extension: Extension, as_register: bool) -> Second {
        let i = self.instruction;
        if i.op_count() < 2 {
            return if as_register {
                Second::Register(self.read_constant(1, bytes, Extension::Sign))
            } else {
                Second::Constant(1)
            };
        }
        if matches!(i.op_kind(1), OpKind::Register | OpKind::Memory) {
            return Second::Register(self.read(1, extension));
        }
        let unused = 64 - 8 * bytes as u32;
        let value = (i.immediate(1) as i64) << unused >> unused;
        let fits = match kind {
            Arithmetic::Add => (-2048..2048).contains(&value),
            Arithmetic::Subtract => (-2047..2049).contains(&value),
            _ => (0..4096).contains(&value),
        };
        if fits && !as_register {
            Second::Constant(value)
        } else {
            Second::Register(self.read_constant(value, bytes, Extension::Sign))
        }
    }

    /// `d` becomes the result, of 32 bits or more sign-extended.
    fn combine(&mut self, kind: Arithmetic, d: u8, a: u8, b: Second, bytes: usize) {
        let word = bytes == 4;
        match b {
            Second::Register(b) => {
                let op = match kind {
                    Arithmetic::Add if word => La::AddW,
                    Arithmetic::Add => La::AddD,
                    Arithmetic::Subtract if word => La::SubW,
                    Arithmetic::Subtract => La::SubD,
                    Arithmetic::And => La::And,
                    Arithmetic::Or => La::Or,
                    Arithmetic::Xor => La::Xor,
                };
                self.assembler.three(op, d, a, b);
            }
            Second::Constant(value) => {
                let value = value as i32;
                let (op, value) = match kind {
                    Arithmetic::Add if word => (La::AddiW, value),
                    Arithmetic::Add => (La::AddiD, value),
                    Arithmetic::Subtract if word => (La::AddiW, -value),
                    Arithmetic::Subtract => (La::AddiD, -value),
                    Arithmetic::And => (La::Andi, value),
                    Arithmetic::Or => (La::Ori, value),
                    Arithmetic::Xor => (La::Xori, value),
                };
                self.assembler.immediate(op, d, a, value);
            }
        }
    }

    /// ADD, SUB, AND, OR, XOR, INC, DEC, NEG, CMP, TEST. Gives the register with the result, sign-extended if `extended` or flags are wanted.
    pub fn arithmetic(&mut self, extended: bool) -> u8 {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let mnemonic = i.mnemonic();
        let wanted = self.live & i.rflags_modified();
        if is_zeroing(&i) {
            self.write(0);
            if self.live & RflagsBits::ZF != 0 {
                self.assembler.copy(NOT_ZERO, 0);
            }
            let live = self.live;
            self.live &= !RflagsBits::ZF;
            self.logic_flags(0);
            self.live = live;
            return 0;
        }
        let extended = extended || wanted != 0;
        let extension = if extended { Extension::Sign } else { Extension::Any };
        let is_negation = mnemonic == Mnemonic::Neg;
        let kind = Arithmetic::of(mnemonic).unwrap_or(Arithmetic::Subtract);
        let discards = matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test);
        let beyond = wanted & BEYOND_RESULT != 0 && !kind.is_logic();
        let (a, place) = if discards { (self.read(0, extension), None) } else { self.first(extension) };
        let tests_itself = mnemonic == Mnemonic::Test
            && is_register(&i, 0).is_some()
            && is_register(&i, 0) == is_register(&i, 1);
        let b = if is_negation || tests_itself {
            Second::Register(a)
        } else {
            self.second(kind, bytes, extension, beyond)
        };
        let a = if is_negation { 0 } else { a };
        // In place, if nothing needs the old value.
        let in_place = !discards && place.is_none() && bytes == 8 && !beyond;
        let d = if in_place { general(i.op0_register()) } else { self.temporary() };
        if mnemonic == Mnemonic::Test && matches!(b, Second::Register(b) if b == a) {
            self.assembler.copy(d, a);
        } else {
            self.combine(kind, d, a, b, bytes);
        }
        if bytes < 4 && extended {
            self.extend(d, d, bytes, Extension::Sign);
        }
        if !discards && !in_place && place.is_some() {
            self.write_back(d, place);
        }
        if wanted != 0 {
            let keep = if steps(&i) { RflagsBits::CF } else { 0 };
            match (kind, b) {
                (kind, _) if kind.is_logic() => self.logic_flags(d),
                (Arithmetic::Add, Second::Register(b)) => self.sum_flags([a, b, d], keep),
                (_, Second::Register(b)) => self.difference_flags([a, b, d], keep),
                _ => self.result_flags(d),
            }
        }
        if !discards && !in_place && place.is_none() {
            self.write_back(d, place);
        }
        d
    }

    /// ADC and SBB.
    fn with_carry(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let wanted = self.live & i.rflags_modified();
        let adds = i.mnemonic() == Mnemonic::Adc;
        if !adds && wanted == 0 && is_register(&i, 0).is_some() && is_register(&i, 0) == is_register(&i, 1) {
            // All ones or all zeros.
            self.assembler.three(La::SubD, SCRATCH, 0, CARRY);
            self.write(SCRATCH);
            return;
        }
        let extension = if wanted != 0 { Extension::Sign } else { Extension::Any };
        let (a, place) = self.first(extension);
        let b = match self.second(Arithmetic::Xor, bytes, extension, true) {
            Second::Register(b) => b,
            Second::Constant(_) => unreachable!("a register was asked for"),
        };
        let (half, d) = (self.temporary(), self.temporary());
        let op = match (adds, bytes == 4) {
            (true, true) => La::AddW,
            (true, false) => La::AddD,
            (false, true) => La::SubW,
            (false, false) => La::SubD,
        };
        self.assembler.three(op, half, a, b);
        if bytes < 4 && wanted != 0 {
            self.extend(half, half, bytes, Extension::Sign);
        }
        self.assembler.three(op, d, half, CARRY);
        if bytes < 4 && wanted != 0 {
            self.extend(d, d, bytes, Extension::Sign);
        }
        if place.is_some() {
            self.write_back(d, place);
        }
        self.carry_flags([a, b, half, d], adds);
        if place.is_none() {
            self.write_back(d, place);
        }
    }

    pub fn carry_flags(&mut self, [a, b, half, d]: [u8; 4], adds: bool) {
        let live = self.live;
        self.adjust([a, b, d]);
        if live & RflagsBits::OF != 0 {
            let other = if adds { d } else { b };
            self.assembler.three(La::Xor, SCRATCH, a, other);
            self.assembler.three(La::Xor, OVERFLOW, if adds { b } else { a }, d);
            self.assembler.three(La::And, OVERFLOW, OVERFLOW, SCRATCH);
        }
        if live & RflagsBits::CF != 0 {
            if adds {
                self.assembler.three(La::Sltu, SCRATCH, half, a);
                self.assembler.three(La::Sltu, CARRY, d, half);
            } else {
                self.assembler.three(La::Sltu, SCRATCH, a, b);
                self.assembler.three(La::Sltu, CARRY, half, d);
            }
            self.assembler.three(La::Or, CARRY, CARRY, SCRATCH);
        }
        self.result_flags(d);
    }

    /// IMUL of two or three operands.
    fn product(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let wanted = self.live & (RflagsBits::CF | RflagsBits::OF) != 0;
        let extension = if wanted || bytes < 4 { Extension::Sign } else { Extension::Any };
        let (a, b) = if i.op_count() == 3 {
            let a = self.read(1, extension);
            (a, self.read(2, Extension::Sign))
        } else {
            let a = self.read(0, extension);
            (a, self.read(1, extension))
        };
        let d = if bytes == 8 && !wanted { general(i.op0_register()) } else { self.temporary() };
        if wanted && bytes == 8 {
            self.assembler.three(La::MulhD, SCRATCH, a, b);
        }
        let op = if bytes == 4 && !wanted { La::MulW } else { La::MulD };
        self.assembler.three(op, d, a, b);
        if wanted {
            // It overflows if the upper half is not the lower one's sign.
            if bytes == 8 {
                self.assembler.immediate(La::SraiD, CARRY, d, 63);
                self.assembler.three(La::Xor, SCRATCH, SCRATCH, CARRY);
            } else {
                self.extend(SCRATCH, d, bytes, Extension::Sign);
                self.assembler.three(La::Xor, SCRATCH, SCRATCH, d);
            }
            self.product_flags(SCRATCH);
        }
        if bytes != 8 || wanted {
            self.write_register(i.op0_register(), d);
        }
    }

    /// CF and OF, both set if `upper` is not zero.
    fn product_flags(&mut self, upper: u8) {
        self.assembler.three(La::Sltu, CARRY, 0, upper);
        if self.live & RflagsBits::OF != 0 {
            self.assembler.three(La::SubD, OVERFLOW, 0, CARRY);
        }
    }

    /// MUL and IMUL of one operand.
    fn wide_product(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let signed = i.mnemonic() == Mnemonic::Imul;
        let extension = if signed { Extension::Sign } else { Extension::Zero };
        let wanted = self.live & (RflagsBits::CF | RflagsBits::OF) != 0;
        let b = self.read(0, extension);
        if bytes == 8 {
            let t = self.temporary();
            self.assembler.three(if signed { La::MulhD } else { La::MulhDu }, t, RAX, b);
            self.assembler.three(La::MulD, RAX, RAX, b);
            self.assembler.copy(RDX, t);
            if wanted {
                if signed {
                    self.assembler.immediate(La::SraiD, SCRATCH, RAX, 63);
                    self.assembler.three(La::Xor, t, t, SCRATCH);
                }
                self.product_flags(t);
            }
            return;
        }
        let own = match bytes {
            4 => Register::EAX,
            2 => Register::AX,
            _ => Register::AL,
        };
        let a = self.read_register(own, extension);
        let t = self.temporary();
        self.assembler.three(La::MulD, t, a, b);
        match bytes {
            4 => {
                self.assembler.field(La::BstrpickD, RAX, t, 31, 0);
                self.assembler.immediate(La::SrliD, RDX, t, 32);
            }
            2 => {
                self.assembler.immediate(La::SrliD, SCRATCH, t, 16);
                self.write_register(Register::AX, t);
                self.write_register(Register::DX, SCRATCH);
            }
            _ => self.write_register(Register::AX, t),
        }
        if wanted {
            self.extend(SCRATCH, t, bytes, extension);
            self.assembler.three(La::Xor, SCRATCH, SCRATCH, t);
            self.product_flags(SCRATCH);
        }
    }

    /// DIV and IDIV of 32 and 64 bits, where the quotient fits; the rest is the engine's.
    fn division(&mut self) -> bool {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        if bytes < 4 {
            return false;
        }
        let signed = i.mnemonic() == Mnemonic::Idiv;
        let back = self.assembler.label();
        let rare = self.rare(back);
        let b = self.read(0, if signed { Extension::Sign } else { Extension::Zero });
        let unless = |lowering: &mut Self, op: La, j: u8, d: u8| {
            let branch = longma_loongarch::Instruction { j, d, ..longma_loongarch::Instruction::new(op) };
            lowering.assembler.jump(branch, Goal::Label(rare));
        };
        unless(self, La::Beqz, b, 0);
        let (quotient, rest) = (self.temporary(), self.temporary());
        if bytes == 8 {
            if signed {
                self.assembler.immediate(La::SraiD, SCRATCH, RAX, 63);
                unless(self, La::Bne, SCRATCH, RDX);
                // The smallest number by -1 does not fit.
                self.assembler.immediate(La::AddiD, SCRATCH, b, 1);
                unless(self, La::Beqz, SCRATCH, 0);
            } else {
                unless(self, La::Bnez, RDX, 0);
            }
            self.assembler.three(if signed { La::ModD } else { La::ModDu }, rest, RAX, b);
            self.assembler.three(if signed { La::DivD } else { La::DivDu }, RAX, RAX, b);
            self.assembler.copy(RDX, rest);
        } else {
            let dividend = self.temporary();
            self.assembler.immediate(La::SlliD, dividend, RDX, 32);
            self.assembler.field(La::BstrpickD, SCRATCH, RAX, 31, 0);
            self.assembler.three(La::Or, dividend, dividend, SCRATCH);
            self.assembler.three(if signed { La::DivD } else { La::DivDu }, quotient, dividend, b);
            if signed {
                self.assembler.immediate(La::SlliW, SCRATCH, quotient, 0);
                unless(self, La::Bne, SCRATCH, quotient);
            } else {
                self.assembler.immediate(La::SrliD, SCRATCH, quotient, 32);
                unless(self, La::Bnez, SCRATCH, 0);
            }
            self.assembler.three(if signed { La::ModD } else { La::ModDu }, rest, dividend, b);
            self.assembler.field(La::BstrpickD, RAX, quotient, 31, 0);
            self.assembler.field(La::BstrpickD, RDX, rest, 31, 0);
        }
        self.assembler.place(back);
        true
    }
}
