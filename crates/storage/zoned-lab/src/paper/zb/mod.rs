//! The ZB+-tree: heads are in conventional zones; full leaves and interior nodes are in sequential zones, and changes
//! to them are in logs.
//!
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index". The paper's tree has four levels; here, the tree
//! grows by two levels when the root splits.

mod balance;
mod check;
mod collect;
mod entry;
mod scan;
mod view;

use super::body::{Body, Change};
use super::cached_nodes::CachedNodes;
use super::counts::NodeKind;
use super::fanout::Fanout;
use super::head::{Head, Ptr};
use super::record::Record;
use super::space::{Contents, Space, Temperature};
use balance::Deletion;
use longma_zoned::device::{Block, ZonedDevice};
use longma_zoned::error::{Error, Result};
pub(super) use scan::{ordered, visit_leaf};
use serde::Serialize;
use std::sync::Arc;

/// The state of a leaf or an interior node, stored in its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// In a conventional zone and not full; changed in place.
    Change,
    /// A full leaf in a sequential zone; updates go to its log.
    SteadyHot,
    /// A full interior node in a sequential zone; updates go to its log.
    SteadyCold,
    /// In a sequential zone with deletions in its log, so it is not really full.
    After,
}

impl State {
    pub(super) const ALL: [State; 4] = [Self::Change, Self::SteadyHot, Self::SteadyCold, Self::After];
}

/// The node kinds below a head: leaves at level 1, interior nodes at every other odd level.
#[derive(Clone, Copy, Debug)]
struct Kinds {
    head: NodeKind,
    body: NodeKind,
    log: NodeKind,
    steady: State,
    warmth: Temperature,
}

impl Kinds {
    const fn under(level: u32) -> Self {
        if level == 1 {
            Kinds {
                head: NodeKind::LeafHead,
                body: NodeKind::Leaf,
                log: NodeKind::LeafLog,
                steady: State::SteadyHot,
                warmth: Temperature::Hot,
            }
        } else {
            Kinds {
                head: NodeKind::InteriorHead,
                body: NodeKind::Interior,
                log: NodeKind::InteriorLog,
                steady: State::SteadyCold,
                warmth: Temperature::Cold,
            }
        }
    }
}

/// The result of splitting a head: the first key and the address of its right half.
type Split = (u64, Block);

/// The ZB+-tree of the paper, for 8-byte keys and values.
///
/// Levels are counted from the leaves: 0 leaves, 1 leaf-heads, 2 interior nodes, 3 interior-heads. When the root (an
/// interior-head) is full it splits, and an interior node and a new root are added as levels 4 and 5, and so on. On
/// every path, every second level is thus in conventional zones and is written in place.
#[derive(Clone)]
pub struct ZbTree<D> {
    pub(super) space: Space<D>,
    kept: CachedNodes,
    root: Block,
    pub(super) root_level: u32,
    pub(super) len: u64,
}

/// The level of the root in a tree of four levels.
const ROOT_LEVEL: u32 = 3;

/// Writes an empty tree, one node per level, and returns the address of its root.
fn write_empty_tree<D: ZonedDevice>(space: &mut Space<D>) -> Result<Block> {
    let [leaf, leaf_head, interior, root] = [space.take()?, space.take()?, space.take()?, space.take()?];
    let over = |addr| Arc::new(Head { entries: vec![(0, Ptr { state: State::Change, addr, log: None })] });
    space.write(NodeKind::Leaf, leaf, &Arc::new(Body::default()))?;
    space.write(NodeKind::LeafHead, leaf_head, &over(leaf))?;
    space.write(NodeKind::Interior, interior, &Arc::new(Body { entries: vec![(0, leaf_head.0)] }))?;
    space.write(NodeKind::InteriorHead, root, &over(interior))?;
    Ok(root)
}

impl<D: ZonedDevice> ZbTree<D> {
    /// Creates an empty tree that stores node contents according to `contents`.
    pub(super) fn with(device: D, fanout: Fanout, contents: Contents, kept: CachedNodes) -> Result<Self> {
        let mut space = Space::new(device, fanout, contents)?;
        let root = write_empty_tree(&mut space)?;
        Ok(Self { space, kept, root, root_level: ROOT_LEVEL, len: 0 })
    }

