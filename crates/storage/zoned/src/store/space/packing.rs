//! Packing: when the map is full, the records of adjacent leaves that are partly empty are merged into fewer leaves.
//!
//! Leaves get partly empty by splits in random order and by deletions. Packing them earlier would cost more writes: a
//! full leaf splits at the next insert.

use crate::device::ZonedDevice;
use crate::error::Result;
use crate::store::Shared;
use crate::store::space::reclaim::is_data_loss;
use crate::store::tree::leaf::LeafSlot;
use crate::store::tree::nodes::{Children, Tree};
use crate::store::write::writer::Writer;
use longma_locks::IgnorePoison;
use std::sync::Arc;

/// The number of adjacent leaves whose records are packed together. A higher number fills leaves further but costs more
/// writes, because this number of leaves is rewritten to save one.
const WIDTH: usize = 32;

/// The most leaves that one round reads.
const MAX_ROUND: u64 = 4096;

/// The most leaves that are read for one batch before it is refused.
const MAX_SEARCHED: u64 = 16 * 1024;

/// The number of garbage collections that try to make space for the changed nodes of one window.
const MAX_COLLECTIONS: u32 = 4;

/// The state of packing.
#[derive(Default)]
pub(crate) struct Packing {
    /// The key at which the next round starts.
    next: Vec<u8>,
    /// Leaves read and saved since `next` was last at the start of the map.
    read: u64,
    saved: u64,
    /// The value of [`Writer::loosened`] from which packing is worthwhile again after a failed attempt.
    idle_until: u64,
}

/// Adjacent leaves of one head.
struct Window {
    /// The first key of the range of the leaves.
    from: Vec<u8>,
    leaves: Vec<Arc<LeafSlot>>,
    /// The key after the leaves, or `None` at the end of the map.
    next: Option<Vec<u8>>,
}

/// Returns the leaves from the one for `key` on, at most [`WIDTH`].
fn window<D: ZonedDevice>(shared: &Shared<D>, tree: &Tree, key: &[u8]) -> Result<Window> {
    let mut inner = tree.root.inner(&shared.io)?;
    let mut next = None;
    loop {
        let child = inner.keys.child(key);
        match &inner.children {
            Children::Inners(inners) => {
                if child + 1 < inner.keys.len() {
                    next = Some(inner.keys.get(child + 1).to_vec());
                }
                let below = inners[child].inner(&shared.io)?;
                inner = below;
            }
            Children::Leaves(leaves) => {
                let end = leaves.len().min(child + WIDTH);
                if end < leaves.len() {
                    next = Some(inner.keys.get(end).to_vec());
                }
                return Ok(Window { from: key.to_vec(), leaves: leaves[child..end].to_vec(), next });
            }
        }
    }
}

impl Writer {
    /// A measure of the free space in leaves that splits and deletions have made, records.
    fn loosened(&self) -> u64 {
        16 * self.counts.split + self.deleted
    }

    /// Packs leaves until some are saved and a checkpoint has released them. Returns false if packing cannot gain
    /// space. It cannot while a snapshot needs the replaced leaves.
    pub fn pack_round<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<bool> {
        let (mut searched, mut collections_left) = (0, MAX_COLLECTIONS);
        while searched < MAX_SEARCHED && self.waiting.is_empty() && self.loosened() >= self.packing.idle_until
        {
            let (read, saved) = self.pack_some(shared)?;
            if self.dirty > 0 {
                self.begin_checkpoint(shared);
                let done = self.finish_checkpoint(shared);
                self.stop_on_error(done)?;
            }
            if saved > 0 {
                return Ok(true);
            }
            if read == 0 {
                collections_left -= 1;
                if collections_left == 0 || !self.collect_round(shared)? {
                    return Ok(false);
                }
            }
            searched += read;
        }
        Ok(false)
    }

    /// Packs leaves while there is space for the changed nodes and memory for the changed leaves. Returns the numbers of
    /// leaves read and saved.
    fn pack_some<D: ZonedDevice>(&mut self, shared: &Shared<D>) -> Result<(u64, u64)> {
        let (mut read, mut saved) = (0, 0);
        let memory = shared.options.cache_bytes / 4;
        while read < MAX_ROUND && self.has_room_to_pack(shared) && self.pinned_bytes <= memory {
            let tree = shared.published.tree();
            let found = window(shared, &tree, &self.packing.next)?;
            drop(tree);
            read += found.leaves.len() as u64;
            self.packing.read += found.leaves.len() as u64;
            let gain = match self.pack_window(shared, &found) {
                // An unreadable leaf is left unchanged; reading it returns the error.
                Err(error) if is_data_loss(&error) => 0,
                gain => gain?,
            };
            saved += gain;
            self.packing.saved += gain;
            shared.shrink_cache();
            let is_last = found.next.is_none();
            self.packing.next = found.next.unwrap_or_default();
            if is_last {
                self.end_lap();
                break;
            }
        }
        Ok((read, saved))
    }

    fn has_room_to_pack<D: ZonedDevice>(&self, shared: &Shared<D>) -> bool {
        let capacity = shared.io.geometry.zone_capacity_blocks;
        let nodes = self.dirty + 2 * WIDTH as u64;
        nodes * shared.io.node_blocks() + self.reserve(false, capacity) <= self.space.available()
    }

    /// Called after all leaves were read once. If few leaves could be saved, packing pauses until splits and deletions
    /// have made room for about one record in each leaf.
    fn end_lap(&mut self) {
        if self.packing.saved * 16 <= self.packing.read {
            self.packing.idle_until = self.loosened() + self.packing.read;
        }
        (self.packing.read, self.packing.saved) = (0, 0);
    }

    /// Packs adjacent leaves if that saves one. Returns the number of leaves saved.
    fn pack_window<D: ZonedDevice>(&mut self, shared: &Shared<D>, found: &Window) -> Result<u64> {
        let mut live = 0;
        for leaf in &found.leaves {
            live += leaf.load_uncached(&shared.io)?.live_bytes();
        }
        if found.leaves.len() < 2 || live > (found.leaves.len() - 1) * shared.io.node_bytes {
            return Ok(0);
        }
        // Holding the clock hand keeps the nodes in memory until they are changed.
        let _clock_hand = shared.clock_hand.lock().ignore_poison();
        let before = self.accounts();
        let mut update = shared.published.begin_copying_update();
        let packed = self.editor(shared).pack(update.tree(), &found.from, found.leaves.len());
        match packed {
            Ok(saved) => {
                update.publish();
                Ok(saved as u64)
            }
            Err(error) => {
                drop(update);
                self.restore_accounts(before);
                Err(error)
            }
        }
    }
}
