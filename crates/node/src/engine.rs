//! What the process's system calls ask of whoever executes it: threads, forgetting changed code, forks.
//! Not the run loop (see `run.rs`).
//! Source: our own.

use std::{
    io,
    ops::Range,
    sync::{Arc, PoisonError, Weak, mpsc},
};

use longma_core::{Core, Watch};
use longma_guest::host::{
    attention::{Attention, is_spared},
    faults::SignalStack,
    locks::{Mutex, MutexGuard},
    workers,
};
use longma_linux::{Engine, Process, Thread};
use longma_loongarch::State;

use crate::run::{Shared, run_thread};

/// The stack of a host thread that runs a guest thread; the guest's own stack is in its memory.
const HOST_STACK_BYTES: usize = 512 << 10;

/// The attention flags of the cores that run now.
#[derive(Default)]
pub(crate) struct Cores {
    flags: Mutex<Vec<FlagPointer>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct FlagPointer(*const Attention);

// SAFETY: the flag is atomic, and its owner takes the pointer out of the list before the flag goes.
unsafe impl Send for FlagPointer {}

impl Cores {
    /// Lists `flag` until the result is dropped.
    ///
    /// # Safety
    /// The flag outlives the result.
    pub unsafe fn list(&self, flag: *const Attention) -> Listed<'_> {
        self.flags().push(FlagPointer(flag));
        Listed { cores: self, flag: FlagPointer(flag) }
    }

    fn flags(&self) -> MutexGuard<'_, Vec<FlagPointer>> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks every core to stop at its next safe point.
    pub fn request_all(&self) {
        for flag in self.flags().iter().filter(|flag| !is_spared(flag.0)) {
            // SAFETY: flags in the list are alive.
            unsafe { (*flag.0).request() };
        }
    }

    /// In a forked child only the calling thread exists.
    fn keep_only(&self, flag: *const Attention) {
        self.flags().retain(|f| f.0 == flag);
    }
}

/// A listed flag.
pub(crate) struct Listed<'a> {
    cores: &'a Cores,
    flag: FlagPointer,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.cores.flags().retain(|f| *f != self.flag);
    }
}

/// The engine of one process.
pub(crate) struct NodeEngine(pub Weak<Shared>);

/// Write-protects pages that hold both code and data.
pub(crate) struct CodePages(pub Weak<Process>);

impl Watch for CodePages {
    fn watch(&self, address: u64) {
        if let Some(process) = self.0.upgrade() {
            process.address_space().protect_code(address);
        }
    }
}

/// Runs `thread` on a new host thread and gives the host's id of it; in simulated time, where the order of things matters, it comes
/// back when the thread has begun. What the thread needs of the host is had before: it does not begin and then fail.
pub(crate) fn spawn(shared: Arc<Shared>, thread: Thread, core: Core) -> io::Result<i32> {
    let signals = SignalStack::allocate()?;
    let (begun, wait) = if shared.process().simulation().is_some() {
        let (begun, wait) = mpsc::sync_channel(1);
        (Some(begun), Some(wait))
    } else {
        (None, None)
    };
    let id = workers::spawn(HOST_STACK_BYTES, move || {
        signals.install();
        let (mut thread, mut core) = (thread, core);
        thread.begin(&mut core.cpu().state);
        if let Some(begun) = begun {
            // Whoever waits hears of its end, too.
            let _ = begun.send(());
        }
        run_thread(&shared, thread, core);
    })?;
    match wait.map(|wait| wait.recv()) {
        Some(Err(_)) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        _ => Ok(id),
    }
}

impl Engine for NodeEngine {
    fn spawn(&self, thread: Thread, mut state: State) -> io::Result<i32> {
        let shared = self.0.upgrade().ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))?;
        if let Some(translated) = shared.translated()
            && !translated.give_birth(&shared, &mut state)
        {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let core = shared.core(state)?;
        spawn(shared, thread, core)
    }

    fn invalidate(&self, range: Range<u64>) {
        let Some(shared) = self.0.upgrade() else { return };
        if let Some(translated) = shared.translated() {
            translated.note_change(range.clone());
        }
        shared.code.invalidate(&range);
        shared.cores.request_all();
    }

    fn before_fork(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.code.prepare_fork();
        }
    }

    fn after_fork_child(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.code.become_forked();
            longma_guest::host::attention::with_attention(|own| shared.cores.keep_only(own));
            if let Some(session) = shared.session() {
                session.leave_child(&shared);
            }
        }
    }
}
