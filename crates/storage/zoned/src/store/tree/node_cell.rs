//! A cell that holds a leaf or an inner node in memory. Any number of threads can read the node without a lock while other
//! threads evict or reload it.
//!
//! Source: epoch-based reclamation (Fraser, "Practical lock-freedom", 2004), by the crate crossbeam-epoch.

use crate::store::tree::leaf::LeafBody;
use crate::store::tree::nodes::Inner;
use crossbeam_epoch::Guard;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering, fence};

/// The content of a cell.
pub(crate) trait Cached: Clone + Send + Sync {
    /// The address of the bytes where a search in the node starts.
    fn first_probe(&self) -> *const u8;

    /// No longer counts the node and its bytes as resident.
    fn release(&self);
}

impl Cached for LeafBody {
    fn first_probe(&self) -> *const u8 {
        self.leaf.first_probe()
    }

    fn release(&self) {
        self.resident.release();
    }
}

impl Cached for Inner {
    fn first_probe(&self) -> *const u8 {
        self.keys.first_probe()
    }

    fn release(&self) {
        self.memory.release();
        self.count.release();
    }
}

/// A cell that either holds a node or is empty.
pub(crate) struct NodeCell<T> {
    /// Null, or a pointer from `Arc::into_raw` that owns a reference.
    body: AtomicPtr<T>,
    /// The address of the key bytes where a search in the last stored node starts. It may dangle: it is used only for
    /// prefetching and never dereferenced.
    prefetch_address: AtomicPtr<u8>,
    owns: PhantomData<Arc<T>>,
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

impl<T> Default for NodeCell<T> {
    /// An empty cell.
    fn default() -> Self {
        Self { body: AtomicPtr::default(), prefetch_address: AtomicPtr::default(), owns: PhantomData }
    }
}

impl<T: Cached> NodeCell<T> {
    pub fn new(body: T) -> Self {
        let prefetch_address = AtomicPtr::new(body.first_probe().cast_mut());
        Self {
            body: AtomicPtr::new(Arc::into_raw(Arc::new(body)).cast_mut()),
            prefetch_address,
            owns: PhantomData,
        }
    }

    /// Prefetches the node and its bytes in parallel. Otherwise the lookup would wait for two cache misses in sequence,
    /// as the node points to its bytes.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.prefetch_address.load(Ordering::Relaxed));
        prefetch(self.body.load(Ordering::Relaxed));
    }

    /// Whether the cell holds a node.
    pub fn is_filled(&self) -> bool {
        !self.body.load(Ordering::Relaxed).is_null()
    }

    /// Calls `look` with the node, or returns `look` in `Err` if the cell is empty. `look` must be short, because the
    /// thread is pinned until it returns.
    pub fn with<R, F: FnOnce(&T) -> R>(&self, look: F) -> Result<R, F> {
        match self.get(&crossbeam_epoch::pin()) {
            Some(body) => Ok(look(body)),
            None => Err(look),
        }
    }

    /// The node, or `None` if the cell is empty. The thread stays pinned as long as the reference exists, so drop the
    /// reference soon.
    #[inline]
    pub fn get<'g>(&'g self, _pin: &'g Guard) -> Option<&'g T> {
        // SAFETY: `evict` defers freeing the node until every thread that was pinned at that time, including this one,
        // is unpinned. A node is modified only through `get_mut`, which has exclusive access to the cell.
        unsafe { self.body.load(Ordering::Acquire).as_ref() }
    }

    /// Returns a counted reference to the node, or `None` if the cell is empty.
    pub fn share(&self) -> Option<Arc<T>> {
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

    /// Stores a node if the cell is empty.
    pub fn fill(&self, body: Arc<T>) {
        self.prefetch_address.store(body.first_probe().cast_mut(), Ordering::Relaxed);
        let new = Arc::into_raw(body).cast_mut();
        if self.body.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: `new` is from `Arc::into_raw` above, and the failed exchange did not publish it.
            drop(unsafe { Arc::from_raw(new) });
        }
    }

    /// Evicts the node. It is no longer counted as resident, although concurrent readers may keep it alive longer: how long
    /// depends on the scheduler.
    pub fn evict(&self) {
        let pin = crossbeam_epoch::pin();
        let body = self.body.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: this thread is pinned, and the swap moved the cell's own reference to this function, so the node is
        // alive.
        let Some(taken) = (unsafe { body.as_ref() }) else { return };
        taken.release();
        // SAFETY: the swap makes this thread the only one that releases the reference, and the release runs after every
        // thread that may have loaded the pointer is unpinned. Any thread may free a node: `T` is `Send` and
        // `Sync`.
        unsafe { pin.defer_unchecked(move || drop(Arc::from_raw(body))) };
    }

    /// Exclusive access to the node. If other references to the node exist, the cell gets a private copy first.
    pub fn get_mut(&mut self) -> Option<&mut T> {
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

impl<T> Drop for NodeCell<T> {
    fn drop(&mut self) {
        let body = *self.body.get_mut();
        if !body.is_null() {
            // SAFETY: this is the cell's own reference, and dropping the cell excludes any concurrent access to it.
            drop(unsafe { Arc::from_raw(body) });
        }
    }
}
