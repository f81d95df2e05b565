//! Operand access for the lowering code: loads operands in the required form, and records results. Source: Arm
//! Architecture Reference Manual (Arm DDI 0487), sections B1.2.1 and C6.1; LoongArch Reference Manual, volume 1.

use longma_loongarch::Op as La;

use super::known::{CachedValue, Facts};
use super::lower::Lowering;
use crate::instruction::Instruction;
use crate::registers::{Location, SCRATCH, SLOTS, STACK_POINTER, TEMPORARIES};

/// Register number 31: the zero register, or the stack pointer where an instruction allows it.
pub(crate) const NONE: u8 = 31;
/// Maximum absolute value of a deferred increment.
const MAX_INCREMENT: i16 = 1000;
/// Pseudo register number of the stack pointer, where 31 is the zero register.
pub(super) const STACK: u8 = 32;

impl Lowering<'_> {
    /// Allocates a temporary register for the current instruction. Prefers registers without a cached value.
    pub fn temporary(&mut self) -> u8 {
        self.take([3, 0, 1, 2])
    }

    /// Allocates a temporary register whose value can be cached beyond the current instruction.
    pub fn cacheable_temporary(&mut self) -> u8 {
        self.take([0, 1, 2, 3])
    }

    fn take(&mut self, order: [usize; 4]) -> u8 {
        let free = || order.into_iter().filter(|n| self.taken >> n & 1 == 0);
        let oldest = || free().min_by_key(|n| self.ages.get(*n).copied().unwrap_or(0));
        let empty = free().find(|n| self.known.cached.get(*n).copied().flatten().is_none());
        let Some(n) = empty.or_else(oldest) else {
            self.out_of_temporaries_at.get_or_insert(self.pc);
            return SCRATCH;
        };
        self.taken |= 1 << n;
        if let Some(cached) = self.known.cached.get_mut(n) {
            *cached = None;
        }
        TEMPORARIES[n]
    }

    /// Records that `register` caches a value, if it is a temporary register that supports this.
    pub fn cache_value(&mut self, value: CachedValue, register: u8) {
        let n = TEMPORARIES.iter().position(|temporary| *temporary == register);
        if let Some(n) = n.filter(|n| *n < self.known.cached.len()) {
            self.known.cached[n] = Some(value);
            self.ages[n] = self.index + 1;
        }
    }

    /// Drops cached values that depend on x`number`.
    pub fn forget(&mut self, number: u8) {
        for cached in
            self.known.cached.iter_mut().filter(|cached| cached.is_some_and(|cached| cached.is_of(number)))
        {
            *cached = None;
        }
    }

    /// The temporary register that caches a value, if any.
    pub fn cached(&mut self, value: CachedValue) -> Option<u8> {
        let n = self.known.cached.iter().position(|cached| *cached == Some(value))?;
        self.ages[n] = self.index + 1;
        self.taken |= 1 << n;
        Some(TEMPORARIES[n])
    }

    /// Releases a temporary register. Does nothing for other registers.
    pub fn free(&mut self, register: u8) {
        if let Some(n) = TEMPORARIES.iter().position(|temporary| *temporary == register) {
            self.taken &= !(1 << n);
        }
    }

    /// Returns a register that may be overwritten: the register itself if it is temporary, or a new temporary.
    pub fn own(&mut self, register: u8) -> u8 {
        let Some(n) = TEMPORARIES.iter().position(|temporary| *temporary == register) else {
            return self.temporary();
        };
        // Preserve the cached value if there are enough temporary registers.
        let is_roomy = (!self.taken & 15).count_ones() >= 2 && !self.reachable.frugal.contains(&self.pc);
        let Some(cached) = self.known.cached.get_mut(n) else { return register };
        if cached.is_some() && is_roomy {
            return self.temporary();
        }
        *cached = None;
        register
    }

    /// Like [`Self::own`], but does not overwrite `other`.
    pub fn own_except(&mut self, register: u8, other: u8) -> u8 {
        if register == other { self.temporary() } else { self.own(register) }
    }

    /// Releases a temporary register unless it is `other`.
    pub fn free_except(&mut self, register: u8, other: u8) {
        if register != other {
            self.free(register);
        }
    }

    /// The location of x`number`.
    pub fn location_of(&self, number: u8) -> Location {
        self.known.assignment.general[usize::from(number)]
    }

    /// The known properties of the register that holds x`number`.
    pub fn facts(&self, number: u8) -> Facts {
        match number {
            NONE => Facts::of_width(0),
            STACK => Facts::NONE,
            _ => self.known.facts[usize::from(number)],
        }
    }

    /// Returns the LoongArch register that contains the low half of x`number`. The upper half is arbitrary.
    pub fn word(&mut self, number: u8) -> u8 {
        if number >= NONE {
            return if number == STACK { STACK_POINTER } else { 0 };
        }
        let location_of = self.location_of(number);
        if let Location::Register(register) = location_of {
            self.apply_increment(number);
            return register;
        }
        if let Some(register) = self.cached(CachedValue::Register(number)) {
            return register;
        }
        let register = self.cacheable_temporary();
        match location_of {
            Location::Scratch(scratch) => self.assembler.two(La::Movscr2gr, register, scratch),
            Location::Slot(offset) => self.assembler.immediate(La::LdD, register, SLOTS, offset.into()),
            Location::Register(_) => {}
        }
        self.cache_value(CachedValue::Register(number), register);
        register
    }

    /// Adds the deferred increment of x`number`.
    pub fn apply_increment(&mut self, number: u8) {
        self.apply_increment_except(number, 0);
    }

    /// Adds the deferred increment of x`number`, except `left`, which stays deferred.
    pub fn apply_increment_except(&mut self, number: u8, left: i16) {
        let step = std::mem::replace(&mut self.known.steps[usize::from(number)], left);
        if let Location::Register(register) = self.location_of(number)
            && step != left
        {
            self.assembler.immediate(La::AddiD, register, register, (step - left).into());
            self.record_position();
        }
    }

    /// Defers the addition of `value` to x`number`. Returns false if that is not possible.
    pub fn defer_increment(&mut self, number: u8, value: i64) -> bool {
        let is_own = number != NONE && matches!(self.location_of(number), Location::Register(_));
        if !is_own || value.abs() > MAX_INCREMENT.into() {
            return false;
        }
        self.clear_upper(number);
        let step = i64::from(self.known.steps[usize::from(number)]) + value;
        if step.abs() > MAX_INCREMENT.into() {
            self.apply_increment(number);
        }
        self.known.steps[usize::from(number)] += value as i16;
        self.known.facts[usize::from(number)] = Facts::NONE;
        self.constants[usize::from(number)] = None;
        self.forget(number);
        true
    }

    /// Returns the register of a base (31: the stack pointer) and its deferred increment.
    pub fn stepped(&mut self, number: u8) -> (u8, i64) {
        if number == NONE {
            return (STACK_POINTER, 0);
        }
        self.clear_upper(number);
        match self.location_of(number) {
            Location::Register(register) => (register, self.known.steps[usize::from(number)].into()),
            _ => (self.word(number), 0),
        }
    }

    /// Returns the LoongArch register that contains x`number`.
    pub fn whole(&mut self, number: u8) -> u8 {
        self.clear_upper(number);
        self.word(number)
    }

    /// Returns the LoongArch register that contains x`number`, or the stack pointer for 31.
    pub fn full_or_stack(&mut self, number: u8) -> u8 {
        if number == NONE { STACK_POINTER } else { self.whole(number) }
    }

    /// Returns the register of a 64-bit or 32-bit source operand. The upper half of a 32-bit operand is arbitrary.
    pub fn source(&mut self, number: u8, is_wide: bool) -> u8 {
        if is_wide { self.whole(number) } else { self.word(number) }
    }

    /// Clears the upper half of x`number` if that has been deferred.
    pub fn clear_upper(&mut self, number: u8) {
        if number >= NONE || !self.known.is_loose(number) {
            return;
        }
        if let Location::Register(register) = self.location_of(number) {
            self.clear_upper_in(number, register);
        }
    }

    /// Clears the upper half of x`number`, which is in `register`, if that has been deferred.
    pub fn clear_upper_in(&mut self, number: u8, register: u8) {
        if self.known.is_loose(number) {
            self.assembler.field(La::BstrpickD, register, register, 31, 0);
            self.known.loose &= !(1 << number);
            self.known.facts[usize::from(number)] = Facts::ZERO_EXTENDED;
        }
    }

    /// Returns a register that contains the low half of x`number`, sign-extended.
    pub fn signed_word(&mut self, number: u8) -> u8 {
        if !self.facts(number).sign
            && let Some(register) = self.cached(CachedValue::Signed(number))
        {
            return register;
        }
        let register = self.word(number);
        if self.facts(number).sign {
            return register;
        }
        let to =
            if TEMPORARIES.contains(&register) { self.own(register) } else { self.cacheable_temporary() };
        self.assembler.immediate(La::SlliW, to, register, 0);
        self.cache_value(CachedValue::Signed(number), to);
        to
    }

    /// Returns a register that contains the low half of x`number`, zero-extended.
    pub fn unsigned_word(&mut self, number: u8) -> u8 {
        let register = self.word(number);
        if self.facts(number).width <= 32 {
            return register;
        }
        let to = self.own(register);
        self.assembler.field(La::BstrpickD, to, register, 31, 0);
        to
    }

    /// Returns the register in which to compute the new value of x`number`. [`Self::put`] must follow.
    pub fn target(&mut self, number: u8) -> u8 {
        if number == NONE {
            return self.temporary();
        }
        match self.location_of(number) {
            Location::Register(register) => register,
            _ => self.cacheable_temporary(),
        }
    }

    /// Like [`Self::target`], but returns none of `sources`.
    pub fn target_except(&mut self, number: u8, sources: &[u8]) -> u8 {
        match (number != NONE).then(|| self.location_of(number)) {
            Some(Location::Register(register)) if !sources.contains(&register) => register,
            Some(Location::Scratch(_) | Location::Slot(_)) => self.cacheable_temporary(),
            _ => self.temporary(),
        }
    }

    /// Records that `register` contains the new value of x`number`. For 32-bit results, only the low half counts;
    /// `facts` describe the whole register.
    pub fn put(&mut self, number: u8, register: u8, is_wide: bool, facts: Facts) {
        if number == NONE {
            return;
        }
        self.constants[usize::from(number)] = None;
        self.known.steps[usize::from(number)] = 0;
        let is_exact = is_wide || facts.width <= 32;
        match self.location_of(number) {
            Location::Register(own) => {
                self.forget(number);
                self.assembler.copy(own, register);
                let bit = 1 << number;
                self.known.loose = if is_exact { self.known.loose & !bit } else { self.known.loose | bit };
                self.known.facts[usize::from(number)] = facts;
            }
            other => {
                if !is_exact {
                    let to = self.own(register);
                    self.assembler.field(La::BstrpickD, to, register, 31, 0);
                    return self.put(number, to, true, Facts::ZERO_EXTENDED);
                }
                match other {
                    Location::Scratch(scratch) => self.assembler.two(La::Movgr2scr, scratch, register),
                    Location::Slot(offset) => {
                        self.assembler.immediate(La::StD, register, SLOTS, offset.into())
                    }
                    Location::Register(_) => {}
                }
                self.known.facts[usize::from(number)] = facts;
                self.forget(number);
                self.cache_value(CachedValue::Register(number), register);
            }
        }
    }

    /// Records the result of an operation whose 32-bit form sign-extends.
    pub fn put_sum(&mut self, number: u8, register: u8, is_wide: bool) {
        self.put(number, register, is_wide, if is_wide { Facts::NONE } else { Facts::WORD });
    }

    /// Like [`Self::put_sum`], with the stack pointer for 31.
    pub fn put_or_stack(&mut self, number: u8, register: u8, is_wide: bool) {
        if number != NONE {
            return self.put_sum(number, register, is_wide);
        }
        if is_wide {
            self.assembler.copy(STACK_POINTER, register);
        } else {
            self.assembler.field(La::BstrpickD, STACK_POINTER, register, 31, 0);
        }
    }

    /// Returns a register that contains a constant; r0 for zero.
    pub fn constant(&mut self, value: i64) -> u8 {
        if value == 0 {
            return 0;
        }
        if let Some(register) = self.cached(CachedValue::Constant(value)) {
            return register;
        }
        let register = self.cacheable_temporary();
        self.assembler.constant(register, value);
        self.cache_value(CachedValue::Constant(value), register);
        register
    }

    /// Adds a constant of any size. `d` can be `j`.
    pub fn add_constant(&mut self, d: u8, j: u8, value: i64, is_wide: bool) {
        let (immediate_op, register_op) = if is_wide { (La::AddiD, La::AddD) } else { (La::AddiW, La::AddW) };
        if (-2048..2048).contains(&value) {
            self.assembler.immediate(immediate_op, d, j, value as i32);
        } else if (-4096..=4094).contains(&value) {
            let first = value as i32 / 2;
            self.assembler.immediate(immediate_op, d, j, first);
            self.assembler.immediate(immediate_op, d, d, value as i32 - first);
        } else if is_wide && value & 0xffff == 0 && i64::from((value >> 16) as i16) == value >> 16 {
            self.assembler.immediate(La::Addu16iD, d, j, (value >> 16) as i32);
        } else {
            let register = self.constant(value);
            self.assembler.three(register_op, d, j, register);
            self.free(register);
        }
    }

    /// Returns a shifted register operand and its known properties.
    pub fn shifted(&mut self, i: Instruction) -> (u8, Facts) {
        let (is_wide, number, amount) = (i.is_wide(), i.rm(), i.bits(10, 6) as i32);
        let register = self.source(number, is_wide);
        if amount == 0 || number == NONE {
            return (register, self.facts(number));
        }
        let to = self.own(register);
        let ops = match i.bits(22, 2) {
            0 => [La::SlliW, La::SlliD],
            1 => [La::SrliW, La::SrliD],
            2 => [La::SraiW, La::SraiD],
            _ => [La::RotriW, La::RotriD],
        };
        self.assembler.immediate(ops[usize::from(is_wide)], to, register, amount);
        (to, if is_wide { Facts::NONE } else { Facts::WORD })
    }

    /// Returns an extended and shifted register operand, and its known properties.
    pub fn extended(&mut self, number: u8, option: u32, amount: u32) -> (u8, Facts) {
        if option & 3 == 3 {
            let register = self.whole(number);
            return (
                self.shift_left(register, amount),
                if amount == 0 { self.facts(number) } else { Facts::NONE },
            );
        }
        let (register, facts) = match option {
            0 | 1 => {
                let width = 8 << option;
                let register = self.word(number);
                if self.facts(number).width <= width {
                    (register, self.facts(number))
                } else {
                    let to = self.own(register);
                    self.assembler.field(La::BstrpickD, to, register, width - 1, 0);
                    (to, Facts::of_width(width))
                }
            }
            2 => (self.unsigned_word(number), Facts::ZERO_EXTENDED),
            4 | 5 => {
                let register = self.word(number);
                let to = self.own(register);
                self.assembler.two(if option == 4 { La::ExtWB } else { La::ExtWH }, to, register);
                (to, Facts::WORD)
            }
            _ => (self.signed_word(number), Facts::WORD),
        };
        (self.shift_left(register, amount), if amount == 0 { facts } else { Facts::NONE })
    }

    fn shift_left(&mut self, register: u8, amount: u32) -> u8 {
        if amount == 0 || register == 0 {
            return register;
        }
        let to = self.own(register);
        self.assembler.immediate(La::SlliD, to, register, amount as i32);
        to
    }
}
