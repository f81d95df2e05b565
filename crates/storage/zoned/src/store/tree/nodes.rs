//! The tree in memory. Leaves and inner nodes are behind shared pointers that also hold the address of the node's copy
//! on the device.
//!
//! Source: the layers of the ZB+-tree paper. Path copying for snapshots is not in the paper.

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::node::{Page, Pointer};
use crate::store::io::{Io, Resident, damaged};
use crate::store::tree::keys::Keys;
use crate::store::tree::leaf::{LeafBody, LeafSlot};
use crate::store::tree::node_cell::NodeCell;
use std::result::Result as Outcome;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The address of a node that exists only in memory. Block 0 holds a superblock, never a node.
pub(crate) const UNWRITTEN: u64 = 0;

/// A reference to an inner node.
pub(crate) struct InnerSlot {
    pub home: AtomicU64,
    /// The expected checksum of the node.
    pub checksum: AtomicU32,
    /// The level that the node must have. `None` for a root on the device.
    level: Option<u16>,
    /// The node, if it is in memory.
    node: NodeCell<Inner>,
    /// Whether the node was used since the clock hand last passed it.
    touched: AtomicBool,
    /// Whether another node replaces it in the newest tree.
    replaced: AtomicBool,
}

/// A head (odd levels) or an interior node (even levels).
#[derive(Clone)]
pub(crate) struct Inner {
    pub level: u16,
    pub keys: Keys,
    pub children: Children,
    /// Accounts for the memory of the node and its references to children.
    pub memory: Resident,
    /// Counts the inner nodes in memory.
    pub(super) count: Resident,
}

/// The memory of a reference to a leaf: the slot, its reference counts, and the overhead of the allocator, bytes.
const LEAF_SLOT_BYTES: usize = size_of::<LeafSlot>() + 32;

/// The memory of a reference to an inner node, as for leaves, bytes. The node's memory is counted separately.
const INNER_SLOT_BYTES: usize = size_of::<InnerSlot>() + 32;

/// The children of a head or an interior node.
#[derive(Clone)]
pub(crate) enum Children {
    /// Children of level 1.
    Leaves(Vec<Arc<LeafSlot>>),
    /// Children of all higher levels.
    Inners(Vec<Arc<InnerSlot>>),
}

/// One version of the tree.
#[derive(Clone)]
pub(crate) struct Tree {
    pub root: Arc<InnerSlot>,
    pub len: u64,
}

impl InnerSlot {
    pub fn new(inner: Inner) -> Arc<Self> {
        Arc::new(Self::of(UNWRITTEN, 0, Some(inner.level), NodeCell::new(inner)))
    }

    pub fn root_on_device(home: u64, checksum: u32) -> Arc<Self> {
        Self::on_device(home, checksum, None)
    }

    fn on_device(home: u64, checksum: u32, level: Option<u16>) -> Arc<Self> {
        Arc::new(Self::of(home, checksum, level, NodeCell::default()))
    }

    fn of(home: u64, checksum: u32, level: Option<u16>, node: NodeCell<Inner>) -> Self {
        Self {
            home: AtomicU64::new(home),
            checksum: AtomicU32::new(checksum),
            level,
            node,
            touched: AtomicBool::new(true),
            replaced: AtomicBool::new(false),
        }
    }

    pub fn home(&self) -> u64 {
        self.home.load(Ordering::Acquire)
    }

    pub fn checksum(&self) -> u32 {
        self.checksum.load(Ordering::Acquire)
    }

    /// Returns the node. Reads it first if it is not in memory. A child must be one level below its parent, so every
    /// path is finite even on a corrupt device.
    pub fn inner<D: ZonedDevice>(&self, io: &Io<D>) -> Result<Arc<Inner>> {
        self.touch();
        if let Some(inner) = self.node.share() {
            return Ok(inner);
        }
        if self.home() == UNWRITTEN {
            let what = "a change to the tree was interrupted".into();
            return Err(Error::Stopped { device: io.device.name(), what });
        }
        let record = io.read_inner(self.home(), self.checksum())?;
        if let Some(level) = self.level.filter(|&level| level != record.level) {
            let what =
                format!("found a node of level {} where a node of level {level} was expected", record.level);
            return Err(damaged(self.home(), what));
        }
        io.has_room_for_inner(self.home())?;
        let inner = Arc::new(Inner::from_record(io, record));
        // The sweep for eviction does not visit nodes that only snapshots refer to.
        if self.replaced.load(Ordering::Relaxed) {
            inner.mark_children_replaced();
            return Ok(inner);
        }
        self.node.fill(Arc::clone(&inner));
        // Another thread may have been first. All threads use its references to the children.
        Ok(self.node.share().unwrap_or(inner))
    }

