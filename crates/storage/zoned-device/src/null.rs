//! A zoned device that enforces the zone rules but stores no data, for counting and timing operations.
//!
//! Source: like the kernel's null_blk with zoned=1 and without memory_backed.

use super::zones::ZoneTable;
use super::{Block, Condition, DeviceError, Geometry, Operation, Zone, ZoneNumber, ZonedDevice};
use longma_locks::IgnorePoison;
use std::sync::{Mutex, MutexGuard};

/// A zoned device without data. Reads leave the buffer unchanged.
pub struct NullDevice {
    geometry: Geometry,
    table: Mutex<ZoneTable>,
}

impl NullDevice {
    /// Creates a device whose sequential zones are empty.
    ///
    /// # Errors
    /// Those of [`Geometry::check`].
    pub fn new(geometry: Geometry) -> Result<Self, DeviceError> {
        Ok(Self { geometry, table: Mutex::new(ZoneTable::new(geometry)?) })
    }

    /// Makes a sequential zone read-only or offline.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`]; [`DeviceError::Geometry`] for a conventional zone or any other condition.
    pub fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        let mut table = self.table();
        let Zone { write_pointer, resets, .. } = table.zone(zone)?;
        table.restore(zone, condition, write_pointer, resets.unwrap_or_default())
    }

    fn table(&self) -> MutexGuard<'_, ZoneTable> {
        self.table.lock().ignore_poison()
    }
}

impl Clone for NullDevice {
    fn clone(&self) -> Self {
        Self { geometry: self.geometry, table: Mutex::new(self.table().clone()) }
    }
}

impl ZonedDevice for NullDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        self.table().zone(zone)
    }

    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.table().read(block, buffer.len()).map(|_| ())
    }

    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        if self.geometry.is_conventional(self.geometry.zone_of(block)) {
            return ZoneTable::span(&self.geometry, Operation::Write, block, data.len()).map(|_| ());
        }
        let mut table = self.table();
        let span = table.write(block, data.len())?;
        table.advance(span);
        Ok(())
    }

    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        let mut table = self.table();
        let block = table.append_at(zone)?;
        let span = table.write(block, data.len())?;
        table.advance(span);
        Ok(block)
    }

    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.table().reset(zone).map(|_| ())
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

    fn name(&self) -> String {
        "blank".into()
    }
}
