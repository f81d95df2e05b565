//! How the zones' states of a device in a file outlast a power cut with one fdatasync a flush: a log of records after a checkpoint.
//! Not the zones' content, except that the newest record's is checked against its CRC.
//!
//! A record and the data it speaks of are made safe by the same fdatasync, so either may be there without the other. A flush
//! begins only when the one before has returned; so all records but the newest are known to have their data, and of the newest each
//! zone's is read again and held against the CRC in the record. If it differs, the zone is as it was before. So the medium must not lose
//! anything of what the newest record speaks of: that would look like a power cut. Therefore the next flush writes a record even if nothing
//! was written since, and so does closing: from then on damage is damage.
//!
//! Each record and checkpoint is there twice. If a damaged one has no whole copy, later ones prove that it was there: the table is not known
//! then, and opening says so. For a repair it is put together from what is left: see `salvage`.

use super::layout::{Entry, LOG_RECORDS, Listing, PAGE_BYTES, Places, RECORD_ENTRIES, twice};
use super::{Backing, DeviceError, Unsaved, ZoneNumber, ZoneTable};
use crate::device::{Condition, Geometry, Zone};
use std::collections::BTreeMap;
use std::ops::Range;

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
    /// What the newest record speaks of, as bytes of the file: the system's memory may have it and the medium not, if a flush failed.
    unproven: Vec<Range<u64>>,
    /// Nothing was written since the file was opened: a new checkpoint comes before the next record, as only the newest record may lack its
    /// data.
    is_untouched: bool,
}

impl StateLog {
    /// Begins the log of a new file.
    pub fn create(backing: &Backing, places: &Places, table: &ZoneTable) -> Result<Self, DeviceError> {
        let mut log = Self {
            places: *places,
            sequence: 0,
            records: 0,
            checkpoint: 1,
            is_open: false,
            unproven: Vec::new(),
            is_untouched: false,
        };
        log.write_checkpoint(backing, table)?;
        Ok(log)
    }

    /// Brings `table`, fresh, to the state that the file tells of. Nothing is written: the next flush begins a new checkpoint.
    ///
    /// # Errors
    /// [`DeviceError::NotUsable`] if what the file tells is damaged.
    pub fn recover(backing: &Backing, places: &Places, table: &mut ZoneTable) -> Result<Self, DeviceError> {
        let mut newest: Option<(usize, Listing)> = None;
        for index in 0..places.checkpoints.len() {
            let Some(listing) = checkpoint(backing, places, index)?.next() else { continue };
            if newest.as_ref().is_none_or(|(_, other)| other.sequence < listing.sequence) {
                newest = Some((index, listing));
            }
        }
        let (index, start) = newest.ok_or_else(|| damaged(backing))?;
        apply(backing, table, &start.entries)?;
        let sequence = start.sequence;
        let mut log = Self {
            places: *places,
            sequence,
            records: 0,
            checkpoint: index,
            is_open: false,
            unproven: Vec::new(),
            is_untouched: true,
        };
        let mut next = log.record(backing, 0)?;
        while let Some(record) = next {
            log.sequence = record.sequence;
            log.records += 1;
            next = log.record(backing, log.records)?;
            let mut entries = record.entries;
            if next.is_none() {
                let mut kept = Vec::new();
                for entry in entries {
                    match data_of(places, table, &entry) {
                        Some(data) if crc_of(backing, data.clone())? != entry.data_crc => {}
                        data => {
                            kept.push(entry);
                            log.unproven.extend(data);
                        }
                    }
                }
                entries = kept;
            }
            apply(backing, table, &entries)?;
        }
        // A record or checkpoint before a later record was safe.
        if records(backing, places)?.iter().any(|record| record.sequence > log.sequence) {
            return Err(damaged(backing));
        }
        Ok(log)
    }

    /// Puts a table together from what is left of checkpoints and records, and from what is in the zones: no state of a zone is older than the
    /// newest that is left, and no write pointer lies before the last block that holds anything. Says of which zones that is a guess.
    pub fn salvage(
        backing: &Backing,
        places: &Places,
        table: &mut ZoneTable,
    ) -> Result<(Self, Vec<ZoneNumber>), DeviceError> {
        let mut listings = records(backing, places)?;
        for index in 0..places.checkpoints.len() {
            listings.extend(checkpoint(backing, places, index)?.next());
        }
        listings.sort_by_key(|listing| listing.sequence);
        let mut known = BTreeMap::new();
        for entry in listings.iter().flat_map(|listing| &listing.entries) {
            known.insert(entry.zone, *entry);
        }
        let geometry = *table.geometry();
        let (mut guessed, mut states) = (Vec::new(), Vec::new());
        for zone in geometry.sequential() {
            let end = end_of_content(backing, places, table, zone)?;
            let known = known.get(&zone).copied();
            if known.is_none_or(|known| end > known.write_pointer) {
                guessed.push(zone);
            }
            states.push(guess(&geometry, zone, known, end));
        }
        guessed.extend(fill_those_beyond_the_limit(&geometry, &mut states));
        guessed.sort();
        guessed.dedup();
        apply(backing, table, &states)?;
        let sequence = listings.last().map_or(0, |newest| newest.sequence);
        let newest = newest_checkpoint(backing, places)?;
        let log = Self {
            places: *places,
            sequence,
            records: 0,
            checkpoint: newest,
            is_open: false,
            unproven: Vec::new(),
            is_untouched: true,
        };
        Ok((log, guessed))
    }

