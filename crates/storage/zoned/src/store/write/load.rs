//! Bulk load of sorted records: full leaves are first written to the device and then linked into the tree in one step.
//!
//! Source: the standard bottom-up bulk load of a B+-tree.

use crate::device::ZonedDevice;
use crate::error::Result;
use crate::node::{Page, Pointer, Value};
use crate::store::Shared;
use crate::store::io::Traffic;
use crate::store::space::allocation::Stream;
use crate::store::tree::edit::{Editor, NodeBalance, Retired};
use crate::store::tree::leaf::LeafSlot;
use crate::store::tree::nodes::{Children, InnerSlot, Tree};
use crate::store::write::checkpoint::{Freed, release};
use crate::store::write::output::Output;
use crate::store::write::writer::{Writer, WriterLock};
use longma_locks::IgnorePoison;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Leaves are buffered up to this many bytes before they are written.
const MAX_RUN_BYTES: usize = 1 << 20;

/// A leaf on the device that is not linked into the tree yet.
struct Staged {
    slot: Arc<LeafSlot>,
    first: Vec<u8>,
    last: Vec<u8>,
    records: u64,
}

/// A bulk load in progress. Dropping it before `end` leaves the map unchanged.
pub(crate) struct BulkLoad<'a, D: ZonedDevice> {
    shared: &'a Shared<D>,
    writer: &'a WriterLock,
    /// The number of this load. Several loads may run concurrently.
    number: u64,
    page: Page,
    full: Vec<Page>,
    staged: Vec<Staged>,
    payload_bytes: u64,
}

impl<'a, D: ZonedDevice> BulkLoad<'a, D> {
    pub fn begin(shared: &'a Shared<D>, lock: &'a WriterLock) -> Result<Self> {
        let mut writer = lock.lock();
        writer.check_running(shared)?;
        writer.loads += 1;
        let number = writer.loads;
        writer.staged.insert(number, Vec::new());
        let page = Page::new(shared.io.node_bytes);
        Ok(Self {
            shared,
            writer: lock,
            number,
            page,
            full: Vec::new(),
            staged: Vec::new(),
            payload_bytes: 0,
        })
    }

