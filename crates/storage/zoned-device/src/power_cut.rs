//! Power-cut simulation: generates the images that the contract of [`super::ZonedDevice`] allows after a power cut.
//!
//! Source: the model stays within NVM Express Base Specification 2.0, section 5.8 (flush), and NVM Command Set, section
//! 2.1.4 (atomicity across power cuts).

use super::memory::MemoryDevice;
use super::{Block, Condition, DeviceError, ZoneNumber, ZonedDevice};
use longma_random::SplitMix64;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The unit in which a write is torn, bytes. Every drive writes at least this much atomically.
const SECTOR_BYTES: usize = 512;

/// A change of a device.
#[derive(Clone, Debug)]
pub enum Change {
    /// A completed write or append.
    Write {
        /// The first block.
        block: Block,
        /// The bytes.
        data: Arc<[u8]>,
    },
    /// A zone reset.
    Reset(ZoneNumber),
    /// A zone finish.
    Finish(ZoneNumber),
    /// A flush: all earlier writes are durable.
    Flush,
    /// A failed flush: data written in place since the previous flush is never made durable.
    FailedFlush,
}

/// The fate of a write that was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is completely on the medium.
    Whole,
    /// No part of it is on the medium.
    Lost,
    /// A part of it is on the medium: a prefix of blocks in a sequential zone, any sectors in a conventional zone. The
    /// number selects which.
    Torn(u64),
}

/// A device at the moment of a power cut: its durable state and the pending writes.
pub struct Cut {
    safe: MemoryDevice,
    /// Writes since the last flush, the oldest first.
    pending: Vec<(Block, Arc<[u8]>)>,
}

impl Clone for Cut {
    fn clone(&self) -> Self {
        Self { safe: self.safe.snapshot(), pending: self.pending.clone() }
    }
}

impl Change {
    pub(super) fn write(block: Block, data: &[u8]) -> Self {
        Self::Write { block, data: data.into() }
    }
}

impl Cut {
    /// Wraps a device whose contents are all durable.
    pub(super) fn of(device: &MemoryDevice) -> Self {
        let safe = device.snapshot();
        safe.table().close_all();
        Self { safe, pending: Vec::new() }
    }

    /// The number of writes that are not durable.
    pub fn pending_writes(&self) -> usize {
        self.pending.len()
    }

    /// The image that remains if `fate(i)` is the fate of pending write `i`, the oldest being 0. In a sequential zone,
    /// all data after the first incomplete write is lost.
    pub fn image(&self, mut fate: impl FnMut(usize) -> Fate) -> MemoryDevice {
        let image = self.safe.snapshot();
        let mut ended = BTreeSet::new();
        for (index, (block, data)) in self.pending.iter().enumerate() {
            let fate = fate(index);
            let zone = image.geometry().zone_of(*block);
            if image.geometry().is_conventional(zone) {
                write_in_place(&image, *block, data, fate);
            } else if !ended.contains(&zone) {
                let bytes = remaining_bytes(data.len(), image.geometry().block_bytes as usize, fate);
                write_at_pointer(&image, *block, &data[..bytes]);
                if bytes < data.len() {
                    ended.insert(zone);
                }
            }
        }
        image
    }

    /// The image with all pending writes.
    pub fn image_with_all(&self) -> MemoryDevice {
        self.image(|_| Fate::Whole)
    }

    /// The image without any pending write.
    pub fn image_with_none(&self) -> MemoryDevice {
        self.image(|_| Fate::Lost)
    }

    /// An image with fates chosen by `seed`. The proportion of lost writes varies between seeds.
    pub fn random_image(&self, seed: u64) -> MemoryDevice {
        let mut rng = SplitMix64::new(seed);
        let (lost, torn) = (rng.next_u64() % 101, rng.next_u64() % 101);
        self.image(|_| match (rng.next_u64() % 100 < lost, rng.next_u64() % 100 < torn) {
            (false, _) => Fate::Whole,
            (true, false) => Fate::Lost,
            (true, true) => Fate::Torn(rng.next_u64()),
        })
    }