    /// Makes the file's data safe, with the states of the zones that changed and the CRC of what was written into each.
    pub fn save(
        &mut self,
        backing: &Backing,
        table: &ZoneTable,
        changed: BTreeMap<ZoneNumber, Unsaved>,
    ) -> Result<(), DeviceError> {
        if changed.is_empty() && !self.is_open && !self.is_untouched {
            return backing.sync();
        }
        if self.is_untouched || self.records == LOG_RECORDS || changed.len() > RECORD_ENTRIES {
            self.write_again(backing)?;
            backing.sync()?;
            return self.write_checkpoint(backing, table);
        }
        let is_open = changed.values().any(|unsaved| unsaved.blocks > 0);
        let entries = changed.into_iter().map(|(zone, unsaved)| Ok(entry(&table.zone(zone)?, unsaved)));
        let record =
            Listing { sequence: self.sequence + 1, entries: entries.collect::<Result<_, DeviceError>>()? };
        let at = self.places.log + self.records * PAGE_BYTES as u64;
        backing.write(at, &record.encode_record())?;
        (self.sequence, self.records) = (record.sequence, self.records + 1);
        backing.sync()?;
        self.is_open = is_open;
        Ok(())
    }

    /// Writes anew what was read and may not be on the medium: a flush that failed leaves it in the system's memory, for which no later flush
    /// does anything (fsync(2)).
    fn write_again(&mut self, backing: &Backing) -> Result<(), DeviceError> {
        for data in std::mem::take(&mut self.unproven) {
            in_pieces(data, |at, bytes| {
                let mut piece = vec![0; bytes];
                backing.read(at, &mut piece)?;
                backing.write(at, &piece)
            })?;
        }
        Ok(())
    }

    /// Whether what the newest record speaks of is not said to be safe yet.
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether nothing was written since the file was opened.
    pub const fn is_untouched(&self) -> bool {
        self.is_untouched
    }

    /// Record `index` of the log, if it is the one that must be there.
    fn record(&self, backing: &Backing, index: u64) -> Result<Option<Listing>, DeviceError> {
        if index == LOG_RECORDS {
            return Ok(None);
        }
        let mut page = vec![0; PAGE_BYTES];
        backing.read(self.places.log + index * PAGE_BYTES as u64, &mut page)?;
        Ok(Listing::decode_both(&page).find(|record| record.sequence == self.sequence + 1))
    }

    /// Writes all zones' states over the older checkpoint; the log begins anew.
    fn write_checkpoint(&mut self, backing: &Backing, table: &ZoneTable) -> Result<(), DeviceError> {
        let zones = table.geometry().sequential();
        let entries = zones
            .map(|zone| Ok(entry(&table.zone(zone)?, Unsaved::default())))
            .collect::<Result<_, DeviceError>>()?;
        let listing = Listing { sequence: self.sequence + 1, entries };
        let older = 1 - self.checkpoint;
        let bytes = twice(listing.encode(self.places.checkpoint_bytes as usize));
        backing.write(self.places.checkpoints[older], &bytes)?;
        backing.sync()?;
        self.is_untouched = false;
        (self.sequence, self.records, self.checkpoint, self.is_open) = (listing.sequence, 0, older, false);
        Ok(())
    }
}

fn damaged(backing: &Backing) -> DeviceError {
    backing.not_usable(
        "has a damaged table of its zones' states, of which no copy is whole: how far its zones are written is not known. `longma zoned repair` \
         puts the table together from what is left"
            .into(),
    )
}

/// The copies of a checkpoint that are whole.
fn checkpoint(
    backing: &Backing,
    places: &Places,
    index: usize,
) -> Result<std::vec::IntoIter<Listing>, DeviceError> {
    let bytes = backing.read_part(places.checkpoints[index], 2 * places.checkpoint_bytes)?;
    Ok(Listing::decode_both(&bytes).collect::<Vec<_>>().into_iter())
}

