//! A leaf as its head knows it: the places of its copies on the device, and itself and its log if they are in memory.
//! Not how it changes (`edit`), and not how it gets to the device (`checkpoint`).
//! Source: the ZB+-tree paper's leaves and logs; dropping them from memory is our own.

use super::cached::{Cached, fetch_ahead};
use super::changes::Changes;
use super::io::{Io, Resident};
use super::tree::UNWRITTEN;
use crate::device::ZonedDevice;
use crate::error::{Result, ensure};
use crate::node::{Page, Pointer, Value};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The log's home of a leaf without a log.
pub(super) const NO_LOG: u64 = crate::node::LARGEST;

/// Where a leaf's copy on the device is, and its log's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Homes {
    pub leaf: u64,
    pub log: u64,
    /// What proves the log to be the one, or the leaf if there is no log.
    pub proof: u32,
}

impl Homes {
    pub const fn of(pointer: Pointer) -> Self {
        let log = match pointer.log {
            Some(log) => log,
            None => NO_LOG,
        };
        Self { leaf: pointer.home, log, proof: pointer.proof }
    }

    pub fn pointer(self) -> Pointer {
        Pointer { home: self.leaf, log: Some(self.log).filter(|&log| log != NO_LOG), proof: self.proof }
    }
}

/// A leaf with its log, in memory.
#[derive(Clone)]
pub(super) struct LeafBody {
    pub leaf: Page,
    pub log: Option<Page>,
    /// Counts its bytes as long as it is in memory.
    pub resident: Resident,
}

/// A leaf as its head knows it. Once a snapshot shares it, only its homes change (when a checkpoint writes it) and whether it is in
/// memory.
pub(super) struct LeafSlot {
    pub home: AtomicU64,
    pub log: AtomicU64,
    /// What proves the log to be the one, or the leaf if there is no log.
    pub proof: AtomicU32,
    /// What proves the leaf to be the one, for the next log that it gets. It is known once the leaf was in memory.
    pub leaf_proof: AtomicU32,
    /// Itself, if it is in memory.
    body: Cached,
    /// Of a leaf that was written, and has changed since in ways that can be made again: it may be dropped all the same.
    changes: RwLock<Option<Box<Changes>>>,
    /// It was used since the cache's hand came by.
    touched: AtomicBool,
    /// Garbage collection wrote it last, or is about to: it has not changed since.
    pub moved: AtomicBool,
    /// The newest tree has another one in its place.
    replaced: AtomicBool,
}

impl LeafSlot {
    pub fn new(leaf: Page, resident: Resident) -> Arc<Self> {
        let body = Cached::new(LeafBody { leaf, log: None, resident });
        let homes = Homes { leaf: UNWRITTEN, log: NO_LOG, proof: 0 };
        Arc::new(Self::with_body(homes, 0, body, None))
    }

    pub fn on_device(pointer: Pointer) -> Arc<Self> {
        let homes = Homes::of(pointer);
        let leaf_proof = if homes.log == NO_LOG { homes.proof } else { 0 };
        let slot = Self::with_body(homes, leaf_proof, Cached::default(), None);
        slot.touched.store(false, Ordering::Relaxed);
        Arc::new(slot)
    }

    fn with_body(homes: Homes, leaf_proof: u32, body: Cached, changes: Option<Box<Changes>>) -> Self {
        Self {
            home: AtomicU64::new(homes.leaf),
            log: AtomicU64::new(homes.log),
            proof: AtomicU32::new(homes.proof),
            leaf_proof: AtomicU32::new(leaf_proof),
            body,
            changes: RwLock::new(changes),
            touched: AtomicBool::new(true),
            moved: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
        }
    }

    pub fn home(&self) -> u64 {
        self.home.load(Ordering::Acquire)
    }

    pub fn log_home(&self) -> u64 {
        self.log.load(Ordering::Acquire)
    }

    /// Where the device has it. A checkpoint changes it bit by bit: see `read` for why that does no harm to readers.
    pub fn homes(&self) -> Homes {
        Homes { leaf: self.home(), log: self.log_home(), proof: self.proof.load(Ordering::Acquire) }
    }

