//! Tracks which area of translated code each thread may be in, so that an area is reused only after all threads have
//! left it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use longma_guest::host::locks::{Mutex, MutexGuard};

/// The thread holds no address of translated code.
const NOWHERE: usize = usize::MAX;

type Place = Arc<AtomicUsize>;

thread_local! {
    /// The area that this host thread is in, and the process that it belongs to.
    static OWN: RefCell<Option<(u64, Place)>> = const { RefCell::new(None) };
}

/// The areas that the threads of a process are in.
///
/// The record of a thread lags behind if code of one area jumps to the other. The record then names the old area, which
/// is not reused until the record is updated. Until then, the area that the thread is really in stays in use, too.
pub(super) struct Places {
    /// Identifies the process.
    of: u64,
    all: Mutex<Vec<Place>>,
    /// The number of threads that were given a start address but have not reported it yet.
    unborn: AtomicUsize,
    /// The number of threads that wait until an area is empty.
    waiting: AtomicUsize,
}

/// A waiting thread; it stops waiting when this is dropped.
pub(super) struct Waiting<'a>(&'a Places);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Places {
    /// No thread is in any area.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            of: NEXT.fetch_add(1, Ordering::Relaxed),
            all: Mutex::default(),
            unborn: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Calls `look` with this thread's record.
    fn with_own<T>(&self, look: impl FnOnce(&Place) -> T) -> T {
        OWN.with_borrow_mut(|own| {
            let (_, place) = match own {
                Some(found) if found.0 == self.of => found,
                _ => {
                    let place = Place::new(AtomicUsize::new(NOWHERE));
                    self.all().push(place.clone());
                    own.insert((self.of, place))
                }
            };
            look(place)
        })
    }

    fn all(&self) -> MutexGuard<'_, Vec<Place>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this thread may be in `area` only, or in none.
    pub fn set(&self, area: Option<usize>) {
        self.with_own(|own| own.store(area.unwrap_or(NOWHERE), Ordering::SeqCst));
    }

    /// Records that this thread has reached `area`, possibly by a jump. If it was in none, it is a new thread that
    /// starts there.
    pub fn go_on(&self, area: usize) {
        if self.with_own(|own| own.swap(area, Ordering::SeqCst)) == NOWHERE {
            self.bury();
        }
    }

    /// Records that this thread has given a new thread a start address, in the area that this thread is recorded in.
    pub fn bear(&self) {
        self.unborn.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that the new thread has started, or will not.
    pub fn bury(&self) {
        let _ = self.unborn.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |unborn| unborn.checked_sub(1));
    }

    /// Registers this thread as waiting for an area to become empty.
    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// Whether a thread is waiting. Threads that exit to the engine must then not return to their old code, even in the
    /// middle of a loop.
    pub fn are_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) != 0
    }

    /// Whether no other thread can be in `area`.
    pub fn is_left_by_others(&self, area: usize) -> bool {
        let own = self.with_own(Place::clone);
        let mut all = self.all();
        // Remove the records of threads that have exited: only this list refers to them.
        all.retain(|place| Arc::strong_count(place) > 1);
        let is_elsewhere = |place: &Place| Arc::ptr_eq(place, &own) || place.load(Ordering::SeqCst) != area;
        self.unborn.load(Ordering::SeqCst) == 0 && all.iter().all(is_elsewhere)
    }

    /// Removes other threads, which do not exist in a forked child.
    pub fn become_forked(&self) {
        let own = self.with_own(Place::clone);
        *self.all() = vec![own];
        self.unborn.store(0, Ordering::SeqCst);
        self.waiting.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_left_when_every_other_thread_says_so_or_is_over() {
        let places = Places::new();
        places.set(Some(1));
        assert!(places.is_left_by_others(1));
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let (done, is_done) = std::sync::mpsc::channel();
            let places = &places;
            let other = scope.spawn(move || {
                for area in told {
                    places.set(area);
                    done.send(()).unwrap();
                }
            });
            for (area, left) in [(Some(1), false), (Some(0), true), (Some(1), false), (None, true)] {
                tell.send(area).unwrap();
                is_done.recv().unwrap();
                assert_eq!(places.is_left_by_others(1), left, "{area:?}");
            }
            tell.send(Some(1)).unwrap();
            is_done.recv().unwrap();
            drop(tell);
            other.join().unwrap();
        });
        assert!(places.is_left_by_others(1));
    }

    #[test]
    fn nothing_is_left_while_somebody_is_yet_to_begin() {
        let places = Places::new();
        places.set(Some(0));
        places.bear();
        assert!(!places.is_left_by_others(1) && !places.is_left_by_others(0));
        std::thread::scope(|scope| {
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let (begun, has_begun) = std::sync::mpsc::channel();
            let places = &places;
            let new = scope.spawn(move || {
                places.go_on(0);
                places.go_on(0);
                begun.send(()).unwrap();
                let _ = gone.recv();
            });
            has_begun.recv().unwrap();
            assert!(places.is_left_by_others(1) && !places.is_left_by_others(0));
            drop(go);
            // The scope does not wait for destructors of thread-local values.
            new.join().unwrap();
        });
        places.bear();
        places.bury();
        assert!(places.is_left_by_others(0));
    }

    #[test]
    fn a_forked_child_has_nobody_else() {
        let places = Places::new();
        places.bear();
        std::thread::scope(|scope| {
            let places = &places;
            scope.spawn(move || {
                places.set(Some(1));
                places.become_forked();
                assert!(places.is_left_by_others(1));
            });
        });
    }
}
