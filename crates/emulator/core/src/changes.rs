//! What has changed in a process's code, in order, for cores to take note of when they come by.
//! Not the noticing of writes (see `Watch`).

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use longma_guest::host::locks::Mutex;

/// The changes that are remembered; a core that missed more forgets all it knows. A translated program makes one for each jump that is put in
/// place of a way out, hundreds of them between two looks of a core while it starts, and what a core knows costs more than looking for each.
const REMEMBERED: usize = 1024;

/// Code in a range of guest addresses may have changed.
pub(crate) struct Change {
    pub range: Range<u64>,
    /// The guest addresses that had translated code, which is no longer valid; ascending.
    pub gone: Vec<u64>,
}

/// The latest changes.
#[derive(Default)]
pub(crate) struct Changes {
    /// Those that have begun, and those of them that are known to all.
    begun: AtomicU64,
    count: AtomicU64,
    latest: Mutex<VecDeque<Arc<Change>>>,
}

impl Changes {
    /// How many there have been.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// One begins: from here on, who has not taken note of it yet must not translate what it knows.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// True if none has begun behind the first `seen`. Whoever asks holds the lock under which the change will look for code.
    pub fn none_since(&self, seen: u64) -> bool {
        self.begun.load(Ordering::SeqCst) == seen
    }

    /// Adds one that has begun, and gives how many there are with it.
    pub fn add(&self, change: Change) -> u64 {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.len() == REMEMBERED {
            latest.pop_front();
        }
        latest.push_back(Arc::new(change));
        self.count.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Those behind the first `seen`, or `None` if they are too many; and how many there have been.
    pub fn since(&self, seen: u64) -> (Option<Vec<Arc<Change>>>, u64) {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count();
        let missed = (count - seen) as usize;
        let found =
            latest.len().checked_sub(missed).map(|first| latest.iter().skip(first).cloned().collect());
        (found, count)
    }
}
