//! A bus of memory areas with fixed latencies, for tests, examples and measurements of a device in isolation.

use super::{Bus, BusFault, Placement, Region};
use longma_sim::{Duration, Time};

/// A range of bytes on the bus.
#[derive(Clone, Debug)]
pub struct Area {
    /// Address of the first byte.
    pub base: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Kind of target.
    pub region: Region,
    /// Whether it is writable.
    pub writable: bool,
    /// Latency of any access.
    pub latency: Duration,
}

/// A bus of memory areas.
#[derive(Clone, Debug, Default)]
pub struct PlainBus {
    /// The areas, which must not overlap.
    pub areas: Vec<Area>,
    /// Level and last change of each interrupt line that was ever set.
    pub lines: Vec<(u32, bool, Time)>,
    /// Calls that set a lock window.
    pub windows: Vec<(u32, Option<(u64, u64)>)>,
    /// All writes: address, length and placement.
    pub writes: Vec<(u64, usize, Placement)>,
}

impl PlainBus {
    /// Creates a bus without areas.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a writable area of `bytes` zero bytes at `base`.
    #[must_use]
    pub fn with(mut self, region: Region, base: u64, bytes: usize, latency: Duration) -> Self {
        self.areas.push(Area { base, bytes: vec![0; bytes], region, writable: true, latency });
        self
    }

    /// The bytes from `address` on, if they are in one area.
    pub fn bytes(&self, address: u64, length: usize) -> Option<&[u8]> {
        let (area, offset) = self.find(address)?;
        self.areas[area].bytes.get(offset..offset.checked_add(length)?)
    }

    /// Like [`PlainBus::bytes`], mutable.
    pub fn bytes_mut(&mut self, address: u64, length: usize) -> Option<&mut [u8]> {
        let (area, offset) = self.find(address)?;
        self.areas[area].bytes.get_mut(offset..offset.checked_add(length)?)
    }

    /// Returns whether interrupt line `line` is asserted.
    pub fn asserted(&self, line: u32) -> bool {
        self.lines.iter().any(|l| l.0 == line && l.1)
    }

    fn find(&self, address: u64) -> Option<(usize, usize)> {
        self.areas.iter().enumerate().find_map(|(index, area)| {
            let offset = usize::try_from(address.checked_sub(area.base)?).ok()?;
            (offset < area.bytes.len()).then_some((index, offset))
        })
    }

    /// The area and offset of `length` bytes, which must be in one area.
    fn find_area(&self, address: u64, length: usize) -> Result<(usize, usize), BusFault> {
        let (area, offset) = self.find(address).ok_or(BusFault::Unmapped { address })?;
        let remaining = self.areas[area].bytes.len() - offset;
        if length > remaining {
            return Err(BusFault::Unmapped { address: address.wrapping_add(remaining as u64) });
        }
        Ok((area, offset))
    }
}

impl Bus for PlainBus {
    fn region(&self, address: u64) -> Option<Region> {
        self.find(address).map(|(area, _)| self.areas[area].region)
    }

    fn read(&mut self, address: u64, into: &mut [u8], at: Time) -> Result<Time, BusFault> {
        let (area, offset) = self.find_area(address, into.len())?;
        into.copy_from_slice(&self.areas[area].bytes[offset..offset + into.len()]);
        Ok(later(at, self.areas[area].latency))
    }

    fn write(
        &mut self,
        address: u64,
        bytes: &[u8],
        placement: Placement,
        at: Time,
    ) -> Result<Time, BusFault> {
        let (area, offset) = self.find_area(address, bytes.len())?;
        let area = &mut self.areas[area];
        if !area.writable {
            return Err(BusFault::Denied { address });
        }
        area.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.writes.push((address, bytes.len(), placement));
        Ok(later(at, area.latency))
    }

    fn interrupt(&mut self, line: u32, asserted: bool, at: Time) {
        self.lines.retain(|l| l.0 != line);
        self.lines.push((line, asserted, at));
    }

    fn lock_window(&mut self, window: u32, to: Option<(u64, u64)>) {
        self.windows.retain(|w| w.0 != window);
        self.windows.push((window, to));
    }
}

fn later(at: Time, by: Duration) -> Time {
    at.checked_add(by).unwrap_or(Time::from_ps(u64::MAX))
}
