//! Division of an address by a fixed number, quick when that is a power of two.
//! Not a general divider.

/// Divides by a fixed number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    divisor: u64,
    /// The exponent, if the divisor is a power of two; else 64.
    shift: u32,
}

impl Split {
    /// Divides by `divisor`, which 0 becomes 1.
    pub(crate) fn by(divisor: u64) -> Self {
        let divisor = divisor.max(1);
        Self { divisor, shift: if divisor.is_power_of_two() { divisor.trailing_zeros() } else { 64 } }
    }

    /// Quotient and remainder.
    #[inline]
    pub(crate) fn split(self, value: u64) -> (u64, u64) {
        if self.shift < 64 {
            (value >> self.shift, value & (self.divisor - 1))
        } else {
            (value / self.divisor, value % self.divisor)
        }
    }
}
