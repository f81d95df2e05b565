//! A zoned SSD in simulated time: what each operation on an emulated device would have taken on a drive with channels, flash dies and a
//! write buffer, worn zones being slower.
//! Not the data or the zone rules: those are the device's inside. No wall clock is read.
//! Source: `parameters.rs` names that of every number.

mod dies;
mod parameters;

pub use parameters::Parameters;

use dies::Dies;
use longma_sim::{Duration, Histogram, Time};
use longma_zoned::device::{
    BlankDevice, Block, Condition, DeviceError, FileDevice, Geometry, MemoryDevice, Operation, Read, Write,
    Zone, ZoneNumber, ZonedDevice,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A device whose zones a model may wear out.
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

impl Emulated for BlankDevice {
    fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        Self::wear_out(self, zone, condition)
    }
}

impl Emulated for FileDevice {
    fn wear_out(&self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        Self::wear_out(self, zone, condition)
    }
}

/// How long the operations of one kind took, picoseconds.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Reads.
    pub read: Histogram,
    /// Writes and appends.
    pub write: Histogram,
    /// Zone resets.
    pub reset: Histogram,
    /// Zones finished.
    pub finish: Histogram,
    /// Flushes.
    pub flush: Histogram,
}

/// An emulated device in simulated time. Its clock starts at 0 and moves with every operation by as long as that takes; the host
/// itself takes no time. Operations of [`ZonedDevice::read_many`] and [`ZonedDevice::write_many`] begin together.
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
        let clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { inner: self.inner.clone(), parameters: self.parameters, clock: Mutex::new(clock) }
    }
}

impl<D: Emulated> ModelledDevice<D> {
    /// The model over `inner`, at time 0.
    pub fn new(inner: D, parameters: Parameters) -> Self {
        let dies = Dies::new(&parameters, &inner.geometry());
        let clock = Mutex::new(Clock { now: Time::ZERO, dies, latencies: Latencies::default() });
        Self { inner, parameters, clock }
    }

    /// The device inside.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// The simulated time: when the last operation was complete.
    pub fn now(&self) -> Time {
        self.clock().now
    }

    /// How long the operations took so far.
    pub fn latencies(&self) -> Latencies {
        self.clock().latencies.clone()
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much slower a zone is than a new one: from 1 on, in proportion to its resets.
    fn wear(&self, zone: ZoneNumber) -> f64 {
        let resets = self.inner.zone(zone).ok().and_then(|zone| zone.resets).unwrap_or(0);
        1.0 + self.parameters.worn_slowdown * resets as f64 / self.parameters.rated_resets as f64
    }

    fn bytes(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.inner.geometry().block_bytes)
    }

    /// Where `block` is: its zone, and the bytes from there.
    fn place(&self, block: Block) -> (ZoneNumber, u64) {
        let geometry = self.inner.geometry();
        let zone = geometry.zone_of(block);
        (zone, self.bytes(block.0 - geometry.start(zone).0))
    }

    fn time_read(&self, clock: &mut Clock, block: Block, bytes: usize) -> Time {
        let ((zone, byte), now) = (self.place(block), clock.now);
        let end = clock.dies.read(now, zone, byte, bytes as u64, self.wear(zone));
        clock.latencies.read.record(since(now, end).ps());
        end
    }

    fn time_write(&self, clock: &mut Clock, block: Block, bytes: usize) -> Time {
        let ((zone, byte), now) = (self.place(block), clock.now);
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
