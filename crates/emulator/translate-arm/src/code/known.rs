//! State of source registers between two instructions at translation time. Zero-extensions, vector clears, pointer
//! increments and flags are deferred, and omitted if their result is never read. Source: Arm Architecture Reference
//! Manual (Arm DDI 0487), section B1.2.1 (effect of writes on upper bits).

use std::rc::Rc;

use longma_loongarch::State;
use serde::{Deserialize, Serialize};

use super::flags::Flags;
use super::loops::{OUTSIDE, RegisterAssignment};
use crate::registers::{self, Location, SLOT_OF_SPILLED_VECTOR, SLOTS};
use longma_translate::front_end::UserMemory;

/// The known properties of the value of a LoongArch register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// All bits from this position up are zero; 64 if unknown.
    pub width: u8,
    /// The value is sign-extended from 32 bits.
    pub sign: bool,
}

impl Facts {
    /// Nothing is known.
    pub const NONE: Self = Self { width: 64, sign: false };
    /// The result of a 32-bit LoongArch instruction.
    pub const WORD: Self = Self { width: 64, sign: true };
    /// Zero-extended from 32 bits.
    pub const ZERO_EXTENDED: Self = Self::of_width(32);

    /// An unsigned value of at most `width` bits.
    pub const fn of_width(width: u8) -> Self {
        Self { width, sign: width < 32 }
    }

    /// A constant.
    pub const fn of(value: i64) -> Self {
        Self { width: 64 - value.leading_zeros() as u8, sign: value == value as i32 as i64 }
    }

    /// The known properties of the bitwise AND of two values.
    pub fn and(self, other: Self) -> Self {
        let width = self.width.min(other.width);
        Self { width, sign: width < 32 || self.sign && other.sign }
    }

    /// The known properties of a value that equals one of two values.
    pub fn or(self, other: Self) -> Self {
        Self { width: self.width.max(other.width), sign: self.sign && other.sign }
    }
}

/// A value that is cached in a temporary register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CachedValue {
    /// A copy of a source register.
    Register(u8),
    /// The sign-extended low half of a source register.
    Signed(u8),
    /// A source register shifted left by an amount.
    Shifted(u8, u8),
    /// The sum of a source register and a shifted one: base, index, shift.
    Sum(u8, u8, u8),
    Constant(i64),
}

impl CachedValue {
    /// Whether the value depends on x`number`.
    pub fn is_of(self, number: u8) -> bool {
        match self {
            Self::Register(of) | Self::Signed(of) | Self::Shifted(of, _) => of == number,
            Self::Sum(base, index, _) => base == number || index == number,
            Self::Constant(_) => false,
        }
    }
}

/// The state between two instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownState {
    /// The known properties of each general-purpose register. Unknown for registers in memory.
    pub(super) facts: [Facts; 31],
    /// Registers that are 32-bit values whose upper halves have not been cleared.
    pub(super) loose: u32,
    /// The number of low bytes of each vector that are valid. All bytes above are architecturally zero.
    pub(super) valid: [u8; 32],
    /// The number of low bytes of each vector that can be nonzero; 16 if unknown.
    pub(super) used: [u8; 32],
    /// The representation of the condition flags.
    pub(super) flags: Flags,
    /// The register assignment.
    pub(super) assignment: RegisterAssignment,
    /// The values cached in the temporary registers, except the last.
    pub(super) cached: [Option<CachedValue>; 3],
    /// Increments that have not been added to the registers yet.
    pub(super) steps: [i16; 31],
}

/// The differences between the registers' contents and their architectural state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingState {
    loose: u32,
    valid: [u8; 32],
    flags: Flags,
    assignment: RegisterAssignment,
    steps: [i16; 31],
}

impl Default for KnownState {
    fn default() -> Self {
        Self {
            facts: [Facts::NONE; 31],
            loose: 0,
            valid: [16; 32],
            used: [16; 32],
            flags: Flags::Stored,
            assignment: OUTSIDE,
            cached: [None; 3],
            steps: [0; 31],
        }
    }
}

impl KnownState {
    /// The differences between the registers' contents and their architectural state, if there are any.
    pub(super) fn pending(&self) -> Option<PendingState> {
        let is_settled = self.loose == 0
            && self.steps == [0; 31]
            && self.valid == [16; 32]
            && self.flags == Flags::Stored
            && self.assignment == OUTSIDE;
        (!is_settled).then(|| self.unsettled())
    }

    /// Like [`Self::pending`], but returns a value even if the registers are in their architectural state.
    pub(super) fn unsettled(&self) -> PendingState {
        let Self { loose, valid, flags, assignment, steps, .. } = *self;
        PendingState { loose, valid, flags, assignment, steps }
    }

    /// Whether the upper half of x`number` is architecturally zero but has not been cleared.
    pub(super) fn is_loose(&self, number: u8) -> bool {
        self.loose >> number & 1 != 0
    }

    /// Whether the architectural value of x`number` fits into 32 bits.
    fn is_narrow(&self, number: usize) -> bool {
        self.loose >> number & 1 != 0 || self.facts[number].width <= 32
    }

