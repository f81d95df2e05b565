//! Handles, which identify objects for C programs and are validated in every call. Stale handles, handles of another
//! kind and arbitrary numbers are detected.
//!
//! Source: Michael, "Hazard pointers: safe memory reclamation for lock-free objects", IEEE TPDS 15 (2004), with the
//! barrier on the side of the thread that destroys an object, as in Dice, Huang and Yang, "Asymmetric Dekker
//! synchronization" (2001).

use crate::layout::{Handle, Return};
use longma_locks::IgnorePoison;
use longma_via::barriers::{heavy_barrier, is_available, light_barrier};
use std::cell::RefCell;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The lowest bits of a handle are the slot index of the object, the next ones its kind, and the rest a counter that
/// makes handles unique.
const INDEX_BITS: u32 = 20;
const KIND_BITS: u32 = 4;
const CHUNK: usize = 1024;
const CHUNKS: usize = (1 << INDEX_BITS) / CHUNK;

const _: () = assert!(usize::BITS == 64, "the numbers of handles need 40 bits");

/// How long destroying an object waits for calls by other threads. No call takes that long, even on a machine so busy
/// that threads stop for seconds. If a thread has disappeared within a call, the wait ends after this time, and the
/// object is leaked.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(10);

struct Slot<T> {
    /// The current handle of the object; 0 if the slot is empty.
    handle: AtomicUsize,
    /// A pointer from `Arc::into_raw`.
    object: AtomicPtr<T>,
}

#[derive(Default)]
struct Slots {
    free: Vec<usize>,
    used: usize,
    made: usize,
}

/// All objects of a kind.
pub(crate) struct Table<T> {
    kind: usize,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    slots: Mutex<Slots>,
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Creates the table for a kind, 1 to 15.
    pub(crate) const fn new(kind: usize) -> Table<T> {
        let slots = Slots { free: Vec::new(), used: 0, made: 0 };
        Table { kind, chunks: [const { OnceLock::new() }; CHUNKS], slots: Mutex::new(slots) }
    }

    fn slot_at(&self, index: usize) -> &Slot<T> {
        let empty = || Slot { handle: AtomicUsize::new(0), object: AtomicPtr::default() };
        let chunk = self.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| empty()).collect());
        &chunk[index % CHUNK]
    }

    /// The slot of `handle`, if it is of this kind.
    #[inline]
    fn slot(&self, handle: usize) -> Option<&Slot<T>> {
        if handle >> INDEX_BITS & ((1 << KIND_BITS) - 1) != self.kind {
            return None;
        }
        let index = handle & ((1 << INDEX_BITS) - 1);
        Some(&self.chunks[index / CHUNK].get()?[index % CHUNK])
    }

    /// Inserts an object and returns its handle. `None` if there are a million objects.
    pub(crate) fn insert(&self, object: Arc<T>) -> Option<Handle> {
        let mut slots = self.slots.lock().ignore_poison();
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.used < CHUNK * CHUNKS => {
                slots.used += 1;
                slots.used - 1
            }
            None => return None,
        };
        slots.made += 1;
        let handle = slots.made << (INDEX_BITS + KIND_BITS) | self.kind << INDEX_BITS | index;
        let slot = self.slot_at(index);
        slot.object.store(Arc::into_raw(object).cast_mut(), Ordering::Relaxed);
        slot.handle.store(handle, Ordering::Release);
        Some(std::ptr::without_provenance_mut(handle))
    }

    /// Returns a counted reference to the object, for calls that may take long.
    pub(crate) fn shared(&self, handle: Handle) -> Option<Arc<T>> {
        self.shared_after(handle, |_| {})
    }

    /// Like `shared`, but calls `note` with the object while it is locked. A thread that destroys the object either
    /// sees the effect of `note` or runs before it.
    pub(crate) fn shared_after(&self, handle: Handle, note: impl FnOnce(&T)) -> Option<Arc<T>> {
        let _places = self.slots.lock().ignore_poison();
        let slot = self.slot(handle.addr())?;
        if slot.handle.load(Ordering::Acquire) != handle.addr() {
            return None;
        }
        let object = slot.object.load(Ordering::Relaxed);
        // SAFETY: the pointer is from `Arc::into_raw`. The table's reference is released only under the lock, which is
        // held, and only after the handle is cleared.
        let object = unsafe {
            Arc::increment_strong_count(object);
            Arc::from_raw(object)
        };
        note(&object);
        Some(object)
    }

    /// Calls `act`, which must be short, with the object, without a lock or an atomic exchange. `None` if there is no
    /// such object.
    #[inline]
    pub(crate) fn with<R>(&self, handle: Handle, act: impl FnOnce(&T) -> R) -> Option<R> {
        let (handle, slot) = (handle.addr(), self.slot(handle.addr())?);
        let mut act = Some(act);
        let attempt = THREAD_ENTRY.try_with(|place| {
            let place = place.try_borrow_mut().ok()?;
            let _inside = InUse::of(&place.inside, handle);
            if slot.handle.load(Ordering::Acquire) != handle {
                return Some(None);
            }
            // SAFETY: a thread that removes the object first clears `handle` and then waits for all threads using it.
            // This thread announced its use before it checked that `handle` was not cleared.
            let object = unsafe { &*slot.object.load(Ordering::Relaxed) };
            Some(act.take().map(|act| act(object)))
        });
        match attempt {
            Ok(Some(outcome)) => outcome,
            // The call is nested in another call, or the thread is exiting.
            _ => {
                let object = self.shared(std::ptr::without_provenance_mut(handle))?;
                act.take().map(|act| act(&object))
            }
        }
    }

    /// Removes an object if `allowed` returns `Ok`. Its handle is invalid afterwards.
    pub(crate) fn remove(
        &self,
        handle: Handle,
        allowed: impl FnOnce(&T) -> Result<(), Return>,
    ) -> Result<Arc<T>, Return> {
        let handle = handle.addr();
        let slots = self.slots.lock().ignore_poison();
        let slot = self.slot(handle).ok_or(Return::InvalidParameter)?;
        if slot.handle.load(Ordering::Acquire) != handle {
            return Err(Return::InvalidParameter);
        }
        let object = slot.object.load(Ordering::Relaxed);
        // SAFETY: the pointer is from `Arc::into_raw`, and the table's reference is released only under the lock, which
        // is held.
        allowed(unsafe { &*object })?;
        slot.handle.store(0, Ordering::Release);
        // Release the lock before waiting: other threads need it, and so may the call that is being waited for, if a
        // signal handler makes another call within it. The slot is not reused until it is marked free.
        drop(slots);
        if wait_until_unused(handle) {
            self.slots.lock().ignore_poison().free.push(handle & ((1 << INDEX_BITS) - 1));
        } else {
            // SAFETY: as above. The table's reference and the slot are leaked for the threads that still use the
            // object.
            unsafe { Arc::increment_strong_count(object) };
        }
        // SAFETY: the pointer is from `Arc::into_raw`, and the object can no longer be found.
        Ok(unsafe { Arc::from_raw(object) })
    }
}

