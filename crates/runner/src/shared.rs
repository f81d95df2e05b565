//! The state that the threads of a process share.

use std::sync::{Arc, OnceLock};

use longma_core::{ConfigurationWords, Core, Execution};
use longma_linux::{NextProgram, Thread};
use longma_translate::optimizations::Optimizations;

use crate::{
    cores::Cores,
    ending::Ending,
    gdb::Session,
    report::Report,
    schedule::SimulatedProcess,
    translated::{CodeAreaConfig, Translation},
};

/// Called with the process's end: an exit status or a signal.
pub type Finish = Box<dyn Fn(Ending, &Report) + Send + Sync>;
/// Called with the program that the process is about to execute.
pub type Executes = Box<dyn Fn(&Report, &NextProgram) -> Option<Vec<u8>> + Send + Sync>;

/// The caller's hooks for the end of a program.
pub struct Callbacks {
    /// Called once, on any thread, when the process has ended.
    pub finish: Finish,
    /// Called when the process is about to execute another program. Outside simulated time, the execution may still
    /// fail. In simulated time, the callback must call
    /// [`TimingSimulation::begin_program`](crate::simulation::TimingSimulation::begin_program) if the process is not a
    /// forked child. Returns the content of the file of `--earlier-programs` for the emulator that the host starts for
    /// that program.
    pub executes: Executes,
}

/// The settings that all programs of a process share.
#[derive(Clone)]
pub(crate) struct ProgramConfig {
    /// The result of `cpucfg`.
    pub words: ConfigurationWords,
    /// The execution options of the cores.
    pub execution: Execution,
    /// The optimizations of the translation.
    pub optimizations: Optimizations,
    /// The area for translated code.
    pub code_area: CodeAreaConfig,
    /// The instructions or simulated nanoseconds between two samples of call stacks, if they are taken.
    pub stack_period: Option<u64>,
    /// Simulated time, if the process runs in it.
    pub simulated: Option<Arc<SimulatedProcess>>,
    /// Runs a thread on the calling host thread.
    pub run_thread: fn(Arc<Shared>, Thread, Core),
}

/// The state that the threads of a process share.
pub(crate) struct Shared {
    /// The process and its cores.
    pub cores: Arc<Cores>,
    translated: Option<Arc<dyn Translation>>,
    config: ProgramConfig,
    callbacks: OnceLock<Arc<Callbacks>>,
    session: OnceLock<Arc<Session>>,
}

impl Shared {
    /// Creates the state without a debugging session or callbacks.
    pub fn new(cores: Arc<Cores>, translated: Option<Arc<dyn Translation>>, config: ProgramConfig) -> Self {
        Self { cores, translated, config, callbacks: OnceLock::new(), session: OnceLock::new() }
    }

    /// The settings that the process's next program inherits.
    pub fn config(&self) -> &ProgramConfig {
        &self.config
    }

    /// The program's execution counts so far.
    pub fn report(&self) -> Report<'_> {
        Report { cores: &self.cores, translated: self.translated.as_deref() }
    }

    /// The translation, if the program is not for LoongArch.
    pub fn translated(&self) -> Option<&Arc<dyn Translation>> {
        self.translated.as_ref()
    }

    /// Sets the callbacks. Only the first call has an effect.
    pub fn set_callbacks(&self, callbacks: Arc<Callbacks>) {
        let _ = self.callbacks.set(callbacks);
    }

    /// Takes over the callbacks of the previous program.
    pub fn take_callbacks(&self, previous: &Self) {
        if let Some(callbacks) = previous.callbacks.get() {
            self.set_callbacks(callbacks.clone());
        }
    }

    /// Calls [`Callbacks::finish`].
    pub fn finish(&self, ending: Ending) {
        if let Some(callbacks) = self.callbacks.get() {
            (callbacks.finish)(ending, &self.report());
        }
    }

    /// Notifies the caller that the process is about to execute another program, see [`Callbacks::executes`].
    pub fn executes(&self, next: &NextProgram) -> Option<Vec<u8>> {
        (self.callbacks.get()?.executes)(&self.report(), next)
    }

    /// The debugging session, if there is or was one.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.session.get()
    }

    /// Attaches a debugger. Returns the process's session, which is the first one attached.
    #[expect(
        clippy::disallowed_methods,
        reason = "the value already exists, so no fork can happen in between"
    )]
    pub fn begin_session(&self, session: Arc<Session>) -> Arc<Session> {
        // A process has a single session, because each thread follows only one.
        self.session.get_or_init(|| session).clone()
    }
}
