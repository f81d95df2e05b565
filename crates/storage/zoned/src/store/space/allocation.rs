//! Space allocation: node-sized slots in conventional zones, write pointers of sequential zones, and the choice of
//! zones.
//!
//! Source: the ZB+-tree paper's hot and cold zones, made wear-aware: among the emptiest zones, hot data goes to the
//! least worn and cold data to the most worn.

use crate::device::{Condition, Geometry, Zone, ZoneNumber};
use crate::error::{Error, Result};
use crate::store::superblock::SpaceTable;

/// A class of appended data. Each stream has its own zone, if the device allows that many active zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Changed leaves.
    Hot,
    /// Heads and interior nodes. Most of them change between two checkpoints, so their zones become empty without
    /// collection.
    Cold,
    /// Large values.
    Extents,
    /// Leaves relocated by garbage collection. They have not changed for long and are likely to stay unchanged.
    Moved,
}

/// The intended use of a conventional slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Heads, and interior nodes that are not full.
    Inner,
    /// Logs of leaves. A log in a sequential zone would cost as much space as its leaf.
    Log,
    /// Leaves that are not full.
    Leaf,
}

/// The use of a sequential zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The zone is empty or holds only garbage.
    Free,
    /// Nodes and large values.
    Data,
    /// The journal.
    Journal,
    /// The zone is worn out and accepts no writes.
    Unusable,
}

/// A sequential zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequentialZone {
    pub number: ZoneNumber,
    pub role: Role,
    /// The next block to write, relative to the start of the zone.
    pub written: u64,
    pub capacity: u64,
    /// Blocks of nodes and of large values that are in use, or may be until the next checkpoint.
    pub live_nodes: u64,
    pub live_extents: u64,
    pub resets: u64,
    /// The checkpoint that filled the zone, if known.
    pub filled: u64,
    /// Whether garbage collection is emptying the zone. It is not written any more.
    pub is_victim: bool,
}

impl SequentialZone {
    pub const fn live(&self) -> u64 {
        self.live_nodes + self.live_extents
    }

    /// Blocks that were written and are not in use.
    pub const fn garbage(&self) -> u64 {
        self.written.saturating_sub(self.live())
    }

    pub const fn room(&self) -> u64 {
        match self.role {
            Role::Unusable => 0,
            _ => self.capacity - self.written,
        }
    }
}

/// The allocation state of a device.
#[derive(Clone)]
pub(crate) struct Space {
    device: String,
    pub geometry: Geometry,
    node_blocks: u64,
    /// Conventional blocks before the first slot: superblocks and space tables.
    fixed_blocks: u64,
    /// A bit for each conventional slot; 1 means in use.
    slots: Vec<u64>,
    slot_count: u64,
    free_slots: u64,
    /// The slot at which the next search for a free slot starts.
    next_slot: u64,
    pub zones: Vec<SequentialZone>,
    /// The current zone of each stream.
    streams: [Option<usize>; 4],
    /// The generation of the checkpoint being written.
    pub generation: u64,
}

impl Space {
    /// The space of an empty device. `zones` is the device's zone report.
    pub fn new(
        device: String,
        geometry: Geometry,
        node_blocks: u64,
        fixed_blocks: u64,
        zones: &[Zone],
    ) -> Self {
        let slot_count = slots_of(&geometry, node_blocks, fixed_blocks);
        let sequential = |zone: &Zone| SequentialZone {
            number: zone.number,
            role: if takes_writes(zone.condition) { Role::Free } else { Role::Unusable },
            written: zone.write_pointer.min(zone.capacity_blocks),
            capacity: zone.capacity_blocks,
            live_nodes: 0,
            live_extents: 0,
            resets: zone.resets.unwrap_or_default(),
            filled: 0,
            is_victim: false,
        };
        let zones = zones.iter().skip(geometry.conventional_zones as usize).map(sequential).collect();
        Self {
            device,
            geometry,
            node_blocks,
            fixed_blocks,
            slots: vec![0; slot_count.div_ceil(64) as usize],
            slot_count,
            free_slots: slot_count,
            next_slot: 0,
            zones,
            streams: [None; 4],
            generation: 0,
        }
    }

