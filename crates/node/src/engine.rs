//! What the process's system calls ask of whoever executes it: threads, forgetting changed code, forks.
//! Not the run loop (see `run.rs`).
//! Source: our own.

use std::{
    any::Any,
    cell::RefCell,
    io,
    ops::Range,
    sync::{Arc, Mutex, PoisonError, Weak, mpsc},
};

use longma_core::{SharedCode, Watch};
use longma_linux::{Engine, Process, Thread, host::attention::Attention};
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

    fn flags(&self) -> std::sync::MutexGuard<'_, Vec<FlagPointer>> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks every core to stop at its next safe point.
    pub fn request_all(&self) {
        for flag in self.flags().iter() {
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

thread_local! {
    /// What a fork holds between `before_fork` and `after_fork_*`.
    static HELD: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// Write-protects pages that hold both code and data.
pub(crate) struct CodePages(pub Weak<Process>);

impl Watch for CodePages {
    fn watch(&self, address: u64) {
        if let Some(process) = self.0.upgrade() {
            process.address_space().protect_code(address);
        }
    }
}

/// Locked translated code. The code is kept alive beside the lock.
struct HeldCode<G> {
    _guard: G,
    _code: Box<SharedCode>,
}

/// The locked list of cores. Its owner is kept alive beside the lock.
struct HeldCores {
    _guard: std::sync::MutexGuard<'static, Vec<FlagPointer>>,
    _shared: Arc<Shared>,
}

/// Runs `thread` on a new host thread; comes back when it has begun.
pub(crate) fn spawn(shared: Arc<Shared>, thread: Thread, state: State) -> io::Result<()> {
    let (begun, wait) = mpsc::sync_channel(1);
    std::thread::Builder::new().stack_size(HOST_STACK_BYTES).spawn(move || {
        let (mut thread, mut state) = (thread, state);
        thread.begin(&mut state);
        let _ = begun.send(());
        run_thread(&shared, thread, state);
    })?;
    wait.recv().map_err(|_| io::Error::from_raw_os_error(libc::EAGAIN))
}

impl Engine for NodeEngine {
    fn spawn(&self, thread: Thread, state: State) -> io::Result<()> {
        let shared = self.0.upgrade().ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))?;
        spawn(shared, thread, state)
    }

    fn invalidate(&self, range: Range<u64>) {
        let Some(shared) = self.0.upgrade() else { return };
        shared.code.invalidate(&range);
        shared.cores.request_all();
    }

    fn before_fork(&self) {
        let Some(shared) = self.0.upgrade() else { return };
        let code = Box::new(shared.code.clone());
        // SAFETY: the box is kept beside the guard and dropped after it, and its address does not change.
        let borrowed: &'static SharedCode = unsafe { &*std::ptr::from_ref(&*code) };
        let code = HeldCode { _guard: borrowed.quiesce(), _code: code };
        // SAFETY: the list is kept beside the guard, in an `Arc`, and dropped after it.
        let cores: &'static Cores = unsafe { &*std::ptr::from_ref(&shared.cores) };
        let cores = HeldCores { _guard: cores.flags(), _shared: shared };
        HELD.set(Some(Box::new((cores, code))));
    }

    fn after_fork_parent(&self) {
        HELD.set(None);
    }

    fn after_fork_child(&self) {
        HELD.set(None);
        if let Some(shared) = self.0.upgrade() {
            longma_linux::host::attention::with_attention(|own| shared.cores.keep_only(own));
            if let Some(session) = shared.session() {
                session.leave_child(&shared);
            }
        }
    }
}