    /// Adds a record. Its key must be greater than the previous one.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let blocks = self.shared.blocks_outside(key, Value::Inline(value))?;
        let value = match blocks {
            0 => Value::Inline(value),
            _ => Value::Extent(self.writer.lock().stage_extent(self.shared, self.number, key, value)?),
        };
        self.payload_bytes += (key.len() + value.bytes()) as u64;
        if !self.page.insert(self.page.count(), key, value) {
            let fresh = Page::new(self.shared.io.node_bytes);
            self.full.push(std::mem::replace(&mut self.page, fresh));
            if self.full.len() * self.shared.io.node_bytes >= MAX_RUN_BYTES {
                self.write()?;
            }
            let fits = self.page.insert(0, key, value);
            debug_assert!(fits, "an empty page takes every record");
        }
        Ok(())
    }

    /// Writes the full leaves to the device.
    fn write(&mut self) -> Result<()> {
        let mut writer = self.writer.lock();
        for (page, slot) in writer.stage_leaves(self.shared, self.number, std::mem::take(&mut self.full))? {
            let (first, last) = (page.key(0).to_vec(), page.key(page.count() - 1).to_vec());
            self.staged.push(Staged { slot: Arc::clone(&slot), first, last, records: page.count() as u64 });
            // Cache new leaves up to half of the cache limit. Uncached leaves must be read when they are changed.
            if self.shared.io.resident_bytes() < self.shared.options.cache_bytes / 2 {
                slot.fill(&self.shared.io, page);
            } else {
                self.shared.all_resident.store(false, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Links all leaves into the tree and makes them durable.
    pub fn end(mut self) -> Result<()> {
        if self.page.count() > 0 {
            let page = std::mem::replace(&mut self.page, Page::new(self.shared.io.node_bytes));
            self.full.push(page);
        }
        self.write()?;
        let mut writer = self.writer.lock();
        writer.link_staged(self.shared, self.number, &self.staged)?;
        writer.payload_bytes += self.payload_bytes;
        Ok(())
    }
}

impl<D: ZonedDevice> Drop for BulkLoad<'_, D> {
    /// Releases the blocks of an unfinished load.
    fn drop(&mut self) {
        let mut writer = self.writer.lock();
        for freed in writer.staged.remove(&self.number).unwrap_or_default() {
            release(&mut writer.space, freed);
        }
    }
}

impl Writer {
    /// Writes a large value that no tree refers to yet.
    fn stage_extent<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        number: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<crate::node::Extent> {
        self.check_running(shared)?;
        let blocks = shared.io.extent_blocks(key, value.len() as u32);
        self.make_room_to_load(shared, blocks, self.staged_nodes())?;
        let written = self.place_extent(shared, key, value);
        let extent = self.stop_on_error(written)?;
        self.staged.entry(number).or_default().push(Freed::Extent(extent.block, blocks));
        Ok(extent)
    }

    /// Writes leaves that no tree refers to yet.
    fn stage_leaves<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        number: u64,
        pages: Vec<Page>,
    ) -> Result<Vec<(Page, Arc<LeafSlot>)>> {
        self.check_running(shared)?;
        let blocks = pages.len() as u64 * shared.io.node_blocks();
        self.make_room_to_load(shared, blocks, self.staged_nodes())?;
        let written = self.write_leaves(shared, number, pages);
        self.stop_on_error(written)
    }

    fn write_leaves<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        number: u64,
        pages: Vec<Page>,
    ) -> Result<Vec<(Page, Arc<LeafSlot>)>> {
        let (mut output, mut written) = (Output::default(), Vec::with_capacity(pages.len()));
        let generation = self.superblock.generation.wrapping_add(1);
        for page in pages {
            let (home, finished) = self.space.take_appended(Stream::Hot, shared.io.node_blocks())?;
            if let Some(zone) = finished {
                output.finish(&shared.io, zone)?;
            }
            self.staged.entry(number).or_default().push(Freed::Node(home));
            let fill = |node: &mut [u8]| page.encode(node, home, generation, 0);
            let checksum = output.add(&shared.io, Traffic::Leaf, home, fill)?;
            written.push((page, LeafSlot::on_device(Pointer { home, log: None, checksum })));
        }
        output.write_all(&shared.io)?;
        Ok(written)
    }

    /// An estimate of the inner nodes needed for the staged leaves. Every head has at least sixteen leaves, except at
    /// the ends of the load.
    fn staged_nodes(&self) -> u64 {
        4 + self.staged.values().map(|staged| staged.len() as u64 / 8 + 1).sum::<u64>()
    }

    /// Links the leaves of a load into the tree and writes a checkpoint. Readers see the leaves once it is complete.
    fn link_staged<D: ZonedDevice>(
        &mut self,
        shared: &Shared<D>,
        number: u64,
        staged: &[Staged],
    ) -> Result<()> {
        self.check_running(shared)?;
        // Complete a running checkpoint first: it began without the staged leaves.
        let finished = self.finish_checkpoint(shared);
        self.stop_on_error(finished)?;
        let (tree, mut merged) = (shared.published.tree(), 0);
        for leaf in staged {
            merged += if leaf.fits_between(&tree, shared)? { 0 } else { leaf.records };
        }
        drop(tree);
        // A record that falls between existing ones may dirty a leaf and the nodes above it, and split them; but never
        // more nodes than exist.
        let used = self.space.nodes_used() + self.dirty;
        self.make_room_to_load(shared, 0, self.staged_nodes() + (3 * merged).min(2 * used))?;
        self.advance_full_journal(shared)?;
        let before = self.accounts();
        if let Err(error) = self.link_all(shared, staged) {
            self.restore_accounts(before);
            return Err(error);
        }
        self.staged.remove(&number);
        self.begin_checkpoint(shared);
        let finished = self.finish_checkpoint(shared);
        self.stop_on_error(finished)
    }

    fn link_all<D: ZonedDevice>(&mut self, shared: &Shared<D>, staged: &[Staged]) -> Result<()> {
        // Holding the clock hand keeps the nodes in memory until they are changed.
        let _clock_hand = shared.clock_hand.lock().ignore_poison();
        let mut update = shared.published.begin_copying_update();
        let mut editor = self.editor(shared);
        let mut previous: Option<&Staged> = None;
        for leaf in staged {
            let tree = update.tree();
            // The previous leaf need not be in memory: the pointers alone show that this leaf follows it.
            let covering = leaf.covering(tree, shared)?;
            let follows =
                |previous: &Staged| covering.as_ref().is_some_and(|slot| Arc::ptr_eq(slot, &previous.slot));
            if previous.is_some_and(follows) || leaf.fits_between(tree, shared)? {
                editor.link(tree, leaf)?;
                previous = Some(leaf);
                continue;
            }
            let body = leaf.slot.load_uncached(&shared.io)?;
            for index in 0..body.leaf.count() {
                editor.change(tree, body.leaf.key(index), body.leaf.value(index))?;
            }
            editor.retired.push(Retired::Node(leaf.slot.home()));
            previous = None;
        }
        update.commit_unpublished();
        Ok(())
    }
}