    fn first_zone_slots(&self) -> u64 {
        (self.geometry.zone_blocks - self.fixed_blocks).saturating_sub(SECOND_SUPERBLOCKS) / self.node_blocks
    }

    fn slot_block(&self, slot: u64) -> u64 {
        let first = self.first_zone_slots();
        match slot.checked_sub(first) {
            None => self.fixed_blocks + slot * self.node_blocks,
            Some(rest) => {
                let each = self.geometry.zone_blocks / self.node_blocks;
                (1 + rest / each) * self.geometry.zone_blocks + rest % each * self.node_blocks
            }
        }
    }

    /// The slot that starts at a block, if one does.
    fn block_slot(&self, block: u64) -> Option<u64> {
        let (zone, inside) = (block / self.geometry.zone_blocks, block % self.geometry.zone_blocks);
        let slot = if zone == 0 {
            inside.checked_sub(self.fixed_blocks)? / self.node_blocks
        } else {
            let each = self.geometry.zone_blocks / self.node_blocks;
            self.first_zone_slots() + (zone - 1) * each + inside / self.node_blocks
        };
        (slot < self.slot_count && self.slot_block(slot) == block).then_some(slot)
    }

    fn is_used(&self, slot: u64) -> bool {
        self.slots[(slot / 64) as usize] & (1 << (slot % 64)) != 0
    }

    /// The number of slots available for logs. A quarter of all slots is reserved for inner nodes.
    pub const fn slots_for_logs(&self) -> u64 {
        self.free_slots.saturating_sub(self.slot_count / 4)
    }

    /// Allocates a conventional slot and returns its first block. A quarter of the slots is reserved for inner nodes,
    /// and another quarter for inner nodes and logs; leaves can go to sequential zones instead.
    pub fn take_slot(&mut self, slot: Slot) -> Option<u64> {
        let reserved = match slot {
            Slot::Inner => 0,
            Slot::Log => self.slot_count / 4,
            Slot::Leaf => self.slot_count / 2,
        };
        if self.free_slots <= reserved { None } else { self.take_any_slot() }
    }

    /// Allocates any free conventional slot.
    pub fn take_any_slot(&mut self) -> Option<u64> {
        if self.free_slots == 0 {
            return None;
        }
        let words = self.slots.len() as u64;
        let mut word = self.next_slot / 64;
        let mut mask = u64::MAX << (self.next_slot % 64);
        for _ in 0..=words {
            let free = !self.slots[word as usize] & mask;
            let slot = word * 64 + u64::from(free.trailing_zeros());
            if free != 0 && slot < self.slot_count {
                self.slots[word as usize] |= 1 << (slot % 64);
                self.free_slots -= 1;
                self.next_slot = (slot + 1) % self.slot_count;
                return Some(self.slot_block(slot));
            }
            (word, mask) = ((word + 1) % words, u64::MAX);
        }
        None
    }

    /// The index of the sequential zone that contains a block.
    pub fn zone_index(&self, block: u64) -> Option<usize> {
        let zone =
            (block / self.geometry.zone_blocks).checked_sub(self.geometry.conventional_zones.into())?;
        usize::try_from(zone).ok().filter(|&index| index < self.zones.len())
    }

    /// Releases the blocks of a node.
    pub fn release_node(&mut self, block: u64) {
        if let Some(index) = self.zone_index(block) {
            let zone = &mut self.zones[index];
            zone.live_nodes = zone.live_nodes.saturating_sub(self.node_blocks);
        } else if let Some(slot) = self.block_slot(block)
            && self.is_used(slot)
        {
            self.slots[(slot / 64) as usize] &= !(1 << (slot % 64));
            self.free_slots += 1;
        }
    }

