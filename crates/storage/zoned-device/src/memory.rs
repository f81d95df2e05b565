//! A zoned device in memory that enforces the zone rules. Memory is allocated only for written blocks and is shared
//! between snapshots.

use super::zones::{Span, ZoneTable};
use super::{Block, Condition, DeviceError, Geometry, Operation, Zone, ZoneNumber, ZonedDevice};
use longma_locks::IgnorePoison;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// The fill byte of blocks not written since the last reset. null_blk uses the same value, and it is unlikely to be
/// mistaken for data.
pub(super) const UNWRITTEN: u8 = 0xff;

/// The blocks of one zone. Blocks that were never written or were forgotten are `None`.
type Blocks = Vec<Option<Arc<[u8]>>>;

/// A zoned device in memory.
pub struct MemoryDevice {
    geometry: Geometry,
    table: Mutex<ZoneTable>,
    zones: Vec<RwLock<Arc<Blocks>>>,
}

impl MemoryDevice {
    /// Creates a device whose conventional zones are zero-filled and whose sequential zones are empty.
    ///
    /// # Errors
    /// Those of [`Geometry::check`].
    pub fn new(geometry: Geometry) -> Result<Self, DeviceError> {
        let table = ZoneTable::new(geometry)?;
        let zones = (0..geometry.zones()).map(|_| RwLock::default()).collect();
        Ok(Self { geometry, table: Mutex::new(table), zones })
    }

    /// Copies the device. The copy shares all blocks with the original until one of them is written. It is consistent
    /// only if there are no concurrent writes.
    pub fn snapshot(&self) -> Self {
        let copy = |zone: &RwLock<Arc<Blocks>>| RwLock::new(zone.read().ignore_poison().clone());
        let table = Mutex::new(self.table().clone());
        Self { geometry: self.geometry, table, zones: self.zones.iter().map(copy).collect() }
    }

    /// Inverts a bit of a block, like bit rot. `bit` counts from the least significant bit of the first byte.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn flip_bit(&self, block: Block, bit: u64) -> Result<(), DeviceError> {
        let block_bytes = self.geometry.block_bytes as usize;
        let span = ZoneTable::span(&self.geometry, Operation::Write, block, block_bytes)?;
        let mut bytes = vec![0; block_bytes];
        self.load(span.zone, self.bytes(span.offset), &mut bytes);
        bytes[bit as usize / 8 % block_bytes] ^= 1 << (bit % 8);
        self.store(span.zone, self.bytes(span.offset), &bytes);
        Ok(())
    }

    /// Simulates wear: makes a sequential zone read-only or offline.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`]; [`DeviceError::Geometry`] for a conventional zone or any other condition.
    pub fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        if !matches!(condition, Condition::ReadOnly | Condition::Offline) {
            return Err(DeviceError::Geometry {
                what: format!("a zone cannot wear out to the condition {condition}"),
            });
        }
        let mut table = self.table();
        let Zone { write_pointer, resets, .. } = table.zone(zone)?;
        table.restore(zone, condition, write_pointer, resets.unwrap_or_default())
    }

    /// The zone states, for devices built on this one.
    pub(super) fn table(&self) -> MutexGuard<'_, ZoneTable> {
        self.table.lock().ignore_poison()
    }

    /// Stores bytes without applying the zone rules. `byte` is relative to the start of the zone.
    pub(super) fn store(&self, zone: ZoneNumber, byte: usize, mut data: &[u8]) {
        let mut held = self.zones[zone.0 as usize].write().ignore_poison();
        let held = Arc::make_mut(&mut held);
        let (block_bytes, fill) = (self.geometry.block_bytes as usize, self.fill(zone));
        let mut at = byte;
        while !data.is_empty() {
            let (index, inside) = (at / block_bytes, at % block_bytes);
            let (now, later) = data.split_at(data.len().min(block_bytes - inside));
            if held.len() <= index {
                held.resize(index + 1, None);
            }
            let content = held[index].get_or_insert_with(|| std::iter::repeat_n(fill, block_bytes).collect());
            Arc::make_mut(content)[inside..inside + now.len()].copy_from_slice(now);
            (at, data) = (at + now.len(), later);
        }
    }

    fn load(&self, zone: ZoneNumber, byte: usize, buffer: &mut [u8]) {
        let held = self.zones[zone.0 as usize].read().ignore_poison();
        let (block_bytes, fill) = (self.geometry.block_bytes as usize, self.fill(zone));
        let (mut at, mut buffer) = (byte, buffer);
        while !buffer.is_empty() {
            let (index, inside) = (at / block_bytes, at % block_bytes);
            let (now, later) = buffer.split_at_mut(buffer.len().min(block_bytes - inside));
            match held.get(index) {
                Some(Some(content)) => now.copy_from_slice(&content[inside..inside + now.len()]),
                _ => now.fill(fill),
            }
            at += now.len();
            buffer = later;
        }
    }

    /// The fill byte of blocks that were never written.
    const fn fill(&self, zone: ZoneNumber) -> u8 {
        if self.geometry.is_conventional(zone) { 0 } else { UNWRITTEN }
    }

    fn bytes(&self, blocks: u64) -> usize {
        blocks as usize * self.geometry.block_bytes as usize
    }

    fn write_admitted(&self, table: &mut ZoneTable, span: Span, data: &[u8]) {
        self.store(span.zone, self.bytes(span.offset), data);
        table.advance(span);
    }
}

impl ZonedDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        self.table().zone(zone)
    }

    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let (span, written) = self.table().read(block, buffer.len())?;
        let (known, rest) = buffer.split_at_mut(self.bytes(written));
        self.load(span.zone, self.bytes(span.offset), known);
        rest.fill(UNWRITTEN);
        Ok(())
    }

    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        // Writes to conventional zones are unordered, so they do not take the lock.
        if self.geometry.is_conventional(self.geometry.zone_of(block)) {
            let span = ZoneTable::span(&self.geometry, Operation::Write, block, data.len())?;
            self.store(span.zone, self.bytes(span.offset), data);
            return Ok(());
        }
        let mut table = self.table();
        let span = table.write(block, data.len())?;
        self.write_admitted(&mut table, span, data);
        Ok(())
    }

    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        let mut table = self.table();
        let block = table.append_at(zone)?;
        let span = table.write(block, data.len())?;
        self.write_admitted(&mut table, span, data);
        Ok(block)
    }

    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let mut table = self.table();
        if table.reset(zone)? {
            *self.zones[zone.0 as usize].write().ignore_poison() = Arc::default();
        }
        Ok(())
    }

    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.table().finish(zone).map(|_| ())
    }

    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.table().open(zone)
    }

    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.table().close(zone)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn forget(&self, block: Block, blocks: u64) {
        for block in
            (block.0..block.0.saturating_add(blocks)).take_while(|block| *block < self.geometry.blocks())
        {
            let zone = self.geometry.zone_of(Block(block));
            let mut held = self.zones[zone.0 as usize].write().ignore_poison();
            let offset = (block - self.geometry.start(zone).0) as usize;
            if held.get(offset).is_some_and(Option::is_some) {
                Arc::make_mut(&mut held)[offset] = None;
            }
        }
    }

    fn name(&self) -> String {
        "memory".into()
    }
}
