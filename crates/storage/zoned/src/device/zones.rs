//! The zone rules: which writes, opens, closes, finishes and resets a zoned device admits, and what they do to its zones.
//! Not the data, and no input or output: every emulated device asks this table first.
//! Source: NVMe Zoned Namespace Command Set 1.1, section 2.1.1 (zone state machine, zone resources); the same as null_blk in
//! zoned mode does it.

use super::{Block, Condition, DeviceError, Geometry, Operation, Zone, ZoneNumber};
use std::collections::VecDeque;

/// What a table holds of one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    condition: Condition,
    /// Blocks from the zone's start.
    write_pointer: u64,
    resets: u64,
}

/// Blocks inside one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The zone.
    pub zone: ZoneNumber,
    /// The first block, counted from the zone's start.
    pub offset: u64,
    /// How many blocks.
    pub count: u64,
}

/// The zones of one device, and the rules for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneTable {
    geometry: Geometry,
    zones: Vec<State>,
    /// Implicitly open zones, the one opened first in front: the first to be closed when another must be opened.
    implicit: VecDeque<ZoneNumber>,
    explicit: u32,
    closed: u32,
}

impl ZoneTable {
    /// The zones of a new device, the sequential ones empty.
    ///
    /// # Errors
    /// As [`Geometry::check`]; [`DeviceError::Geometry`], too, if there is no memory for the states of so many zones.
    pub fn new(geometry: Geometry) -> Result<Self, DeviceError> {
        geometry.check()?;
        let conventional = State { condition: Condition::Conventional, write_pointer: 0, resets: 0 };
        let sequential = State { condition: Condition::Empty, ..conventional };
        let mut zones = Vec::new();
        zones.try_reserve_exact(geometry.zones() as usize).map_err(|_| DeviceError::Geometry {
            what: format!("{} zones: there is no memory for their states", geometry.zones()),
        })?;
        zones.resize(geometry.conventional_zones as usize, conventional);
        zones.resize(geometry.zones() as usize, sequential);
        Ok(Self { geometry, zones, implicit: VecDeque::new(), explicit: 0, closed: 0 })
    }

    /// What the device is made of.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Reports a zone.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`].
    pub fn zone(&self, number: ZoneNumber) -> Result<Zone, DeviceError> {
        let state = self.state(number)?;
        Ok(Zone {
            number,
            start: self.geometry.start(number),
            capacity_blocks: self.geometry.capacity_blocks(number),
            condition: state.condition,
            write_pointer: state.write_pointer,
            resets: Some(state.resets),
        })
    }

    /// Where a read or write of `bytes` bytes at `block` falls.
    ///
    /// # Errors
    /// [`DeviceError::Unaligned`], [`DeviceError::OutOfRange`], [`DeviceError::AcrossZones`].
    pub fn span(
        geometry: &Geometry,
        operation: Operation,
        block: Block,
        bytes: usize,
    ) -> Result<Span, DeviceError> {
        let block_bytes = geometry.block_bytes;
        if bytes == 0 || !bytes.is_multiple_of(block_bytes as usize) {
            return Err(DeviceError::Unaligned { operation, bytes, block_bytes });
        }
        let count = bytes as u64 / u64::from(block_bytes);
        let blocks = geometry.blocks();
        if block.0 >= blocks || count > blocks - block.0 {
            return Err(DeviceError::OutOfRange { operation, block, count, blocks });
        }
        let zone = geometry.zone_of(block);
        let offset = block.0 - geometry.start(zone).0;
        if offset + count > geometry.zone_blocks {
            return Err(DeviceError::AcrossZones { operation, block, count, zone });
        }
        Ok(Span { zone, offset, count })
    }

    /// Admits a read, and says how many of its blocks lie before the write pointer: what the others hold means nothing.
    ///
    /// # Errors
    /// As [`super::ZonedDevice::read`].
    pub fn read(&self, block: Block, bytes: usize) -> Result<(Span, u64), DeviceError> {
        let span = Self::span(&self.geometry, Operation::Read, block, bytes)?;
        let state = self.state(span.zone)?;
        let written = match state.condition {
            Condition::Offline => return Err(unusable(span.zone, state.condition, Operation::Read)),
            Condition::Conventional => span.count,
            _ => state.write_pointer.saturating_sub(span.offset).min(span.count),
        };
        Ok((span, written))
    }