    /// Releases the blocks of a large value.
    pub fn release_extent(&mut self, block: u64, blocks: u64) {
        if let Some(index) = self.zone_index(block) {
            let zone = &mut self.zones[index];
            zone.live_extents = zone.live_extents.saturating_sub(blocks);
        }
    }

    /// Marks a node as in use while a tree is read. Returns false if the block is not a valid place for a node or is
    /// already in use.
    pub fn claim_node(&mut self, block: u64) -> bool {
        if let Some(index) = self.zone_index(block) {
            let zone = &mut self.zones[index];
            let inside = block % self.geometry.zone_blocks;
            zone.role = if zone.role == Role::Unusable { Role::Unusable } else { Role::Data };
            zone.live_nodes += self.node_blocks;
            return zone.role == Role::Unusable || inside + self.node_blocks <= zone.written;
        }
        match self.block_slot(block) {
            Some(slot) if !self.is_used(slot) => {
                self.slots[(slot / 64) as usize] |= 1 << (slot % 64);
                self.free_slots -= 1;
                true
            }
            _ => false,
        }
    }

    /// Marks a large value as in use. Returns false if the block is not a valid place for it.
    pub fn claim_extent(&mut self, block: u64, blocks: u64) -> bool {
        let Some(index) = self.zone_index(block) else { return false };
        let zone = &mut self.zones[index];
        let inside = block % self.geometry.zone_blocks;
        zone.role = if zone.role == Role::Unusable { Role::Unusable } else { Role::Data };
        zone.live_extents += blocks;
        zone.role == Role::Unusable || inside.saturating_add(blocks) <= zone.written
    }

    /// The number of streams with their own zone. On a device with few zones, separate zones would take up too large a
    /// share of it.
    pub fn stream_count(&self) -> u64 {
        let limits = [self.geometry.max_open_zones, self.geometry.max_active_zones];
        let limit = limits.into_iter().filter(|&limit| limit > 0).min();
        // One zone is for the journal, and another may have been partly written before the map was opened.
        let limit = limit.map_or(4, |limit| if limit < 5 { limit.max(2) - 1 } else { limit - 2 });
        let enough = match self.zones.len() {
            ..12 => 1,
            12..24 => 2,
            24..48 => 3,
            _ => 4,
        };
        u64::from(limit.min(enough))
    }

    fn stream_index(&self, stream: Stream) -> usize {
        match (self.stream_count(), stream) {
            (..2, _) | (_, Stream::Hot) | (2, Stream::Extents) | (2..4, Stream::Moved) => 0,
            _ => stream as usize,
        }
    }

    /// Reserves `blocks` at the write pointer of a stream's zone and returns the first block. The caller must write
    /// there before anything else is written to the zone. The second value is a zone to be finished, because its
    /// remaining space is too small.
    pub fn take_appended(&mut self, stream: Stream, blocks: u64) -> Result<(u64, Option<ZoneNumber>)> {
        let place = self.stream_index(stream);
        let current = self.streams[place];
        let zone = match current.filter(|&zone| self.zones[zone].room() >= blocks) {
            Some(zone) => zone,
            None => self.zone_for(stream, blocks).ok_or_else(|| Error::Full {
                device: self.device.clone(),
                needed: blocks,
                free: self.available(),
                held: 0,
            })?,
        };
        // Give up the current zone only now: if no other zone is available, the stream keeps it.
        let mut finished = None;
        if let Some(current) = current.filter(|&current| current != zone && self.zones[current].room() > 0) {
            finished = Some(self.zones[current].number);
            self.zones[current].written = self.zones[current].capacity;
        }
        self.streams[place] = Some(zone);
        let zone = &mut self.zones[zone];
        zone.role = Role::Data;
        let block = u64::from(zone.number.0) * self.geometry.zone_blocks + zone.written;
        zone.written += blocks;
        match stream {
            Stream::Extents => zone.live_extents += blocks,
            _ => zone.live_nodes += blocks,
        }
        zone.filled = self.generation;
        Ok((block, finished))
    }

