//! How the zones' states of a device in a file outlast a power cut with one fdatasync a flush: a log of records after a checkpoint.
//! Not the zones' content, except that the newest record's is checked against its CRC.
//! Source: our own.
//!
//! A record and the data it speaks of are made safe by the same fdatasync, so either may be there without the other. A flush
//! begins only when the one before has returned; so all records but the newest are known to have their data, and of the newest each
//! zone's is read again and held against the CRC in the record. If it differs, the zone is as it was before. So the medium must not lose
//! anything of what the newest record speaks of: that would look like a power cut. Therefore the next flush writes a record even if nothing
//! was written since, and so does closing: from then on damage is damage.

use super::layout::{Entry, LOG_RECORDS, Listing, PAGE_BYTES, Places, RECORD_ENTRIES};
use super::{Backing, DeviceError, Unsaved, ZoneNumber, ZoneTable};
use crate::device::{Condition, Zone};
use std::collections::BTreeMap;

/// The log of one file.
pub struct StateLog {
    places: Places,
    /// Of the newest checkpoint or record.
    sequence: u64,
    /// How many records follow the checkpoint.
    records: u64,
    /// Which of the two checkpoints is the newest.
    checkpoint: usize,
    /// Whether the newest record speaks of data: then no later one says as yet that the data was safe.
    is_open: bool,
}

impl StateLog {
    /// Begins the log of a new file.
    pub fn create(backing: &Backing, places: &Places, table: &ZoneTable) -> Result<Self, DeviceError> {
        let mut log = Self { places: *places, sequence: 0, records: 0, checkpoint: 1, is_open: false };
        log.write_checkpoint(backing, table)?;
        Ok(log)
    }

    /// Brings `table`, fresh, to the state that the file tells of, and begins a new checkpoint.
    pub fn recover(backing: &Backing, places: &Places, table: &mut ZoneTable) -> Result<Self, DeviceError> {
        let mut bytes = vec![0; places.checkpoint_bytes as usize];
        let mut newest: Option<(usize, Listing)> = None;
        for (index, at) in places.checkpoints.iter().enumerate() {
            backing.read(*at, &mut bytes)?;
            let Some(listing) = Listing::decode(&bytes) else { continue };
            if newest.as_ref().is_none_or(|(_, other)| other.sequence < listing.sequence) {
                newest = Some((index, listing));
            }
        }
        let damaged = || backing.not_usable("has no readable table of its zones: it is damaged".into());
        let (checkpoint, start) = newest.ok_or_else(damaged)?;
        apply(backing, table, &start.entries)?;
        let sequence = start.sequence;
        let mut log = Self { places: *places, sequence, records: 0, checkpoint, is_open: false };
        let mut next = log.record(backing, 0)?;
        while let Some(record) = next {
            log.sequence = record.sequence;
            log.records += 1;
            next = log.record(backing, log.records)?;
            let mut entries = record.entries;
            if next.is_none() {
                let mut kept = Vec::new();
                for entry in entries {
                    if data_is_there(backing, places, table, &entry)? {
                        kept.push(entry);
                    }
                }
                entries = kept;
            }
            apply(backing, table, &entries)?;
        }
        // Only the newest record may lack its data: from here on no other record follows that one.
        backing.sync()?;
        log.write_checkpoint(backing, table)?;
        Ok(log)
    }

