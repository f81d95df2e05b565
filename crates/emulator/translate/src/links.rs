//! Jumps between units: exits that become direct jumps, old code that redirects to new code, and code that becomes an
//! exit because its source may have changed.

use longma_loongarch::Fault;

use crate::engine::{CodeError, Engine, exit_word, jump};
use crate::front_end::{Exit, FrontEnd, Memory};

impl<F: FrontEnd> Engine<F> {
    /// Returns the code of `pc`, the target of the exit at host address `exit`. Patches the exit to a direct jump if
    /// possible.
    ///
    /// # Errors
    /// As for [`Self::code_of`].
    pub fn follow(&mut self, exit: u64, pc: u64, memory: &dyn Memory) -> Result<u64, CodeError> {
        let code = self.code_of(pc, memory)?;
        self.link(exit, pc, code, memory)?;
        Ok(code)
    }

    /// Patches the exit at host address `exit` to a direct jump to `code`, the code of `pc`, if possible.
    pub(crate) fn link(&mut self, exit: u64, pc: u64, code: u64, memory: &dyn Memory) -> Result<(), Fault> {
        // Cold code stays unlinked because the engine counts visits to it. `exit` may no longer lead to `pc`: it may be
        // the start of old code that now redirects to newer code, or that was unlinked since.
        let is_hot = self.entries.contains_key(&pc) || self.is_debugged;
        let leads_there = matches!(self.exits.get(&exit), Some(Exit::To(to)) if *to == pc);
        if let Some(word) = jump(exit, code).filter(|_| is_hot && leads_there) {
            memory.replace(exit, word)?;
            self.exits.remove(&exit);
        }
        Ok(())
    }

    /// Redirects the old code of `pc` to the new code, so that it suffices to unlink the new code when the source
    /// changes.
    pub(crate) fn redirect(&mut self, pc: u64, old: u64, new: u64, memory: &dyn Memory) -> Result<(), Fault> {
        match jump(old, new) {
            Some(word) => {
                memory.replace(old, word)?;
                self.exits.remove(&old);
                Ok(())
            }
            None => self.patch_exit(old, pc, memory),
        }
    }

    /// Patches the code of `pc` with an exit to the engine.
    pub(crate) fn patch_exit(&mut self, code: u64, pc: u64, memory: &dyn Memory) -> Result<(), Fault> {
        memory.replace(code, exit_word())?;
        self.exits.insert(code, Exit::To(pc));
        Ok(())
    }

    pub(crate) fn unlink_head(&mut self, pc: u64, code: u64, memory: &dyn Memory) -> Result<(), Fault> {
        memory.replace(code, exit_word())?;
        self.exits.insert(code, Exit::Leave(pc));
        Ok(())
    }
}