// ---- threads using handles -----------------------------------------------------------------------------------------

/// The handle in use by each thread; 0 if none.
static USED: Mutex<Vec<Arc<AtomicUsize>>> = Mutex::new(Vec::new());

/// A thread's entry in `USED`.
struct ThreadEntry {
    inside: Arc<AtomicUsize>,
}

thread_local! {
    static THREAD_ENTRY: RefCell<ThreadEntry> = RefCell::new(ThreadEntry::take());
}

impl ThreadEntry {
    fn take() -> ThreadEntry {
        let inside = Arc::new(AtomicUsize::new(0));
        USED.lock().ignore_poison().push(inside.clone());
        ThreadEntry { inside }
    }
}

impl Drop for ThreadEntry {
    fn drop(&mut self) {
        USED.lock().ignore_poison().retain(|other| !Arc::ptr_eq(other, &self.inside));
    }
}

/// Marks a handle as in use by this thread.
struct InUse<'a>(&'a AtomicUsize);

impl InUse<'_> {
    #[inline]
    fn of(place: &AtomicUsize, handle: usize) -> InUse<'_> {
        place.store(handle, Ordering::Relaxed);
        if is_available() {
            light_barrier();
        } else {
            fence(Ordering::SeqCst);
        }
        InUse(place)
    }
}

impl Drop for InUse<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Waits for all threads that started to use `handle` before it was cleared. Returns `false` if one did not finish.
fn wait_until_unused(handle: usize) -> bool {
    let end = Instant::now() + DESTROY_TIMEOUT;
    if is_available() {
        // The barrier worked before. If it fails now, no thread can be assumed to be outside.
        while !heavy_barrier() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::yield_now();
        }
    } else {
        fence(Ordering::SeqCst);
    }
    while USED.lock().ignore_poison().iter().any(|inside| inside.load(Ordering::Acquire) == handle) {
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

    /// Counts its drops, and detects a second one.
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
    fn a_handle_finds_its_object_until_it_is_released_and_no_other_handle_does() {
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
    fn object_uses_can_be_nested() {
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
    fn objects_in_use_are_not_dropped() {
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
            // Stops the threads even if an assertion fails; they would never end otherwise.
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
    fn an_object_in_long_use_is_dropped_after_the_use() {
        static TABLE: Table<Watched> = Table::new(10);
        let dropped = Arc::new(AtomicU32::new(0));
        let handle = TABLE.insert(object(&dropped)).unwrap().addr();
        let of: fn(usize) -> Handle = std::ptr::without_provenance_mut;
        let (begun, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                TABLE.with(of(handle), |_| {
                    begun.send(()).unwrap();
                    // Simulates a thread that is not scheduled for a while.
                    std::thread::sleep(Duration::from_millis(1500));
                })
            });
            has_begun.recv().unwrap();
            drop(TABLE.remove(of(handle), |_| Ok(())).unwrap());
            assert_eq!(dropped.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn releasing_a_handle_in_use_does_not_block_other_handles() {
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
            assert!(took < DESTROY_TIMEOUT / 2, "{took:?}");
            assert_eq!(dropped.load(Ordering::SeqCst), 2);
        });
    }

    #[test]
    fn a_handle_with_a_waiter_is_not_released() {
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
            // Give the other thread time to run in between.
            std::thread::sleep(Duration::from_millis(200));
            users.fetch_add(1, Ordering::AcqRel);
        });
        assert!(waited_for.is_some());
        assert_eq!(giving_back.join().unwrap(), Err(Return::ErrorResource));
    }
}
