//! The programs of a process: how one begins, and how one replaces another in simulated time.

use std::{io, sync::Arc};

use longma_core::Core;
use longma_linux::{NextProgram, Process, Thread};
use longma_loongarch::State;

use crate::{
    cores::Cores,
    engine::ProcessEngine,
    shared::{ProgramConfig, Shared},
    translated::translation_of,
};

/// The shared state of a program, and its threads. The first thread runs on the calling host thread.
pub(crate) type Begun = (Arc<Shared>, Vec<(Thread, Core)>);

impl ProgramConfig {
    /// Creates the cores of a loaded program. Returns its shared state and its threads.
    ///
    /// # Errors
    /// The host cannot provide memory.
    pub fn begin(self, process: Arc<Process>, mut threads: Vec<(Thread, State)>) -> io::Result<Begun> {
        let translated = translation_of(&process, self.optimizations, self.code_area.clone());
        if let Some(translated) = &translated {
            threads.iter_mut().for_each(|(_, state)| translated.begin(state));
        }
        let cores = Cores::of(
            process,
            self.words.clone(),
            self.execution,
            self.simulated.clone(),
            self.stack_period,
        )?;
        let shared = Arc::new(Shared::new(Arc::new(cores), translated, self));
        if let Some(translated) = shared.translated() {
            translated.import_cache(&shared.cores);
        }
        shared.cores.process().set_engine(Arc::new(ProcessEngine(Arc::downgrade(&shared))));
        let threads = threads.into_iter().map(|(thread, state)| Ok((thread, shared.cores.make(state)?)));
        let threads = threads.collect::<io::Result<_>>()?;
        Ok((shared, threads))
    }
}

/// Replaces the program of `thread`, which has called execve(2), and returns the state, the thread and the core of
/// the new program. The calling host thread runs it.
///
/// # Errors
/// The host cannot provide memory. The process cannot continue.
pub(crate) fn replace(
    shared: &Arc<Shared>,
    mut thread: Thread,
    core: Core,
) -> io::Result<(Arc<Shared>, Thread, Core)> {
    let missing = || io::Error::other("the thread has executed no program");
    let (next, state) = thread.take_executed().ok_or_else(missing)?;
    shared.executes(&NextProgram::OfEmulator(next.process().executable().to_owned()));
    if let Some(simulated) = &shared.config().simulated {
        simulated.forget_threads();
    }
    let first_block = shared.cores.code().next_traced_block();
    let process = next.process().clone();
    let (begun, threads) = shared.config().clone().begin(process, vec![(next, state)])?;
    begun.cores.code().number_traced_blocks_from(first_block);
    begun.take_callbacks(shared);
    let process = begun.cores.process();
    process.intercept_interrupt();
    if let Some(simulated) = begun.cores.simulated() {
        simulated.scheduler.set_process(process);
    }
    // Retired threads keep the old process. Its memory is free nevertheless.
    let space = thread.process().address_space();
    let _ = space.unmap(0, space.memory().limit());
    drop(core);
    thread.leave();
    let (mut thread, mut core) = threads.into_iter().next().ok_or_else(missing)?;
    thread.begin(&mut core.cpu().state);
    Ok((begun, thread, core))
}