    /// The state with another register assignment. Registers in memory are always in their architectural state.
    pub(super) fn at(self, assignment: RegisterAssignment) -> Self {
        let mut known = Self { assignment, ..self };
        for (number, location_of) in assignment.general.iter().enumerate() {
            if matches!(location_of, Location::Register(_)) {
                continue;
            }
            known.steps[number] = 0;
            if known.loose >> number & 1 != 0 {
                known.loose &= !(1 << number);
                known.facts[number] = Facts::ZERO_EXTENDED;
            }
        }
        if let Some(vector) = assignment.spilled_vector {
            (known.valid[usize::from(vector)], known.used[usize::from(vector)]) = (16, 16);
        }
        known
    }

    /// Merges the states of several predecessors; the flag marks loop back edges. `wide` are the registers whose upper
    /// halves the code reads, and `upper` the vectors of which it reads more than 4 or 8 bytes.
    pub(super) fn join(ways: &[(bool, Rc<Self>)], wide: u32, upper: [u32; 2]) -> Self {
        let outs: Vec<&Self> = ways.iter().map(|(_, known)| &**known).collect();
        let mut joined = outs.first().copied().copied().unwrap_or_default();
        joined.flags = Flags::Stored;
        joined.assignment = OUTSIDE;
        let goes_back = ways.iter().any(|(back, _)| *back);
        for (number, step) in joined.steps.iter_mut().enumerate() {
            // An increment in a loop must be added in every iteration.
            if goes_back || outs.iter().any(|known| known.steps[number] != *step) {
                *step = 0;
            }
        }
        for (n, cached) in joined.cached.iter_mut().enumerate() {
            *cached = cached.filter(|cached| outs.iter().all(|known| known.cached[n] == Some(*cached)));
        }
        for number in 0..31 {
            let facts = outs.iter().map(|known| known.facts[number]).reduce(Facts::or).unwrap_or(Facts::NONE);
            let some_loose = outs.iter().any(|known| known.loose >> number & 1 != 0);
            // If the upper half is still uncleared at a back edge, the loop does not need it in every iteration.
            let loose_back = ways.iter().any(|(back, known)| *back && known.loose >> number & 1 != 0);
            let all_loose = outs.iter().all(|known| known.loose >> number & 1 != 0);
            let pays = wide >> number & 1 == 0 || loose_back || all_loose;
            let may_be_loose = pays && outs.iter().all(|known| known.is_narrow(number));
            joined.loose = joined.loose & !(1 << number) | u32::from(some_loose && may_be_loose) << number;
            joined.facts[number] = if !some_loose || may_be_loose {
                facts
            } else {
                // Predecessors with uncleared upper halves clear them on the edge.
                let settled = |known: &&Self| {
                    if known.loose >> number & 1 != 0 { Facts::ZERO_EXTENDED } else { known.facts[number] }
                };
                outs.iter().map(settled).reduce(Facts::or).unwrap_or(Facts::NONE)
            };
        }
        for number in 0..32 {
            let valid = |known: &&Self| known.valid[number];
            let least_valid = outs.iter().map(valid).min().unwrap_or(16);
            let used = outs.iter().map(|known| known.used[number]).max().unwrap_or(16);
            let needed =
                if upper[1] >> number & 1 != 0 { 16 } else { 4 + 4 * (upper[0] >> number & 1) as u8 };
            // Bytes that are never read may have any value.
            joined.valid[number] = if used <= least_valid || needed <= least_valid {
                least_valid
            } else if used <= 8 && needed > 8 {
                8
            } else {
                16
            };
            joined.used[number] = used.max(joined.valid[number].min(8));
            if joined.valid[number] == 16 {
                joined.used[number] = used;
            }
        }
        joined
    }
}

impl PendingState {
    /// Brings all registers of a thread into their architectural state.
    pub(crate) fn settle(&self, state: &mut State, memory: &dyn UserMemory) {
        for (number, step) in self.steps.into_iter().enumerate() {
            if let Location::Register(register) = self.assignment.general[number] {
                state.set_r(register, state.r(register).wrapping_add_signed(step.into()));
            }
        }
        self.flags.settle(state, &self.assignment, memory);
        for number in (0..31u8).filter(|number| self.loose >> number & 1 != 0) {
            if let Location::Register(register) = self.assignment.general[usize::from(number)] {
                state.set_r(register, state.r(register) & 0xffff_ffff);
            }
        }
        let moved = || {
            (0..31u8).filter(|number| {
                self.assignment.general[usize::from(*number)] != OUTSIDE.general[usize::from(*number)]
            })
        };
        let values: Vec<u64> = moved()
            .map(|number| registers::read_at(state, self.assignment.general[usize::from(number)], memory))
            .collect();
        for (number, value) in moved().zip(values) {
            registers::write(state, number, value, memory);
        }
        if let Some(vector) = self.assignment.spilled_vector {
            let mut bytes = [0; 16];
            memory.read(state.r(SLOTS).wrapping_add_signed(SLOT_OF_SPILLED_VECTOR.into()), &mut bytes);
            let halves = u128::from_le_bytes(bytes);
            state.v[usize::from(vector)].0[..2].copy_from_slice(&[halves as u64, (halves >> 64) as u64]);
        }
        for (number, valid) in self.valid.into_iter().enumerate().filter(|(_, valid)| *valid < 16) {
            let lanes = &mut state.v[number].0;
            lanes[1] = 0;
            if valid < 8 {
                lanes[0] &= (1 << (8 * valid)) - 1;
            }
        }
    }
}
