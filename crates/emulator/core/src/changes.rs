//! A log of code changes in a process. Each core reads the entries added since its last read. `Watch` detects the
//! changes.

use longma_locks::IgnorePoison;
use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use longma_guest::host::locks::Mutex;

/// The maximum number of entries in the log. A core that misses an entry drops all its cached code. During startup, a
/// translated program produces hundreds of entries between two checks of a core, one for each exit that is replaced
/// with a direct jump. Processing them costs less than dropping everything.
const MAX_ENTRIES: usize = 1024;

/// Code in a range of guest addresses may have changed.
pub(crate) struct Change {
    pub range: Range<u64>,
    /// The guest addresses whose translations were removed, ascending.
    pub removed: Vec<u64>,
}

/// The log.
#[derive(Default)]
pub(crate) struct Changes {
    /// The number of changes that have begun; `count` is the number of changes added to the log.
    begun: AtomicU64,
    count: AtomicU64,
    latest: Mutex<VecDeque<Arc<Change>>>,
}

impl Changes {
    /// The number of changes so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Begins a change. From now on, a core that has not processed this change must not translate its decoded blocks.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether only the first `seen` changes have begun. The caller holds the lock that invalidation takes.
    pub fn is_unchanged_since(&self, seen: u64) -> bool {
        self.begun.load(Ordering::SeqCst) == seen
    }

    /// Adds a change that has begun, and returns the number of changes including it.
    pub fn add(&self, change: Change) -> u64 {
        let mut latest = self.latest.lock().ignore_poison();
        if latest.len() == MAX_ENTRIES {
            latest.pop_front();
        }
        latest.push_back(Arc::new(change));
        self.count.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The changes after the first `seen` and the number of changes so far; `None` if the log no longer has all of
    /// them.
    pub fn since(&self, seen: u64) -> (Option<Vec<Arc<Change>>>, u64) {
        let latest = self.latest.lock().ignore_poison();
        let count = self.count();
        let missed = (count - seen) as usize;
        let entries =
            latest.len().checked_sub(missed).map(|first| latest.iter().skip(first).cloned().collect());
        (entries, count)
    }
}