impl Staged {
    /// The leaf of the tree whose key range covers all keys of this one, if there is one.
    fn covering<D: ZonedDevice>(&self, tree: &Tree, shared: &Shared<D>) -> Result<Option<Arc<LeafSlot>>> {
        let mut inner = tree.root.inner(&shared.io)?;
        let mut high = None;
        loop {
            let child = inner.keys.child(&self.first);
            if child + 1 < inner.keys.len() {
                high = Some(inner.keys.get(child + 1).to_vec());
            }
            inner = match &inner.children {
                Children::Inners(inners) => inners[child].inner(&shared.io)?,
                Children::Leaves(leaves) => {
                    let covers = high.is_none_or(|high| self.last < high);
                    return Ok(covers.then(|| Arc::clone(&leaves[child])));
                }
            }
        }
    }

    /// Whether this leaf can be linked between two leaves of the tree.
    fn fits_between<D: ZonedDevice>(&self, tree: &Tree, shared: &Shared<D>) -> Result<bool> {
        let Some(covering) = self.covering(tree, shared)? else { return Ok(false) };
        covering.with(&shared.io, |body| {
            let count = body.leaf.count();
            count == 0 || body.leaf.key(count - 1) < &self.first[..]
        })
    }
}

impl<D: ZonedDevice> Editor<'_, D> {
    /// Links a leaf between two others.
    fn link(&mut self, tree: &mut Tree, leaf: &Staged) -> Result<()> {
        if let NodeBalance::Split(split) = self.link_under(&mut tree.root, leaf)? {
            self.grow(tree, *split);
        }
        tree.len += leaf.records;
        Ok(())
    }

    fn link_under(&mut self, slot: &mut Arc<InnerSlot>, leaf: &Staged) -> Result<NodeBalance> {
        let inner = self.own_inner(slot)?;
        let index = inner.keys.child(&leaf.first);
        match &mut inner.children {
            Children::Leaves(leaves) => {
                leaves.insert(index + 1, Arc::clone(&leaf.slot));
                inner.keys.insert(index + 1, &leaf.first);
            }
            Children::Inners(inners) => {
                if let NodeBalance::Split(split) = self.link_under(&mut inners[index], leaf)? {
                    inners.insert(index + 1, split.right);
                    inner.keys.insert(index + 1, &split.separator);
                }
            }
        }
        inner.update_memory();
        Ok(self.settle(inner))
    }
}
