//! A leaf as its head refers to it: the location of its copies on the device, and the leaf and its log if they are in
//! memory.
//!
//! Source: leaves and logs are the ZB+-tree paper's. Evicting them from memory is not in the paper.

use crate::device::ZonedDevice;
use crate::error::{Result, ensure};
use crate::node::{Page, Pointer, Value};
use crate::store::io::{Io, Resident};
use crate::store::tree::changes::Changes;
use crate::store::tree::node_cell::{NodeCell, prefetch};
use crate::store::tree::nodes::UNWRITTEN;
use longma_locks::IgnorePoison;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// The log address of a leaf without a log.
pub(crate) const NO_LOG: u64 = crate::node::MAX_U48;

/// The block addresses of a leaf and of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafAddresses {
    pub leaf: u64,
    pub log: u64,
    /// The expected checksum of the log, or of the leaf if it has no log.
    pub checksum: u32,
}

impl LeafAddresses {
    pub const fn of(pointer: Pointer) -> Self {
        let log = match pointer.log {
            Some(log) => log,
            None => NO_LOG,
        };
        Self { leaf: pointer.home, log, checksum: pointer.checksum }
    }

    pub fn pointer(self) -> Pointer {
        Pointer { home: self.leaf, log: Some(self.log).filter(|&log| log != NO_LOG), checksum: self.checksum }
    }
}

/// A leaf and its log in memory.
#[derive(Clone)]
pub(crate) struct LeafBody {
    pub leaf: Page,
    pub log: Option<Page>,
    /// Accounts for the memory of the pages.
    pub resident: Resident,
}

/// A reference to a leaf. Once a snapshot shares the slot, only the addresses (when a checkpoint writes the leaf) and
/// the cache state change.
pub(crate) struct LeafSlot {
    pub home: AtomicU64,
    pub log: AtomicU64,
    /// The expected checksum of the log, or of the leaf if it has no log.
    pub checksum: AtomicU32,
    /// The checksum of the leaf, to be stored in its next log. Known once the leaf has been in memory.
    pub leaf_checksum: AtomicU32,
    /// The leaf, if it is in memory.
    body: NodeCell<LeafBody>,
    /// The changes since the last copy on the device, if they are recorded. A dirty leaf can be evicted only if they
    /// are.
    changes: RwLock<Option<Box<Changes>>>,
    /// Whether the leaf was used since the clock hand last passed it.
    touched: AtomicBool,
    /// Whether garbage collection relocated the leaf, or is about to, and the leaf has not changed since.
    pub relocated: AtomicBool,
    /// Whether another leaf replaces it in the newest tree.
    replaced: AtomicBool,
}

impl LeafSlot {
    pub fn new(leaf: Page, resident: Resident) -> Arc<Self> {
        let body = NodeCell::new(LeafBody { leaf, log: None, resident });
        let homes = LeafAddresses { leaf: UNWRITTEN, log: NO_LOG, checksum: 0 };
        Arc::new(Self::with_body(homes, 0, body, None))
    }

    pub fn on_device(pointer: Pointer) -> Arc<Self> {
        let homes = LeafAddresses::of(pointer);
        let leaf_checksum = if homes.log == NO_LOG { homes.checksum } else { 0 };
        let slot = Self::with_body(homes, leaf_checksum, NodeCell::default(), None);
        slot.touched.store(false, Ordering::Relaxed);
        Arc::new(slot)
    }

    fn with_body(
        homes: LeafAddresses,
        leaf_checksum: u32,
        body: NodeCell<LeafBody>,
        changes: Option<Box<Changes>>,
    ) -> Self {
        Self {
            home: AtomicU64::new(homes.leaf),
            log: AtomicU64::new(homes.log),
            checksum: AtomicU32::new(homes.checksum),
            leaf_checksum: AtomicU32::new(leaf_checksum),
            body,
            changes: RwLock::new(changes),
            touched: AtomicBool::new(true),
            relocated: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
        }
    }

    pub fn home(&self) -> u64 {
        self.home.load(Ordering::Acquire)
    }

