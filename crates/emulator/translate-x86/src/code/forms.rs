//! Conversion of registers to the form that an instruction or another block needs, and maintenance of [`RegisterStates`].

use iced_x86::Register;
use longma_loongarch::Op as La;

use super::known::{Facts, RSP, RegisterStates, Upper, owner};
use super::lower::Lowering;
use super::upper::join_upper;
use super::uses::Live;
use crate::Position;
use crate::registers::*;

/// The encoding number of a general register of any size.
pub(super) fn number(register: Register) -> usize {
    register.full_register().number() & 15
}

/// The conversion that brings a register into a required state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegisterFixup {
    Nothing,
    Copy,
    ZeroExtend,
    SignExtend,
}

impl Lowering<'_> {
    /// The LoongArch register that holds at least the low half of register `n`.
    pub fn at(&self, n: usize) -> u8 {
        self.known.at[n]
    }

    /// Moves other registers that share the LoongArch register of `n` elsewhere.
    fn vacate(&mut self, n: usize) {
        let own = GENERAL[n];
        let mut moved = None;
        for other in self.known.sharers(own).filter(|other| *other != n).collect::<Vec<_>>() {
            let to = *moved.get_or_insert_with(|| {
                self.assembler.copy(GENERAL[other], own);
                self.known.facts[other] = self.known.facts[n];
                GENERAL[other]
            });
            self.known.at[other] = to;
        }
    }

    /// Invalidates the cached address sum if it uses register `n`, which is about to change.
    fn drop_scaled(&mut self, n: usize) {
        self.scaled = self.scaled.filter(|scaled| scaled.base != Some(n) && scaled.index != n);
    }

    /// Prepares register `n` for a new value: returns its own LoongArch register, which is no longer shared, with
    /// nothing known about it.
    pub fn define(&mut self, n: usize) -> u8 {
        self.drop_scaled(n);
        self.vacate(n);
        self.known.at[n] = GENERAL[n];
        self.known.facts[n] = Facts::NONE;
        self.known.narrow &= !(1 << n);
        if n == RSP {
            self.known.stack = 0;
        }
        GENERAL[n]
    }

    /// Records that register `n` has a new 32-bit value in its LoongArch register, with these facts.
    pub fn defined(&mut self, n: usize, facts: Facts) {
        if n == RSP {
            // Loads and stores use the stack pointer as it is.
            if facts.width > 32 {
                self.assembler.field(La::BstrpickD, STACK_POINTER, STACK_POINTER, 31, 0);
            }
            return;
        }
        self.known.facts[n] = facts;
        self.known.narrow |= 1 << n;
    }

    /// Records that register `n` has a new 64-bit value in its LoongArch register, with these facts.
    pub fn defined_wide(&mut self, n: usize, facts: Facts) {
        if n == RSP {
            return;
        }
        self.known.facts[n] = facts;
        self.known.narrow &= !(1 << n);
        if facts.width <= 32 {
            self.known.narrow |= 1 << n;
        }
    }

    /// Makes register `n` an alias of register `from`, or of its low half if `wide` is false.
    pub fn alias(&mut self, n: usize, from: usize, wide: bool) {
        if n != from || !wide {
            self.drop_scaled(n);
        }
        let at = self.known.at[from];
        let narrow = !wide || self.known.narrow >> from & 1 != 0;
        if at == GENERAL[n] {
            // It is the same register, possibly truncated.
            if n != from {
                self.known.at[n] = at;
            }
        } else {
            self.vacate(n);
            self.known.at[n] = at;
        }
        self.known.narrow &= !(1 << n);
        if narrow {
            self.known.narrow |= 1 << n;
        }
    }

    /// Makes register `n` zero.
    pub fn clear(&mut self, n: usize) {
        self.drop_scaled(n);
        self.vacate(n);
        self.known.at[n] = 0;
        self.known.narrow |= 1 << n;
    }

    /// Moves register `n` to its own LoongArch register and unshares that, because a part of it is about to change.
    pub fn own(&mut self, n: usize) -> u8 {
        self.drop_scaled(n);
        let own = GENERAL[n];
        if self.known.at[n] == own {
            self.vacate(n);
        } else {
            let facts = self.known.value(n);
            self.assembler.copy(own, self.known.at[n]);
            self.known.at[n] = own;
            self.known.facts[n] = facts;
        }
        own
    }

    /// Whether the upper half of the LoongArch register of `n` may be changed: it holds `n`, and all registers that
    /// share it have an upper half of zero.
    fn is_free_above(&self, n: usize) -> bool {
        let own = GENERAL[n];
        self.known.at[n] == own && self.known.sharers(own).all(|other| self.known.narrow >> other & 1 != 0)
    }

    /// Whether register `n` may be extended in place: no code of the current instruction relies on its present form.
    fn may_convert(&self, n: usize) -> bool {
        let is_own = self.known.at[n] == GENERAL[n];
        self.known.narrow >> n & 1 != 0 && (!is_own || self.is_free_above(n)) && self.pinned >> n & 1 == 0
    }

    /// Marks a LoongArch register as used by the current instruction, so that it is not changed in place.
    fn pin(&mut self, register: u8) -> u8 {
        if let Some(n) = owner(register) {
            self.pinned |= 1 << n;
        }
        register
    }

    /// A LoongArch register that holds all 64 bits of register `n`.
    pub fn wide(&mut self, n: usize) -> u8 {
        if n == RSP {
            self.step_stack(0, true);
            return STACK_POINTER;
        }
        if !self.known.is_loose(n) {
            return self.pin(self.known.at[n]);
        }
        self.zero_extended(n)
    }

    fn zero_extended(&mut self, n: usize) -> u8 {
        if self.may_convert(n) {
            self.extend_own(n, La::BstrpickD, Facts::ZERO_EXTENDED);
            return self.pin(self.known.at[n]);
        }
        let t = self.temporary();
        self.assembler.field(La::BstrpickD, t, self.known.at[n], 31, 0);
        t
    }

    /// Extends register `n`, whose upper half is zero, into its own LoongArch register.
    fn extend_own(&mut self, n: usize, op: La, facts: Facts) {
        let (own, from) = (GENERAL[n], self.known.at[n]);
        if from == own && !self.is_free_above(n) {
            self.vacate(n);
        }
        if op == La::BstrpickD {
            self.assembler.field(op, own, from, 31, 0);
        } else {
            self.assembler.immediate(op, own, from, 0);
        }
        self.known.at[n] = own;
        self.known.facts[n] = facts;
    }

    /// The low half of register `n`, sign-extended, in place or in a temporary.
    pub fn signed(&mut self, n: usize) -> u8 {
        if self.known.value(n).sign {
            return self.pin(self.known.at[n]);
        }
        if self.may_convert(n) {
            self.extend_own(n, La::SlliW, Facts::WORD);
            return self.pin(self.known.at[n]);
        }
        let t = self.temporary();
        self.assembler.immediate(La::SlliW, t, self.known.at[n], 0);
        t
    }

    /// The low half of register `n`, zero-extended, in place or in a temporary.
    pub fn unsigned(&mut self, n: usize) -> u8 {
        if self.known.value(n).width <= 32 {
            return self.pin(self.known.at[n]);
        }
        self.zero_extended(n)
    }

    /// Unshares the LoongArch register of `n`, which is about to be written while it is still being read.
    pub fn make_room(&mut self, n: usize) {
        self.vacate(n);
    }

    /// Adjusts the LoongArch stack pointer so that RSP is the LoongArch stack pointer plus `stack`. `is_boundary` is
    /// true if the instruction has not begun.
    pub fn step_stack(&mut self, stack: i32, is_boundary: bool) {
        let step = self.known.stack - stack;
        if step != 0 {
            self.add_constant(STACK_POINTER, STACK_POINTER, step.into());
            self.known.stack = stack;
            self.position_again(is_boundary);
        }
    }

    /// Records another position of the same instruction with the updated state.
    fn position_again(&mut self, is_boundary: bool) {
        if self.assembler.is_blank {
            return;
        }
        let offset = self.assembler.words.len() as u32;
        let pc = self.source_pc;
        let pending = self.pending();
        self.unit.positions.push(Position { offset, pc, is_boundary, counted: None, begins: false, pending });
    }

    /// Clears the bytes of a vector that must be zero.
    pub fn complete(&mut self, v: usize) {
        let register = 16 + v as u8;
        if self.known.valid[v] == 4 {
            self.assembler.three(La::VpackevW, register, ZERO_VECTOR, register);
        }
        if self.known.valid[v] < 16 {
            self.assembler.three(La::VpackevD, register, ZERO_VECTOR, register);
        }
        self.known.valid[v] = 16;
    }

    fn need(&self, n: usize, required: &RegisterStates, live: Live) -> RegisterFixup {
        if live.any >> n & 1 == 0 || n == RSP {
            return RegisterFixup::Nothing;
        }
        let (value, facts) = (self.known.value(n), required.facts[n]);
        let elsewhere =
            if self.known.at[n] == GENERAL[n] { RegisterFixup::Nothing } else { RegisterFixup::Copy };
        if required.narrow >> n & 1 == 0 {
            return if self.known.is_loose(n) { RegisterFixup::ZeroExtend } else { elsewhere };
        }
        if facts.sign && !value.sign {
            RegisterFixup::SignExtend
        } else if facts.width <= 32 && value.width > 32 {
            RegisterFixup::ZeroExtend
        } else {
            elsewhere
        }
    }

    /// Whether a transition to `required` with live registers `live` would destroy upper halves that are in `read`.
    pub fn loses(&self, required: &RegisterStates, live: Live, read: Live) -> bool {
        (0..16).any(|n| {
            let is_cut =
                matches!(self.need(n, required, live), RegisterFixup::ZeroExtend | RegisterFixup::SignExtend);
            let is_wide = self.known.narrow >> n & 1 == 0 && self.known.value(n).width > 32;
            is_cut && is_wide && read.wide >> n & 1 != 0
        })
    }

    /// The number of conversions for a transition to `required` with live registers `live`.
    pub fn misfits(&self, required: &RegisterStates, live: Live) -> usize {
        (0..16).filter(|n| self.need(*n, required, live) != RegisterFixup::Nothing).count()
            + usize::from(self.known.stack != required.stack)
            + self.misfit_uppers(required, live)
    }

    /// Whether a transition to `required` with live registers `live` needs no code.
    pub fn fits(&self, required: &RegisterStates, live: Live) -> bool {
        self.known.stack == required.stack
            && (0..16).all(|n| self.need(n, required, live) == RegisterFixup::Nothing)
            && (0..16).all(|v| live.vectors >> v & 1 == 0 || self.known.valid[v] >= required.valid[v])
            && self.misfit_uppers(required, live) == 0
    }

    /// Emits the transition to `required` with live registers `live`. `is_boundary` is true if the program can be
    /// interrupted during the transition, before the instruction at `source_pc`.
    pub fn fit(&mut self, required: &RegisterStates, live: Live, is_boundary: bool) {
        for n in 0..16 {
            match self.need(n, required, live) {
                RegisterFixup::Nothing => {}
                RegisterFixup::Copy => {
                    let scaled = self.scaled;
                    self.own(n);
                    self.scaled = scaled;
                }
                RegisterFixup::ZeroExtend => self.extend_own(n, La::BstrpickD, Facts::ZERO_EXTENDED),
                RegisterFixup::SignExtend => self.extend_own(n, La::SlliW, Facts::WORD),
            }
        }
        for v in (0..16).filter(|v| live.vectors >> v & 1 != 0) {
            if self.known.valid[v] < required.valid[v] && required.upper(v) != Upper::Above {
                self.complete(v);
            }
        }
        self.fit_uppers(required, live);
        self.step_stack(required.stack, is_boundary);
    }

    /// Makes all state architectural: before the instruction if `is_boundary`, otherwise at its end.
    pub fn settle(&mut self, is_boundary: bool) {
        self.settle_flags();
        self.fit(&RegisterStates::default(), Live::ALL, is_boundary);
    }
}