    /// Whether there is a zone with room for `blocks`.
    pub fn can_append(&self, stream: Stream, blocks: u64) -> bool {
        let own = self.streams[self.stream_index(stream)];
        own.is_some_and(|zone| self.zones[zone].room() >= blocks) || self.zone_for(stream, blocks).is_some()
    }

    fn zone_for(&self, stream: Stream, blocks: u64) -> Option<usize> {
        self.choose(stream, blocks).or_else(|| self.shared_zone(blocks))
    }

    /// The zone of another stream, used if no zone is left for this stream.
    fn shared_zone(&self, blocks: u64) -> Option<usize> {
        self.streams.iter().flatten().copied().find(|&zone| self.zones[zone].room() >= blocks)
    }

    /// Chooses a zone for a stream. Partly written zones come first, because they are already active.
    fn choose(&self, stream: Stream, blocks: u64) -> Option<usize> {
        let taken = |index: &usize| self.streams.contains(&Some(*index));
        let usable = |index: &usize| {
            let zone = &self.zones[*index];
            let fits = zone.room() >= blocks && !taken(index) && !zone.is_victim;
            fits && (zone.role == Role::Free || (zone.role == Role::Data && zone.room() > 0))
        };
        let partly = |zone: &SequentialZone| zone.written > 0;
        let zones = (0..self.zones.len()).filter(usable);
        match stream {
            Stream::Cold => zones.min_by_key(|&index| {
                let zone = &self.zones[index];
                (!partly(zone), u64::MAX - zone.resets, zone.room())
            }),
            _ => zones.min_by_key(|&index| {
                let zone = &self.zones[index];
                (!partly(zone), zone.resets, u64::MAX - zone.room())
            }),
        }
    }

    /// Allocates the least worn empty zone for the journal.
    pub fn take_journal_zone(&mut self) -> Option<usize> {
        let empty = |index: &usize| self.zones[*index].role == Role::Free && self.zones[*index].written == 0;
        let zone = (0..self.zones.len()).filter(empty).min_by_key(|&index| self.zones[index].resets)?;
        self.zones[zone].role = Role::Journal;
        Some(zone)
    }

    /// The zones to reset: garbage zones, and journal zones for which `is_needed` returns false.
    pub fn dead_zones(&self, is_needed: impl Fn(usize) -> bool) -> Vec<usize> {
        let dead = |index: &usize| {
            let zone = &self.zones[*index];
            zone.written > 0
                && match zone.role {
                    Role::Free => true,
                    Role::Data => zone.live() == 0 && !self.streams.contains(&Some(*index)),
                    Role::Journal => !is_needed(*index),
                    Role::Unusable => false,
                }
        };
        (0..self.zones.len()).filter(dead).collect()
    }

    pub fn was_reset(&mut self, index: usize) {
        let zone = &mut self.zones[index];
        *zone = SequentialZone {
            role: Role::Free,
            written: 0,
            live_nodes: 0,
            live_extents: 0,
            is_victim: false,
            ..*zone
        };
        zone.resets += 1;
        for stream in &mut self.streams {
            if *stream == Some(index) {
                *stream = None;
            }
        }
    }

    pub fn is_stream(&self, index: usize) -> bool {
        self.streams.contains(&Some(index))
    }

    /// Free blocks: in empty and partly filled sequential zones, and in free slots.
    pub fn available(&self) -> u64 {
        let open = |index: &usize| match self.zones[*index].role {
            Role::Free => self.zones[*index].written == 0,
            Role::Data => self.zones[*index].room() > 0 && !self.zones[*index].is_victim,
            _ => false,
        };
        let room: u64 = (0..self.zones.len()).filter(open).map(|index| self.zones[index].room()).sum();
        room + self.free_slots * self.node_blocks
    }

    /// Free blocks in sequential zones.
    pub fn available_sequential(&self) -> u64 {
        self.available() - self.free_slots * self.node_blocks
    }