    pub fn log_home(&self) -> u64 {
        self.log.load(Ordering::Acquire)
    }

    /// The addresses on the device. A checkpoint does not update them atomically; `read` explains why readers still get
    /// a consistent set.
    pub fn homes(&self) -> LeafAddresses {
        LeafAddresses {
            leaf: self.home(),
            log: self.log_home(),
            checksum: self.checksum.load(Ordering::Acquire),
        }
    }

    /// The addresses, for the writer with exclusive access to the slot.
    pub fn homes_mut(&mut self) -> LeafAddresses {
        LeafAddresses {
            leaf: *self.home.get_mut(),
            log: *self.log.get_mut(),
            checksum: *self.checksum.get_mut(),
        }
    }

    /// Whether the device has current copies of the leaf and its log.
    pub fn is_written(&self) -> bool {
        self.home() != UNWRITTEN && self.log_home() != UNWRITTEN
    }

    /// Whether the leaf takes no memory besides this slot, and can be read from the device.
    pub fn is_bare(&self) -> bool {
        self.is_written() && !self.is_loaded() && self.changes.read().ignore_poison().is_none()
    }

    /// Calls `look` with the leaf if it is in memory, or returns `look` in `Err`. `look` must be short.
    #[inline]
    pub fn with_loaded<R, F: FnOnce(&LeafBody) -> R>(&self, look: F) -> std::result::Result<R, F> {
        self.touch();
        self.body.with(look)
    }

    /// Whether the leaf is in memory.
    pub fn is_loaded(&self) -> bool {
        self.body.is_filled()
    }

    /// Prefetches the leaf into the processor's caches.
    #[inline]
    pub fn prefetch(&self) {
        // The slot is longer than a cache line: prefetch both ends in parallel.
        prefetch(self);
        prefetch(ptr::from_ref(self).cast::<u8>().wrapping_add(size_of::<Self>() - 1));
        self.body.prefetch();
    }

    /// The changes since the last copy on the device, if they are recorded.
    fn changes(&self) -> Option<Box<Changes>> {
        self.changes.read().ignore_poison().clone()
    }

    fn forget_changes(&self) {
        *self.changes.write().ignore_poison() = None;
    }

