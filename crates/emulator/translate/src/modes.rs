//! Modes of translation that an engine turns on, for all later translations, when it learns that the program needs them.

use longma_loongarch::Fault;

use crate::engine::Engine;
use crate::front_end::{FrontEnd, Memory};

impl<F: FrontEnd> Engine<F> {
    /// Translates with [`crate::optimizations::Options::exact_floats`] from now on. Invalidates all translations if it
    /// was off, and returns whether it was.
    ///
    /// # Errors
    /// The host cannot provide memory.
    pub fn use_exact_floats(&mut self, memory: &dyn Memory) -> Result<bool, Fault> {
        if self.options.exact_floats {
            return Ok(false);
        }
        self.options.exact_floats = true;
        (self.cached, self.records_origins) = (None, false);
        self.forget(0..self.layout.limit, memory)?;
        Ok(true)
    }

    /// Called for code that reads flags that a callee has set. The first call invalidates all translations, because
    /// they may not compute those flags, and returns true: the caller must then translate its code again.
    pub(crate) fn keep_flags_across_calls(&mut self, memory: &dyn Memory) -> Result<bool, Fault> {
        if self.options.keeps_flags_across_calls {
            return Ok(false);
        }
        self.options.keeps_flags_across_calls = true;
        (self.cached, self.records_origins) = (None, false);
        self.forget(0..self.layout.limit, memory)?;
        Ok(true)
    }
}
