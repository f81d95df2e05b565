//! The state that all cores of a process share: memory, decoded code, simulated time, and the flags to interrupt
//! running cores.

use longma_locks::IgnorePoison;
use std::io;
use std::sync::{Arc, Weak};

use longma_core::{ConfigurationWords, Core, Execution, Origin, SharedCode, Watch};
use longma_guest::elf::Architecture;
use longma_guest::host::attention::{Attention, is_own_attention_suppressed};
use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_linux::{Process, Thread};
use longma_loongarch::State;

use crate::schedule::SimulatedProcess;
use crate::stacks::Stacks;
use crate::unwind::Registers;

/// The shared state of the cores of a process.
pub(crate) struct Cores {
    process: Arc<Process>,
    code: SharedCode,
    words: ConfigurationWords,
    simulated: Option<Arc<SimulatedProcess>>,
    /// Samples of call stacks, if they are taken.
    stacks: Option<Stacks>,
    /// The attention flags of running cores.
    running: Mutex<Vec<FlagPointer>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct FlagPointer(*const Attention);

// SAFETY: the flag is atomic, and its owner removes the pointer from the list before the flag is dropped.
unsafe impl Send for FlagPointer {}

impl Cores {
    /// Creates the shared state. No core runs yet.
    ///
    /// # Errors
    /// The host cannot provide memory for code.
    pub fn of(
        process: Arc<Process>,
        words: ConfigurationWords,
        execution: Execution,
        simulated: Option<Arc<SimulatedProcess>>,
        stack_period: Option<u64>,
    ) -> io::Result<Self> {
        let watch = Arc::new(CodePages(Arc::downgrade(&process)));
        let origin = match process.architecture() {
            Architecture::LoongArch64 => Origin::LoongArch,
            Architecture::X86_64 => Origin::X86,
            Architecture::Aarch64 | Architecture::Mips64 => Origin::Other,
        };
        let execution = Execution { origin, ..execution };
        let code = SharedCode::new(process.memory(), execution, watch)?;
        let stacks = stack_period.map(|period| Stacks::new(process.architecture(), period));
        Ok(Self { process, code, words, simulated, stacks, running: Mutex::default() })
    }

    /// The process.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The decoded code of the process's memory.
    pub fn code(&self) -> &SharedCode {
        &self.code
    }

    /// Creates a core for a thread that starts with `state`.
    ///
    /// # Errors
    /// The host cannot provide memory.
    pub fn make(&self, state: State) -> io::Result<Core> {
        let mut core =
            Core::new(state, self.process.memory().clone(), self.words.clone(), self.code.clone())?;
        self.set_budget(&mut core);
        Ok(core)
    }

    /// The samples of call stacks, if they are taken.
    pub fn stacks(&self) -> Option<&Stacks> {
        self.stacks.as_ref()
    }

    /// Takes a sample of a thread that has stopped at the end of its budget.
    pub fn sample(
        &self,
        core: &mut Core,
        thread: &Thread,
        registers: impl FnOnce(&State) -> Option<Registers>,
    ) {
        if let Some(stacks) = self.stacks.as_ref().filter(|_| self.simulated.is_none()) {
            if let Some(registers) = registers(&core.cpu().state) {
                stacks.add(&self.process, thread, registers);
            }
            self.set_budget(core);
        }
    }

    /// Lets a core run up to its next sample.
    fn set_budget(&self, core: &mut Core) {
        if let Some(stacks) = self.stacks.as_ref().filter(|_| self.simulated.is_none()) {
            core.set_budget(stacks.period.max(Core::MAX_BLOCK));
        }
    }

    /// The simulated time that the process started in, if any.
    pub fn simulated(&self) -> Option<&Arc<SimulatedProcess>> {
        self.simulated.as_ref()
    }

    /// The simulated time that the process runs in, if any. A forked child has left it.
    pub fn in_time(&self) -> Option<&SimulatedProcess> {
        self.simulated.as_deref().filter(|_| self.process.simulation().is_some())
    }

    /// Adds `flag` to the list of running cores until the result is dropped.
    ///
    /// # Safety
    /// The flag must outlive the result.
    pub unsafe fn list(&self, flag: *const Attention) -> RegisteredFlag<'_> {
        self.running().push(FlagPointer(flag));
        RegisteredFlag { cores: self, flag: FlagPointer(flag) }
    }

    fn running(&self) -> MutexGuard<'_, Vec<FlagPointer>> {
        self.running.lock().ignore_poison()
    }

    /// Asks every core to stop at its next safe point.
    pub fn request_attention(&self) {
        for flag in self.running().iter().filter(|flag| !is_own_attention_suppressed(flag.0)) {
            // SAFETY: flags in the list are alive.
            unsafe { (*flag.0).request() };
        }
    }

    /// Removes the flags of other threads, which do not exist in a forked child.
    pub fn retain_flag(&self, flag: *const Attention) {
        self.running().retain(|f| f.0 == flag);
    }
}

/// A flag in the list of running cores.
pub(crate) struct RegisteredFlag<'a> {
    cores: &'a Cores,
    flag: FlagPointer,
}

impl Drop for RegisteredFlag<'_> {
    fn drop(&mut self) {
        self.cores.running().retain(|f| *f != self.flag);
    }
}

/// Write-protects pages that contain both code and data.
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
