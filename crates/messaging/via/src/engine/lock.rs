//! The lock of a VI, biased to the thread that uses the VI: the owner acquires it with a plain store; any other thread
//! revokes the bias with a barrier on all cores (membarrier(2)). The lock is unfair and held only for a bounded number
//! of copies. Re-entrant locking panics; callbacks that run under the lock (`Vi::on_completion`) must not call the VI.
//!
//! Source: Dice, Moir and Scherer, "Quickly reacquirable locks" (2003); test-and-set with backoff as in Anderson, "The
//! performance of spin lock alternatives", IEEE TPDS 1 (1990).
//!
//! An atomic exchange drains the store buffer. After a post, the buffer holds the store of the message to a cache line
//! that the peer owns, so an exchange in the next call would wait for that line. Therefore the lock has an owner, the
//! thread of the current bias slot. To acquire the lock, the owner stores `inside` and then checks that its slot is
//! still current. Another thread acquires `held` by exchange, makes the next slot current and its own, runs a barrier
//! on all cores, and waits until the old slot is not `inside`. Either the owner sees that the slot has changed, or the
//! other thread sees `inside`. Slots are never reused. When all are used up, every thread acquires `held`.

use super::asymmetric::{
    AtomicBool, AtomicUsize, Ordering, UnsafeCell, heavy_barrier, is_available, light_barrier, pause,
    this_thread,
};
use std::ops::{Deref, DerefMut};

/// The number of ownership changes after which the lock is no longer biased.
pub(super) const MAX_OWNERS: usize = 8;
/// No thread.
const NO_THREAD: usize = 0;

struct BiasSlot {
    owner: AtomicUsize,
    /// Stored only by the owner.
    inside: AtomicBool,
}

pub(crate) struct Lock<T> {
    /// The index of the slot whose owner may enter without `held`; `MAX_OWNERS` if there is none. Stored only under
    /// `held`.
    current: AtomicUsize,
    /// The thread that entered by exchange and is still inside; `NO_THREAD` if there is none.
    holder: AtomicUsize,
    slots: [BiasSlot; MAX_OWNERS],
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only one thread at a time accesses the value. A thread that holds `held` has waited until the owner of the
// previous slot was outside, and an owner enters only while its slot is current, that is, while no other thread has
// taken the lock since.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        let slot = |_| BiasSlot { owner: AtomicUsize::new(NO_THREAD), inside: AtomicBool::new(false) };
        Lock {
            current: AtomicUsize::new(if is_available() { 0 } else { MAX_OWNERS }),
            holder: AtomicUsize::new(NO_THREAD),
            slots: std::array::from_fn(slot),
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        match self.enter_as_owner() {
            Some(guard) => guard,
            None => self.lock_by_exchange(),
        }
    }

    /// Enters without an exchange if this thread owns the current slot.
    #[inline]
    pub(super) fn enter_as_owner(&self) -> Option<Guard<'_, T>> {
        let current = self.current.load(Ordering::Relaxed);
        let slot = self.slots.get(current)?;
        let thread = this_thread();
        if slot.owner.load(Ordering::Relaxed) != thread {
            return None;
        }
        // Only this thread sets `inside` of its slot or stores its own id in `holder`. If it has done either, it already
        // has a guard, and a second one would be a second exclusive reference.
        if slot.inside.load(Ordering::Relaxed) || self.holder.load(Ordering::Relaxed) == thread {
            panic_reentrant();
        }
        slot.inside.store(true, Ordering::Relaxed);
        light_barrier();
        if self.current.load(Ordering::Relaxed) == current {
            return Some(Guard { lock: self, flag: &slot.inside });
        }
        slot.inside.store(false, Ordering::Release);
        None
    }

    #[cold]
    #[inline(never)]
    fn lock_by_exchange(&self) -> Guard<'_, T> {
        let (mut spins, thread) = (0, this_thread());
        while self.held.swap(true, Ordering::Acquire) {
            // A waiting thread cannot enter, so one check suffices.
            if spins == 0 && self.is_held_by(thread) {
                panic_reentrant();
            }
            spins += 1;
            pause(spins);
        }
        self.holder.store(thread, Ordering::Relaxed);
        if let Some(inside) = self.take_next_slot() {
            while inside.load(Ordering::Acquire) {
                spins += 1;
                pause(spins);
            }
        }
        Guard { lock: self, flag: &self.held }
    }

    /// Whether `thread`, the calling thread, already holds the lock and would deadlock. Its slot may no longer be
    /// current; the thread that holds `held` then waits for it to leave.
    fn is_held_by(&self, thread: usize) -> bool {
        let is_inside = |slot: &BiasSlot| {
            slot.owner.load(Ordering::Relaxed) == thread && slot.inside.load(Ordering::Relaxed)
        };
        self.holder.load(Ordering::Relaxed) == thread || self.slots.iter().any(is_inside)
    }

    /// Moves the bias to the calling thread, which must hold `held` and not be the owner. The value must not be
    /// accessed before the returned flag is false: the previous owner may still be inside, but cannot enter again.
    pub(super) fn take_next_slot(&self) -> Option<&AtomicBool> {
        let current = self.current.load(Ordering::Relaxed);
        let slot = self.slots.get(current)?;
        if slot.owner.load(Ordering::Relaxed) == NO_THREAD {
            slot.owner.store(this_thread(), Ordering::Relaxed);
            return None;
        }
        if let Some(next) = self.slots.get(current + 1) {
            next.owner.store(this_thread(), Ordering::Relaxed);
        }
        self.current.store(current + 1, Ordering::Relaxed);
        while !heavy_barrier() {
            // Retry until the barrier succeeds: it has worked before, and nothing else keeps the owner out.
            pause(u32::MAX);
        }
        Some(&slot.inside)
    }
}

#[cold]
#[inline(never)]
fn panic_reentrant() -> ! {
    panic!(
        "a VI was called from within its own callback: completion callbacks and wakers must not call the VI"
    );
}

pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// The flag that marks the lock as held: `inside` of the slot, or `held`.
    flag: &'a AtomicBool,
}

#[cfg(test)]
impl<T> Guard<'_, T> {
    /// Whether the owner entered without an exchange.
    pub(super) fn by_owner(&self) -> bool {
        !std::ptr::eq(self.flag, &raw const self.lock.held)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while its thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; in addition the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if std::ptr::eq(self.flag, &raw const self.lock.held) {
            self.lock.holder.store(NO_THREAD, Ordering::Relaxed);
        }
        self.flag.store(false, Ordering::Release);
    }
}