    /// Makes the file's data safe, with the states of the zones that changed and the CRC of what was written into each.
    pub fn save(
        &mut self,
        backing: &Backing,
        table: &ZoneTable,
        changed: BTreeMap<ZoneNumber, Unsaved>,
    ) -> Result<(), DeviceError> {
        if changed.is_empty() && !self.is_open {
            return backing.sync();
        }
        if self.records == LOG_RECORDS || changed.len() > RECORD_ENTRIES {
            backing.sync()?;
            return self.write_checkpoint(backing, table);
        }
        let is_open = changed.values().any(|unsaved| unsaved.blocks > 0);
        let entries = changed.into_iter().map(|(zone, unsaved)| Ok(entry(&table.zone(zone)?, unsaved)));
        let record =
            Listing { sequence: self.sequence + 1, entries: entries.collect::<Result<_, DeviceError>>()? };
        let at = self.places.log + self.records * PAGE_BYTES as u64;
        backing.write(at, &record.encode(PAGE_BYTES))?;
        (self.sequence, self.records) = (record.sequence, self.records + 1);
        backing.sync()?;
        self.is_open = is_open;
        Ok(())
    }

    /// Whether what the newest record speaks of is not said to be safe yet.
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Record `index` of the log, if it is the one that must be there.
    fn record(&self, backing: &Backing, index: u64) -> Result<Option<Listing>, DeviceError> {
        if index == LOG_RECORDS {
            return Ok(None);
        }
        let mut page = vec![0; PAGE_BYTES];
        backing.read(self.places.log + index * PAGE_BYTES as u64, &mut page)?;
        let record = Listing::decode(&page);
        Ok(record.filter(|record| record.sequence == self.sequence + 1))
    }

    /// Writes all zones' states over the older checkpoint; the log begins anew.
    fn write_checkpoint(&mut self, backing: &Backing, table: &ZoneTable) -> Result<(), DeviceError> {
        let zones = table.geometry().sequential();
        let entries = zones
            .map(|zone| Ok(entry(&table.zone(zone)?, Unsaved::default())))
            .collect::<Result<_, DeviceError>>()?;
        let listing = Listing { sequence: self.sequence + 1, entries };
        let older = 1 - self.checkpoint;
        backing
            .write(self.places.checkpoints[older], &listing.encode(self.places.checkpoint_bytes as usize))?;
        backing.sync()?;
        (self.sequence, self.records, self.checkpoint, self.is_open) = (listing.sequence, 0, older, false);
        Ok(())
    }
}

/// A zone's state as it is when the file is opened again: not open.
fn entry(zone: &Zone, unsaved: Unsaved) -> Entry {
    let condition = match zone.condition {
        open if open.is_open() && zone.write_pointer == 0 => Condition::Empty,
        open if open.is_open() => Condition::Closed,
        other => other,
    };
    Entry {
        zone: zone.number,
        condition,
        write_pointer: zone.write_pointer,
        resets: zone.resets.unwrap_or_default(),
        data_blocks: unsaved.blocks,
        data_crc: unsaved.crc,
    }
}

fn apply(backing: &Backing, table: &mut ZoneTable, entries: &[Entry]) -> Result<(), DeviceError> {
    for entry in entries {
        let restored = table.restore(entry.zone, entry.condition, entry.write_pointer, entry.resets);
        restored
            .map_err(|error| backing.not_usable(format!("has an impossible table of its zones: {error}")))?;
    }
    Ok(())
}

/// Whether what the entry says was written into its zone is there.
fn data_is_there(
    backing: &Backing,
    places: &Places,
    table: &ZoneTable,
    entry: &Entry,
) -> Result<bool, DeviceError> {
    let Ok(before) = table.zone(entry.zone) else { return Ok(true) };
    // A reset is made safe before anything else is written.
    let from = if before.resets == Some(entry.resets) { before.write_pointer } else { 0 };
    let block_bytes = u64::from(table.geometry().block_bytes);
    let mut at = places.zones + (before.start.0 + from) * block_bytes;
    let blocks = entry.data_blocks.min(before.capacity_blocks - from);
    let end = at + blocks * block_bytes;
    let mut crc = 0;
    let mut buffer = vec![0; 1 << 20];
    while at < end {
        let now = &mut buffer[..(end - at).min(1 << 20) as usize];
        backing.read(at, now)?;
        crc = crc32c::crc32c_append(crc, now);
        at += now.len() as u64;
    }
    Ok(crc == entry.data_crc)
}