    /// Garbage blocks in data zones.
    pub fn garbage(&self) -> u64 {
        self.zones.iter().filter(|zone| zone.role == Role::Data).map(SequentialZone::garbage).sum()
    }

    /// The number of empty, free zones.
    pub fn empty_zones(&self) -> usize {
        self.zones.iter().filter(|zone| zone.role == Role::Free && zone.written == 0).count()
    }

    /// The number of nodes in use.
    pub fn nodes_used(&self) -> u64 {
        let sequential: u64 = self.zones.iter().map(|zone| zone.live_nodes).sum();
        sequential / self.node_blocks + self.slot_count - self.free_slots
    }

    /// The number of conventional slots in use, and of all conventional slots.
    pub const fn slots_used(&self) -> (u64, u64) {
        (self.slot_count - self.free_slots, self.slot_count)
    }

    /// The allocation bitmap of the conventional slots.
    pub fn slot_bits(&self) -> &[u64] {
        &self.slots
    }

    /// Restores slots and zones from a space table.
    pub fn restore(&mut self, table: &SpaceTable) {
        for (own, bits) in self.slots.iter_mut().zip(&table.slots) {
            *own = *bits;
        }
        let used: u64 = self.slots.iter().map(|word| u64::from(word.count_ones())).sum();
        self.free_slots = self.slot_count.saturating_sub(used);
        self.restore_wear(table);
        for (zone, entry) in self.zones.iter_mut().zip(&table.zones) {
            (zone.live_nodes, zone.live_extents) = (entry.nodes.into(), entry.extents.into());
            if zone.live() > 0 && zone.role == Role::Free {
                zone.role = Role::Data;
            }
        }
    }
}

impl Space {
    /// Restores the reset counts from a space table. A higher count reported by the device takes precedence.
    pub fn restore_wear(&mut self, table: &SpaceTable) {
        for (zone, entry) in self.zones.iter_mut().zip(&table.zones) {
            let since = u64::from(entry.is_written && zone.written == 0);
            zone.resets = zone.resets.max(u64::from(entry.resets) + since);
        }
    }
}

/// The last blocks of the first zone hold the second copies of the superblocks.
const SECOND_SUPERBLOCKS: u64 = 2;

/// The number of node-sized slots in the conventional zones, after the fixed blocks.
pub(crate) fn slots_of(geometry: &Geometry, node_blocks: u64, fixed_blocks: u64) -> u64 {
    let first = geometry.zone_blocks.saturating_sub(fixed_blocks + SECOND_SUPERBLOCKS) / node_blocks;
    let others = u64::from(geometry.conventional_zones).saturating_sub(1);
    if geometry.conventional_zones == 0 { 0 } else { first + others * (geometry.zone_blocks / node_blocks) }
}

/// Whether a zone in this condition accepts writes.
pub(crate) const fn takes_writes(condition: Condition) -> bool {
    !matches!(condition, Condition::ReadOnly | Condition::Offline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{MemoryDevice, ZonedDevice};

    #[test]
    fn a_zone_keeps_its_room_when_no_zone_is_left_for_a_larger_request() {
        let geometry = Geometry {
            block_bytes: 512,
            zone_blocks: 16,
            zone_capacity_blocks: 16,
            conventional_zones: 1,
            sequential_zones: 1,
            max_open_zones: 0,
            max_active_zones: 0,
        };
        let zones = MemoryDevice::new(geometry).and_then(|device| device.zones()).expect("a small device");
        let mut space = Space::new("memory".into(), geometry, 1, 4, &zones);
        let (first, _) = space.take_appended(Stream::Hot, 10).expect("an empty zone");
        for _ in 0..2 {
            let full = space.take_appended(Stream::Hot, 10);
            assert!(matches!(full, Err(Error::Full { needed: 10, .. })), "{full:?}");
        }
        let (second, finished) = space.take_appended(Stream::Hot, 6).expect("six blocks are free");
        assert_eq!((second, finished), (first + 10, None));
    }
}
