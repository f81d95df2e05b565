//! The location and form of register values between two instructions. This allows the translation to omit copies,
//! zero-extensions, stack pointer adjustments, and clearing of vectors. Source: Intel SDM, volume 1, section 3.4.1.1
//! (upper halves of registers).

use longma_loongarch::State;
use serde::{Deserialize, Serialize};

use super::extension;
use crate::registers::{GENERAL, STACK_POINTER, set_upper};

/// The number of RSP. Its value is always its own LoongArch register plus [`RegisterStates::stack`].
pub(super) const RSP: usize = 4;

/// Facts about the bits of a LoongArch register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// All bits from this one on are zero; 64 if unknown.
    pub width: u8,
    /// The register is a sign-extended word.
    pub sign: bool,
}

impl Facts {
    /// Nothing is known.
    pub const NONE: Self = Self { width: 64, sign: false };
    /// The result of a LoongArch word instruction.
    pub const WORD: Self = Self { width: 64, sign: true };
    /// Zero-extended from 32 bits.
    pub const ZERO_EXTENDED: Self = Self::of_width(32);

    /// A value of at most `width` bits.
    pub const fn of_width(width: u8) -> Self {
        Self { width, sign: width < 32 }
    }

    /// The facts that hold for both values.
    pub fn or(self, other: Self) -> Self {
        Self { width: self.width.max(other.width), sign: self.sign && other.sign }
    }
}

/// The location of the upper half of a YMM register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upper {
    /// In its default place (see [`crate::registers::upper_place`]).
    Separate,
    /// Above the XMM register.
    Above,
    /// Nowhere; it is zero.
    Zero,
}

/// The location and form of the sixteen general and vector registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterStates {
    /// The LoongArch register of each general register: its own, that of another register with the same value, or r0.
    pub(super) at: [u8; 16],
    /// Facts about the LoongArch register of each general register.
    pub(super) facts: [Facts; 16],
    /// General registers whose architectural upper half is zero, whatever the LoongArch register holds.
    pub(super) narrow: u16,
    /// RSP minus its LoongArch register, in bytes.
    pub(super) stack: i32,
    /// The number of valid bytes of each vector. The bytes above are zero architecturally.
    pub(super) valid: [u8; 16],
    /// The bytes of each vector from this one on are zero architecturally; 16 if unknown.
    pub(super) used: [u8; 16],
    /// YMM registers whose upper half is above the XMM register.
    pub(super) above: u16,
    /// YMM registers whose upper half is zero, whatever its default register holds.
    pub(super) cleared: u16,
    /// The default places of all upper halves are zero.
    pub(super) is_clean: bool,
    /// Flags that are in LBT's EFLAGS (see `extension`), as iced-x86's bits.
    pub(super) flagged: u32,
}

impl Default for RegisterStates {
    fn default() -> Self {
        Self {
            at: GENERAL,
            facts: [Facts::NONE; 16],
            narrow: 0,
            stack: 0,
            valid: [16; 16],
            used: [16; 16],
            above: 0,
            cleared: 0,
            is_clean: false,
            flagged: 0,
        }
    }
}

/// The general register that owns a LoongArch register.
pub(super) fn owner(register: u8) -> Option<usize> {
    OWNERS[usize::from(register) % OWNERS.len()].map(usize::from)
}

/// The owners of all LoongArch registers.
const OWNERS: [Option<u8>; 32] = {
    let mut owners = [None; 32];
    let mut n = 0;
    while n < GENERAL.len() {
        owners[GENERAL[n] as usize] = Some(n as u8);
        n += 1;
    }
    owners
};

impl RegisterStates {
    /// Whether all state is architectural.
    pub(super) fn is_settled(&self) -> bool {
        self.at == GENERAL
            && self.stack == 0
            && self.valid == [16; 16]
            && self.above | self.cleared == 0
            && self.flagged == 0
            && (0..16).all(|n| self.narrow >> n & 1 == 0 || self.facts[n].width <= 32)
    }

    /// Facts about a LoongArch register.
    pub(super) fn of(&self, register: u8) -> Facts {
        match owner(register) {
            Some(n) => self.facts[n],
            None if register == 0 => Facts::of_width(0),
            None => Facts::NONE,
        }
    }

    /// Facts about the value of register `n`.
    pub(super) fn value(&self, n: usize) -> Facts {
        self.of(self.at[n])
    }

    /// Whether the upper half of register `n` is zero architecturally, but may differ in the LoongArch register.
    pub(super) fn is_loose(&self, n: usize) -> bool {
        self.narrow >> n & 1 != 0 && self.value(n).width > 32
    }

    /// The general registers whose value is in a LoongArch register.
    pub(super) fn sharers(&self, register: u8) -> impl Iterator<Item = usize> {
        let at = self.at;
        (0..16).filter(move |n| at[*n] == register)
    }

    /// The location of the upper half of YMM register `v`.
    pub(super) fn upper(&self, v: usize) -> Upper {
        match (self.above >> v & 1 != 0, self.cleared >> v & 1 != 0) {
            (true, _) => Upper::Above,
            (_, true) => Upper::Zero,
            _ => Upper::Separate,
        }
    }

    /// Sets the location of the upper half of YMM register `v`.
    pub(super) fn set_upper(&mut self, v: usize, upper: Upper) {
        let bit = 1 << v;
        self.above &= !bit;
        self.cleared &= !bit;
        match upper {
            Upper::Separate => {}
            Upper::Above => self.above |= bit,
            Upper::Zero => self.cleared |= bit,
        }
    }

    /// The state without the fields that [`Self::settle`] ignores, so that more states are equal.
    pub(super) fn without_facts(self) -> Self {
        Self { facts: [Facts::NONE; 16], used: [16; 16], ..self }
    }

    /// Makes all registers of a thread architectural.
    pub(crate) fn settle(&self, state: &mut State) {
        let values: [u64; 16] = std::array::from_fn(|n| {
            let value = state.r(self.at[n]);
            if self.narrow >> n & 1 != 0 { value & 0xffff_ffff } else { value }
        });
        for (n, value) in values.into_iter().enumerate() {
            state.set_r(GENERAL[n], value);
        }
        extension::settle(self.flagged, state);
        state.set_r(STACK_POINTER, state.r(STACK_POINTER).wrapping_add(self.stack as i64 as u64));
        for n in 0..16 {
            let lanes = state.v[16 + n].0;
            match self.upper(n) {
                Upper::Separate => {}
                Upper::Above => set_upper(state, n, [lanes[2], lanes[3]]),
                Upper::Zero => set_upper(state, n, [0; 2]),
            }
        }
        for (n, valid) in self.valid.into_iter().enumerate().filter(|(_, valid)| *valid < 16) {
            let lanes = &mut state.v[16 + n].0;
            lanes[1] = 0;
            if valid < 8 {
                lanes[0] &= (1 << (8 * valid)) - 1;
            }
        }
    }
}
