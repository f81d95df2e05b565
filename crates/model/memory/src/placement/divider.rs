//! Division by a constant, fast for powers of two.

/// A divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divider {
    divisor: u64,
    /// Base-2 logarithm of the divisor if it is a power of two, otherwise 64.
    shift: u32,
}

impl Divider {
    /// Creates a division by `divisor`; 0 is replaced by 1.
    pub(crate) fn by(divisor: u64) -> Self {
        let divisor = divisor.max(1);
        Self { divisor, shift: if divisor.is_power_of_two() { divisor.trailing_zeros() } else { 64 } }
    }

    /// Returns quotient and remainder.
    #[inline]
    pub(crate) fn split(self, value: u64) -> (u64, u64) {
        if self.shift < 64 {
            (value >> self.shift, value & (self.divisor - 1))
        } else {
            (value / self.divisor, value % self.divisor)
        }
    }
}