    /// At most `limit` images with different fates. The first image contains all writes, the second none. Then follow
    /// the images in which a single write is lost, those in which a single write is present, and those in which a
    /// single write is torn. Each group starts with the newest write, which detects a missing flush soonest. Then, if
    /// there are few writes, come all combinations of lost and whole, and finally random fates.
    pub fn images(&self, limit: usize, seed: u64) -> impl Iterator<Item = MemoryDevice> + '_ {
        let count = self.pending.len();
        let newest_first = move || (0..count).rev();
        let lost = newest_first().map(|one| self.image(|i| if i == one { Fate::Lost } else { Fate::Whole }));
        let present =
            newest_first().map(|one| self.image(|i| if i == one { Fate::Whole } else { Fate::Lost }));
        let torn = newest_first().map(move |one| {
            let which = SplitMix64::new(seed ^ one as u64).next_u64();
            self.image(|i| if i == one { Fate::Torn(which) } else { Fate::Whole })
        });
        let combinations = if count > 2 && count < 16 { 1u32 << count } else { 0 };
        let every = (0..combinations)
            .map(|kept| self.image(|i| if kept >> i & 1 == 1 { Fate::Whole } else { Fate::Lost }));
        let rng = if count == 0 { 0 } else { limit };
        let random_faults = (0..rng).map(move |n| self.random_image(seed.wrapping_add(n as u64)));
        let all = std::iter::once_with(|| self.image_with_all());
        let nothing = (count > 0).then(|| self.image_with_none()).into_iter();
        all.chain(nothing)
            .chain(lost)
            .chain(present)
            .chain(torn)
            .chain(every)
            .chain(random_faults)
            .take(limit)
    }

    /// Applies the next change of the device.
    pub(super) fn change(&mut self, change: Change) {
        match change {
            Change::Write { data, .. } if data.is_empty() => {}
            Change::Write { block, data } => {
                self.make_room_for(block);
                self.pending.push((block, data));
            }
            Change::Reset(zone) => {
                self.forget(zone);
                // The live device has accepted this reset.
                let _ = self.safe.reset(zone);
            }
            Change::Finish(zone) => {
                self.make_zone_safe(zone);
                let _ = self.safe.finish(zone);
            }
            Change::Flush => {
                (self.safe, self.pending) = (self.image_with_all(), Vec::new());
            }
            // Linux marks pages as clean even if writing them failed, so that no later flush retries. Data written in
            // place is lost; appended data is written with the next flush of its zone.
            Change::FailedFlush => {
                let geometry = self.safe.geometry();
                self.pending.retain(|(block, _)| !geometry.is_conventional(geometry.zone_of(*block)));
            }
        }
    }

    /// Where the number of active zones is limited, a device must make a full zone durable before it activates another
    /// one: the limit also holds after a power cut.
    fn make_room_for(&mut self, block: Block) {
        let geometry = self.safe.geometry();
        let zone = geometry.zone_of(block);
        if geometry.max_active_zones == 0 || geometry.is_conventional(zone) || block != geometry.start(zone) {
            return;
        }
        let end = |(block, data): &(Block, Arc<[u8]>)| {
            let of = geometry.zone_of(*block);
            let blocks = data.len() as u64 / u64::from(geometry.block_bytes);
            let full = block.0 + blocks == geometry.start(of).0 + geometry.zone_capacity_blocks;
            (full && !geometry.is_conventional(of)).then_some(of)
        };
        let full: Vec<_> = self.pending.iter().filter_map(end).collect();
        full.into_iter().for_each(|zone| self.make_zone_safe(zone));
    }

    fn make_zone_safe(&mut self, zone: ZoneNumber) {
        let geometry = self.safe.geometry();
        for (block, data) in &self.pending {
            if geometry.zone_of(*block) == zone {
                write_at_pointer(&self.safe, *block, data);
            }
        }
        self.forget(zone);
    }

    fn forget(&mut self, zone: ZoneNumber) {
        let geometry = self.safe.geometry();
        self.pending.retain(|(block, _)| geometry.zone_of(*block) != zone);
    }

    pub(super) fn flip_bit(&mut self, block: Block, bit: u64) -> Result<(), DeviceError> {
        self.safe.flip_bit(block, bit)?;
        let block_bytes = u64::from(self.safe.geometry().block_bytes);
        for (first, data) in &mut self.pending {
            let byte = (block.0.wrapping_sub(first.0)).checked_mul(block_bytes).map(|at| at + bit / 8);
            if let Some(byte) = byte.and_then(|at| Arc::make_mut(data).get_mut(at as usize)) {
                *byte ^= 1 << (bit % 8);
            }
        }
        Ok(())
    }

    /// Overwrites the medium and the pending writes.
    pub(super) fn overwrite(&mut self, block: Block, data: &[u8]) {
        let geometry = self.safe.geometry();
        let (zone, block_bytes) = (geometry.zone_of(block), geometry.block_bytes as usize);
        self.safe.store(zone, (block.0 - geometry.start(zone).0) as usize * block_bytes, data);
        for (number, content) in (block.0..).zip(data.chunks(block_bytes)) {
            for (first, pending) in &mut self.pending {
                let at = number.checked_sub(first.0).map(|blocks| blocks as usize * block_bytes);
                if let Some(place) = at.and_then(|at| Arc::make_mut(pending).get_mut(at..at + block_bytes)) {
                    place.copy_from_slice(content);
                }
            }
        }
    }

    pub(super) fn wear_out(&mut self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        self.make_zone_safe(zone);
        self.safe.wear_out(zone, condition)
    }
}

