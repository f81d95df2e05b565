//! Handles: what a C program names objects by, checked in every call.
//! Not pointers: a handle that was given back, one of another kind and any other number find nothing.
//! Source: Michael, "Hazard pointers: safe memory reclamation for lock-free objects", IEEE TPDS 15 (2004), with the barrier on the
//! side of those who give back, as in Dice, Huang and Yang, "Asymmetric Dekker synchronization" (2001).

use crate::layout::{Handle, Return};
use longma_via::barriers::{heavy_barrier, is_available, light_barrier};
use std::cell::RefCell;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A handle's lowest bits say where its object is, the next what kind it is of, the rest that it is this one: no number comes again.
const INDEX_BITS: u32 = 20;
const KIND_BITS: u32 = 4;
const CHUNK: usize = 1024;
const CHUNKS: usize = (1 << INDEX_BITS) / CHUNK;

const _: () = assert!(usize::BITS == 64, "the numbers of handles need 40 bits");

/// How long giving back waits for calls of other threads. None takes so long, also on a machine so busy that a thread stands still for
/// seconds; only one that is gone in the midst of a call does, and then the object stays for ever.
const PATIENCE: Duration = Duration::from_secs(10);

struct Slot<T> {
    /// The handle that finds this object now; 0: none.
    handle: AtomicUsize,
    /// From `Arc::into_raw`.
    object: AtomicPtr<T>,
}

#[derive(Default)]
struct Places {
    free: Vec<usize>,
    used: usize,
    made: usize,
}

/// All objects of a kind.
pub(crate) struct Table<T> {
    kind: usize,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    places: Mutex<Places>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Send + Sync + 'static> Table<T> {
    /// A table of the kind of that number, 1 to 15.
    pub(crate) const fn new(kind: usize) -> Table<T> {
        let places = Places { free: Vec::new(), used: 0, made: 0 };
        Table { kind, chunks: [const { OnceLock::new() }; CHUNKS], places: Mutex::new(places) }
    }

    fn slot_at(&self, index: usize) -> &Slot<T> {
        let empty = || Slot { handle: AtomicUsize::new(0), object: AtomicPtr::default() };
        let chunk = self.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| empty()).collect());
        &chunk[index % CHUNK]
    }

    /// Where `handle` would be, if it is of this kind.
    #[inline]
    fn slot(&self, handle: usize) -> Option<&Slot<T>> {
        if handle >> INDEX_BITS & ((1 << KIND_BITS) - 1) != self.kind {
            return None;
        }
        let index = handle & ((1 << INDEX_BITS) - 1);
        Some(&self.chunks[index / CHUNK].get()?[index % CHUNK])
    }

    /// Takes an object in, and says by which handle it is found. `None`: there are a million of them.
    pub(crate) fn insert(&self, object: Arc<T>) -> Option<Handle> {
        let mut places = lock(&self.places);
        let index = match places.free.pop() {
            Some(index) => index,
            None if places.used < CHUNK * CHUNKS => {
                places.used += 1;
                places.used - 1
            }
            None => return None,
        };
        places.made += 1;
        let handle = places.made << (INDEX_BITS + KIND_BITS) | self.kind << INDEX_BITS | index;
        let slot = self.slot_at(index);
        slot.object.store(Arc::into_raw(object).cast_mut(), Ordering::Relaxed);
        slot.handle.store(handle, Ordering::Release);
        Some(std::ptr::without_provenance_mut(handle))
    }

    /// A reference of its own to the object, for a call that may take long.
    pub(crate) fn shared(&self, handle: Handle) -> Option<Arc<T>> {
        self.shared_after(handle, |_| {})
    }

    /// As `shared`, after `note` has entered the call with the object: whoever gives the object back sees that, or is first.
    pub(crate) fn shared_after(&self, handle: Handle, note: impl FnOnce(&T)) -> Option<Arc<T>> {
        let _places = lock(&self.places);
        let slot = self.slot(handle.addr())?;
        if slot.handle.load(Ordering::Acquire) != handle.addr() {
            return None;
        }
        let object = slot.object.load(Ordering::Relaxed);
        // SAFETY: from `Arc::into_raw`; with the lock held and the handle in place nobody takes the table's reference away.
        let object = unsafe {
            Arc::increment_strong_count(object);
            Arc::from_raw(object)
        };
        note(&object);
        Some(object)
    }

    /// Does something short with the object, without a lock or any other atomic exchange. `None`: there is no such object.
    #[inline]
    pub(crate) fn with<R>(&self, handle: Handle, act: impl FnOnce(&T) -> R) -> Option<R> {
        let (handle, slot) = (handle.addr(), self.slot(handle.addr())?);
        let mut act = Some(act);
        let done = PLACE.try_with(|place| {
            let place = place.try_borrow_mut().ok()?;
            let _inside = Inside::of(&place.inside, handle);
            if slot.handle.load(Ordering::Acquire) != handle {
                return Some(None);
            }
            // SAFETY: whoever takes the object away first empties `handle` and then waits for all who are inside with it; this
            // thread said so before it saw that it was not emptied.
            let object = unsafe { &*slot.object.load(Ordering::Relaxed) };
            Some(act.take().map(|act| act(object)))
        });
        match done {
            Ok(Some(outcome)) => outcome,
            // Called from within a call, or while the thread ends.
            _ => {
                let object = self.shared(std::ptr::without_provenance_mut(handle))?;
                act.take().map(|act| act(&object))
            }
        }
    }

    /// Takes an object out if `allowed` finds nothing against it; its handle finds nothing any more.
    pub(crate) fn remove(
        &self,
        handle: Handle,
        allowed: impl FnOnce(&T) -> Result<(), Return>,
    ) -> Result<Arc<T>, Return> {
        let handle = handle.addr();
        let places = lock(&self.places);
        let slot = self.slot(handle).ok_or(Return::InvalidParameter)?;
        if slot.handle.load(Ordering::Acquire) != handle {
            return Err(Return::InvalidParameter);
        }
        let object = slot.object.load(Ordering::Relaxed);
        // SAFETY: from `Arc::into_raw`, and the table's reference goes only under the lock that we have.
        allowed(unsafe { &*object })?;
        slot.handle.store(0, Ordering::Release);
        // Without the lock, for which others wait, and with them the call that this waits for, if a signal's handler makes one within it.
        // The place is nobody else's until it is free.
        drop(places);
        if wait_until_nobody_uses(handle) {
            lock(&self.places).free.push(handle & ((1 << INDEX_BITS) - 1));
        } else {
            // SAFETY: as above. The table's own reference and its place stay as they are, for whoever still uses them.
            unsafe { Arc::increment_strong_count(object) };
        }
        // SAFETY: from `Arc::into_raw`, and no one finds it any more.
        Ok(unsafe { Arc::from_raw(object) })
    }
}

