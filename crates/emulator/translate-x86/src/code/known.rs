//! What a translation knows of registers between two instructions: where each one's value is, and in which form. Code that nobody would
//! notice is not written then: copies, zero-extensions, steps of the stack pointer, upper parts of vectors.
//! Not what is known of flags, but for where they are.
//! Source: Intel SDM, volume 1, section 3.4.1.1 (what becomes of the upper half of a register).

use longma_loongarch::State;
use serde::{Deserialize, Serialize};

use super::extension;
use crate::registers::{GENERAL, STACK_POINTER, set_upper};

/// RSP's number: it is always where it is, but for [`Known::stack`].
pub(super) const RSP: usize = 4;

/// What is known of the bits of a LoongArch register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// All bits from here on are zero; 64 if that is not known.
    pub width: u8,
    /// The upper half is the sign of the lower one.
    pub sign: bool,
}

impl Facts {
    /// Nothing is known.
    pub const NONE: Self = Self { width: 64, sign: false };
    /// A result of LoongArch's instructions on words.
    pub const WORD: Self = Self { width: 64, sign: true };
    /// Zero-extended from 32 bits.
    pub const ZERO_EXTENDED: Self = Self::of_width(32);

    /// A number of so many bits at most.
    pub const fn of_width(width: u8) -> Self {
        Self { width, sign: width < 32 }
    }

    /// What holds of either.
    pub fn or(self, other: Self) -> Self {
        Self { width: self.width.max(other.width), sign: self.sign && other.sign }
    }
}

/// Where the upper half of a YMM register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upper {
    /// In its place (see [`crate::registers::upper_place`]).
    Place,
    /// Above the XMM register.
    Above,
    /// Nowhere: it is to be zero.
    Zero,
}

/// Where the sixteen general registers and vectors are, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The LoongArch register that holds each one's value: its own, that of another of the same value, or r0.
    pub(super) at: [u8; 16],
    /// What is known of each one's own LoongArch register.
    pub(super) facts: [Facts; 16],
    /// Those whose upper half is to be zero, whatever it is in the LoongArch register.
    pub(super) narrow: u16,
    /// RSP is so much more than its LoongArch register.
    pub(super) stack: i32,
    /// The bytes of each vector that are as they are to be; those above are to be zero.
    pub(super) valid: [u8; 16],
    /// The bytes of each vector above which it is to be zero; 16 if that is not known.
    pub(super) used: [u8; 16],
    /// YMM registers whose upper half is above their XMM register, not in its own place.
    pub(super) above: u16,
    /// YMM registers whose upper half is to be zero, whatever is in its place.
    pub(super) cleared: u16,
    /// All upper halves' places are zero.
    pub(super) is_clean: bool,
    /// Flags that are in the flag register (see `extension`), as iced-x86 has them.
    pub(super) flagged: u32,
}

impl Default for Known {
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

/// The number of the register whose own this LoongArch register is.
pub(super) fn owner(register: u8) -> Option<usize> {
    OWNERS[usize::from(register) % OWNERS.len()].map(usize::from)
}

/// By LoongArch register.
const OWNERS: [Option<u8>; 32] = {
    let mut owners = [None; 32];
    let mut n = 0;
    while n < GENERAL.len() {
        owners[GENERAL[n] as usize] = Some(n as u8);
        n += 1;
    }
    owners
};

impl Known {
    /// Whether every register is in its place.
    pub(super) fn is_settled(&self) -> bool {
        self.at == GENERAL
            && self.stack == 0
            && self.valid == [16; 16]
            && self.above | self.cleared == 0
            && self.flagged == 0
            && (0..16).all(|n| self.narrow >> n & 1 == 0 || self.facts[n].width <= 32)
    }

    /// What is known of the bits of a LoongArch register.
    pub(super) fn of(&self, register: u8) -> Facts {
        match owner(register) {
            Some(n) => self.facts[n],
            None if register == 0 => Facts::of_width(0),
            None => Facts::NONE,
        }
    }

    /// What is known of the value of register `n` where it is.
    pub(super) fn value(&self, n: usize) -> Facts {
        self.of(self.at[n])
    }

    /// Whether the upper half of register `n` is to be zero and may be something else where it is.
    pub(super) fn is_loose(&self, n: usize) -> bool {
        self.narrow >> n & 1 != 0 && self.value(n).width > 32
    }

    /// Those whose value is in the LoongArch register.
    pub(super) fn sharers(&self, register: u8) -> impl Iterator<Item = usize> {
        let at = self.at;
        (0..16).filter(move |n| at[*n] == register)
    }

    /// Where the upper half of YMM register `v` is.
    pub(super) fn upper(&self, v: usize) -> Upper {
        match (self.above >> v & 1 != 0, self.cleared >> v & 1 != 0) {
            (true, _) => Upper::Above,
            (_, true) => Upper::Zero,
            _ => Upper::Place,
        }
    }

    /// Says where the upper half of YMM register `v` is.
    pub(super) fn set_upper(&mut self, v: usize, upper: Upper) {
        let bit = 1 << v;
        self.above &= !bit;
        self.cleared &= !bit;
        match upper {
            Upper::Place => {}
            Upper::Above => self.above |= bit,
            Upper::Zero => self.cleared |= bit,
        }
    }

    /// Puts every register into its place.
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
                Upper::Place => {}
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
