//! A wrapper that counts the operations on a device.

use super::{Block, DeviceError, Geometry, Read, Write, Zone, ZoneNumber, ZonedDevice};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operation counts of a device. Failed operations are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Blocks read.
    pub blocks_read: u64,
    /// Writes to conventional zones.
    pub conventional_writes: u64,
    /// Blocks written to conventional zones.
    pub conventional_blocks_written: u64,
    /// Writes and appends to sequential zones.
    pub sequential_writes: u64,
    /// Blocks written to sequential zones.
    pub sequential_blocks_written: u64,
    /// Zone resets.
    pub resets: u64,
    /// Zones finished.
    pub finishes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Counts {
    /// Writes to zones of both types.
    pub const fn writes(&self) -> u64 {
        self.conventional_writes + self.sequential_writes
    }

    /// Blocks written to zones of both types.
    pub const fn blocks_written(&self) -> u64 {
        self.conventional_blocks_written + self.sequential_blocks_written
    }

    /// The difference from `before`, an earlier count of the same device.
    pub const fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            blocks_read: self.blocks_read - before.blocks_read,
            conventional_writes: self.conventional_writes - before.conventional_writes,
            conventional_blocks_written: self.conventional_blocks_written
                - before.conventional_blocks_written,
            sequential_writes: self.sequential_writes - before.sequential_writes,
            sequential_blocks_written: self.sequential_blocks_written - before.sequential_blocks_written,
            resets: self.resets - before.resets,
            finishes: self.finishes - before.finishes,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// The atomic counters behind [`Counts`].
#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    blocks_read: AtomicU64,
    conventional_writes: AtomicU64,
    conventional_blocks_written: AtomicU64,
    sequential_writes: AtomicU64,
    sequential_blocks_written: AtomicU64,
    resets: AtomicU64,
    finishes: AtomicU64,
    flushes: AtomicU64,
}

/// A device that counts the operations on an inner device.
pub struct Counted<D> {
    inner: D,
    counters: Counters,
}

impl<D: ZonedDevice> Counted<D> {
    /// Wraps a device, with all counts at 0.
    pub fn new(inner: D) -> Self {
        Self { inner, counters: Counters::default() }
    }

    /// The inner device.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// The current counts.
    pub fn counts(&self) -> Counts {
        let counters = &self.counters;
        Counts {
            reads: counters.reads.load(Ordering::Relaxed),
            blocks_read: counters.blocks_read.load(Ordering::Relaxed),
            conventional_writes: counters.conventional_writes.load(Ordering::Relaxed),
            conventional_blocks_written: counters.conventional_blocks_written.load(Ordering::Relaxed),
            sequential_writes: counters.sequential_writes.load(Ordering::Relaxed),
            sequential_blocks_written: counters.sequential_blocks_written.load(Ordering::Relaxed),
            resets: counters.resets.load(Ordering::Relaxed),
            finishes: counters.finishes.load(Ordering::Relaxed),
            flushes: counters.flushes.load(Ordering::Relaxed),
        }
    }

    fn count_read(&self, bytes: usize) {
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.blocks_read.fetch_add(self.blocks(bytes), Ordering::Relaxed);
    }

    fn count_write(&self, block: Block, bytes: usize) {
        let geometry = self.inner.geometry();
        let (writes, blocks) = if geometry.is_conventional(geometry.zone_of(block)) {
            (&self.counters.conventional_writes, &self.counters.conventional_blocks_written)
        } else {
            (&self.counters.sequential_writes, &self.counters.sequential_blocks_written)
        };
        writes.fetch_add(1, Ordering::Relaxed);
        blocks.fetch_add(self.blocks(bytes), Ordering::Relaxed);
    }

    fn blocks(&self, bytes: usize) -> u64 {
        bytes as u64 / u64::from(self.inner.geometry().block_bytes)
    }
}

impl<D: ZonedDevice> ZonedDevice for Counted<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        self.inner.zone(zone)
    }

    fn zones(&self) -> Result<Vec<Zone>, DeviceError> {
        self.inner.zones()
    }

    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(block, buffer)?;
        self.count_read(buffer.len());
        Ok(())
    }

    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(block, data)?;
        self.count_write(block, data.len());
        Ok(())
    }

    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        let block = self.inner.append(zone, data)?;
        self.count_write(block, data.len());
        Ok(block)
    }

    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.reset(zone)?;
        self.counters.resets.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.finish(zone)?;
        self.counters.finishes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.open(zone)
    }

    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.close(zone)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()?;
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        self.inner.read_many(reads)?;
        reads.iter().for_each(|read| self.count_read(read.buffer.len()));
        Ok(())
    }

    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), DeviceError> {
        self.inner.write_many(writes)?;
        writes.iter().for_each(|write| self.count_write(write.block, write.data.len()));
        Ok(())
    }

    fn forget(&self, block: Block, blocks: u64) {
        self.inner.forget(block, blocks);
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