    /// The node if it is in memory.
    pub fn loaded(&self) -> Option<Arc<Inner>> {
        self.node.share()
    }

    /// The node in memory, for the writer with exclusive access to the slot.
    pub fn inner_mut(&mut self) -> Option<&mut Inner> {
        self.node.get_mut()
    }

    fn touch(&self) {
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    /// Evicts the node if it can be read again, none of its children is in memory, and it was not used since the
    /// previous call. The caller must hold the clock hand.
    pub fn evict_if_unused(&self) {
        let Some(inner) = self.node.share() else { return };
        if self.touched.swap(false, Ordering::Relaxed) || self.home() == UNWRITTEN {
            return;
        }
        let is_bare = match &inner.children {
            Children::Leaves(leaves) => leaves.iter().all(|leaf| leaf.is_bare()),
            Children::Inners(inners) => {
                inners.iter().all(|below| below.home() != UNWRITTEN && !below.node.is_filled())
            }
        };
        if is_bare {
            // The newest tree will read the node again, with other references to the children.
            inner.mark_children_replaced();
            self.node.evict();
        }
    }

    /// Records that another head replaces this one in the newest tree, and evicts this one if it can be read again. The
    /// few nodes above the heads stay in memory as long as a snapshot needs them.
    pub fn mark_replaced(&self) {
        if self.level == Some(1) {
            self.replaced.store(true, Ordering::Relaxed);
            self.evict_if_replaced();
        }
    }

    /// Evicts a head that has been replaced in the newest tree, if it can be read again.
    pub fn evict_if_replaced(&self) {
        if self.replaced.load(Ordering::Relaxed) && self.home() != UNWRITTEN {
            self.node.evict();
        }
    }

    /// Records that the head is in the newest tree again, after a change that replaced it was undone.
    pub fn mark_current(&self) {
        if self.replaced.load(Ordering::Relaxed) {
            self.replaced.store(false, Ordering::Relaxed);
        }
    }
}

impl Inner {
    pub fn new(level: u16, keys: Keys, children: Children, (memory, count): (Resident, Resident)) -> Self {
        let mut inner = Self { level, keys, children, memory, count };
        inner.update_memory();
        inner
    }

    pub fn from_record<D: ZonedDevice>(io: &Io<D>, record: crate::node::InnerRecord) -> Self {
        let mut keys = Keys::default();
        let mut pointers = Vec::with_capacity(record.entries.len());
        for (key, pointer) in record.entries {
            keys.push(&key);
            pointers.push(pointer);
        }
        let children = match record.level {
            1 => Children::Leaves(pointers.into_iter().map(LeafSlot::on_device).collect()),
            level => {
                let below =
                    |pointer: Pointer| InnerSlot::on_device(pointer.home, pointer.checksum, Some(level - 1));
                Children::Inners(pointers.into_iter().map(below).collect())
            }
        };
        Self::new(record.level, keys, children, io.resident_inner())
    }

    /// A node of the same level without entries.
    pub fn empty_like(&self) -> Self {
        let children = match self.children {
            Children::Leaves(_) => Children::Leaves(Vec::new()),
            Children::Inners(_) => Children::Inners(Vec::new()),
        };
        Self::new(self.level, Keys::default(), children, (self.memory.clone(), self.count.clone()))
    }

    /// Records that the newest tree does not refer to these children.
    fn mark_children_replaced(&self) {
        self.leaves().iter().for_each(|leaf| leaf.mark_replaced());
        self.inners().iter().for_each(|below| below.replaced.store(true, Ordering::Relaxed));
    }

    /// Accounts for entries that were added or removed.
    pub fn update_memory(&mut self) {
        let children = match &self.children {
            Children::Leaves(leaves) => leaves.capacity() * 8 + leaves.len() * LEAF_SLOT_BYTES,
            Children::Inners(inners) => inners.capacity() * 8 + inners.len() * INNER_SLOT_BYTES,
        };
        self.memory.change(children + self.keys.memory());
    }

    /// The number of bytes that the entries take on the device.
    pub fn used(&self) -> usize {
        self.keys.bytes() + self.keys.len() * crate::node::InnerRecord::entry_bytes(self.level)
    }