/// Which of the two checkpoints is the newest, if any is.
fn newest_checkpoint(backing: &Backing, places: &Places) -> Result<usize, DeviceError> {
    let mut sequences = [0; 2];
    for (index, sequence) in sequences.iter_mut().enumerate() {
        *sequence = checkpoint(backing, places, index)?.next().map_or(0, |listing| listing.sequence);
    }
    Ok(usize::from(sequences[1] > sequences[0]))
}

/// All records that are whole, older ones that are left over among them.
fn records(backing: &Backing, places: &Places) -> Result<Vec<Listing>, DeviceError> {
    let mut bytes = vec![0; LOG_RECORDS as usize * PAGE_BYTES];
    backing.read(places.log, &mut bytes)?;
    Ok(bytes.chunks_exact(PAGE_BYTES).filter_map(|page| Listing::decode_both(page).next()).collect())
}

/// The state of a zone that was last known to be in another one, if in any, and holds something up to block `end`.
fn guess(geometry: &Geometry, zone: ZoneNumber, known: Option<Entry>, end: u64) -> Entry {
    let (condition, write_pointer, resets) =
        known.map_or((Condition::Empty, 0, 0), |known| (known.condition, known.write_pointer, known.resets));
    let write_pointer = write_pointer.max(end);
    let condition = match condition {
        Condition::Empty | Condition::Closed if write_pointer == geometry.zone_capacity_blocks => {
            Condition::Full
        }
        Condition::Empty if write_pointer > 0 => Condition::Closed,
        known => known,
    };
    Entry { zone, condition, write_pointer, resets, data_blocks: 0, data_crc: 0 }
}

/// No more zones may be partly written than the device allows: those with the least room count as full. Says which.
fn fill_those_beyond_the_limit(geometry: &Geometry, states: &mut [Entry]) -> Vec<ZoneNumber> {
    let mut partly: Vec<_> = states.iter_mut().filter(|state| state.condition == Condition::Closed).collect();
    partly.sort_by_key(|state| state.write_pointer);
    let limit = if geometry.max_active_zones == 0 { u32::MAX } else { geometry.max_active_zones };
    let beyond = partly.into_iter().skip(limit as usize);
    let filled = beyond.map(|state| {
        (state.condition, state.write_pointer) = (Condition::Full, geometry.zone_capacity_blocks);
        state.zone
    });
    filled.collect()
}

/// Behind the last block of a zone that holds anything but zeros: a reset leaves zeros.
fn end_of_content(
    backing: &Backing,
    places: &Places,
    table: &ZoneTable,
    zone: ZoneNumber,
) -> Result<u64, DeviceError> {
    const AT_ONCE: u64 = 1 << 20;
    let geometry = table.geometry();
    let block_bytes = u64::from(geometry.block_bytes);
    let start = places.zones + geometry.start(zone).0 * block_bytes;
    let mut end = geometry.zone_capacity_blocks * block_bytes;
    while end > 0 {
        let from = (end - 1) / AT_ONCE * AT_ONCE;
        if backing.is_hole(start + from..start + end) {
            end = from;
            continue;
        }
        let mut bytes = vec![0; (end - from) as usize];
        backing.read(start + from, &mut bytes)?;
        if let Some(last) = bytes.iter().rposition(|&byte| byte != 0) {
            return Ok((from + last as u64) / block_bytes + 1);
        }
        end = from;
    }
    Ok(0)
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

/// The bytes of the file that an entry says were written into its zone; none if there is no such zone.
fn data_of(places: &Places, table: &ZoneTable, entry: &Entry) -> Option<Range<u64>> {
    let before = table.zone(entry.zone).ok()?;
    // A reset is made safe before anything else is written.
    let from = if before.resets == Some(entry.resets) { before.write_pointer } else { 0 };
    let block_bytes = u64::from(table.geometry().block_bytes);
    let start = places.zones + (before.start.0 + from) * block_bytes;
    let blocks = entry.data_blocks.min(before.capacity_blocks - from);
    Some(start..start + blocks * block_bytes)
}

/// Does something with each MiB of a part of the file: where it begins, and its bytes.
fn in_pieces(
    part: Range<u64>,
    mut each: impl FnMut(u64, usize) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let mut at = part.start;
    while at < part.end {
        let bytes = (part.end - at).min(1 << 20);
        each(at, bytes as usize)?;
        at += bytes;
    }
    Ok(())
}

fn crc_of(backing: &Backing, part: Range<u64>) -> Result<u32, DeviceError> {
    let (mut crc, mut buffer) = (0, vec![0; 1 << 20]);
    in_pieces(part, |at, bytes| {
        backing.read(at, &mut buffer[..bytes])?;
        crc = crc32c::crc32c_append(crc, &buffer[..bytes]);
        Ok(())
    })?;
    Ok(crc)
}
