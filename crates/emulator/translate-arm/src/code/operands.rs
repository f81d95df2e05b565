//! Operands of instructions: where they are, brought into the form that is wanted; where results go.
//! Not what is done with them.
//! Source: Arm Architecture Reference Manual (Arm DDI 0487), sections B1.2.1 and C6.1; LoongArch Reference Manual, volume 1.

use longma_loongarch::Op as La;

use super::known::{Facts, Kept};
use super::lower::Lowering;
use crate::instruction::Instruction;
use crate::registers::{Place, SCRATCH, SLOTS, STACK_POINTER, TEMPORARIES};

/// What 31 stands for.
pub(crate) const NONE: u8 = 31;
/// What is added later is no more than this.
const LARGEST_STEP: i16 = 1000;
/// The stack pointer, where another number stands for a register.
pub(super) const STACK: u8 = 32;

impl Lowering<'_> {
    /// A general register for this instruction: one whose value nobody needs, if there is one.
    pub fn temporary(&mut self) -> u8 {
        self.take([3, 0, 1, 2])
    }

    /// The same, for a value that may be needed again.
    pub fn lasting(&mut self) -> u8 {
        self.take([0, 1, 2, 3])
    }

    fn take(&mut self, order: [usize; 4]) -> u8 {
        let free = || order.into_iter().filter(|n| self.taken >> n & 1 == 0);
        let oldest = || free().min_by_key(|n| self.ages.get(*n).copied().unwrap_or(0));
        let empty = free().find(|n| self.known.kept.get(*n).copied().flatten().is_none());
        let Some(n) = empty.or_else(oldest) else {
            self.short_at.get_or_insert(self.pc);
            return SCRATCH;
        };
        self.taken |= 1 << n;
        if let Some(kept) = self.known.kept.get_mut(n) {
            *kept = None;
        }
        TEMPORARIES[n]
    }

    /// Notes what `register` holds beyond this instruction, if it is a temporary one that lasts.
    pub fn keep(&mut self, what: Kept, register: u8) {
        let n = TEMPORARIES.iter().position(|temporary| *temporary == register);
        if let Some(n) = n.filter(|n| *n < self.known.kept.len()) {
            self.known.kept[n] = Some(what);
            self.ages[n] = self.index + 1;
        }
    }

    /// No temporary register holds x`number` any more, nor what is made of it.
    pub fn forget(&mut self, number: u8) {
        for kept in self.known.kept.iter_mut().filter(|kept| kept.is_some_and(|kept| kept.is_of(number))) {
            *kept = None;
        }
    }

    /// The temporary register that holds something.
    pub fn kept(&mut self, what: Kept) -> Option<u8> {
        let n = self.known.kept.iter().position(|kept| *kept == Some(what))?;
        self.ages[n] = self.index + 1;
        self.taken |= 1 << n;
        Some(TEMPORARIES[n])
    }

    /// Gives a temporary register back; others stay as they are.
    pub fn free(&mut self, register: u8) {
        if let Some(n) = TEMPORARIES.iter().position(|temporary| *temporary == register) {
            self.taken &= !(1 << n);
        }
    }

    /// The register itself if it is a temporary one, or another that is.
    pub fn own(&mut self, register: u8) -> u8 {
        let Some(n) = TEMPORARIES.iter().position(|temporary| *temporary == register) else {
            return self.temporary();
        };
        // What is kept in it is kept on where there is room for that.
        let is_roomy = (!self.taken & 15).count_ones() >= 2 && !self.reach.frugal.contains(&self.pc);
        let Some(kept) = self.known.kept.get_mut(n) else { return register };
        if kept.is_some() && is_roomy {
            return self.temporary();
        }
        *kept = None;
        register
    }

    /// The same, of a register whose value `other` may be as well: that stays.
    pub fn own_apart(&mut self, register: u8, other: u8) -> u8 {
        if register == other { self.temporary() } else { self.own(register) }
    }

    /// Gives a temporary register back if it is not `other`.
    pub fn free_apart(&mut self, register: u8, other: u8) {
        if register != other {
            self.free(register);
        }
    }

    /// Where x`number` is.
    pub fn home(&self, number: u8) -> Place {
        self.known.homes.general[usize::from(number)]
    }

    /// What is known of the value of x`number` where it is.
    pub fn facts(&self, number: u8) -> Facts {
        match number {
            NONE => Facts::of_width(0),
            STACK => Facts::NONE,
            _ => self.known.facts[usize::from(number)],
        }
    }

    /// The LoongArch register with the low half of x`number`: above may be anything.
    pub fn word(&mut self, number: u8) -> u8 {
        if number >= NONE {
            return if number == STACK { STACK_POINTER } else { 0 };
        }
        let there = self.home(number);
        if let Place::Register(register) = there {
            self.take_step(number);
            return register;
        }
        if let Some(register) = self.kept(Kept::Register(number)) {
            return register;
        }
        let register = self.lasting();
        match there {
            Place::Scratch(scratch) => self.assembler.two(La::Movscr2gr, register, scratch),
            Place::Slot(offset) => self.assembler.immediate(La::LdD, register, SLOTS, offset.into()),
            Place::Register(_) => {}
        }
        self.keep(Kept::Register(number), register);
        register
    }

    /// Adds to x`number` what is yet to be added.
    pub fn take_step(&mut self, number: u8) {
        self.take_step_to(number, 0);
    }

    /// The same, but for so much.
    pub fn take_step_to(&mut self, number: u8, left: i16) {
        let step = std::mem::replace(&mut self.known.steps[usize::from(number)], left);
        if let Place::Register(register) = self.home(number)
            && step != left
        {
            self.assembler.immediate(La::AddiD, register, register, (step - left).into());
            self.note_here();
        }
    }

    /// Has `value` added to x`number` later, if that can be.
    pub fn add_later(&mut self, number: u8, value: i64) -> bool {
        let is_own = number != NONE && matches!(self.home(number), Place::Register(_));
        if !is_own || value.abs() > LARGEST_STEP.into() {
            return false;
        }
        self.tighten(number);
        let step = i64::from(self.known.steps[usize::from(number)]) + value;
        if step.abs() > LARGEST_STEP.into() {
            self.take_step(number);
        }
        self.known.steps[usize::from(number)] += value as i16;
        self.known.facts[usize::from(number)] = Facts::NONE;
        self.constants[usize::from(number)] = None;
        self.forget(number);
        true
    }

    /// The register with a base or, of 31, the stack pointer, and what is to be added to it.
    pub fn stepped(&mut self, number: u8) -> (u8, i64) {
        if number == NONE {
            return (STACK_POINTER, 0);
        }
        self.tighten(number);
        match self.home(number) {
            Place::Register(register) => (register, self.known.steps[usize::from(number)].into()),
            _ => (self.word(number), 0),
        }
    }

    /// The LoongArch register with x`number`.
    pub fn whole(&mut self, number: u8) -> u8 {
        self.tighten(number);
        self.word(number)
    }

    /// The LoongArch register with x`number` or, of 31, the stack pointer.
    pub fn whole_or_stack(&mut self, number: u8) -> u8 {
        if number == NONE { STACK_POINTER } else { self.whole(number) }
    }

    /// A source of 64 or 32 bits.
    pub fn source(&mut self, number: u8, is_wide: bool) -> u8 {
        if is_wide { self.whole(number) } else { self.word(number) }
    }

    /// Clears the upper half of x`number` if that is to be done.
    pub fn tighten(&mut self, number: u8) {
        if number >= NONE || !self.known.is_loose(number) {
            return;
        }
        if let Place::Register(register) = self.home(number) {
            self.tighten_at(number, register);
        }
    }

    /// The same, of one that is in `register`.
    pub fn tighten_at(&mut self, number: u8, register: u8) {
        if self.known.is_loose(number) {
            self.assembler.field(La::BstrpickD, register, register, 31, 0);
            self.known.loose &= !(1 << number);
            self.known.facts[usize::from(number)] = Facts::ZERO_EXTENDED;
        }
    }

    /// A register with the low half of x`number`, sign-extended; the same one if it is so already.
    pub fn signed_word(&mut self, number: u8) -> u8 {
        if !self.facts(number).sign
            && let Some(register) = self.kept(Kept::Signed(number))
        {
            return register;
        }
        let register = self.word(number);
        if self.facts(number).sign {
            return register;
        }
        let to = if TEMPORARIES.contains(&register) { self.own(register) } else { self.lasting() };
        self.assembler.immediate(La::SlliW, to, register, 0);
        self.keep(Kept::Signed(number), to);
        to
    }

    /// The same, zero-extended.
    pub fn unsigned_word(&mut self, number: u8) -> u8 {
        let register = self.word(number);
        if self.facts(number).width <= 32 {
            return register;
        }
        let to = self.own(register);
        self.assembler.field(La::BstrpickD, to, register, 31, 0);
        to
    }

    /// Where to compute what x`number` becomes: call [`Self::put`] then.
    pub fn target(&mut self, number: u8) -> u8 {
        if number == NONE {
            return self.temporary();
        }
        match self.home(number) {
            Place::Register(register) => register,
            _ => self.lasting(),
        }
    }

    /// Where to compute what x`number` becomes if it must not be one of `sources`.
    pub fn target_apart(&mut self, number: u8, sources: &[u8]) -> u8 {
        match (number != NONE).then(|| self.home(number)) {
            Some(Place::Register(register)) if !sources.contains(&register) => register,
            Some(Place::Scratch(_) | Place::Slot(_)) => self.lasting(),
            _ => self.temporary(),
        }
    }

    /// `register` has what x`number` becomes, of 64 or 32 bits; of a word, only the low half counts, and `facts` say what is above.
    pub fn put(&mut self, number: u8, register: u8, is_wide: bool, facts: Facts) {
        if number == NONE {
            return;
        }
        self.constants[usize::from(number)] = None;
        self.known.steps[usize::from(number)] = 0;
        let is_exact = is_wide || facts.width <= 32;
        match self.home(number) {
            Place::Register(own) => {
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
                    Place::Scratch(scratch) => self.assembler.two(La::Movgr2scr, scratch, register),
                    Place::Slot(offset) => self.assembler.immediate(La::StD, register, SLOTS, offset.into()),
                    Place::Register(_) => {}
                }
                self.known.facts[usize::from(number)] = facts;
                self.forget(number);
                self.keep(Kept::Register(number), register);
            }
        }
    }

    /// The same, of an instruction of 64 or 32 bits whose result on words is sign-extended.
    pub fn put_sum(&mut self, number: u8, register: u8, is_wide: bool) {
        self.put(number, register, is_wide, if is_wide { Facts::NONE } else { Facts::WORD });
    }

    /// The same, or of 31 the stack pointer.
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

    /// A constant in a register: r0 if it is zero.
    pub fn constant(&mut self, value: i64) -> u8 {
        if value == 0 {
            return 0;
        }
        if let Some(register) = self.kept(Kept::Constant(value)) {
            return register;
        }
        let register = self.lasting();
        self.assembler.constant(register, value);
        self.keep(Kept::Constant(value), register);
        register
    }

    /// Adds a constant of any size: `d` may be `j`.
    pub fn add_constant(&mut self, d: u8, j: u8, value: i64, is_wide: bool) {
        let (near, wide) = if is_wide { (La::AddiD, La::AddD) } else { (La::AddiW, La::AddW) };
        if (-2048..2048).contains(&value) {
            self.assembler.immediate(near, d, j, value as i32);
        } else if (-4096..=4094).contains(&value) {
            let first = value as i32 / 2;
            self.assembler.immediate(near, d, j, first);
            self.assembler.immediate(near, d, d, value as i32 - first);
        } else if is_wide && value & 0xffff == 0 && i64::from((value >> 16) as i16) == value >> 16 {
            self.assembler.immediate(La::Addu16iD, d, j, (value >> 16) as i32);
        } else {
            let register = self.constant(value);
            self.assembler.three(wide, d, j, register);
            self.free(register);
        }
    }

    /// The value of a shifted register, of 64 or 32 bits, and what is known of it.
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

    /// The value of an extended register, shifted, and what is known of it; `option` and `amount` are the instruction's.
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
