//! Tracks which area of translated code each thread may be in, so that an area is reused only after all threads have
//! left it.

use longma_locks::IgnorePoison;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use longma_guest::host::locks::{Mutex, MutexGuard};

/// The thread holds no address of translated code.
const NOWHERE: usize = usize::MAX;

type ThreadArea = Arc<AtomicUsize>;

thread_local! {
    /// The area in which this host thread runs, and its process.
    static OWN: RefCell<Option<(u64, ThreadArea)>> = const { RefCell::new(None) };
}

/// The areas that the threads of a process are in.
///
/// The record of a thread is out of date after code of one area has jumped to the other. The record then names the old
/// area, which is not reused until the record is updated. Until then, the area that the thread is really in stays in
/// use, too.
pub(super) struct AreaUsage {
    /// Identifies the process.
    of: u64,
    all: Mutex<Vec<ThreadArea>>,
    /// The number of threads that were given a start address but have not reported it yet.
    pending_spawns: AtomicUsize,
    /// The number of threads that wait until an area is empty.
    waiting: AtomicUsize,
}

/// A waiting thread; it stops waiting when this is dropped.
pub(super) struct Waiting<'a>(&'a AreaUsage);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl AreaUsage {
    /// No thread is in any area.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            of: NEXT.fetch_add(1, Ordering::Relaxed),
            all: Mutex::default(),
            pending_spawns: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Calls `f` with this thread's record.
    fn with_own<T>(&self, f: impl FnOnce(&ThreadArea) -> T) -> T {
        OWN.with_borrow_mut(|own| {
            let (_, area) = match own {
                Some(found) if found.0 == self.of => found,
                _ => {
                    let area = ThreadArea::new(AtomicUsize::new(NOWHERE));
                    self.all().push(area.clone());
                    own.insert((self.of, area))
                }
            };
            f(area)
        })
    }

    fn all(&self) -> MutexGuard<'_, Vec<ThreadArea>> {
        self.all.lock().ignore_poison()
    }

    /// Records that this thread may be in `area` only, or in none.
    pub fn set(&self, area: Option<usize>) {
        self.with_own(|own| own.store(area.unwrap_or(NOWHERE), Ordering::SeqCst));
    }

    /// Records that this thread has reached `area`, possibly by a jump. If it was in none, it is a new thread that
    /// starts there.
    pub fn arrive(&self, area: usize) {
        if self.with_own(|own| own.swap(area, Ordering::SeqCst)) == NOWHERE {
            self.end_spawn();
        }
    }

    /// Records that this thread is creating a thread, which starts in the area that is recorded for this thread.
    pub fn begin_spawn(&self) {
        self.pending_spawns.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that the new thread has started, or will not.
    pub fn end_spawn(&self) {
        let _ = self
            .pending_spawns
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |pending_spawns| pending_spawns.checked_sub(1));
    }

    /// Registers this thread as waiting for an area to become empty.
    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// Whether a thread is waiting. Threads that exit to the engine must then not return to their old code, even in the
    /// middle of a loop.
    pub fn is_drain_requested(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) != 0
    }

    /// Whether no other thread can be in `area`.
    pub fn is_drained_by_others(&self, area: usize) -> bool {
        let thread_area = self.with_own(ThreadArea::clone);
        let mut all = self.all();
        // Remove the records of threads that have exited: only this list refers to them.
        all.retain(|record| Arc::strong_count(record) > 1);
        let is_elsewhere =
            |record: &ThreadArea| Arc::ptr_eq(record, &thread_area) || record.load(Ordering::SeqCst) != area;
        self.pending_spawns.load(Ordering::SeqCst) == 0 && all.iter().all(is_elsewhere)
    }

    /// Removes other threads, which do not exist in a forked child.
    pub fn adopt_in_child(&self) {
        let thread_area = self.with_own(ThreadArea::clone);
        *self.all() = vec![thread_area];
        self.pending_spawns.store(0, Ordering::SeqCst);
        self.waiting.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_drained_when_all_other_threads_have_left_or_exited() {
        let area_usage = AreaUsage::new();
        area_usage.set(Some(1));
        assert!(area_usage.is_drained_by_others(1));
        std::thread::scope(|scope| {
            let (send, received) = std::sync::mpsc::channel();
            let (sender, receiver) = std::sync::mpsc::channel();
            let area_usage = &area_usage;
            let other = scope.spawn(move || {
                for area in received {
                    area_usage.set(area);
                    sender.send(()).unwrap();
                }
            });
            for (area, left) in [(Some(1), false), (Some(0), true), (Some(1), false), (None, true)] {
                send.send(area).unwrap();
                receiver.recv().unwrap();
                assert_eq!(area_usage.is_drained_by_others(1), left, "{area:?}");
            }
            send.send(Some(1)).unwrap();
            receiver.recv().unwrap();
            drop(send);
            other.join().unwrap();
        });
        assert!(area_usage.is_drained_by_others(1));
    }

    #[test]
    fn no_area_is_drained_while_a_thread_is_starting() {
        let area_usage = AreaUsage::new();
        area_usage.set(Some(0));
        area_usage.begin_spawn();
        assert!(!area_usage.is_drained_by_others(1) && !area_usage.is_drained_by_others(0));
        std::thread::scope(|scope| {
            let (go, released) = std::sync::mpsc::channel::<()>();
            let (sender, receiver) = std::sync::mpsc::channel();
            let area_usage = &area_usage;
            let new = scope.spawn(move || {
                area_usage.arrive(0);
                area_usage.arrive(0);
                sender.send(()).unwrap();
                let _ = released.recv();
            });
            receiver.recv().unwrap();
            assert!(area_usage.is_drained_by_others(1) && !area_usage.is_drained_by_others(0));
            drop(go);
            // The scope does not wait for destructors of thread-local values.
            new.join().unwrap();
        });
        area_usage.begin_spawn();
        area_usage.end_spawn();
        assert!(area_usage.is_drained_by_others(0));
    }

    #[test]
    fn a_forked_child_has_no_other_threads() {
        let area_usage = AreaUsage::new();
        area_usage.begin_spawn();
        std::thread::scope(|scope| {
            let area_usage = &area_usage;
            scope.spawn(move || {
                area_usage.set(Some(1));
                area_usage.adopt_in_child();
                assert!(area_usage.is_drained_by_others(1));
            });
        });
    }
}