/// All changes of a device over a period, to be cut after each of them.
pub struct Recording {
    start: Cut,
    before: u64,
    changes: Vec<Change>,
}

impl Recording {
    pub(super) const fn beginning_with(start: Cut, before: u64) -> Self {
        Self { start, before, changes: Vec::new() }
    }

    pub(super) fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// The changes, in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The device cut before the first change and after each change, with the value of [`super::FaultyDevice::changes`]
    /// at that moment.
    pub fn cuts(&self) -> impl Iterator<Item = (u64, Cut)> + '_ {
        let mut now = self.start.clone();
        let start = std::iter::once((self.before, self.start.clone()));
        start.chain(self.changes.iter().zip(self.before + 1..).map(move |(change, number)| {
            now.change(change.clone());
            (number, now.clone())
        }))
    }
}

/// The number of bytes of a sequential write that remain.
fn remaining_bytes(bytes: usize, block_bytes: usize, fate: Fate) -> usize {
    match fate {
        Fate::Whole => bytes,
        Fate::Lost => 0,
        Fate::Torn(which) => (which % (bytes / block_bytes) as u64) as usize * block_bytes,
    }
}

/// Applies the rest of a write to a sequential zone. The limits on open zones are not checked again; the live device
/// has enforced them.
fn write_at_pointer(image: &MemoryDevice, block: Block, data: &[u8]) {
    let geometry = image.geometry();
    if data.is_empty() {
        return;
    }
    let zone = geometry.zone_of(block);
    let offset = block.0 - geometry.start(zone).0;
    image.store(zone, offset as usize * geometry.block_bytes as usize, data);
    let write_pointer = offset + data.len() as u64 / u64::from(geometry.block_bytes);
    let full = write_pointer == geometry.zone_capacity_blocks;
    let condition = if full { Condition::Full } else { Condition::Closed };
    let mut table = image.table();
    let resets = table.zone(zone).ok().and_then(|zone| zone.resets).unwrap_or_default();
    // The live device accepted the write, so the state is valid.
    let _ = table.restore(zone, condition, write_pointer, resets);
}

/// Applies the rest of a write to a conventional zone.
fn write_in_place(image: &MemoryDevice, block: Block, data: &[u8], fate: Fate) {
    let geometry = image.geometry();
    let zone = geometry.zone_of(block);
    let start = (block.0 - geometry.start(zone).0) as usize * geometry.block_bytes as usize;
    match fate {
        Fate::Lost => {}
        Fate::Whole => image.store(zone, start, data),
        Fate::Torn(which) => {
            let mut rng = SplitMix64::new(which);
            // Keep the first sectors, the last ones, or a random subset.
            let (kind, sectors) = (rng.next_u64() % 3, data.len() / SECTOR_BYTES);
            let border = (rng.next_u64() % (sectors as u64 + 1)) as usize;
            for (sector, bytes) in data.chunks(SECTOR_BYTES).enumerate() {
                let is_written = match kind {
                    0 => sector < border,
                    1 => sector >= border,
                    _ => rng.next_u64().is_multiple_of(2),
                };
                if is_written {
                    image.store(zone, start + sector * SECTOR_BYTES, bytes);
                }
            }
        }
    }
}
