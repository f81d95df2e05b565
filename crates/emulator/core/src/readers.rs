//! How far each core of a process is with taking note of changed code: what no core can be in any more may be used again.
//! Not the changes (see `changes.rs`).
//! Source: quiescent-state-based reclamation; McKenney, "Exploiting deferred destruction" (2004).

use std::sync::{
    Arc, PoisonError,
    atomic::{AtomicU64, Ordering, fence},
};

use longma_guest::host::locks::{Mutex, MutexGuard};

/// The progress of a core that runs no code.
const OUTSIDE: u64 = u64::MAX;

/// The cores that share translated code.
#[derive(Default)]
pub(crate) struct Readers(Mutex<Vec<Arc<AtomicU64>>>);

/// One core's progress.
pub(crate) struct Reader {
    progress: Arc<AtomicU64>,
    readers: Arc<Readers>,
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A core that runs no code yet.
    pub fn add(self: &Arc<Self>) -> Reader {
        let progress = Arc::new(AtomicU64::new(OUTSIDE));
        self.lock().push(progress.clone());
        Reader { progress, readers: self.clone() }
    }

    /// How many changes every core that runs has taken note of, at least.
    pub fn all_have_seen(&self) -> u64 {
        // Either this sees that a core runs, or that core sees the changes that were counted before.
        fence(Ordering::SeqCst);
        self.lock().iter().map(|progress| progress.load(Ordering::SeqCst)).min().unwrap_or(OUTSIDE)
    }

    /// In a forked child: no core runs but the one that asks, which is outside.
    pub fn leave_all(&self) {
        for progress in self.lock().iter() {
            progress.store(OUTSIDE, Ordering::SeqCst);
        }
    }
}

impl Reader {
    /// The core begins to run and has taken note of `seen` changes. It looks for more before it runs anything.
    pub fn enter(&self, seen: u64) {
        self.progress.store(seen, Ordering::SeqCst);
    }

    /// The running core has taken note of `seen` changes, and keeps nothing of what they took away.
    pub fn advance(&self, seen: u64) {
        if self.progress.load(Ordering::Relaxed) != OUTSIDE {
            self.progress.store(seen, Ordering::Release);
        }
    }

    /// The core stops.
    pub fn leave(&self) {
        self.progress.store(OUTSIDE, Ordering::Release);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.lock().retain(|progress| !Arc::ptr_eq(progress, &self.progress));
    }
}