    /// Conventional blocks in use, and the total.
    pub fn conventional_used(&self) -> (u64, u64) {
        self.space.conventional_used()
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Damaged`].
    pub fn search(&mut self, key: u64) -> Result<Option<u64>> {
        let (mut at, mut level) = (self.root, self.root_level);
        loop {
            let head = self.read_head(at, level)?;
            let view = self.view(level, &head.entries[head.child(key)].1)?;
            if level == 1 {
                return Ok(view.find(key).map(|slot| view.payload(slot)));
            }
            at = Block(view.payload(view.route(key)));
            level -= 2;
        }
    }

    /// Inserts `key` or replaces its value. Returns true if the key is new.
    ///
    /// # Errors
    /// Those of [`ZbTree::search`], and [`Error::Full`].
    pub fn insert(&mut self, key: u64, value: u64) -> Result<bool> {
        self.make_room()?;
        let (new, split) = self.put_under(self.root, self.root_level, key, value)?;
        if let Some(split) = split {
            self.grow(split)?;
        }
        self.len += u64::from(new);
        Ok(new)
    }

    /// Removes `key`. Returns true if it was present.
    ///
    /// # Errors
    /// Those of [`ZbTree::insert`].
    pub fn remove(&mut self, key: u64) -> Result<bool> {
        self.make_room()?;
        match self.delete_under(self.root, self.root_level, key)? {
            Deletion::NotFound => return Ok(false),
            Deletion::Gone => (self.root, self.root_level) = (write_empty_tree(&mut self.space)?, ROOT_LEVEL),
            Deletion::Done | Deletion::Small(_) => self.shrink()?,
        }
        self.len -= 1;
        Ok(true)
    }

    fn read<R: Record>(&mut self, kind: NodeKind, at: Block) -> Result<Arc<R>> {
        if self.kept.has(kind, at == self.root) {
            self.space.read_cached(at)
        } else {
            self.space.read(kind, at)
        }
    }

    fn read_body(&mut self, level: u32, at: Block) -> Result<Arc<Body>> {
        self.read(Kinds::under(level).body, at)
    }

    fn read_head(&mut self, at: Block, level: u32) -> Result<Arc<Head>> {
        let head: Arc<Head> = self.read(Kinds::under(level).head, at)?;
        match head.entries.is_empty() {
            true => Err(Error::Damaged { block: at, what: "a head without entries".into() }),
            false => Ok(head),
        }
    }

    fn put_under(&mut self, at: Block, level: u32, key: u64, value: u64) -> Result<(bool, Option<Split>)> {
        let mut head = self.read_head(at, level)?;
        let index = head.child(key);
        let view = self.view(level, &head.entries[index].1)?;
        let (new, dirty) = if level == 1 {
            match view.find(key) {
                Some(slot) => {
                    let change = Change::Set(key, value);
                    (false, self.change_entry(level, &mut head, index, view, slot, change)?)
                }
                None => (true, self.insert_entry(level, &mut head, index, view, (key, value))?),
            }
        } else {
            let child = Block(view.payload(view.route(key)));
            match self.put_under(child, level - 2, key, value)? {
                (new, None) => (new, false),
                (new, Some((separator, right))) => {
                    (new, self.insert_entry(level, &mut head, index, view, (separator, right.0))?)
                }
            }
        };
        let split = if dirty { self.write_head(at, level, head)? } else { None };
        Ok((new, split))
    }

    /// Writes a head in place, splitting it first if it has too many entries.
    fn write_head(&mut self, at: Block, level: u32, mut head: Arc<Head>) -> Result<Option<Split>> {
        let kind = Kinds::under(level).head;
        if head.entries.len() <= self.space.fanout.head {
            self.space.write(kind, at, &head)?;
            return Ok(None);
        }
        self.space.counts.heads_split += 1;
        let half = head.entries.len() / 2;
        let right = Arc::new(Head { entries: Arc::make_mut(&mut head).entries.split_off(half) });
        let right_at = self.space.take()?;
        self.space.write(kind, right_at, &right)?;
        self.space.write(kind, at, &head)?;
        Ok(Some((right.entries[0].0, right_at)))
    }

    /// Adds two levels over a split root: an interior node over both halves, and a new root.
    fn grow(&mut self, (separator, right): Split) -> Result<()> {
        let (interior, root) = (self.space.take()?, self.space.take()?);
        let entries = vec![(0, self.root.0), (separator, right.0)];
        self.space.write(NodeKind::Interior, interior, &Arc::new(Body { entries }))?;
        let ptr = Ptr { state: State::Change, addr: interior, log: None };
        self.space.write(NodeKind::InteriorHead, root, &Arc::new(Head { entries: vec![(0, ptr)] }))?;
        (self.root, self.root_level) = (root, self.root_level + 2);
        Ok(())
    }
}
