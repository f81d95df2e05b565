//! The known width of register values.

/// The known properties of a register's value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// The value is less than 2 to the power of this, unsigned.
    pub bits: u8,
    /// The value is sign-extended from 32 bits.
    pub is_word: bool,
}

impl Width {
    pub const UNKNOWN: Self = Self { bits: 64, is_word: false };
    pub const WORD: Self = Self { bits: 64, is_word: true };

    /// A value below 2 to the power of `bits`.
    pub const fn of(bits: u8) -> Self {
        Self { bits, is_word: bits < 32 }
    }
}
