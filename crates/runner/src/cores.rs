//! What the cores that execute one process share: its memory, the code made of it, its time, and how all of them are stopped.
//! Not the guest threads that have them (see `run.rs`), nor the choice who runs when (see `schedule`).

use std::io;
use std::sync::{Arc, PoisonError, Weak};

use longma_core::{ConfigurationWords, Core, Execution, SharedCode, Watch};
use longma_guest::host::attention::{Attention, is_own_attention_suppressed};
use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_linux::Process;
use longma_loongarch::State;

use crate::schedule::Simulated;

/// What the cores of a process share.
pub(crate) struct Cores {
    process: Arc<Process>,
    code: SharedCode,
    words: ConfigurationWords,
    simulated: Option<Simulated>,
    /// The attention flags of those that run now.
    running: Mutex<Vec<FlagPointer>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct FlagPointer(*const Attention);

// SAFETY: the flag is atomic, and its owner takes the pointer out of the list before the flag goes.
unsafe impl Send for FlagPointer {}

impl Cores {
    /// Those of `process`; none runs yet.
    ///
    /// # Errors
    /// The host has no memory for code.
    pub fn of(
        process: Arc<Process>,
        words: ConfigurationWords,
        execution: Execution,
        simulated: Option<Simulated>,
    ) -> io::Result<Self> {
        let watch = Arc::new(CodePages(Arc::downgrade(&process)));
        let code = SharedCode::new(process.memory(), execution, watch)?;
        Ok(Self { process, code, words, simulated, running: Mutex::default() })
    }

    /// Whose they are.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The code made of the process's memory.
    pub fn code(&self) -> &SharedCode {
        &self.code
    }

    /// One more, for a thread that begins with `state`.
    ///
    /// # Errors
    /// The host has no memory to give.
    pub fn make(&self, state: State) -> io::Result<Core> {
        Core::new(state, self.process.memory().clone(), self.words.clone(), self.code.clone())
    }

    /// Who runs the process in simulated time, if it began so.
    pub fn simulated(&self) -> Option<&Simulated> {
        self.simulated.as_ref()
    }

    /// Who runs it in simulated time, as long as it is; a forked child is not.
    pub fn in_time(&self) -> Option<&Simulated> {
        self.simulated.as_ref().filter(|_| self.process.simulation().is_some())
    }

    /// Lists `flag` until the result is dropped.
    ///
    /// # Safety
    /// The flag outlives the result.
    pub unsafe fn list(&self, flag: *const Attention) -> Listed<'_> {
        self.running().push(FlagPointer(flag));
        Listed { cores: self, flag: FlagPointer(flag) }
    }

    fn running(&self) -> MutexGuard<'_, Vec<FlagPointer>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks every core to stop at its next safe point.
    pub fn request_all(&self) {
        for flag in self.running().iter().filter(|flag| !is_own_attention_suppressed(flag.0)) {
            // SAFETY: flags in the list are alive.
            unsafe { (*flag.0).request() };
        }
    }

    /// In a forked child only the calling thread exists.
    pub fn keep_only(&self, flag: *const Attention) {
        self.running().retain(|f| f.0 == flag);
    }
}

/// A listed flag.
pub(crate) struct Listed<'a> {
    cores: &'a Cores,
    flag: FlagPointer,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.cores.running().retain(|f| *f != self.flag);
    }
}

/// Write-protects pages that hold both code and data.
struct CodePages(Weak<Process>);

impl Watch for CodePages {
    fn watch(&self, address: u64) {
        if let Some(process) = self.0.upgrade() {
            process.address_space().protect_code(address);
        }
    }

    fn barrier(&self) {
        if let Some(process) = self.0.upgrade() {
            process.memory().invalidate_changed_shared_code();
        }
    }
}
