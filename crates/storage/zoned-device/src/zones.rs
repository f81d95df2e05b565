//! The zone rules: which writes, opens, closes, finishes and resets are valid, and how they change the zone states. All
//! emulated devices share this table.
//!
//! Source: NVMe Zoned Namespace Command Set 1.1, section 2.1.1 (zone state machine, zone resources), and the behaviour
//! of null_blk in zoned mode.

use super::{Block, Condition, DeviceError, Geometry, Operation, Zone, ZoneNumber};
use std::collections::VecDeque;

/// The state of one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    condition: Condition,
    /// Blocks from the start of the zone.
    write_pointer: u64,
    resets: u64,
}

/// A range of blocks inside one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The zone.
    pub zone: ZoneNumber,
    /// The first block, relative to the start of the zone.
    pub offset: u64,
    /// The number of blocks.
    pub count: u64,
}

/// The zones of a device, with the rules for changing them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneTable {
    geometry: Geometry,
    zones: Vec<State>,
    /// Implicitly open zones in the order of opening. The first one is closed when another zone must be opened.
    implicit: VecDeque<ZoneNumber>,
    explicit: u32,
    closed: u32,
}

impl ZoneTable {
    /// Creates the table of a new device whose sequential zones are empty.
    ///
    /// # Errors
    /// Those of [`Geometry::check`]; [`DeviceError::Geometry`] also if memory for the zone states cannot be allocated.
    pub fn new(geometry: Geometry) -> Result<Self, DeviceError> {
        geometry.check()?;
        let conventional = State { condition: Condition::Conventional, write_pointer: 0, resets: 0 };
        let sequential = State { condition: Condition::Empty, ..conventional };
        let mut zones = Vec::new();
        zones.try_reserve_exact(geometry.zones() as usize).map_err(|_| DeviceError::Geometry {
            what: format!("{} zones: cannot allocate memory for their states", geometry.zones()),
        })?;
        zones.resize(geometry.conventional_zones as usize, conventional);
        zones.resize(geometry.zones() as usize, sequential);
        Ok(Self { geometry, zones, implicit: VecDeque::new(), explicit: 0, closed: 0 })
    }

    /// The geometry of the device.
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

    /// The range covered by a read or write of `bytes` bytes at `block`.
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

    /// Validates a read. Also returns how many of its blocks are below the write pointer; the contents of the others
    /// are undefined.
    ///
    /// # Errors
    /// Those of [`super::ZonedDevice::read`].
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

    /// Validates a write and opens its zone. The caller must call [`ZoneTable::advance`] when the write is complete.
    ///
    /// # Errors
    /// Those of [`super::ZonedDevice::write`].
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

    /// The block at which an append to `zone` starts.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`], [`DeviceError::NotSequential`].
    pub fn append_at(&self, zone: ZoneNumber) -> Result<Block, DeviceError> {
        let state = self.sequential(zone, Operation::Write)?;
        Ok(Block(self.geometry.start(zone).0 + state.write_pointer))
    }

    /// Advances the write pointer over a completed write. A zone written to its capacity becomes full.
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

    /// Resets a zone. Returns false if it is empty already.
    ///
    /// # Errors
    /// Those of [`super::ZonedDevice::reset`].
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

    /// Finishes a zone. Returns false if it is full already.
    ///
    /// # Errors
    /// Those of [`super::ZonedDevice::finish`].
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
    /// Those of [`super::ZonedDevice::open`].
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
    /// Those of [`super::ZonedDevice::close`].
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

    /// Closes all open zones, as a power cut does.
    pub fn close_all(&mut self) {
        for number in self.geometry.sequential() {
            if self.zones[number.0 as usize].condition.is_open() {
                // Closing an open zone cannot fail.
                let _ = self.close(number);
            }
        }
    }

    /// Sets a zone to a state read from the medium or given by fault injection.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchZone`]; [`DeviceError::Geometry`] if the state is impossible.
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
            let what = format!("{zone} cannot be {condition} with its write pointer at {write_pointer}");
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

    /// Ensures that `zone`, which is not open, may be opened. Closes an implicitly open zone if necessary.
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

    /// Changes the condition of a zone and updates the derived counts.
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
