//! Tracks the use of the device's zones and chooses the zone of a new table. A zone is reset when its last table has
//! been released; live tables are never moved to free a zone.

use crate::error::Result;
use longma_zoned_device::{Condition, Geometry, ZoneNumber, ZonedDevice};

/// The use of a sequential zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Free,
    Log,
    Tables,
    /// The zone is worn out and accepts no writes. It may still contain tables.
    Unusable,
}

/// A sequential zone.
#[derive(Clone, Copy, Debug)]
pub struct ZoneState {
    pub number: ZoneNumber,
    pub role: Role,
    /// Device blocks written, and those that can be written.
    pub written: u64,
    pub capacity: u64,
    /// Tables in use.
    pub tables: u32,
    /// The tier of its last table. Tables of one tier are released at about the same time.
    pub tier: u8,
    /// Whether a table is being written to it.
    pub is_open: bool,
}

impl ZoneState {
    pub const fn room(&self) -> u64 {
        match self.role {
            Role::Unusable => 0,
            _ => self.capacity - self.written,
        }
    }

    const fn is_active(&self) -> bool {
        self.written > 0 && self.room() > 0
    }
}

/// All sequential zones.
pub struct Zones {
    pub geometry: Geometry,
    pub zones: Vec<ZoneState>,
    /// The start of the next search for a free zone. Zones are used in rotation, so that they wear evenly.
    next: usize,
    pub resets: u64,
}

impl Zones {
    /// The zones as the device reports them, all free.
    pub fn read<D: ZonedDevice>(device: &D) -> Result<Self> {
        let geometry = device.geometry();
        let zones = device.zones()?.into_iter().skip(geometry.conventional_zones as usize);
        let state = |zone: longma_zoned_device::Zone| {
            let is_worn = matches!(zone.condition, Condition::ReadOnly | Condition::Offline);
            ZoneState {
                number: zone.number,
                role: if is_worn { Role::Unusable } else { Role::Free },
                written: if is_worn {
                    zone.capacity_blocks
                } else {
                    zone.write_pointer.min(zone.capacity_blocks)
                },
                capacity: zone.capacity_blocks,
                tables: 0,
                tier: 0,
                is_open: false,
            }
        };
        Ok(Self { geometry, zones: zones.map(state).collect(), next: 0, resets: 0 })
    }

    /// The index of the zone that contains a block.
    pub fn index(&self, block: u64) -> Option<usize> {
        let zone =
            (block / self.geometry.zone_blocks).checked_sub(self.geometry.conventional_zones.into())?;
        usize::try_from(zone).ok().filter(|&index| index < self.zones.len())
    }

    /// The index of a zone by its number.
    pub fn index_of(&self, zone: ZoneNumber) -> Option<usize> {
        let index = zone.0.checked_sub(self.geometry.conventional_zones)? as usize;
        (index < self.zones.len()).then_some(index)
    }

    /// The next block to write in a zone.
    pub fn write_block(&self, index: usize) -> u64 {
        self.geometry.start(self.zones[index].number).0 + self.zones[index].written
    }

    /// The number of free zones.
    pub fn free(&self) -> u64 {
        self.zones.iter().filter(|zone| zone.role == Role::Free).count() as u64
    }

    /// The number of zones that can be written.
    pub fn usable(&self) -> u64 {
        self.zones.iter().filter(|zone| zone.role != Role::Unusable).count() as u64
    }

    /// Records that a table is in use. Returns false if it is not within the written part of a zone.
    pub fn claim(&mut self, start: u64, blocks: u64) -> bool {
        let Some(index) = self.index(start) else { return false };
        let zone = &mut self.zones[index];
        zone.tables += 1;
        if zone.role == Role::Free {
            zone.role = Role::Tables;
        }
        let inside = start % self.geometry.zone_blocks;
        zone.role != Role::Log && inside.saturating_add(blocks) <= zone.written
    }

    /// A free zone for the log or for tables.
    pub fn take_free<D: ZonedDevice>(&mut self, device: &D, role: Role) -> Result<Option<usize>> {
        let count = self.zones.len();
        let found = (0..count)
            .map(|step| (self.next + step) % count)
            .find(|&index| self.zones[index].role == Role::Free);
        let Some(index) = found else { return Ok(None) };
        self.make_inactive(device)?;
        self.next = (index + 1) % count;
        self.zones[index].role = role;
        Ok(Some(index))
    }

    /// A zone with room for a table of tier `tier` and at least `least` blocks: preferably the zone of the last table
    /// of this tier, then a free zone, then any zone with enough space.
    pub fn take_for_table<D: ZonedDevice>(
        &mut self,
        device: &D,
        tier: u8,
        least: u64,
    ) -> Result<Option<usize>> {
        let fits = |zone: &ZoneState| zone.role == Role::Tables && !zone.is_open && zone.room() >= least;
        let same = self.zones.iter().position(|zone| fits(zone) && zone.tier == tier);
        let index = match same {
            Some(index) => Some(index),
            None => match self.take_free(device, Role::Tables)? {
                Some(index) => Some(index),
                None => self.zones.iter().position(fits),
            },
        };
        if let Some(index) = index {
            let zone = &mut self.zones[index];
            (zone.is_open, zone.tier) = (true, tier);
        }
        Ok(index)
    }

    /// Finishes zones with tables until another zone can be active.
    fn make_inactive<D: ZonedDevice>(&mut self, device: &D) -> Result<()> {
        let limits = [self.geometry.max_open_zones, self.geometry.max_active_zones];
        let Some(limit) = limits.into_iter().filter(|&limit| limit > 0).min() else { return Ok(()) };
        while self.zones.iter().filter(|zone| zone.is_active() || zone.is_open).count() >= limit as usize {
            let idle = |zone: &&mut ZoneState| zone.role == Role::Tables && !zone.is_open && zone.is_active();
            let Some(zone) = self.zones.iter_mut().filter(idle).min_by_key(|zone| zone.room()) else {
                return Ok(());
            };
            device.finish(zone.number)?;
            zone.written = zone.capacity;
        }
        Ok(())
    }

    /// Resets zones that have been written but hold neither tables nor the log.
    pub fn reset_dead<D: ZonedDevice>(&mut self, device: &D) -> Result<()> {
        for zone in &mut self.zones {
            let is_dead = match zone.role {
                Role::Free => zone.written > 0,
                Role::Tables => zone.tables == 0 && !zone.is_open,
                Role::Log | Role::Unusable => false,
            };
            if is_dead {
                if zone.written > 0 {
                    device.reset(zone.number)?;
                    self.resets += 1;
                }
                (zone.role, zone.written) = (Role::Free, 0);
            }
        }
        Ok(())
    }
}