    /// The entries as written to the device.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], Pointer)> {
        (0..self.keys.len()).map(|index| {
            let pointer = match &self.children {
                Children::Leaves(leaves) => leaves[index].homes().pointer(),
                Children::Inners(inners) => {
                    Pointer { home: inners[index].home(), log: None, checksum: inners[index].checksum() }
                }
            };
            (self.keys.get(index), pointer)
        })
    }

    pub fn leaves(&self) -> &[Arc<LeafSlot>] {
        match &self.children {
            Children::Leaves(leaves) => leaves,
            Children::Inners(_) => &[],
        }
    }

    pub fn inners(&self) -> &[Arc<InnerSlot>] {
        match &self.children {
            Children::Leaves(_) => &[],
            Children::Inners(inners) => inners,
        }
    }
}

impl Tree {
    /// Creates a tree with one empty leaf.
    pub fn empty<D: ZonedDevice>(io: &Io<D>) -> Self {
        let mut keys = Keys::default();
        keys.push(&[]);
        let leaf = LeafSlot::new(Page::new(io.node_bytes), io.resident(1));
        Self {
            root: InnerSlot::new(Inner::new(1, keys, Children::Leaves(vec![leaf]), io.resident_inner())),
            len: 0,
        }
    }

    /// A placeholder for a tree whose update failed halfway. Reading it is an error.
    pub fn lost(len: u64) -> Self {
        Self { root: InnerSlot::root_on_device(UNWRITTEN, 0), len }
    }

    /// Calls `look` with the leaf for `key`, or returns `look` in `Err` if the leaf or a node above it is not in memory.
    /// `look` must be short.
    #[inline]
    fn look_up<R, F: FnOnce(&LeafBody) -> R>(&self, key: &[u8], look: F) -> Outcome<R, F> {
        let pin = crossbeam_epoch::pin();
        let mut slot = &*self.root;
        loop {
            let Some(inner) = slot.node.get(&pin) else { return Err(look) };
            let child = inner.keys.child(key);
            match &inner.children {
                Children::Leaves(leaves) => {
                    slot.touch();
                    leaves[child].prefetch();
                    return leaves[child].with_loaded(look);
                }
                Children::Inners(inners) => {
                    slot = &inners[child];
                    slot.node.prefetch();
                }
            }
        }
    }

    /// Calls `look` with the leaf for `key`. Returns whether the leaf was in memory too. `look` must be short.
    pub fn with_leaf<D: ZonedDevice, R>(
        &self,
        io: &Io<D>,
        key: &[u8],
        look: impl FnOnce(&LeafBody) -> R,
    ) -> Result<(R, bool)> {
        match self.look_up(key, look) {
            Ok(result) => Ok((result, true)),
            Err(look) => Ok((self.leaf_of(io, key)?.with(io, look)?, false)),
        }
    }

    /// Descends to the leaf for `key`.
    pub fn leaf_of<D: ZonedDevice>(&self, io: &Io<D>, key: &[u8]) -> Result<Arc<LeafSlot>> {
        let head = self.head_of(io, key, |_| ())?;
        Ok(Arc::clone(&head.leaves()[head.keys.child(key)]))
    }

    /// Descends to the head for `key`, and calls `visit` with each node on the way before it is read.
    pub fn head_of<D: ZonedDevice>(
        &self,
        io: &Io<D>,
        key: &[u8],
        visit: impl Fn(&InnerSlot),
    ) -> Result<Arc<Inner>> {
        visit(&self.root);
        let mut inner = self.root.inner(io)?;
        while let Children::Inners(inners) = &inner.children {
            let slot = &inners[inner.keys.child(key)];
            visit(slot);
            let below = slot.inner(io)?;
            inner = below;
        }
        Ok(inner)
    }

    /// Reads the leaf for `key` into memory for the writer, if it is not there.
    pub fn load_leaf<D: ZonedDevice>(&self, io: &Io<D>, key: &[u8]) -> Result<()> {
        if self.look_up(key, |_| ()).is_ok() {
            return Ok(());
        }
        // After a rollback, the nodes of the newest tree may be marked as replaced. Clear the marks, because otherwise
        // the nodes would be evicted again.
        let head = self.head_of(io, key, InnerSlot::mark_current)?;
        let leaf = &head.leaves()[head.keys.child(key)];
        leaf.mark_current();
        leaf.with(io, |_| ())
    }
}
