//! The lock of a VI, biased to the thread that uses the VI: that thread takes it with a plain store, and any other
//! thread pays for a barrier on all cores. The lock is unfair and held only for a bounded number of copies. Taking it
//! twice in one thread panics; callbacks that run under the lock (`Vi::on_completion`) must not call the VI.
//!
//! Source: Dice, Moir and Scherer, "Quickly reacquirable locks" (2003); test-and-set with a delay as in Anderson, "The
//! performance of spin lock alternatives", IEEE TPDS 1 (1990).
//!
//! An atomic exchange waits until all earlier stores have left the core. After a post, one of these stores is the
//! message, whose cache line the peer holds, so an exchange in the next call would wait for the transfer of that line.
//! Therefore the lock has an owner, which occupies a seat: it stores `inside` and then checks that its seat is still
//! current. Another thread acquires `held` by exchange, makes the next seat current and its own, runs a barrier on all
//! cores, and waits until the old seat is not `inside`. Either the owner sees that the seat has changed, or the other
//! thread sees `inside`. Seats are never reused. When all are used up, every thread acquires `held`.

use super::asymmetric::{
    AtomicBool, AtomicUsize, Ordering, UnsafeCell, heavy_barrier, is_available, light_barrier, pause,
    this_thread,
};
use std::ops::{Deref, DerefMut};

/// The number of ownership changes after which the lock is no longer biased.
pub(super) const MAX_OWNERS: usize = 8;
/// The owner of a seat that is not occupied.
const VACANT: usize = 0;

struct Seat {
    owner: AtomicUsize,
    /// Stored only by the owner.
    inside: AtomicBool,
}

pub(crate) struct Lock<T> {
    /// The index of the seat whose owner may enter without `held`; `MAX_OWNERS` if there is none. Stored only under `held`.
    current: AtomicUsize,
    /// The thread that entered by exchange and is still inside; `VACANT` if there is none.
    holder: AtomicUsize,
    seats: [Seat; MAX_OWNERS],
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only one thread at a time accesses the value. A thread that holds `held` has waited until the owner of the
// previous seat was outside, and an owner enters only while its seat is current, that is, while no other thread has
// taken the lock since.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        let seat = |_| Seat { owner: AtomicUsize::new(VACANT), inside: AtomicBool::new(false) };
        Lock {
            current: AtomicUsize::new(if is_available() { 0 } else { MAX_OWNERS }),
            holder: AtomicUsize::new(VACANT),
            seats: std::array::from_fn(seat),
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

    /// Enters without an exchange if this thread owns the current seat.
    #[inline]
    pub(super) fn enter_as_owner(&self) -> Option<Guard<'_, T>> {
        let current = self.current.load(Ordering::Relaxed);
        let seat = self.seats.get(current)?;
        let thread = this_thread();
        if seat.owner.load(Ordering::Relaxed) != thread {
            return None;
        }
        // Only this thread sets these for itself. If either is set, this thread already has a guard, and a second one
        // would be a second exclusive reference.
        if seat.inside.load(Ordering::Relaxed) || self.holder.load(Ordering::Relaxed) == thread {
            taken_twice();
        }
        seat.inside.store(true, Ordering::Relaxed);
        light_barrier();
        if self.current.load(Ordering::Relaxed) == current {
            return Some(Guard { lock: self, entered: &seat.inside });
        }
        seat.inside.store(false, Ordering::Release);
        None
    }

    #[cold]
    #[inline(never)]
    fn lock_by_exchange(&self) -> Guard<'_, T> {
        let (mut spins, thread) = (0, this_thread());
        while self.held.swap(true, Ordering::Acquire) {
            // Whether this thread is inside does not change while it waits, so one check suffices.
            if spins == 0 && self.has_inside(thread) {
                taken_twice();
            }
            spins += 1;
            pause(spins);
        }
        self.holder.store(thread, Ordering::Relaxed);
        if let Some(inside) = self.take_next_seat() {
            while inside.load(Ordering::Acquire) {
                spins += 1;
                pause(spins);
            }
        }
        Guard { lock: self, entered: &self.held }
    }

    /// Whether `thread`, the calling thread, is already inside, so that it would wait for itself. Its seat may no
    /// longer be current; the thread that holds `held` then waits for it to leave.
    fn has_inside(&self, thread: usize) -> bool {
        let sits =
            |seat: &Seat| seat.owner.load(Ordering::Relaxed) == thread && seat.inside.load(Ordering::Relaxed);
        self.holder.load(Ordering::Relaxed) == thread || self.seats.iter().any(sits)
    }

    /// Moves the bias to the calling thread, which must hold `held` and not be the owner. The value must not be
    /// accessed before the returned flag is false: the previous owner may still be inside, but cannot enter again.
    pub(super) fn take_next_seat(&self) -> Option<&AtomicBool> {
        let current = self.current.load(Ordering::Relaxed);
        let seat = self.seats.get(current)?;
        if seat.owner.load(Ordering::Relaxed) == VACANT {
            seat.owner.store(this_thread(), Ordering::Relaxed);
            return None;
        }
        if let Some(next) = self.seats.get(current + 1) {
            next.owner.store(this_thread(), Ordering::Relaxed);
        }
        self.current.store(current + 1, Ordering::Relaxed);
        while !heavy_barrier() {
            // Retry until the barrier succeeds: it has worked before, and nothing else keeps the owner out.
            pause(u32::MAX);
        }
        Some(&seat.inside)
    }
}

#[cold]
#[inline(never)]
fn taken_twice() -> ! {
    panic!(
        "a VI was called from within its own callback: completion callbacks and wakers must not call the VI"
    );
}

pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// The flag that marks the lock as taken: `inside` of the seat, or `held`.
    entered: &'a AtomicBool,
}

#[cfg(test)]
impl<T> Guard<'_, T> {
    /// Whether the owner entered without an exchange.
    pub(super) fn by_owner(&self) -> bool {
        !std::ptr::eq(self.entered, &raw const self.lock.held)
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
        if std::ptr::eq(self.entered, &raw const self.lock.held) {
            self.lock.holder.store(VACANT, Ordering::Relaxed);
        }
        self.entered.store(false, Ordering::Release);
    }
}
