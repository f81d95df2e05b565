//! The lock around a VI. The thread that uses the VI takes it by a plain store; another thread pays a barrier on all cores.
//! Not fair, and not for long holding: what is done under it is a bounded number of copies. Nor to be taken twice by one thread, which
//! panics: what the program gives the VI to be called under the lock (`Vi::tell_completions`) must not call the VI.
//! Source: Dice, Moir and Scherer, "Quickly reacquirable locks" (2003); test-and-set with a delay as in Anderson, "The performance of
//! spin lock alternatives", IEEE TPDS 1 (1990).
//!
//! An atomic exchange waits until all stores before it have left the core. After a post one of them is the message, in a cache line
//! that the peer holds, so that the exchange of the next call would cost half a hand-over. So a lock has an owner, who sits in a
//! seat: it stores `inside` and then looks whether the seat is still the current one. Another thread takes `held` by exchange, makes
//! the next seat current and its own, has a barrier run on all cores, and waits until nobody is inside the old seat: either the
//! owner saw the new seat, or its `inside` is seen. A seat is never used again. When all are used up, everybody takes `held`.

use super::asymmetric::{
    AtomicBool, AtomicUsize, Ordering, UnsafeCell, heavy_barrier, is_available, light_barrier, pause,
    this_thread,
};
use std::ops::{Deref, DerefMut};

/// How often a lock changes its owner before it does without.
pub(super) const SEATS: usize = 8;
/// Nobody sits there yet.
const VACANT: usize = 0;

struct Seat {
    owner: AtomicUsize,
    /// Stored by the owner only.
    inside: AtomicBool,
}

pub(crate) struct Lock<T> {
    /// The seat whose owner may enter without `held`; `SEATS`: none. Stored under `held` only.
    current: AtomicUsize,
    /// The thread that came in by exchange and is still inside; `VACANT`: none.
    holder: AtomicUsize,
    seats: [Seat; SEATS],
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value: who has `held` has waited for the owner of the seat before, and an owner comes in
// only while its seat is current, that is, while nobody else has had the lock since it took the seat.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        let seat = |_| Seat { owner: AtomicUsize::new(VACANT), inside: AtomicBool::new(false) };
        Lock {
            current: AtomicUsize::new(if is_available() { 0 } else { SEATS }),
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

    /// Comes in without an exchange, if this thread has the current seat.
    #[inline]
    pub(super) fn enter_as_owner(&self) -> Option<Guard<'_, T>> {
        let current = self.current.load(Ordering::Relaxed);
        let seat = self.seats.get(current)?;
        let thread = this_thread();
        if seat.owner.load(Ordering::Relaxed) != thread {
            return None;
        }
        // What this thread itself stored last: two guards at once would be two exclusive references.
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
            // Whether this thread is inside does not change while it waits.
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

    /// Whether `thread`, which asks, is inside: then it would wait for itself. It may sit in a seat that is no longer current, for
    /// whose end the thread that has `held` waits.
    fn has_inside(&self, thread: usize) -> bool {
        let sits =
            |seat: &Seat| seat.owner.load(Ordering::Relaxed) == thread && seat.inside.load(Ordering::Relaxed);
        self.holder.load(Ordering::Relaxed) == thread || self.seats.iter().any(sits)
    }

    /// With `held`, by a thread that is not the owner. What it gives has to be seen false before the value is touched: whoever sat
    /// there until now may still be inside, but cannot come in again.
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
            // It worked before, and nothing else keeps the owner out.
            pause(u32::MAX);
        }
        Some(&seat.inside)
    }
}

#[cold]
#[inline(never)]
fn taken_twice() -> ! {
    panic!(
        "a VI was called from within itself: what it tells of completions, and what wakes a future, must not call it"
    );
}

pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// What says that somebody is inside: the seat's word or `held`.
    entered: &'a AtomicBool,
}

#[cfg(test)]
impl<T> Guard<'_, T> {
    /// Whether the owner came in without an exchange.
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
        // SAFETY: as above, and the guard is borrowed exclusively.
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