    /// Admits a write and opens its zone; [`ZoneTable::advance`] is to follow once it is done.
    ///
    /// # Errors
    /// As [`super::ZonedDevice::write`].
    pub fn write(&mut self, block: Block, bytes: usize) -> Result<Span, DeviceError> {
        let span = Self::span(&self.geometry, Operation::Write, block, bytes)?;
        let Span { zone, offset, count } = span;
        let State { condition, write_pointer, .. } = self.state(zone)?;
        match condition {
            Condition::Conventional => return Ok(span),
            Condition::ReadOnly | Condition::Offline => {
                return Err(unusable(zone, condition, Operation::Write));
            }
            Condition::Full => return Err(DeviceError::ZoneFull { zone }),
            _ if offset != write_pointer => {
                return Err(DeviceError::NotAtWritePointer { zone, write_pointer, offset });
            }
            _ => {}
        }
        let capacity_blocks = self.geometry.zone_capacity_blocks;
        if offset + count > capacity_blocks {
            return Err(DeviceError::BeyondCapacity { zone, offset, count, capacity_blocks });
        }
        if !condition.is_open() {
            self.make_room(zone, condition)?;
            self.set(zone, Condition::ImplicitlyOpen);
        }
        Ok(span)
    }

    /// The block that an append to `zone` begins at.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`], [`DeviceError::NotSequential`].
    pub fn append_at(&self, zone: ZoneNumber) -> Result<Block, DeviceError> {
        let state = self.sequential(zone, Operation::Write)?;
        Ok(Block(self.geometry.start(zone).0 + state.write_pointer))
    }

    /// Moves the write pointer over a write that is done; at the zone's capacity it becomes full.
    pub fn advance(&mut self, span: Span) {
        let state = &mut self.zones[span.zone.0 as usize];
        if state.condition == Condition::Conventional {
            return;
        }
        state.write_pointer = span.offset + span.count;
        if state.write_pointer == self.geometry.zone_capacity_blocks {
            self.set(span.zone, Condition::Full);
        }
    }

    /// Empties a zone; says whether there was anything to do.
    ///
    /// # Errors
    /// As [`super::ZonedDevice::reset`].
    pub fn reset(&mut self, zone: ZoneNumber) -> Result<bool, DeviceError> {
        let condition = self.usable(zone, Operation::Reset)?.condition;
        if condition == Condition::Empty {
            return Ok(false);
        }
        self.set(zone, Condition::Empty);
        let state = &mut self.zones[zone.0 as usize];
        (state.write_pointer, state.resets) = (0, state.resets + 1);
        Ok(true)
    }

    /// Makes a zone full; says whether there was anything to do.
    ///
    /// # Errors
    /// As [`super::ZonedDevice::finish`].
    pub fn finish(&mut self, zone: ZoneNumber) -> Result<bool, DeviceError> {
        let condition = self.usable(zone, Operation::Finish)?.condition;
        if condition == Condition::Full {
            return Ok(false);
        }
        if !condition.is_open() {
            self.make_room(zone, condition)?;
        }
        self.set(zone, Condition::Full);
        self.zones[zone.0 as usize].write_pointer = self.geometry.zone_capacity_blocks;
        Ok(true)
    }

    /// Opens a zone explicitly.
    ///
    /// # Errors
    /// As [`super::ZonedDevice::open`].
    pub fn open(&mut self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let condition = self.usable(zone, Operation::Open)?.condition;
        match condition {
            Condition::Full => return Err(DeviceError::ZoneFull { zone }),
            Condition::Empty | Condition::Closed => self.make_room(zone, condition)?,
            _ => {}
        }
        self.set(zone, Condition::ExplicitlyOpen);
        Ok(())
    }

    /// Closes a zone.
    ///
    /// # Errors
    /// As [`super::ZonedDevice::close`].
    pub fn close(&mut self, zone: ZoneNumber) -> Result<(), DeviceError> {
        let State { condition, write_pointer, .. } = self.usable(zone, Operation::Close)?;
        match condition {
            Condition::Empty | Condition::Full => Err(DeviceError::NotOpen { zone, condition }),
            _ => {
                self.set(zone, if write_pointer == 0 { Condition::Empty } else { Condition::Closed });
                Ok(())
            }
        }
    }

