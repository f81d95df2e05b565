//! A model of a zoned SSD in simulated time. It computes how long each operation on an emulated device would take on a
//! drive with channels, flash dies and write buffers, and slows down worn zones.
//!
//! Source: `parameters.rs` names the source of every parameter.

mod dies;
mod parameters;

use longma_locks::IgnorePoison;
pub use parameters::Parameters;

use dies::Dies;
use longma_sim::{Duration, Histogram, Time};
use longma_zoned::device::{
    Block, Condition, DeviceError, FileDevice, Geometry, MemoryDevice, NullDevice, Operation, Read, Write,
    Zone, ZoneNumber, ZonedDevice,
};
use std::sync::{Mutex, MutexGuard};

/// An emulated device whose zones can be worn out by the model.
pub trait Emulated: ZonedDevice {
    /// Makes a sequential zone read-only or offline.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`], [`DeviceError::Geometry`], [`DeviceError::Host`].
    fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError>;
}

impl Emulated for MemoryDevice {
    fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        Self::wear_out(self, zone, condition)
    }
}

impl Emulated for NullDevice {
    fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        Self::wear_out(self, zone, condition)
    }
}

impl Emulated for FileDevice {
    fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        Self::wear_out(self, zone, condition)
    }
}

/// Latency histograms by type of operation, picoseconds.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Reads.
    pub read: Histogram,
    /// Writes and appends.
    pub write: Histogram,
    /// Zone resets.
    pub reset: Histogram,
    /// Zone finishes.
    pub finish: Histogram,
    /// Flushes.
    pub flush: Histogram,
}

/// An emulated device in simulated time. Its clock starts at 0 and advances by the latency of each operation; the host
/// takes no time. The operations of a [`ZonedDevice::read_many`] or [`ZonedDevice::write_many`] start together.
pub struct ModelledDevice<D> {
    inner: D,
    parameters: Parameters,
    clock: Mutex<Clock>,
}

#[derive(Clone)]
struct Clock {
    now: Time,
    dies: Dies,
    latencies: Latencies,
}

impl<D: Clone> Clone for ModelledDevice<D> {
    fn clone(&self) -> Self {
        let clock = self.clock.lock().ignore_poison().clone();
        Self { inner: self.inner.clone(), parameters: self.parameters, clock: Mutex::new(clock) }
    }
}

impl<D: Emulated> ModelledDevice<D> {
    /// Creates a model of `inner`, at time 0.
    pub fn new(inner: D, parameters: Parameters) -> Self {
        let dies = Dies::new(&parameters, &inner.geometry());
        let clock = Mutex::new(Clock { now: Time::ZERO, dies, latencies: Latencies::default() });
        Self { inner, parameters, clock }
    }

    /// The inner device.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// The simulated time: the completion time of the last operation.
    pub fn now(&self) -> Time {
        self.clock().now
    }

    /// The latencies so far.
    pub fn latencies(&self) -> Latencies {
        self.clock().latencies.clone()
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().ignore_poison()
    }

    /// The wear factor of a zone's latencies: 1 for a new zone, increasing linearly with its resets.
    fn wear(&self, zone: ZoneNumber) -> f64 {
        let resets = self.inner.zone(zone).ok().and_then(|zone| zone.resets).unwrap_or(0);
        1.0 + self.parameters.worn_slowdown * resets as f64 / self.parameters.rated_resets as f64
    }

    fn bytes(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.inner.geometry().block_bytes)
    }

    /// The zone that contains `block`, and the byte offset in it.
    fn locate(&self, block: Block) -> (ZoneNumber, u64) {
        let geometry = self.inner.geometry();
        let zone = geometry.zone_of(block);
        (zone, self.bytes(block.0 - geometry.start(zone).0))
    }

    fn time_read(&self, clock: &mut Clock, block: Block, bytes: usize) -> Time {
        let ((zone, byte), now) = (self.locate(block), clock.now);
        let end = clock.dies.read(now, zone, byte, bytes as u64, self.wear(zone));
        clock.latencies.read.record(since(now, end).ps());
        end
    }

    fn time_write(&self, clock: &mut Clock, block: Block, bytes: usize) -> Time {
        let ((zone, byte), now) = (self.locate(block), clock.now);
        let end = clock.dies.write(now, zone, byte, bytes as u64, self.wear(zone));
        clock.latencies.write.record(since(now, end).ps());
        end
    }
}

fn since(start: Time, end: Time) -> Duration {
    end.checked_since(start).unwrap_or(Duration::ZERO)
}

impl<D: Emulated> ZonedDevice for ModelledDevice<D> {
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
        let mut clock = self.clock();
        clock.now = self.time_read(&mut clock, block, buffer.len());
        Ok(())
    }

    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(block, data)?;
        let mut clock = self.clock();
        clock.now = self.time_write(&mut clock, block, data.len());
        Ok(())
    }

    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        let block = self.inner.append(zone, data)?;
        let mut clock = self.clock();
        clock.now = self.time_write(&mut clock, block, data.len());
        Ok(block)
    }

    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let before = self.inner.zone(zone)?;
        self.inner.reset(zone)?;
        if before.condition != Condition::Empty {
            let mut clock = self.clock();
            let now = clock.now;
            let end = clock.dies.erase(now, zone, self.bytes(before.write_pointer));
            clock.latencies.reset.record(since(now, end).ps());
            clock.now = end;
        }
        if before.resets.unwrap_or(0) + 1 >= self.parameters.last_reset {
            self.inner.wear_out(zone, Condition::ReadOnly)?;
            let operation = Operation::Reset;
            return Err(DeviceError::Unusable { zone, condition: Condition::ReadOnly, operation });
        }
        Ok(())
    }

    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let before = self.inner.zone(zone)?;
        self.inner.finish(zone)?;
        let mut clock = self.clock();
        let (now, rest) = (clock.now, self.bytes(before.room_blocks()));
        let end = clock.dies.fill(now, zone, self.bytes(before.write_pointer), rest);
        clock.latencies.finish.record(since(now, end).ps());
        clock.now = end;
        Ok(())
    }

    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.open(zone)?;
        let mut clock = self.clock();
        clock.now = clock.dies.command(clock.now);
        Ok(())
    }

    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.close(zone)?;
        let mut clock = self.clock();
        clock.now = clock.dies.command(clock.now);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()?;
        let mut clock = self.clock();
        let now = clock.now;
        clock.now = clock.dies.command(now);
        let took = since(now, clock.now).ps();
        clock.latencies.flush.record(took);
        Ok(())
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        self.inner.read_many(reads)?;
        let mut clock = self.clock();
        let ends = reads.iter().map(|read| self.time_read(&mut clock, read.block, read.buffer.len()));
        let end = ends.max();
        clock.now = end.unwrap_or(clock.now);
        Ok(())
    }

    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), DeviceError> {
        self.inner.write_many(writes)?;
        let mut clock = self.clock();
        let ends = writes.iter().map(|write| self.time_write(&mut clock, write.block, write.data.len()));
        let end = ends.max();
        clock.now = end.unwrap_or(clock.now);
        Ok(())
    }

    fn forget(&self, block: Block, blocks: u64) {
        self.inner.forget(block, blocks);
    }

    fn name(&self) -> String {
        format!("modelled {}", self.inner.name())
    }
}
