//! In which area of translated code each thread may be, so that an area is used again when nobody is in it.
//! Not the areas (`longma_translate::engine`).

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use longma_guest::host::locks::{Mutex, MutexGuard};

/// The thread has no address of translated code.
const NOWHERE: usize = usize::MAX;

type Place = Arc<AtomicUsize>;

thread_local! {
    /// Where this host thread is, of which process's translation.
    static OWN: RefCell<Option<(u64, Place)>> = const { RefCell::new(None) };
}

/// Where the threads of a process are.
///
/// What is said of a thread may be late when code of one area leads to the other by itself. Then it is said to be in the one that was in
/// use before, which is not used again until it says otherwise; and so long the one that it is in stays in use.
pub(super) struct Places {
    /// Which process's.
    of: u64,
    all: Mutex<Vec<Place>>,
    /// Threads that have been told where to begin, and have not said that they are there.
    unborn: AtomicUsize,
    /// Threads that wait until an area has been left.
    waiting: AtomicUsize,
}

/// A thread waits until this is dropped.
pub(super) struct Waiting<'a>(&'a Places);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Places {
    /// Nobody is anywhere.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            of: NEXT.fetch_add(1, Ordering::Relaxed),
            all: Mutex::default(),
            unborn: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Looks at this thread's place.
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

    /// This thread may be in `area` from now on and in no other, or in none.
    pub fn set(&self, area: Option<usize>) {
        self.with_own(|own| own.store(area.unwrap_or(NOWHERE), Ordering::SeqCst));
    }

    /// This thread is in `area`, where it may have come by itself. One that was nowhere begins there, as another one has told it.
    pub fn go_on(&self, area: usize) {
        if self.with_own(|own| own.swap(area, Ordering::SeqCst)) == NOWHERE {
            self.bury();
        }
    }

    /// This thread has told a new one where to begin, which is where itself is said to be.
    pub fn bear(&self) {
        self.unborn.fetch_add(1, Ordering::SeqCst);
    }

    /// The new one has begun, or will not.
    pub fn bury(&self) {
        let _ = self.unborn.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |unborn| unborn.checked_sub(1));
    }

    /// This thread waits until others have left an area.
    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// True while somebody waits: who comes out does not go back to where it was, be it in the middle of a loop.
    pub fn are_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) != 0
    }

    /// True if no other thread can be in `area`.
    pub fn is_left_by_others(&self, area: usize) -> bool {
        let own = self.with_own(Place::clone);
        let mut all = self.all();
        // The places of threads that are over are nobody else's.
        all.retain(|place| Arc::strong_count(place) > 1);
        let is_elsewhere = |place: &Place| Arc::ptr_eq(place, &own) || place.load(Ordering::SeqCst) != area;
        self.unborn.load(Ordering::SeqCst) == 0 && all.iter().all(is_elsewhere)
    }

    /// In a forked child only this thread exists.
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
            // The scope alone would not wait for what the thread leaves behind.
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
