//! A leaf as its head knows it: the places of its copies on the device, and itself and its log if they are in memory.
//! Not how it changes (`edit`), and not how it gets to the device (`checkpoint`).
//! Source: the ZB+-tree paper's leaves and logs; dropping them from memory is our own.

use super::io::{Io, Resident};
use super::tree::UNWRITTEN;
use crate::device::ZonedDevice;
use crate::error::Result;
use crate::node::{Page, Pointer, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

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

/// A leaf as its head knows it. Once a snapshot shares it, only its homes change (when a checkpoint writes it) and whether it is in
/// memory.
pub(super) struct LeafSlot {
    pub home: AtomicU64,
    pub log: AtomicU64,
    pub body: RwLock<Option<LeafBody>>,
    /// It was used since the cache's hand came by.
    pub touched: AtomicBool,
    /// Garbage collection wrote it last, or is about to: it has not changed since.
    pub moved: AtomicBool,
}

impl LeafSlot {
    pub fn new(leaf: Page, resident: Resident) -> Arc<Self> {
        Arc::new(Self {
            home: AtomicU64::new(UNWRITTEN),
            log: AtomicU64::new(NO_LOG),
            body: RwLock::new(Some(LeafBody { leaf, log: None, resident })),
            touched: AtomicBool::new(true),
            moved: AtomicBool::new(false),
        })
    }

    pub fn on_device(pointer: Pointer) -> Arc<Self> {
        Arc::new(Self {
            home: AtomicU64::new(pointer.home),
            log: AtomicU64::new(pointer.log.unwrap_or(NO_LOG)),
            body: RwLock::new(None),
            touched: AtomicBool::new(false),
            moved: AtomicBool::new(false),
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
        self.body.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Calls `look` with the leaf, which is read from the device first if it is not in memory.
    pub fn with<D: ZonedDevice, R>(&self, io: &Io<D>, look: impl FnOnce(&LeafBody) -> R) -> Result<R> {
        loop {
            if let Some(body) = &*self.body.read().unwrap_or_else(PoisonError::into_inner) {
                if !self.touched.load(Ordering::Relaxed) {
                    self.touched.store(true, Ordering::Relaxed);
                }
                return Ok(look(body));
            }
            let homes = (self.home(), self.log_home());
            let body = self.read(io, homes)?;
            let mut place = self.body.write().unwrap_or_else(PoisonError::into_inner);
            // A checkpoint may have written both as one meanwhile.
            if place.is_none() && homes == (self.home(), self.log_home()) {
                *place = Some(body);
            }
        }
    }

    /// Says what is written at its home, for one who has read it; it has no log.
    pub fn fill<D: ZonedDevice>(&self, io: &Io<D>, leaf: Page) {
        let mut place = self.body.write().unwrap_or_else(PoisonError::into_inner);
        place.get_or_insert_with(|| LeafBody { resident: io.resident(1), leaf, log: None });
    }

    fn read<D: ZonedDevice>(&self, io: &Io<D>, (home, log): (u64, u64)) -> Result<LeafBody> {
        let leaf = io.read_page(home)?;
        let log = if log == NO_LOG { None } else { Some(io.read_log(log)?) };
        Ok(LeafBody { resident: io.resident(1 + usize::from(log.is_some())), leaf, log })
    }

    /// A copy that nobody shares, with the leaf in memory.
    pub fn copy<D: ZonedDevice>(&self, io: &Io<D>) -> Result<Self> {
        // The homes must be those of the body that is copied: only a checkpoint changes them, and the writer runs it.
        let body = self.with(io, LeafBody::clone)?;
        Ok(Self {
            home: AtomicU64::new(self.home()),
            log: AtomicU64::new(self.log_home()),
            body: RwLock::new(Some(body)),
            touched: AtomicBool::new(true),
            moved: AtomicBool::new(self.moved.load(Ordering::Relaxed)),
        })
    }
}

impl LeafBody {
    /// The value of `key`: the log's word goes before the leaf's.
    pub fn get(&self, key: &[u8]) -> Option<Value<'_>> {
        if let Some(log) = &self.log
            && let Ok(at) = log.find(key)
        {
            return Some(log.value(at)).filter(|&value| value != Value::Deleted);
        }
        self.leaf.find(key).ok().map(|at| self.leaf.value(at))
    }

    /// Whether the log says that all records are deleted.
    pub fn is_empty(&self) -> bool {
        let deleted = |log: &Page| (0..log.count()).all(|index| log.value(index) == Value::Deleted);
        self.log.as_ref().is_some_and(|log| log.count() == self.leaf.count() && deleted(log))
    }
}

/// The leaf in a slot that is the writer's own and in memory.
pub(super) fn body_of(slot: &mut LeafSlot) -> &mut LeafBody {
    let body = slot.body.get_mut().unwrap_or_else(PoisonError::into_inner);
    body.as_mut().expect("the writer's own leaves are in memory")
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
