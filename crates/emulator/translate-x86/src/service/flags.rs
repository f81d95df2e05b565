//! Instructions that move RFLAGS. Source: Intel SDM, volume 1, section 3.4.3 (RFLAGS); volume 2 (PUSHF, POPF, LAHF,
//! SAHF); volume 3, section 17.3.1.4 (single steps).

use iced_x86::{Mnemonic, Register};
use longma_loongarch::State;
use longma_translate::front_end::ServiceResult;

use super::{AF, CF, Done, Machine, OF, PF, SF, TF, ZF, exceptions, x87};
use crate::registers::{flags_of, set_flags_of};

/// The flags that POPF changes, without those that are stored elsewhere.
const CHANGEABLE: u64 = CF | PF | AF | ZF | SF | OF | 1 << 10;

/// The result of a POPF, which may have changed TF. The processor reads TF before each instruction.
pub(super) fn after_pop(was_stepping: bool, state: &State, next: u64) -> ServiceResult {
    match (was_stepping, x87::kept_flags(state) & TF != 0) {
        (false, true) => ServiceResult::Step(next),
        (true, false) => ServiceResult::TrapAfter(exceptions::STEPPED, next),
        _ => ServiceResult::Done,
    }
}

impl Machine<'_> {
    /// PUSHF, POPF, LAHF and SAHF.
    pub(super) fn move_flags(&mut self) -> Done {
        use Mnemonic::*;
        match self.instruction.mnemonic() {
            Pushfq => {
                let value = flags_of(self.state) | x87::kept_flags(self.state);
                self.push(value, 8)
            }
            Pushf => {
                let value = flags_of(self.state) | x87::kept_flags(self.state);
                self.push(value, 2)
            }
            Lahf => {
                let flags = flags_of(self.state) & 0xff;
                self.set_register(Register::AH, flags);
                Ok(())
            }
            Sahf => {
                let low = CF | PF | AF | ZF | SF;
                let flags = flags_of(self.state) & !low | self.register(Register::AH) & low;
                set_flags_of(self.state, flags);
                Ok(())
            }
            mnemonic => {
                let value = match mnemonic {
                    Popf => self.pop(2)? | x87::kept_flags(self.state) & !TF,
                    _ => self.pop(8)?,
                };
                set_flags_of(self.state, value & CHANGEABLE);
                x87::keep_flags(self.state, value);
                Ok(())
            }
        }
    }
}
