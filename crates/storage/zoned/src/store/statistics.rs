//! What a map did and what it takes.
//! Not the device's own counts: those are `device::Counted`'s.

use super::{ReclaimCounts, Store, TrafficCounts, TreeCounts};
use crate::device::ZonedDevice;
use serde::Serialize;

/// What a map did since it was opened, and what it takes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Keys in it.
    pub keys: u64,
    /// Layers of nodes, leaves included.
    pub layers: u32,
    /// Blocks read and written, by kind.
    pub traffic: TrafficCounts,
    /// Bytes of keys and values that were put, and of keys that were deleted.
    pub payload_bytes: u64,
    /// What happened to the tree's nodes.
    pub tree: TreeCounts,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Garbage collection.
    pub reclaim: ReclaimCounts,
    /// Bytes of leaves in memory.
    pub resident_bytes: u64,
    /// Times that a changed leaf was read again and what had changed in it made again, as it was not in memory.
    pub leaves_remade: u64,
    /// The same where the changes are in its log.
    pub logs_remade: u64,
    /// Conventional node slots in use, and all there are.
    pub slots_used: u64,
    /// All conventional node slots.
    pub slots: u64,
    /// Sequential zones that are empty.
    pub empty_zones: u64,
    /// Sequential zones.
    pub zones: u64,
    /// Blocks in sequential zones that are in use.
    pub live_blocks: u64,
    /// Blocks in sequential zones that can be in use: a map that uses less is not full, unless large values leave ends of zones unused.
    pub usable_blocks: u64,
    /// Blocks in sequential zones that were written since their reset.
    pub written_blocks: u64,
    /// The most and the fewest resets of a sequential zone.
    pub most_resets: u64,
    /// The fewest resets.
    pub fewest_resets: u64,
    /// Blocks of journal since the last checkpoint.
    pub journal_blocks: u64,
}

impl Statistics {
    /// Bytes written for each byte put.
    pub fn write_amplification(&self, block_bytes: u32) -> f64 {
        self.traffic.written() as f64 * f64::from(block_bytes) / self.payload_bytes.max(1) as f64
    }
}

impl<D: ZonedDevice> Store<D> {
    /// What it did and what it takes.
    pub fn statistics(&self) -> Statistics {
        let writer = self.shared.writer();
        let tree = self.shared.newest.tree();
        let zones = &writer.space.zones;
        let (leaves_remade, logs_remade) = self.shared.io.remade();
        let (slots_used, slots) = writer.space.slots_used();
        Statistics {
            keys: tree.len,
            layers: tree.root.node.get().map_or(1, |inner| u32::from(inner.level)) + 1,
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
