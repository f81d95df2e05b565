//! A leaf as its head knows it: the places of its copies on the device, and itself and its log if they are in memory.
//! Not how it changes (`edit`), and not how it gets to the device (`checkpoint`).
//! Source: the ZB+-tree paper's leaves and logs; dropping them from memory is our own.

use super::changes::Changes;
use super::io::{Io, Resident};
use super::tree::UNWRITTEN;
use crate::device::ZonedDevice;
use crate::error::Result;
use crate::node::{Page, Pointer, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The log's home of a leaf without a log.
pub(super) const NO_LOG: u64 = u64::MAX;

/// A leaf with its log, in memory.
#[derive(Clone)]
pub(super) struct LeafBody {
    pub leaf: Page,
    pub log: Option<Page>,
    /// Counts its bytes as long as it is in memory.
    pub resident: Resident,
}

/// What is in memory of a leaf.
#[derive(Clone, Default)]
struct Content {
    body: Option<LeafBody>,
    /// Of a leaf that was written, and has changed since in ways that can be made again: it may be dropped all the same.
    changes: Option<Box<Changes>>,
}

/// A leaf as its head knows it. Once a snapshot shares it, only its homes change (when a checkpoint writes it) and whether it is in
/// memory.
pub(super) struct LeafSlot {
    pub home: AtomicU64,
    pub log: AtomicU64,
    content: RwLock<Content>,
    /// Whether it is in memory, for one who need not know exactly.
    loaded: AtomicBool,
    /// It was used since the cache's hand came by.
    touched: AtomicBool,
    /// Garbage collection wrote it last, or is about to: it has not changed since.
    pub moved: AtomicBool,
    /// The newest tree has another one in its place.
    replaced: AtomicBool,
}

impl LeafSlot {
    pub fn new(leaf: Page, resident: Resident) -> Arc<Self> {
        Arc::new(Self {
            home: AtomicU64::new(UNWRITTEN),
            log: AtomicU64::new(NO_LOG),
            content: RwLock::new(Content {
                body: Some(LeafBody { leaf, log: None, resident }),
                changes: None,
            }),
            loaded: AtomicBool::new(true),
            touched: AtomicBool::new(true),
            moved: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
        })
    }

    pub fn on_device(pointer: Pointer) -> Arc<Self> {
        Arc::new(Self {
            home: AtomicU64::new(pointer.home),
            log: AtomicU64::new(pointer.log.unwrap_or(NO_LOG)),
            content: RwLock::default(),
            loaded: AtomicBool::new(false),
            touched: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
        })
    }

    pub fn home(&self) -> u64 {
        self.home.load(Ordering::Acquire)
    }

    pub fn log_home(&self) -> u64 {
        self.log.load(Ordering::Acquire)
    }

    /// Whether the device has all of it.
    pub fn is_written(&self) -> bool {
        self.home() != UNWRITTEN && self.log_home() != UNWRITTEN
    }

    /// Whether it is in memory.
    pub fn is_loaded(&self) -> bool {
        self.content().body.is_some()
    }

    fn content(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn content_to_change(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `look` with the leaf, which is read from the device first, and kept, if it is not in memory.
    pub fn with<D: ZonedDevice, R>(&self, io: &Io<D>, look: impl FnOnce(&LeafBody) -> R) -> Result<R> {
        loop {
            let content = self.content();
            if let Some(body) = &content.body {
                if !self.touched.load(Ordering::Relaxed) {
                    self.touched.store(true, Ordering::Relaxed);
                }
                return Ok(look(body));
            }
            let homes = (self.home(), self.log_home());
            let body = self.read(io, &content, homes)?;
            drop(content);
            let mut content = self.content_to_change();
            // A checkpoint may have written both as one meanwhile.
            if content.body.is_none() && homes == (self.home(), self.log_home()) {
                content.body = Some(body);
                self.loaded.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Calls `look` with the leaf, which is read from the device first, and not kept, if it is not in memory.
    pub fn with_unkept<D: ZonedDevice, R>(&self, io: &Io<D>, look: impl FnOnce(&LeafBody) -> R) -> Result<R> {
        let content = self.content();
        match &content.body {
            Some(body) => Ok(look(body)),
            None => Ok(look(&self.read(io, &content, (self.home(), self.log_home()))?)),
        }
    }

    /// Calls `look` with the leaf if it is in memory.
    pub fn if_loaded<R>(&self, look: impl FnOnce(&LeafBody) -> R) -> Option<R> {
        self.content().body.as_ref().map(look)
    }

    /// Says what is written at its home, for one who has read it; it has no log.
    pub fn fill<D: ZonedDevice>(&self, io: &Io<D>, leaf: Page) {
        let mut content = self.content_to_change();
        content.body.get_or_insert_with(|| LeafBody { resident: io.resident(1), leaf, log: None });
        self.loaded.store(true, Ordering::Relaxed);
    }

    fn read<D: ZonedDevice>(
        &self,
        io: &Io<D>,
        content: &Content,
        (home, log): (u64, u64),
    ) -> Result<LeafBody> {
        // As long as there are changes its home may be a place where nothing is yet: a checkpoint writes many nodes at once.
        if let Some(changes) = &content.changes {
            return changes.leaf(io);
        }
        LeafBody::read(io, (home, log))
    }

    /// Drops it from memory if it can be had again, and was not used since this was asked last.
    pub fn drop_if_unused(&self) {
        if !self.loaded.load(Ordering::Relaxed) {
            return;
        }
        if self.touched.load(Ordering::Relaxed) {
            return self.touched.store(false, Ordering::Relaxed);
        }
        let mut content = self.content_to_change();
        if self.is_written() || content.changes.is_some() {
            content.body = None;
            self.loaded.store(false, Ordering::Relaxed);
        }
    }

    /// The newest tree has another one in its place from now on.
    pub fn mark_replaced(&self) {
        self.replaced.store(true, Ordering::Relaxed);
    }

    /// Its home has all of it by now: what was kept to have it again is of no use, nor is a leaf in memory that has been replaced.
    pub fn arrived(&self) {
        let mut content = self.content_to_change();
        content.changes = None;
        if self.replaced.load(Ordering::Relaxed) {
            content.body = None;
            self.loaded.store(false, Ordering::Relaxed);
        }
    }

    /// A copy that nobody shares, with the leaf in memory. `generation` is the newest checkpoint that has begun.
    pub fn copy<D: ZonedDevice>(&self, io: &Io<D>, generation: u64) -> Result<Self> {
        loop {
            self.with(io, |_| ())?;
            let mut content = self.content_to_change();
            // The homes must be those of the body that is copied: only a checkpoint changes them, and the writer runs it.
            let changes = content.changes.clone().filter(|_| !self.is_written());
            let (changes, older) = match changes {
                Some(changes) if changes.began_in(generation) => (Some(changes), false),
                changes => (None, changes.is_some()),
            };
            // What a checkpoint is about to write can be had again, and nobody looks at it much any more.
            let body = if older { content.body.take() } else { content.body.clone() };
            self.loaded.store(content.body.is_some(), Ordering::Relaxed);
            // Another thread may have dropped it meanwhile.
            let Some(body) = body else { continue };
            return Ok(Self {
                home: AtomicU64::new(self.home()),
                log: AtomicU64::new(self.log_home()),
                content: RwLock::new(Content { body: Some(body), changes }),
                loaded: AtomicBool::new(true),
                touched: AtomicBool::new(true),
                moved: AtomicBool::new(self.moved.load(Ordering::Relaxed)),
                replaced: AtomicBool::new(false),
            });
        }
    }

    fn content_mut(&mut self) -> &mut Content {
        self.content.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leaf itself, for the writer whose own the slot is.
    pub fn body_mut(&mut self) -> &mut LeafBody {
        self.content_mut().body.as_mut().expect("the writer's own leaves are in memory")
    }

    /// What was changed since it was written, for the writer whose own the slot is.
    pub fn changes_mut(&mut self) -> &mut Option<Box<Changes>> {
        &mut self.content_mut().changes
    }
}

impl LeafBody {
    /// Reads a leaf and its log, if it has one.
    pub fn read<D: ZonedDevice>(io: &Io<D>, (home, log): (u64, u64)) -> Result<Self> {
        let leaf = io.read_page(home)?;
        let log = if log == NO_LOG { None } else { Some(io.read_log(log)?) };
        Ok(Self { resident: io.resident(1 + usize::from(log.is_some())), leaf, log })
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
pub(super) fn merged(leaf: &Page, log: &Page, full: bool) -> Page {
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
            let fits = page.insert(page.count(), key, value);
            debug_assert!(fits, "a log only takes what fits into its leaf");
        }
    }
    page
}