    /// The same for the writer whose own the slot is.
    pub fn homes_mut(&mut self) -> Homes {
        Homes { leaf: *self.home.get_mut(), log: *self.log.get_mut(), proof: *self.proof.get_mut() }
    }

    /// Whether the device has all of it.
    pub fn is_written(&self) -> bool {
        self.home() != UNWRITTEN && self.log_home() != UNWRITTEN
    }

    /// Whether it is in memory.
    pub fn is_loaded(&self) -> bool {
        self.body.is_there()
    }

    /// Has the processor fetch it, for one who is about to look at it.
    #[inline]
    pub fn fetch_ahead(&self) {
        // The slot is longer than a cache line: both of its ends are waited for at once.
        fetch_ahead(self);
        fetch_ahead(ptr::from_ref(self).cast::<u8>().wrapping_add(size_of::<Self>() - 1));
        self.body.fetch_ahead();
    }

    /// The changes since it was written, if they are kept.
    fn changes(&self) -> Option<Box<Changes>> {
        self.changes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn forget_changes(&self) {
        *self.changes.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn touch(&self) {
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    /// Calls `look`, which must be short, with the leaf, which is read from the device first, and kept, if it is not in memory.
    pub fn with<D: ZonedDevice, R>(&self, io: &Io<D>, look: impl FnOnce(&LeafBody) -> R) -> Result<R> {
        self.touch();
        match self.body.with(look) {
            Ok(result) => Ok(result),
            Err(look) => Ok(look(&*self.share(io)?)),
        }
    }

    /// The leaf, which is read from the device, and kept, if it is not in memory.
    pub fn share<D: ZonedDevice>(&self, io: &Io<D>) -> Result<Arc<LeafBody>> {
        self.touch();
        if let Some(body) = self.body.share() {
            return Ok(body);
        }
        let body = Arc::new(self.read(io)?);
        self.body.put(Arc::clone(&body));
        Ok(body)
    }

    /// The leaf, which is read from the device, and not kept, if it is not in memory.
    pub fn share_unkept<D: ZonedDevice>(&self, io: &Io<D>) -> Result<Arc<LeafBody>> {
        match self.body.share() {
            Some(body) => Ok(body),
            None => self.read(io).map(Arc::new),
        }
    }

    /// Calls `look`, which must be short, with the leaf if it is in memory.
    pub fn if_loaded<R>(&self, look: impl FnOnce(&LeafBody) -> R) -> Option<R> {
        self.body.with(look).ok()
    }

    /// Says what is written at its home, for one who has read it; it has no log.
    pub fn fill<D: ZonedDevice>(&self, io: &Io<D>, leaf: Page) {
        if !self.is_loaded() {
            self.body.put(Arc::new(LeafBody { resident: io.resident(1), leaf, log: None }));
        }
    }

    /// What it holds does not change while others have the slot, so whoever reads it reads the same; and its blocks are not given up, as
    /// a version of the tree that leads to it keeps them.
    ///
    /// Its homes and their proof belong together, although no lock is held. Whoever comes here has found it not to be in memory, and then
    /// it has no changes. A leaf that is without both is where its homes say for good: as long as a step of a checkpoint gives it homes it
    /// has one of both, as the cache's hand is the checkpoint's until the step ends, and `arrived` comes last. And what was stored before it
    /// was dropped, or its changes forgotten, is seen by whoever sees that.
    fn read<D: ZonedDevice>(&self, io: &Io<D>) -> Result<LeafBody> {
        // As long as there are changes its home may be a place where nothing is yet: a checkpoint writes many nodes at once.
        if let Some(changes) = self.changes() {
            return changes.leaf(io);
        }
        let (body, leaf_proof) = LeafBody::read(io, self.homes())?;
        self.leaf_proof.store(leaf_proof, Ordering::Release);
        Ok(body)
    }

    /// Drops it from memory if it can be had again, and was not used since this was asked last. Whoever calls it has the cache's hand.
    pub fn drop_if_unused(&self) {
        if !self.is_loaded() {
            return;
        }
        if self.touched.load(Ordering::Relaxed) {
            return self.touched.store(false, Ordering::Relaxed);
        }
        if self.is_written() || self.changes.read().unwrap_or_else(PoisonError::into_inner).is_some() {
            self.body.take();
        }
    }

    /// The newest tree has another one in its place from now on.
    pub fn mark_replaced(&self) {
        self.replaced.store(true, Ordering::Relaxed);
    }

    /// Its home has all of it by now: what was kept to have it again is of no use, nor is a leaf in memory that has been replaced.
    pub fn arrived(&self) {
        self.forget_changes();
        if self.replaced.load(Ordering::Relaxed) {
            self.body.take();
        }
    }

    /// A copy that nobody shares, with the leaf in memory. `generation` is the newest checkpoint that has begun. The homes are those of
    /// what is copied: only a checkpoint changes them, and the writer runs it.
    pub fn copy<D: ZonedDevice>(&self, io: &Io<D>, generation: u64) -> Result<Self> {
        let body = Arc::unwrap_or_clone(self.share_unkept(io)?);
        let changes = self.changes().filter(|_| !self.is_written());
        let (changes, older) = match changes {
            Some(changes) if changes.began_in(generation) => (Some(changes), false),
            changes => (None, changes.is_some()),
        };
        if older {
            // What a checkpoint is about to write can be had again, and nobody looks at it much any more.
            self.body.take();
        }
        let leaf_proof = self.leaf_proof.load(Ordering::Acquire);
        let copy = Self::with_body(self.homes(), leaf_proof, Cached::new(body), changes);
        copy.moved.store(self.moved.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(copy)
    }

    /// The leaf itself, for the writer whose own the slot is.
    pub fn body_mut(&mut self) -> &mut LeafBody {
        self.body.get_mut().expect("the writer's own leaves are in memory")
    }

    /// What was changed since it was written, for the writer whose own the slot is.
    pub fn changes_mut(&mut self) -> &mut Option<Box<Changes>> {
        self.changes.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeafBody {
    /// Reads a leaf and its log, if it has one: then the log has what proves the leaf, which is the second value.
    pub fn read<D: ZonedDevice>(io: &Io<D>, homes: Homes) -> Result<(Self, u32)> {
        let (log, proof) = match homes.log {
            NO_LOG => (None, homes.proof),
            at => io.read_log(at, homes.proof).map(|(log, proof)| (Some(log), proof))?,
        };
        let leaf = io.read_page(homes.leaf, proof)?;
        Ok((Self { resident: io.resident(1 + usize::from(log.is_some())), leaf, log }, proof))
    }

    /// The value of `key`: the log's word goes before the leaf's.
    pub fn get(&self, key: &[u8]) -> Option<Value<'_>> {
        if let Some(log) = &self.log
            && let Ok(at) = log.find(key)
        {
            return Some(log.value(at)).filter(|&value| value != Value::Deleted);
        }
        self.leaf.find(key).ok().map(|at| self.leaf.value(at))
    }

    /// Puts a change of a record that the leaf holds into its log; false if it does not fit there, or would not fit into the leaf later.
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

    /// Whether the log says that all records are deleted.
    pub fn is_empty(&self) -> bool {
        let deleted = |log: &Page| (0..log.count()).all(|index| log.value(index) == Value::Deleted);
        self.log.as_ref().is_some_and(|log| log.count() == self.leaf.count() && deleted(log))
    }
}

/// A leaf with its log applied; of a full log the leaf itself is not needed.
///
/// # Errors
/// [`crate::Error::Inconsistent`] if they do not fit into one page: a log takes only what does.
pub(super) fn merged(leaf: &Page, log: &Page, full: bool) -> Result<Page> {
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
            ensure(page.insert(page.count(), key, value), "a leaf's log has more than fits into the leaf")?;
        }
    }
    Ok(page)
}
