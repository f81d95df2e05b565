//! Statistics of a map: operations since it was opened, and its current size.

use crate::device::ZonedDevice;
use crate::store::{ReclaimCounts, Store, TrafficCounts, TreeCounts};
use serde::Serialize;

/// Operations since the map was opened, and its current size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// The number of keys.
    pub keys: u64,
    /// Levels of the tree, including the leaves.
    pub layers: u32,
    /// Blocks read and written, by kind.
    pub traffic: TrafficCounts,
    /// Bytes of keys and values written, and of keys deleted.
    pub payload_bytes: u64,
    /// Tree operations.
    pub tree: TreeCounts,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Garbage collection statistics.
    pub reclaim: ReclaimCounts,
    /// Bytes of leaves and inner nodes in memory.
    pub resident_bytes: u64,
    /// Evicted dirty leaf pages that were rebuilt from their base and their changes.
    pub leaves_remade: u64,
    /// Evicted dirty logs that were rebuilt from their base and their changes.
    pub logs_remade: u64,
    /// Conventional node slots in use.
    pub slots_used: u64,
    /// All conventional node slots.
    pub slots: u64,
    /// Sequential zones that are empty.
    pub empty_zones: u64,
    /// Sequential zones.
    pub zones: u64,
    /// Live blocks in sequential zones.
    pub live_blocks: u64,
    /// Blocks in sequential zones that can be in use. A map below this limit is not full, unless large values leave the
    /// ends of zones unused.
    pub usable_blocks: u64,
    /// Blocks in sequential zones written since the last reset of their zone.
    pub written_blocks: u64,
    /// The highest reset count of any sequential zone.
    pub most_resets: u64,
    /// The lowest reset count of any sequential zone.
    pub fewest_resets: u64,
    /// Journal blocks written since the last checkpoint.
    pub journal_blocks: u64,
}

impl Statistics {
    /// Bytes written to the device per byte of payload.
    pub fn write_amplification(&self, block_bytes: u32) -> f64 {
        self.traffic.written() as f64 * f64::from(block_bytes) / self.payload_bytes.max(1) as f64
    }
}

impl<D: ZonedDevice> Store<D> {
    /// Returns the current statistics.
    pub fn statistics(&self) -> Statistics {
        let writer = self.writer.lock();
        let tree = self.shared.published.tree();
        let zones = &writer.space.zones;
        let (leaves_remade, logs_remade) = self.shared.io.rebuilt();
        let (slots_used, slots) = writer.space.slots_used();
        Statistics {
            keys: tree.len,
            layers: tree.root.loaded().map_or(1, |inner| u32::from(inner.level)) + 1,
            traffic: self.shared.io.counts(),
            payload_bytes: writer.payload_bytes,
            tree: writer.counts,
            checkpoints: writer.checkpoints,
            reclaim: writer.reclaim.counts,
            resident_bytes: self.shared.io.resident_bytes(),
            leaves_remade,
            logs_remade,
            slots_used,
            slots,
            empty_zones: writer.space.empty_zones() as u64,
            zones: zones.len() as u64,
            live_blocks: zones.iter().map(|zone| zone.live()).sum(),
            usable_blocks: writer.usable_blocks(),
            written_blocks: zones.iter().map(|zone| zone.written).sum(),
            most_resets: zones.iter().map(|zone| zone.resets).max().unwrap_or(0),
            fewest_resets: zones.iter().map(|zone| zone.resets).min().unwrap_or(0),
            journal_blocks: writer.journal.blocks,
        }
    }
}