    fn touch(&self) {
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    /// Calls `look` with the leaf. Loads it into the cache first if it is not in memory. `look` must be short.
    pub fn with<D: ZonedDevice, R>(&self, io: &Io<D>, look: impl FnOnce(&LeafBody) -> R) -> Result<R> {
        self.touch();
        match self.body.with(look) {
            Ok(result) => Ok(result),
            Err(look) => Ok(look(&*self.share(io)?)),
        }
    }

    /// Returns the leaf. Loads it into the cache first if it is not in memory.
    pub fn share<D: ZonedDevice>(&self, io: &Io<D>) -> Result<Arc<LeafBody>> {
        self.touch();
        if let Some(body) = self.body.share() {
            return Ok(body);
        }
        let body = Arc::new(self.read(io)?);
        // The sweep for eviction does not visit leaves that only snapshots refer to.
        if !self.replaced.load(Ordering::Relaxed) {
            self.body.fill(Arc::clone(&body));
        }
        Ok(body)
    }

    /// Returns the leaf. If it is not in memory, reads it from the device without caching it.
    pub fn load_uncached<D: ZonedDevice>(&self, io: &Io<D>) -> Result<Arc<LeafBody>> {
        match self.body.share() {
            Some(body) => Ok(body),
            None => self.read(io).map(Arc::new),
        }
    }

    /// Calls `look` with the leaf if it is in memory. `look` must be short.
    pub fn if_loaded<R>(&self, look: impl FnOnce(&LeafBody) -> R) -> Option<R> {
        self.body.with(look).ok()
    }

    /// Caches the contents of a leaf without a log that the caller has read from its address.
    pub fn fill<D: ZonedDevice>(&self, io: &Io<D>, leaf: Page) {
        if !self.is_loaded() {
            self.body.fill(Arc::new(LeafBody { resident: io.resident(1), leaf, log: None }));
        }
    }

    /// Reads the leaf from the device.
    ///
    /// A shared slot has immutable contents, so every reader sees the same leaf. Its blocks are not reused, because the
    /// tree version through which the reader found it keeps them allocated.
    ///
    /// The addresses and the checksum are consistent although no lock is held. The caller has found that the leaf is
    /// not in memory. If it has no recorded changes either, its addresses are final: a checkpoint step assigns
    /// addresses only to leaves that are in memory or have changes, it holds the clock hand until the step ends, and it
    /// calls `mark_written` last. All stores made before the leaf was evicted, or before its changes were cleared, are
    /// visible to a thread that sees the eviction or the clearing.
    fn read<D: ZonedDevice>(&self, io: &Io<D>) -> Result<LeafBody> {
        // A leaf with recorded changes may have an address that is not written yet, because a checkpoint writes many
        // nodes at once.
        if let Some(changes) = self.changes() {
            return changes.leaf(io);
        }
        let (body, leaf_checksum) = LeafBody::read(io, self.homes())?;
        self.leaf_checksum.store(leaf_checksum, Ordering::Release);
        Ok(body)
    }

    /// Evicts the leaf if it can be read or rebuilt and was not used since the previous call. The caller must hold the
    /// clock hand.
    pub fn evict_if_unused(&self) {
        if !self.is_loaded() {
            return;
        }
        if self.touched.load(Ordering::Relaxed) {
            return self.touched.store(false, Ordering::Relaxed);
        }
        self.evict();
    }

    /// Records that another leaf replaces this one in the newest tree.
    pub fn mark_replaced(&self) {
        self.replaced.store(true, Ordering::Relaxed);
    }

    /// Records that the leaf is in the newest tree again, after a change that replaced it was undone.
    pub fn mark_current(&self) {
        if self.replaced.load(Ordering::Relaxed) {
            self.replaced.store(false, Ordering::Relaxed);
        }
    }

    /// Evicts the leaf if it can be read or rebuilt. The caller must hold the clock hand.
    pub fn evict(&self) {
        if self.is_written() || self.changes.read().ignore_poison().is_some() {
            self.body.evict();
        }
    }

    /// Called when a checkpoint has written the leaf: drops the recorded changes, and evicts the leaf if it has been
    /// replaced in the newest tree.
    pub fn mark_written(&self) {
        self.forget_changes();
        if self.replaced.load(Ordering::Relaxed) {
            self.body.evict();
        }
    }

    /// Called when a checkpoint could not write the leaf: restores the addresses that it had before. The caller must have
    /// held the clock hand since, so that the leaf is still in memory or can be rebuilt.
    pub fn take_back(&self, before: LeafAddresses) {
        self.home.store(before.leaf, Ordering::Release);
        self.log.store(before.log, Ordering::Release);
        self.checksum.store(before.checksum, Ordering::Release);
    }

    /// Returns a private copy of the slot with the leaf in memory. `generation` is that of the last checkpoint that has
    /// begun. The addresses of the original cannot change during the copy, because only checkpoints change them and the
    /// caller is the writer, which runs the checkpoints.
    pub fn copy<D: ZonedDevice>(&self, io: &Io<D>, generation: u64) -> Result<Self> {
        let body = Arc::unwrap_or_clone(self.load_uncached(io)?);
        let changes = self.changes().filter(|_| !self.is_written());
        let (changes, older) = match changes {
            Some(changes) if changes.began_in(generation) => (Some(changes), false),
            changes => (None, changes.is_some()),
        };
        if older {
            // The old version can be rebuilt for the running checkpoint, and few readers still need it.
            self.body.evict();
        }
        let leaf_checksum = self.leaf_checksum.load(Ordering::Acquire);
        let copy = Self::with_body(self.homes(), leaf_checksum, NodeCell::new(body), changes);
        copy.relocated.store(self.relocated.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(copy)
    }

    /// The leaf in memory, for the writer with exclusive access to the slot.
    pub fn body_mut(&mut self) -> &mut LeafBody {
        self.body.get_mut().expect("the writer's own leaves are in memory")
    }

    /// The recorded changes, for the writer with exclusive access to the slot.
    pub fn changes_mut(&mut self) -> &mut Option<Box<Changes>> {
        self.changes.get_mut().ignore_poison()
    }
}

impl LeafBody {
    /// Reads a leaf and its log, if it has one. Also returns the checksum of the leaf.
    pub fn read<D: ZonedDevice>(io: &Io<D>, homes: LeafAddresses) -> Result<(Self, u32)> {
        let (log, checksum) = match homes.log {
            NO_LOG => (None, homes.checksum),
            at => io.read_log(at, homes.checksum).map(|(log, checksum)| (Some(log), checksum))?,
        };
        let leaf = io.read_page(homes.leaf, checksum)?;
        Ok((Self { resident: io.resident(1 + usize::from(log.is_some())), leaf, log }, checksum))
    }

    /// The value of `key`. Entries of the log override those of the leaf.
    pub fn get(&self, key: &[u8]) -> Option<Value<'_>> {
        if let Some(log) = &self.log
            && let Ok(at) = log.find(key)
        {
            return Some(log.value(at)).filter(|&value| value != Value::Deleted);
        }
        self.leaf.find(key).ok().map(|at| self.leaf.value(at))
    }

    /// Logs a change of a record that the leaf holds. Returns false if the log is full or if the merged leaf would
    /// overflow.
    pub fn change_in_log(&mut self, key: &[u8], value: Value<'_>) -> bool {
        let Ok(at) = self.leaf.find(key) else { return false };
        if !self.leaf.takes(at, value) {
            return false;
        }
        if self.log.is_none() {
            self.resident.change(2 * self.leaf.size());
        }
        let log = self.log.get_or_insert_with(|| Page::log_of(&self.leaf));
        match log.find(key) {
            Ok(at) => log.set(at, value),
            Err(at) => log.insert(at, key, value),
        }
    }

    /// An estimate of the bytes of a page that are taken by records not deleted in the log.
    pub fn live_bytes(&self) -> usize {
        let (used, count) = (self.leaf.used(), self.leaf.count().max(1));
        let deleted = self
            .log
            .as_ref()
            .map_or(0, |log| (0..log.count()).filter(|&index| log.value(index) == Value::Deleted).count());
        used - used * deleted.min(count) / count
    }

    /// Whether the log changes at least a quarter of the records, and those that remain fit into half a page.
    pub fn is_mostly_deleted(&self) -> bool {
        let has_enough = |log: &Page| 4 * log.count() >= self.leaf.count();
        self.log.as_ref().is_some_and(has_enough) && self.live_bytes() <= self.leaf.size() / 2
    }

    /// Whether the log deletes every record of the leaf.
    pub fn is_empty(&self) -> bool {
        let deleted = |log: &Page| (0..log.count()).all(|index| log.value(index) == Value::Deleted);
        self.log.as_ref().is_some_and(|log| log.count() == self.leaf.count() && deleted(log))
    }
}

/// Merges a leaf and its log into one page. A full log replaces the leaf.
///
/// # Errors
/// [`crate::Error::Inconsistent`] if the result does not fit into one page. `change_in_log` rules this out.
pub(crate) fn merged(leaf: &Page, log: &Page, full: bool) -> Result<Page> {
    let mut page = Page::new(leaf.size());
    let (mut own, mut logged) = (0, 0);
    let end = if full { 0 } else { leaf.count() };
    while own < end || logged < log.count() {
        let from_log = logged < log.count() && (own == end || log.key(logged) <= leaf.key(own));
        let (key, value) = if from_log {
            if own < end && log.key(logged) == leaf.key(own) {
                own += 1;
            }
            logged += 1;
            (log.key(logged - 1), log.value(logged - 1))
        } else {
            own += 1;
            (leaf.key(own - 1), leaf.value(own - 1))
        };
        if value != Value::Deleted {
            ensure(page.insert(page.count(), key, value), "a log and its leaf do not fit into one page")?;
        }
    }
    Ok(page)
}
