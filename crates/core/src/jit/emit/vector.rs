//! LSX and LASX.
//! Not every one of them: what is missing here goes to the interpreter.
//! Source: the manual's LSX and LASX volumes.

use longma_loongarch::Instruction;

use super::Emitter;

impl Emitter<'_> {
    /// Emits a vector instruction, or says that it is none of this file's.
    pub(super) fn vector(&mut self, i: &Instruction) -> bool {
        let _ = i;
        false
    }
}
