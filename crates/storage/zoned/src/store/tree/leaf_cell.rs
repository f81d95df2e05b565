//! A cell that holds a leaf in memory. Any number of threads can read the leaf without a lock while other threads evict
//! or reload it.
//!
//! Source: epoch-based reclamation (Fraser, "Practical lock-freedom", 2004), by the crate crossbeam-epoch.

use crate::store::tree::leaf::LeafBody;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering, fence};

/// A cell that either holds a leaf or is empty.
pub(crate) struct LeafCell {
    /// Null, or a pointer from `Arc::into_raw` that owns a reference.
    body: AtomicPtr<LeafBody>,
    /// The address of the key bytes where a search in the last stored leaf starts. It may dangle: it is used only for
    /// prefetching and never dereferenced.
    prefetch_address: AtomicPtr<u8>,
    owns: PhantomData<Arc<LeafBody>>,
}

/// Prefetches the cache line at an address. The address need not be valid.
#[inline]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it does not fault on an invalid address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl Default for LeafCell {
    /// An empty cell.
    fn default() -> Self {
        Self { body: AtomicPtr::default(), prefetch_address: AtomicPtr::default(), owns: PhantomData }
    }
}

impl LeafCell {
    pub fn new(body: LeafBody) -> Self {
        let prefetch_address = AtomicPtr::new(body.leaf.first_probe().cast_mut());
        Self {
            body: AtomicPtr::new(Arc::into_raw(Arc::new(body)).cast_mut()),
            prefetch_address,
            owns: PhantomData,
        }
    }

    /// Prefetches the leaf and its bytes in parallel. Otherwise the lookup would wait for two cache misses in sequence,
    /// as the leaf points to its bytes.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.prefetch_address.load(Ordering::Relaxed));
        prefetch(self.body.load(Ordering::Relaxed));
    }

    /// Whether the cell holds a leaf.
    pub fn is_filled(&self) -> bool {
        !self.body.load(Ordering::Relaxed).is_null()
    }

    /// Calls `look` with the leaf, or returns `look` in `Err` if the cell is empty. `look` must be short, because the
    /// thread is pinned until it returns.
    pub fn with<R, F: FnOnce(&LeafBody) -> R>(&self, look: F) -> Result<R, F> {
        let _pin = crossbeam_epoch::pin();
        // SAFETY: `evict` defers freeing the leaf until every thread that was pinned at that time, including this one,
        // is unpinned. A leaf is modified only through `get_mut`, which has exclusive access to the cell.
        match unsafe { self.body.load(Ordering::Acquire).as_ref() } {
            Some(body) => Ok(look(body)),
            None => Err(look),
        }
    }

    /// Returns a counted reference to the leaf, or `None` if the cell is empty.
    pub fn share(&self) -> Option<Arc<LeafBody>> {
        let _pin = crossbeam_epoch::pin();
        let body = self.body.load(Ordering::Acquire);
        if body.is_null() {
            return None;
        }
        // SAFETY: the pointer is from `Arc::into_raw`, and the cell's own reference is not released before this thread
        // is unpinned. So the count is at least 1 when it is incremented, and the returned `Arc` owns the new
        // reference.
        unsafe {
            Arc::increment_strong_count(body);
            Some(Arc::from_raw(body))
        }
    }

    /// Stores a leaf if the cell is empty.
    pub fn fill(&self, body: Arc<LeafBody>) {
        self.prefetch_address.store(body.leaf.first_probe().cast_mut(), Ordering::Relaxed);
        let new = Arc::into_raw(body).cast_mut();
        if self.body.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: `new` is from `Arc::into_raw` above, and the failed exchange did not publish it.
            drop(unsafe { Arc::from_raw(new) });
        }
    }

    /// Evicts the leaf. Its bytes are no longer counted as resident, although concurrent readers may keep it alive a
    /// little longer.
    pub fn evict(&self) {
        let pin = crossbeam_epoch::pin();
        let body = self.body.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: this thread is pinned, and the swap moved the cell's own reference to this function, so the leaf is
        // alive.
        let Some(taken) = (unsafe { body.as_ref() }) else { return };
        taken.resident.release();
        // SAFETY: the swap makes this thread the only one that releases the reference, and the release runs after every
        // thread that may have loaded the pointer is unpinned. Any thread may free a leaf: `LeafBody` is `Send` and
        // `Sync`, as asserted below.
        unsafe { pin.defer_unchecked(move || drop(Arc::from_raw(body))) };
    }

    /// Exclusive access to the leaf. If other references to the leaf exist, the cell gets a private copy first.
    pub fn get_mut(&mut self) -> Option<&mut LeafBody> {
        let place = self.body.get_mut();
        if place.is_null() {
            return None;
        }
        // SAFETY: this is the cell's own reference. `ManuallyDrop` keeps it from being released, and it is stored back
        // below.
        let mut body = ManuallyDrop::new(unsafe { Arc::from_raw(*place) });
        if Arc::strong_count(&body) == 1 {
            // Synchronizes with the release of the last other reference. No thread can take a new one, because the cell
            // is borrowed exclusively.
            fence(Ordering::Acquire);
        } else {
            Arc::make_mut(&mut body);
        }
        *place = Arc::into_raw(ManuallyDrop::into_inner(body)).cast_mut();
        // SAFETY: the cell's own reference is the only counted one. Uncounted access borrows the cell, which the result
        // borrows exclusively for its whole lifetime.
        Some(unsafe { &mut **place })
    }
}

impl Drop for LeafCell {
    fn drop(&mut self) {
        let body = *self.body.get_mut();
        if !body.is_null() {
            // SAFETY: this is the cell's own reference, and dropping the cell excludes any concurrent access to it.
            drop(unsafe { Arc::from_raw(body) });
        }
    }
}

/// Asserts at compile time that `LeafBody` can be shared between threads, as `LeafCell` requires.
const _: () = {
    const fn may_be_anywhere<T: Send + Sync>() {}
    may_be_anywhere::<LeafBody>();
};