// ---- who is inside ------------------------------------------------------------------------------------------------------

/// The handles that threads are using, one a thread; 0: none.
static USED: Mutex<Vec<Arc<AtomicUsize>>> = Mutex::new(Vec::new());

/// A thread's place in `USED`.
struct Place {
    inside: Arc<AtomicUsize>,
}

thread_local! {
    static PLACE: RefCell<Place> = RefCell::new(Place::take());
}

impl Place {
    fn take() -> Place {
        let inside = Arc::new(AtomicUsize::new(0));
        lock(&USED).push(inside.clone());
        Place { inside }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&USED).retain(|other| !Arc::ptr_eq(other, &self.inside));
    }
}

/// A thread that is using a handle.
struct Inside<'a>(&'a AtomicUsize);

impl Inside<'_> {
    #[inline]
    fn of(place: &AtomicUsize, handle: usize) -> Inside<'_> {
        place.store(handle, Ordering::Relaxed);
        if is_available() {
            light_barrier();
        } else {
            fence(Ordering::SeqCst);
        }
        Inside(place)
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Waits for all who began to use `handle` before it was emptied. `false`: one did not end.
fn wait_until_nobody_uses(handle: usize) -> bool {
    let end = Instant::now() + PATIENCE;
    if is_available() {
        // It worked before; should it not now, nobody may be taken for being outside.
        while !heavy_barrier() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::yield_now();
        }
    } else {
        fence(Ordering::SeqCst);
    }
    while lock(&USED).iter().any(|inside| inside.load(Ordering::Acquire) == handle) {
        if Instant::now() >= end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    /// Says, and remembers, when it is dropped.
    struct Watched(Arc<AtomicU32>, AtomicBool);

    impl Drop for Watched {
        fn drop(&mut self) {
            assert!(!self.1.swap(true, Ordering::SeqCst), "dropped twice");
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn object(dropped: &Arc<AtomicU32>) -> Arc<Watched> {
        Arc::new(Watched(dropped.clone(), AtomicBool::new(false)))
    }

    #[test]
    fn a_handle_finds_its_object_until_it_is_given_back_and_nothing_else_finds_it() {
        static TABLE: Table<Watched> = Table::new(3);
        let dropped = Arc::new(AtomicU32::new(0));
        let handle = TABLE.insert(object(&dropped)).unwrap();
        assert_eq!(TABLE.with(handle, |_| 5), Some(5));
        for wrong in [0, 1, usize::MAX, handle.addr() ^ 1 << 20, handle.addr() ^ 1, handle.addr() + (1 << 24)]
        {
            let wrong: Handle = std::ptr::without_provenance_mut(wrong);
            assert!(TABLE.with(wrong, |_| ()).is_none() && TABLE.shared(wrong).is_none(), "{wrong:p}");
            assert_eq!(TABLE.remove(wrong, |_| Ok(())).err(), Some(Return::InvalidParameter));
        }
        assert_eq!(TABLE.remove(handle, |_| Err(Return::InvalidState)).err(), Some(Return::InvalidState));
        drop(TABLE.remove(handle, |_| Ok(())).unwrap());
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert!(TABLE.remove(handle, |_| Ok(())).is_err() && TABLE.with(handle, |_| ()).is_none());
        let next = TABLE.insert(object(&dropped)).unwrap();
        assert!(next != handle && TABLE.with(handle, |_| ()).is_none() && TABLE.with(next, |_| ()).is_some());
    }

    #[test]
    fn an_object_may_be_used_within_the_use_of_another() {
        static TABLE: Table<Watched> = Table::new(4);
        let dropped = Arc::new(AtomicU32::new(0));
        let (one, two) = (TABLE.insert(object(&dropped)).unwrap(), TABLE.insert(object(&dropped)).unwrap());
        assert_eq!(TABLE.with(one, |_| TABLE.with(two, |_| 7)), Some(Some(7)));
    }

    struct Ends<'a>(&'a AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_threads_use_is_not_dropped_under_them() {
        static TABLE: Table<Watched> = Table::new(5);
        const THREADS: usize = 3;
        const ROUNDS: u32 = 2000;
        let dropped = Arc::new(AtomicU32::new(0));
        let current = AtomicPtr::<std::ffi::c_void>::default();
        let (stop, found) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let handle = current.load(Ordering::Relaxed);
                        TABLE.with(handle, |object| {
                            assert!(!object.1.load(Ordering::SeqCst), "used after it was dropped");
                            found.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
            // Also where an assertion fails: nobody would end the threads then.
            let _end = Ends(&stop);
            for round in 0..ROUNDS {
                let handle = TABLE.insert(object(&dropped)).unwrap();
                current.store(handle, Ordering::Relaxed);
                let before = found.load(Ordering::Relaxed);
                while round % 100 == 0 && found.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
                drop(TABLE.remove(handle, |_| Ok(())).unwrap());
                assert_eq!(dropped.load(Ordering::SeqCst), round + 1);
            }
        });
    }

    #[test]
    fn what_a_call_uses_for_seconds_on_a_busy_machine_is_dropped_after_it_and_not_kept_for_ever() {
        static TABLE: Table<Watched> = Table::new(10);
        let dropped = Arc::new(AtomicU32::new(0));
        let handle = TABLE.insert(object(&dropped)).unwrap().addr();
        let of: fn(usize) -> Handle = std::ptr::without_provenance_mut;
        let (begun, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                TABLE.with(of(handle), |_| {
                    begun.send(()).unwrap();
                    // As one that others do not let run meanwhile.
                    std::thread::sleep(Duration::from_millis(1500));
                })
            });
            has_begun.recv().unwrap();
            drop(TABLE.remove(of(handle), |_| Ok(())).unwrap());
            assert_eq!(dropped.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn while_one_is_given_back_in_the_midst_of_a_call_all_other_handles_work() {
        static TABLE: Table<Watched> = Table::new(11);
        let dropped = Arc::new(AtomicU32::new(0));
        let [handle, other] = [(); 2].map(|()| TABLE.insert(object(&dropped)).unwrap().addr());
        let of: fn(usize) -> Handle = std::ptr::without_provenance_mut;
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                TABLE.with(of(handle), |_| {
                    begun.send(()).unwrap();
                    let _ = is_over.recv();
                    TABLE.with(of(other), |_| ()).unwrap();
                });
            });
            has_begun.recv().unwrap();
            let gives_back = scope.spawn(move || drop(TABLE.remove(of(handle), |_| Ok(())).unwrap()));
            while TABLE.slot(handle).unwrap().handle.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
            let begin = Instant::now();
            assert!(TABLE.shared(of(other)).is_some() && TABLE.shared(of(handle)).is_none());
            assert_eq!(TABLE.remove(of(handle), |_| Ok(())).err(), Some(Return::InvalidParameter));
            let third = TABLE.insert(object(&dropped)).unwrap();
            drop(TABLE.remove(third, |_| Ok(())).unwrap());
            let took = begin.elapsed();
            assert_eq!(dropped.load(Ordering::SeqCst), 1);
            over.send(()).unwrap();
            gives_back.join().unwrap();
            assert!(took < PATIENCE / 2, "{took:?}");
            assert_eq!(dropped.load(Ordering::SeqCst), 2);
        });
    }

    #[test]
    fn what_somebody_begins_to_wait_for_is_not_given_back_meanwhile() {
        static TABLE: Table<AtomicUsize> = Table::new(9);
        let handle = TABLE.insert(Arc::new(AtomicUsize::new(0))).unwrap().addr();
        let of: fn(usize) -> Handle = std::ptr::without_provenance_mut;
        let (begun, has_begun) = std::sync::mpsc::channel();
        let giving_back = std::thread::spawn(move || {
            has_begun.recv().unwrap();
            let idle = |users: &AtomicUsize| match users.load(Ordering::Acquire) {
                0 => Ok(()),
                _ => Err(Return::ErrorResource),
            };
            TABLE.remove(of(handle), idle).map(|_| ())
        });
        let waited_for = TABLE.shared_after(of(handle), |users| {
            begun.send(()).unwrap();
            // The other thread has the time to come between.
            std::thread::sleep(Duration::from_millis(200));
            users.fetch_add(1, Ordering::AcqRel);
        });
        assert!(waited_for.is_some());
        assert_eq!(giving_back.join().unwrap(), Err(Return::ErrorResource));
    }
}
