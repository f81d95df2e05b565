//! A leaf in memory that any number of threads look at without a lock, while others drop it or put it back.
//! Not which leaves are dropped: see `cache`.
//! Source: epoch-based reclamation (Fraser, "Practical lock-freedom", 2004) by crossbeam-epoch.

use super::leaf::LeafBody;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering, fence};

/// A place for a leaf, which may be there or not.
pub(super) struct Cached {
    /// Null, or a reference that `Arc::into_raw` gave.
    body: AtomicPtr<LeafBody>,
    /// Where the bytes of the leaf that was there last are or were: only to be fetched ahead, never looked at.
    ahead: AtomicPtr<u8>,
    owns: PhantomData<Arc<LeafBody>>,
}

/// Has the processor fetch what is at an address, if it is one.
#[inline]
pub(super) fn fetch_ahead<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: an address where nothing is does no harm.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl Default for Cached {
    /// Nothing.
    fn default() -> Self {
        Self { body: AtomicPtr::default(), ahead: AtomicPtr::default(), owns: PhantomData }
    }
}

impl Cached {
    pub fn new(body: LeafBody) -> Self {
        let ahead = AtomicPtr::new(body.leaf.first_look().cast_mut());
        Self { body: AtomicPtr::new(Arc::into_raw(Arc::new(body)).cast_mut()), ahead, owns: PhantomData }
    }

    /// Has the processor fetch the leaf and its bytes side by side: one leads to the other, and to wait for both is to wait twice.
    #[inline]
    pub fn fetch_ahead(&self) {
        fetch_ahead(self.ahead.load(Ordering::Relaxed));
        fetch_ahead(self.body.load(Ordering::Relaxed));
    }

    /// Whether the leaf is there.
    pub fn is_there(&self) -> bool {
        !self.body.load(Ordering::Relaxed).is_null()
    }

    /// Calls `look`, which must be short, with the leaf if it is there; gives it back otherwise.
    pub fn with<R, F: FnOnce(&LeafBody) -> R>(&self, look: F) -> Result<R, F> {
        let _pin = crossbeam_epoch::pin();
        // SAFETY: what `take` takes away is freed only after all threads that were pinned then, as this one is, are not any more; and
        // nobody writes to a leaf but through `get_mut`, which has the place for itself.
        match unsafe { self.body.load(Ordering::Acquire).as_ref() } {
            Some(body) => Ok(look(body)),
            None => Err(look),
        }
    }

    /// The leaf, if it is there, to be looked at for as long as wanted.
    pub fn share(&self) -> Option<Arc<LeafBody>> {
        let _pin = crossbeam_epoch::pin();
        let body = self.body.load(Ordering::Acquire);
        if body.is_null() {
            return None;
        }
        // SAFETY: it is of `Arc::into_raw`, and the place's own reference is not given up before this thread is no longer pinned.
        // So it is counted while that reference is still there, and the one made here is a counted one.
        unsafe {
            Arc::increment_strong_count(body);
            Some(Arc::from_raw(body))
        }
    }

    /// Puts a leaf there if none is.
    pub fn put(&self, body: Arc<LeafBody>) {
        self.ahead.store(body.leaf.first_look().cast_mut(), Ordering::Relaxed);
        let new = Arc::into_raw(body).cast_mut();
        if self.body.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: it is the reference that was made a pointer above, and nobody has got it.
            drop(unsafe { Arc::from_raw(new) });
        }
    }

    /// Takes the leaf away. It counts as no longer in memory, though those who look at it keep it until they are done.
    pub fn take(&self) {
        let pin = crossbeam_epoch::pin();
        let body = self.body.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: this thread is pinned, and the place's own reference, which is this function's now, keeps it.
        let Some(taken) = (unsafe { body.as_ref() }) else { return };
        taken.resident.release();
        // SAFETY: the reference is given up once, by whoever took the pointer away, and after all who might have seen it there. A leaf
        // may be freed by any thread: `LeafBody` is `Send` and `Sync`, see below.
        unsafe { pin.defer_unchecked(move || drop(Arc::from_raw(body))) };
    }

    /// The leaf, for one who has the place for himself: a copy of it, if others look at it still.
    pub fn get_mut(&mut self) -> Option<&mut LeafBody> {
        let place = self.body.get_mut();
        if place.is_null() {
            return None;
        }
        // SAFETY: the place's own reference, which goes back there below and is not given up meanwhile.
        let mut body = ManuallyDrop::new(unsafe { Arc::from_raw(*place) });
        if Arc::strong_count(&body) == 1 {
            // After all that those did who had another one; nobody can get one meanwhile.
            fence(Ordering::Acquire);
        } else {
            Arc::make_mut(&mut body);
        }
        *place = Arc::into_raw(ManuallyDrop::into_inner(body)).cast_mut();
        // SAFETY: the place's own reference is the only counted one now, and those who look without one borrow the place, as the result
        // does, which therefore is alone and lives no longer than the leaf.
        Some(unsafe { &mut **place })
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        let body = *self.body.get_mut();
        if !body.is_null() {
            // SAFETY: the place's own reference, which nobody else has: who would take it away has the place, too.
            drop(unsafe { Arc::from_raw(body) });
        }
    }
}

/// What `Cached` needs to be shared between threads.
const _: () = {
    const fn may_be_anywhere<T: Send + Sync>() {}
    may_be_anywhere::<LeafBody>();
};
