//! Tracks how many code changes each core of a process has processed. Memory of old code can be reused once no core can
//! be executing it. Source: quiescent-state-based reclamation; McKenney, "Exploiting deferred destruction" (2004).

use std::sync::{
    Arc, PoisonError,
    atomic::{AtomicU64, Ordering, fence},
};

use longma_guest::host::locks::{Mutex, MutexGuard};

/// The progress value of a core that runs no code.
const OUTSIDE: u64 = u64::MAX;

/// The progress of all cores that share translated code.
#[derive(Default)]
pub(crate) struct Readers(Mutex<Vec<Arc<AtomicU64>>>);

/// The progress of one core.
pub(crate) struct Reader {
    progress: Arc<AtomicU64>,
    readers: Arc<Readers>,
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a core that is not running.
    pub fn add(self: &Arc<Self>) -> Reader {
        let progress = Arc::new(AtomicU64::new(OUTSIDE));
        self.lock().push(progress.clone());
        Reader { progress, readers: self.clone() }
    }

    /// The number of changes that all running cores have processed.
    pub fn all_have_seen(&self) -> u64 {
        // Either this thread sees that a core is running, or that core sees the changes counted before.
        fence(Ordering::SeqCst);
        self.lock().iter().map(|progress| progress.load(Ordering::SeqCst)).min().unwrap_or(OUTSIDE)
    }

    /// Runs in a forked child: marks all cores as not running. The calling core is the only one, and it is not running.
    pub fn leave_all(&self) {
        for progress in self.lock().iter() {
            progress.store(OUTSIDE, Ordering::SeqCst);
        }
    }
}

impl Reader {
    /// The core starts running and has processed `seen` changes. It checks for more before it executes any code.
    pub fn enter(&self, seen: u64) {
        self.progress.store(seen, Ordering::SeqCst);
    }

    /// The running core has processed `seen` changes and holds no references to the code that they removed.
    pub fn advance(&self, seen: u64) {
        if self.progress.load(Ordering::Relaxed) != OUTSIDE {
            self.progress.store(seen, Ordering::Release);
        }
    }

    /// The core stops running.
    pub fn leave(&self) {
        self.progress.store(OUTSIDE, Ordering::Release);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.lock().retain(|progress| !Arc::ptr_eq(progress, &self.progress));
    }
}
