//! Implements [`longma_linux::Engine`], with which system calls create threads, invalidate code and fork.

use std::{
    io,
    ops::Range,
    sync::{Arc, Weak, mpsc},
};

use longma_core::Core;
use longma_guest::host::{faults::SignalStack, workers};
use longma_linux::{Engine, NextProgram, Thread};
use longma_loongarch::State;

use crate::shared::Shared;

/// The stack size of a host thread. The guest's own stack is in guest memory.
const HOST_STACK_BYTES: usize = 512 << 10;

/// The engine of a process.
pub(crate) struct ProcessEngine(pub Weak<Shared>);

/// Runs `thread` on a new host thread and returns that thread's id. Allocates all host resources first, so that no
/// allocation can fail after the guest thread has started. In simulated time, returns only after the thread has
/// started, to keep the order of events deterministic.
pub(crate) fn spawn(shared: Arc<Shared>, thread: Thread, core: Core) -> io::Result<i32> {
    let signals = SignalStack::allocate()?;
    let (started_tx, started_rx) = if shared.cores.process().simulation().is_some() {
        let (started_tx, started_rx) = mpsc::sync_channel(1);
        (Some(started_tx), Some(started_rx))
    } else {
        (None, None)
    };
    let id = workers::spawn(HOST_STACK_BYTES, move || {
        signals.install();
        let (mut thread, mut core) = (thread, core);
        thread.begin(&mut core.cpu().state);
        if let Some(started_tx) = started_tx {
            // A failed send means that the caller has stopped waiting.
            let _ = started_tx.send(());
        }
        (shared.config().run_thread)(shared, thread, core);
    })?;
    match started_rx.map(|started_rx| started_rx.recv()) {
        Some(Err(_)) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        _ => Ok(id),
    }
}

impl Engine for ProcessEngine {
    fn spawn(&self, thread: Thread, mut state: State) -> io::Result<i32> {
        let shared = self.0.upgrade().ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))?;
        if let Some(translated) = shared.translated()
            && !translated.prepare_spawn(&shared.cores, &mut state)
        {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let core = shared.cores.make(state);
        let spawned = core.and_then(|core| spawn(shared.clone(), thread, core));
        if spawned.is_err()
            && let Some(translated) = shared.translated()
        {
            translated.end_spawn();
        }
        spawned
    }

    fn invalidate(&self, range: Range<u64>) {
        let Some(shared) = self.0.upgrade() else { return };
        if let Some(translated) = shared.translated() {
            translated.note_change(range.clone());
        }
        shared.cores.code().invalidate(&range);
        shared.cores.request_attention();
    }

    fn before_execve(&self, next: &NextProgram) -> Option<Vec<u8>> {
        let shared = self.0.upgrade()?;
        shared.executes(next)
    }

    fn before_fork(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.cores.code().prepare_fork();
        }
    }

    fn after_fork_child(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.cores.code().adopt_in_child();
            if let Some(translated) = shared.translated() {
                translated.adopt_in_child();
            }
            longma_guest::host::attention::with_attention(|flag| shared.cores.retain_flag(flag));
            if let Some(session) = shared.session() {
                session.detach_child(&shared.cores);
            }
        }
    }
}
