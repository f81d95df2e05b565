//! How wide the values of registers are known to be.
//! Not what is known of their bits otherwise, nor what instructions make of it (`deferred`).

/// What is known of a register's value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// It is less than 2 to the power of this, unsigned.
    pub bits: u8,
    /// It is a word, signed.
    pub is_word: bool,
}

impl Width {
    pub const UNKNOWN: Self = Self { bits: 64, is_word: false };
    pub const WORD: Self = Self { bits: 64, is_word: true };

    /// Of a value below 2 to the power of `bits`.
    pub const fn of(bits: u8) -> Self {
        Self { bits, is_word: bits < 32 }
    }
}