/// The common state at the start of a block with these incoming states. The flag marks loop back edges. `live` are the
/// registers live there.
pub(super) fn join(outs: &[(bool, RegisterStates)], live: Live) -> RegisterStates {
    let mut joined = RegisterStates::default();
    let Some(&(_, first)) = outs.iter().find(|(backwards, _)| *backwards).or(outs.first()) else {
        return joined;
    };
    for n in (0..16).filter(|n| *n != RSP && live.any >> *n & 1 != 0) {
        let bit = 1u16 << n;
        let is_zero_above = |known: &RegisterStates| known.narrow & bit != 0 || known.value(n).width <= 32;
        let facts_of = |known: &RegisterStates| known.value(n);
        let all = outs.iter().map(|(_, known)| facts_of(known)).reduce(Facts::or).unwrap_or(Facts::NONE);
        if live.wide & bit == 0 || outs.iter().all(|(_, known)| is_zero_above(known)) {
            joined.narrow |= bit;
            let chosen = facts_of(&first);
            joined.facts[n] = if all.sign || all.width <= 32 && !chosen.sign {
                all
            } else if chosen.sign || outs.iter().any(|(backwards, known)| *backwards && facts_of(known).sign)
            {
                Facts::WORD
            } else if chosen.width <= 32 {
                Facts::ZERO_EXTENDED
            } else {
                Facts::NONE
            };
        } else {
            let proper = |known: &RegisterStates| {
                if known.is_loose(n) { Facts::ZERO_EXTENDED } else { facts_of(known) }
            };
            joined.facts[n] =
                outs.iter().map(|(_, known)| proper(known)).reduce(Facts::or).unwrap_or(Facts::NONE);
        }
    }
    joined.stack = first.stack;
    joined.is_clean = outs.iter().all(|(_, known)| known.is_clean);
    for v in (0..16).filter(|v| live.uppers >> *v & 1 != 0) {
        joined.set_upper(v, join_upper(outs, v));
    }
    for v in (0..16).filter(|v| live.vectors >> *v & 1 != 0) {
        let used = outs.iter().map(|(_, known)| known.used[v]).max().unwrap_or(16);
        let valid = outs.iter().map(|(_, known)| known.valid[v]).min().unwrap_or(16);
        joined.used[v] = used;
        if used <= 8 || live.whole >> v & 1 == 0 {
            joined.used[v] = used.clamp(4, 8);
            joined.valid[v] = valid.max(joined.used[v]).min(8);
            if used <= 8 && valid == 16 {
                joined.valid[v] = 16;
                joined.used[v] = used;
            }
        }
    }
    joined
}