    /// What a power cut does to the conditions: no zone stays open.
    pub fn close_all(&mut self) {
        for number in self.geometry.sequential() {
            if self.zones[number.0 as usize].condition.is_open() {
                // It is open, so it can be closed.
                let _ = self.close(number);
            }
        }
    }

    /// Puts a zone into a state found elsewhere: on the medium, or by fault injection.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`]; [`DeviceError::Geometry`] if no such zone can be in that state.
    pub fn restore(
        &mut self,
        zone: ZoneNumber,
        condition: Condition,
        write_pointer: u64,
        resets: u64,
    ) -> Result<(), DeviceError> {
        self.state(zone)?;
        let capacity = self.geometry.zone_capacity_blocks;
        let possible = match condition {
            Condition::Conventional => self.geometry.is_conventional(zone) && write_pointer == 0,
            _ if self.geometry.is_conventional(zone) => false,
            Condition::Empty => write_pointer == 0,
            Condition::Closed => (1..capacity).contains(&write_pointer),
            Condition::ImplicitlyOpen | Condition::ExplicitlyOpen => write_pointer < capacity,
            Condition::Full => write_pointer == capacity,
            Condition::ReadOnly | Condition::Offline => write_pointer <= capacity,
        };
        if !possible {
            let what = format!("{zone} {condition} with its write pointer at {write_pointer}");
            return Err(DeviceError::Geometry { what });
        }
        self.set(zone, condition);
        let state = &mut self.zones[zone.0 as usize];
        (state.write_pointer, state.resets) = (write_pointer, resets);
        Ok(())
    }

    fn state(&self, zone: ZoneNumber) -> Result<State, DeviceError> {
        let missing = DeviceError::NoSuchZone { zone, zones: self.geometry.zones() };
        self.zones.get(zone.0 as usize).copied().ok_or(missing)
    }

    fn sequential(&self, zone: ZoneNumber, operation: Operation) -> Result<State, DeviceError> {
        let state = self.state(zone)?;
        match state.condition {
            Condition::Conventional => Err(DeviceError::NotSequential { zone, operation }),
            _ => Ok(state),
        }
    }

    fn usable(&self, zone: ZoneNumber, operation: Operation) -> Result<State, DeviceError> {
        let state = self.sequential(zone, operation)?;
        match state.condition {
            Condition::ReadOnly | Condition::Offline => Err(unusable(zone, state.condition, operation)),
            _ => Ok(state),
        }
    }

    /// Sees to it that `zone`, which is not open, may be opened, closing an implicitly open one if need be.
    fn make_room(&mut self, zone: ZoneNumber, condition: Condition) -> Result<(), DeviceError> {
        let open = self.implicit.len() as u32 + self.explicit;
        let Geometry { max_active_zones: max_active, max_open_zones: max_open, .. } = self.geometry;
        if condition == Condition::Empty && max_active > 0 && open + self.closed >= max_active {
            return Err(DeviceError::TooManyActive { zone, limit: max_active });
        }
        if max_open == 0 || open < max_open {
            return Ok(());
        }
        match self.implicit.front() {
            Some(&oldest) => self.close(oldest),
            None => Err(DeviceError::TooManyOpen { zone, limit: max_open }),
        }
    }

    /// Changes a zone's condition and the counts that follow from it.
    fn set(&mut self, zone: ZoneNumber, condition: Condition) {
        let state = &mut self.zones[zone.0 as usize];
        match std::mem::replace(&mut state.condition, condition) {
            Condition::ImplicitlyOpen => self.implicit.retain(|&other| other != zone),
            Condition::ExplicitlyOpen => self.explicit -= 1,
            Condition::Closed => self.closed -= 1,
            _ => {}
        }
        match condition {
            Condition::ImplicitlyOpen => self.implicit.push_back(zone),
            Condition::ExplicitlyOpen => self.explicit += 1,
            Condition::Closed => self.closed += 1,
            _ => {}
        }
    }
}

fn unusable(zone: ZoneNumber, condition: Condition, operation: Operation) -> DeviceError {
    DeviceError::Unusable { zone, condition, operation }
}
