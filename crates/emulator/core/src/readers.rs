//! Tracks how many code changes each core of a process has processed. Memory of old code can be reused once no core can
//! be executing it. Source: quiescent-state-based reclamation; McKenney, "Exploiting deferred destruction" (2004).

use longma_locks::IgnorePoison;
use std::sync::{
    Arc,
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
        self.0.lock().ignore_poison()
    }

    /// Adds a core that is not running.
    pub fn add(self: &Arc<Self>) -> Reader {
        let progress = Arc::new(AtomicU64::new(OUTSIDE));
        self.lock().push(progress.clone());
        Reader { progress, readers: self.clone() }
    }

    /// The number of changes that all running cores have processed; `u64::MAX` if no core is running.
    pub fn processed_by_all(&self) -> u64 {
        // Pairs with the store in `Reader::enter`: either this thread sees that a core is running, or that core sees
        // all changes counted before this call.
        fence(Ordering::SeqCst);
        self.lock().iter().map(|progress| progress.load(Ordering::SeqCst)).min().unwrap_or(OUTSIDE)
    }

    /// Marks all cores as not running. Call it in a forked child, whose only core is not running.
    pub fn leave_all(&self) {
        for progress in self.lock().iter() {
            progress.store(OUTSIDE, Ordering::SeqCst);
        }
    }
}

impl Reader {
    /// Marks the core as running after it has processed `processed` changes. Before it executes any code, the core must
    /// check for newer changes.
    pub fn enter(&self, processed: u64) {
        self.progress.store(processed, Ordering::SeqCst);
    }

    /// Records that the running core has processed `processed` changes and holds no references to the code that they
    /// removed.
    pub fn advance(&self, processed: u64) {
        if self.progress.load(Ordering::Relaxed) != OUTSIDE {
            self.progress.store(processed, Ordering::Release);
        }
    }

    /// Marks the core as not running.
    pub fn leave(&self) {
        self.progress.store(OUTSIDE, Ordering::Release);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.lock().retain(|progress| !Arc::ptr_eq(progress, &self.progress));
    }
}
