//! The fields of FCSR, and how an operation updates them. Source: LoongArch Reference Manual, volume 1, sections
//! 3.1.2.3 (FCSR) and 3.1.3 (exceptions).

use super::{ExceptionFlags, RoundingMode};
use crate::{Fcsr, Trap};

impl Fcsr {
    /// Enables, bits 4..0.
    pub const ENABLES: u32 = 0x1f;
    /// The rounding mode, bits 9..8.
    pub const ROUNDING: u32 = 3 << 8;
    /// The accumulated flags, bits 20..16.
    pub const FLAGS: u32 = 0x1f << 16;
    /// The causes of the last operation, bits 28..24.
    pub const CAUSES: u32 = 0x1f << 24;

    /// The rounding mode.
    pub fn rounding_mode(self) -> RoundingMode {
        RoundingMode::ALL[(self.0 & Self::ROUNDING) as usize >> 8]
    }

    /// Records the exceptions of an arithmetic instruction: sets the causes to them and adds them to the flags. A
    /// vector instruction passes the union over all lanes.
    ///
    /// # Errors
    /// [`Trap::FloatingPoint`] if one of the exceptions is enabled. In that case the flags do not change, and the
    /// instruction must not write a register.
    pub fn record(&mut self, raised: ExceptionFlags) -> Result<(), Trap> {
        let enables = self.0 & Self::ENABLES;
        let mut exceptions = u32::from(raised.0) & 0x1f;
        // If the underflow trap is enabled, a tiny result underflows even if it is exact.
        let underflow = u32::from(ExceptionFlags::UNDERFLOW.0);
        if raised.intersects(ExceptionFlags::TINY_EXACT) && enables & underflow != 0 {
            exceptions |= underflow;
        }
        self.0 = self.0 & !Self::CAUSES | exceptions << 24;
        if exceptions & enables != 0 {
            return Err(Trap::FloatingPoint);
        }
        self.0 |= exceptions << 16;
        if raised.intersects(ExceptionFlags::SUBNORMAL_OPERAND) {
            self.0 |= Self::SUBNORMAL;
        }
        Ok(())
    }
}
