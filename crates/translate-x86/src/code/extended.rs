//! Integer instructions of BMI1 and BMI2 with three operands.
//! Not those of one source with the encoding of old, as TZCNT: see `bits`.
//! Source: Intel SDM, volume 2.

use super::lower::Lowering;

impl Lowering<'_> {
    /// Translates an instruction of general registers with the encoding of AVX, or says that it is none.
    pub fn general_extended(&mut self) -> bool {
        false
    }
}
