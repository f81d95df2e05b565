//! The tree in memory. Leaves and inner nodes are behind shared pointers that also hold the address of the node's copy
//! on the device.
//!
//! Source: the layers of the ZB+-tree paper. Path copying for snapshots is not in the paper.

use crate::device::ZonedDevice;
use crate::error::{Error, Result};
use crate::node::{Page, Pointer};
use crate::store::io::{Io, Resident, damaged};
use crate::store::tree::keys::Keys;
use crate::store::tree::leaf::LeafSlot;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The address of a node that exists only in memory. Block 0 holds a superblock, never a node.
pub(crate) const UNWRITTEN: u64 = 0;

/// A reference to an inner node. Once read, an inner node stays in memory.
pub(crate) struct InnerSlot {
    pub home: AtomicU64,
    /// The expected checksum of the node.
    pub checksum: AtomicU32,
    /// The level that the node must have. `None` for a root on the device.
    level: Option<u16>,
    pub node: OnceLock<Inner>,
}

/// A head (odd levels) or an interior node (even levels).
#[derive(Clone)]
pub(crate) struct Inner {
    pub level: u16,
    pub keys: Keys,
    pub children: Children,
    /// Accounts for the memory of the node and its references to children.
    memory: Resident,
}

/// The memory of a reference to a leaf: the slot, its reference counts, and the overhead of the allocator, bytes.
const LEAF_SLOT_BYTES: usize = size_of::<LeafSlot>() + 32;

/// The memory of a reference to an inner node, as for leaves, bytes. The node has an account of its own.
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
        Arc::new(Self {
            home: AtomicU64::new(UNWRITTEN),
            checksum: AtomicU32::new(0),
            level: Some(inner.level),
            node: OnceLock::from(inner),
        })
    }

    pub fn root_on_device(home: u64, checksum: u32) -> Arc<Self> {
        Self::on_device(home, checksum, None)
    }

    fn on_device(home: u64, checksum: u32, level: Option<u16>) -> Arc<Self> {
        Arc::new(Self {
            home: AtomicU64::new(home),
            checksum: AtomicU32::new(checksum),
            level,
            node: OnceLock::new(),
        })
    }

    pub fn home(&self) -> u64 {
        self.home.load(Ordering::Acquire)
    }

    pub fn checksum(&self) -> u32 {
        self.checksum.load(Ordering::Acquire)
    }

    /// Returns the node, reading it on first use. A child must be one level below its parent, so every path is finite
    /// even on a corrupt device.
    pub fn inner<D: ZonedDevice>(&self, io: &Io<D>) -> Result<&Inner> {
        if let Some(inner) = self.node.get() {
            return Ok(inner);
        }
        if self.home() == UNWRITTEN {
            let what = "a change to the tree was interrupted".into();
            return Err(Error::Stopped { device: io.device.name(), what });
        }
        let record = io.read_inner(self.home(), self.checksum())?;
        if let Some(level) = self.level.filter(|&level| level != record.level) {
            let what = format!("a node of level {} is in place of one of level {level}", record.level);
            return Err(damaged(self.home(), what));
        }
        io.has_room_for_inner(self.home())?;
        Ok(self.node.get_or_init(|| {
            io.count_inner();
            Inner::from_record(io, record)
        }))
    }
}

impl Inner {
    pub fn new(level: u16, keys: Keys, children: Children, memory: Resident) -> Self {
        let mut inner = Self { level, keys, children, memory };
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
        Self::new(self.level, Keys::default(), children, self.memory.clone())
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

    /// Descends to the leaf for `key`.
    pub fn leaf_of<D: ZonedDevice>(&self, io: &Io<D>, key: &[u8]) -> Result<&LeafSlot> {
        let mut inner = self.root.inner(io)?;
        loop {
            let child = inner.keys.child(key);
            match &inner.children {
                Children::Leaves(leaves) => return Ok(&leaves[child]),
                Children::Inners(inners) => inner = inners[child].inner(io)?,
            }
        }
    }
}
