//! Writes a run: one table after the other, each in a zone with room for it.

use crate::error::{Error, Result};
use crate::io::{Io, Traffic};
use crate::table::Table;
use crate::table_writer::TableWriter;
use crate::zones::Zones;
use longma_zoned_device::ZonedDevice;
use std::sync::Arc;

/// Data after which a table ends, bytes. A merge commits whole tables, so its inputs become free in steps of this size.
const TABLE_BYTES: u64 = 8 << 20;

/// A run that is being written.
pub struct RunWriter {
    traffic: Traffic,
    tier: u8,
    table: Option<(TableWriter, usize)>,
    /// Complete tables that the caller has not taken yet.
    pub tables: Vec<Arc<Table>>,
}

impl RunWriter {
    pub const fn new(traffic: Traffic, tier: u8) -> Self {
        Self { traffic, tier, table: None, tables: Vec::new() }
    }

    /// Adds a record. Its key must be greater than all earlier keys.
    pub fn add<D: ZonedDevice>(
        &mut self,
        io: &Io<D>,
        zones: &mut Zones,
        next_table: &mut u64,
        (key, value): (&[u8], Option<&[u8]>),
    ) -> Result<()> {
        let is_complete = |table: &TableWriter| {
            u64::from(table.pages()) * io.page_bytes as u64 >= TABLE_BYTES
                || !table.has_room(key, value, io.page_bytes)
        };
        if self.table.as_ref().is_some_and(|(table, _)| is_complete(table)) {
            self.end_table(io, zones)?;
        }
        if self.table.is_none() {
            let record = key.len() + value.map_or(0, <[u8]>::len) + 32;
            let least = record.div_ceil(io.page_bytes) + (2 * key.len() + 512).div_ceil(io.page_bytes) + 2;
            let least = (least as u64 * io.page_blocks).max(io.geometry.zone_capacity_blocks / 16);
            let Some(zone) = zones.take_for_table(&io.device, self.tier, least)? else {
                return Err(Error::Full {
                    device: io.device.name(),
                    free: zones.free(),
                    reserve: 0,
                    is_merging: false,
                });
            };
            let room = zones.zones[zone].room() / io.page_blocks;
            let table = TableWriter::new(self.traffic, *next_table, zones.write_block(zone), room);
            *next_table += 1;
            self.table = Some((table, zone));
        }
        match &mut self.table {
            Some((table, _)) => table.add(io, key, value),
            None => Ok(()),
        }
    }

    /// Ends the table in progress.
    pub fn end_table<D: ZonedDevice>(&mut self, io: &Io<D>, zones: &mut Zones) -> Result<()> {
        let Some((table, zone)) = self.table.take() else { return Ok(()) };
        let table = table.finish(io)?;
        let zone = &mut zones.zones[zone];
        zone.written += table.all_pages() * io.page_blocks;
        zone.tables += 1;
        zone.is_open = false;
        self.tables.push(table);
        Ok(())
    }
}
