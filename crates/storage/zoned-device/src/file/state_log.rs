//! Makes the zone states of a file device durable with one fdatasync per flush: a log of records that follows a
//! checkpoint.
//!
//! A record and the data that it covers become durable with the same fdatasync, so after a power cut either may be
//! present without the other. A flush begins only after the previous one has returned, so the data of all records but
//! the last is known to be durable. For the last record, the data of each zone is read back and compared with the CRC
//! in the record; if they differ, the zone keeps its previous state, and the write-pointer table
//! ([`super::write_pointer_table`]) decides how much of the data is accepted. The next flush, or closing the device,
//! writes another record even without new data; after that, any mismatch is known to be damage.
//!
//! Each record and checkpoint has two copies. If both copies of one are damaged, later records show that it existed;
//! opening then fails because the table is unknown. `salvage` reconstructs the table for a repair. The write-pointer
//! table restores the states of lost records, and of data written after the last record.

use super::layout::{Entry, FileLayout, Header, Listing, PAGE_BYTES, VERSION, two_copies};
use super::{Backing, DeviceError, Unflushed, ZoneNumber, ZoneTable, block_sums, write_pointer_table};
use crate::{Condition, Geometry, Span, Zone};
use std::collections::BTreeMap;
use std::ops::Range;

/// The log of one file.
pub struct StateLog {
    layout: FileLayout,
    /// The sequence number of the last checkpoint or record.
    sequence: u64,
    /// The number of records after the checkpoint.
    records: u64,
    /// The index of the newer checkpoint.
    checkpoint: usize,
    /// Whether the last record covers data and no later record shows that the data is durable.
    is_open: bool,
    /// The data covered by the last record, as byte ranges of the file. After a failed flush it may be in the page
    /// cache but not on the medium.
    unverified: Vec<Range<u64>>,
    /// Whether there was no write since the file was opened. The first save then writes a checkpoint instead of a
    /// record, because only the last record of a log may lack its data.
    is_unmodified: bool,
    /// The zones with old data after the write pointer: if a power cut loses a new block, the old data may be read
    /// instead of zeros.
    stale: BTreeMap<ZoneNumber, Stale>,
}

/// The reason why a zone may contain old data after its write pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stale {
    /// The old data was discarded, but the file has not been synced yet.
    Unsynced,
    /// The file system cannot discard it.
    Undiscardable,
    /// A power cut has left data there. The first save discards it.
    Leftover,
}

impl StateLog {
    /// Starts the log of a new file.
    pub fn create(backing: &Backing, layout: &FileLayout, table: &ZoneTable) -> Result<Self, DeviceError> {
        let mut log = Self {
            layout: *layout,
            sequence: 0,
            records: 0,
            checkpoint: 1,
            is_open: false,
            unverified: Vec::new(),
            stale: BTreeMap::new(),
            is_unmodified: false,
        };
        log.write_checkpoint(backing, table)?;
        Ok(log)
    }

    /// Restores the zone states into a new `table`. Does not write; the next flush starts a new checkpoint.
    ///
    /// # Errors
    /// [`DeviceError::NotUsable`] if the log is damaged.
    pub fn recover(
        backing: &Backing,
        layout: &FileLayout,
        table: &mut ZoneTable,
    ) -> Result<Self, DeviceError> {
        let mut newest: Option<(usize, Listing)> = None;
        for index in 0..layout.checkpoints.len() {
            let Some(listing) = checkpoint(backing, layout, index)?.next() else { continue };
            if newest.as_ref().is_none_or(|(_, other)| other.sequence < listing.sequence) {
                newest = Some((index, listing));
            }
        }
        let (index, start) = newest.ok_or_else(|| damaged(backing))?;
        apply(backing, table, &start.entries)?;
        let sequence = start.sequence;
        let mut log = Self {
            layout: *layout,
            sequence,
            records: 0,
            checkpoint: index,
            is_open: false,
            unverified: Vec::new(),
            stale: BTreeMap::new(),
            is_unmodified: true,
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
                    match data_of(layout, table, &entry) {
                        Some(data) if crc_of(backing, data.clone())? != entry.data_crc => {}
                        data => {
                            kept.push(entry);
                            log.unverified.extend(data);
                        }
                    }
                }
                entries = kept;
            }
            apply(backing, table, &entries)?;
        }
        log.recover_pointers(backing, table)?;
        // A record with a higher sequence number shows that the missing record or checkpoint was durable.
        if records(backing, layout)?.iter().any(|record| record.sequence > log.sequence) {
            return Err(damaged(backing));
        }
        Ok(log)
    }

    /// Reconstructs the table from the remaining checkpoints and records and from the contents of the zones. Each zone
    /// gets its last recorded state, and its write pointer is advanced past the last block with content. Returns the
    /// zones whose state is uncertain.
    pub fn salvage(
        backing: &Backing,
        layout: &FileLayout,
        table: &mut ZoneTable,
    ) -> Result<(Self, Vec<ZoneNumber>), DeviceError> {
        let mut listings = records(backing, layout)?;
        for index in 0..layout.checkpoints.len() {
            listings.extend(checkpoint(backing, layout, index)?.next());
        }
        listings.sort_by_key(|listing| listing.sequence);
        let mut known = BTreeMap::new();
        for entry in listings.iter().flat_map(|listing| &listing.entries) {
            known.insert(entry.zone, *entry);
        }
        let geometry = *table.geometry();
        let mut recorded = ZoneTable::new(geometry)?;
        apply(backing, &mut recorded, &known.values().copied().collect::<Vec<_>>())?;
        let recovered = write_pointer_table::recover(backing, layout, &mut recorded)?;
        for zone in
            recovered.iter().filter(|recovered| recovered.data.is_some()).map(|recovered| recovered.zone)
        {
            known.insert(zone, entry(&recorded.zone(zone)?, Unflushed::default()));
        }
        let (mut guessed, mut states) = (Vec::new(), Vec::new());
        for zone in geometry.sequential() {
            let end = end_of_content(backing, layout, table, zone)?;
            let known = known.get(&zone).copied();
            if known.is_none_or(|known| end > known.write_pointer) {
                guessed.push(zone);
            }
            states.push(guess(&geometry, zone, known, end));
        }
        guessed.extend(finish_zones_over_limit(&geometry, &mut states));
        guessed.sort();
        guessed.dedup();
        apply(backing, table, &states)?;
        let sequence = listings.last().map_or(0, |newest| newest.sequence);
        let newest = newest_checkpoint(backing, layout)?;
        let log = Self {
            layout: *layout,
            sequence,
            records: 0,
            checkpoint: newest,
            is_open: false,
            unverified: Vec::new(),
            stale: BTreeMap::new(),
            is_unmodified: true,
        };
        Ok((log, guessed))
    }

    /// Makes the data of the file durable, together with the states of the changed zones and the CRC of the data
    /// written to each.
    pub fn save(
        &mut self,
        backing: &Backing,
        header: &Header,
        table: &ZoneTable,
        changed: BTreeMap<ZoneNumber, Unflushed>,
    ) -> Result<(), DeviceError> {
        if changed.is_empty() && !self.is_open && !self.is_unmodified {
            return self.sync(backing);
        }
        let is_too_long = changed.len() > self.layout.record_entries();
        if self.is_unmodified || self.records == self.layout.log_records() || is_too_long {
            self.rewrite_unverified(backing)?;
            self.discard_leftovers(backing, header, table)?;
            self.sync(backing)?;
            self.write_checkpoint(backing, table)?;
            return if self.layout.version < VERSION { self.upgrade(backing, header) } else { Ok(()) };
        }
        let is_open = changed.values().any(|unflushed| unflushed.blocks > 0);
        let entries = changed.into_iter().map(|(zone, unflushed)| Ok(entry(&table.zone(zone)?, unflushed)));
        let record =
            Listing { sequence: self.sequence + 1, entries: entries.collect::<Result<_, DeviceError>>()? };
        let at = self.layout.log + self.records * self.layout.record_bytes;
        backing.write(at, &record.encode_record(self.layout.record_bytes))?;
        (self.sequence, self.records) = (record.sequence, self.records + 1);
        self.sync(backing)?;
        self.is_open = is_open;
        Ok(())
    }

    fn sync(&mut self, backing: &Backing) -> Result<(), DeviceError> {
        backing.sync()?;
        self.stale.retain(|_, why| *why != Stale::Unsynced);
        Ok(())
    }

    /// Converts the file to the current version. A new checkpoint has just restarted the log, which is empty in all
    /// versions until the first page has the new header.
    fn upgrade(&mut self, backing: &Backing, header: &Header) -> Result<(), DeviceError> {
        let layout = FileLayout::of(&header.geometry, VERSION);
        backing.resize(self.layout.end)?;
        backing.resize(layout.end)?;
        let [_, pointers, header_copy] = layout.metadata();
        let sums = layout.sums.filter(|_| header.is_allocated).map(|start| start..header_copy.start);
        let mut needed = [pointers, header_copy].into_iter().chain(sums);
        if needed.any(|part| backing.allocate(part).is_err()) {
            // The file system is full: keep the old version.
            return Ok(());
        }
        if let Some(at) = self.layout.header_copy {
            // The first checksums are now where version 4 has its last copy of the header.
            backing.write(at, &[0; PAGE_BYTES])?;
        }
        write_header_copy(backing, &layout, header)?;
        backing.sync()?;
        backing.write(0, &header.encode())?;
        backing.sync()?;
        self.layout = layout;
        Ok(())
    }

    /// Advances write pointers past data that the write-pointer table verifies.
    fn recover_pointers(&mut self, backing: &Backing, table: &mut ZoneTable) -> Result<(), DeviceError> {
        for recovered in write_pointer_table::recover(backing, &self.layout, table)? {
            self.unverified.extend(recovered.data);
            if recovered.is_stale {
                self.stale.insert(recovered.zone, Stale::Leftover);
            }
        }
        Ok(())
    }

    /// Updates the checksums of blocks and the write-pointer table after an append.
    pub fn append(
        &self,
        backing: &Backing,
        table: &ZoneTable,
        changed: &BTreeMap<ZoneNumber, Unflushed>,
        span: Span,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        block_sums::write(backing, &self.layout, table.geometry(), span.zone, span.offset, data)?;
        self.write_pointer(backing, table, changed, span.zone)
    }

    /// Discards the contents of a zone that was reset, and their checksums.
    pub fn discard(
        &mut self,
        backing: &Backing,
        header: &Header,
        table: &ZoneTable,
        changed: &BTreeMap<ZoneNumber, Unflushed>,
        zone: ZoneNumber,
    ) -> Result<(), DeviceError> {
        let is_blank = self.discard_from(backing, header, zone, 0)?;
        self.stale.insert(zone, if is_blank { Stale::Unsynced } else { Stale::Undiscardable });
        self.write_pointer(backing, table, changed, zone)
    }

    fn write_pointer(
        &self,
        backing: &Backing,
        table: &ZoneTable,
        changed: &BTreeMap<ZoneNumber, Unflushed>,
        zone: ZoneNumber,
    ) -> Result<(), DeviceError> {
        let is_stale = |zone| self.stale.contains_key(&zone);
        write_pointer_table::write(backing, &self.layout, table, changed, is_stale, zone)
    }

    /// Discards a zone from a block on. Returns whether that part of the zone reads as zeros afterwards.
    fn discard_from(
        &self,
        backing: &Backing,
        header: &Header,
        zone: ZoneNumber,
        from: u64,
    ) -> Result<bool, DeviceError> {
        let geometry = &header.geometry;
        let data = self.layout.blocks_of(geometry, zone, &(from..geometry.zone_blocks));
        let sums = self.layout.sums_of(geometry, zone, &(from..geometry.zone_capacity_blocks));
        let mut is_blank = backing.discard(data, header.is_allocated)?;
        if let Some(sums) = sums {
            is_blank &= backing.discard(sums, header.is_allocated)?;
        }
        Ok(is_blank)
    }

    /// Discards the data that a power cut has left after the write pointers.
    fn discard_leftovers(
        &mut self,
        backing: &Backing,
        header: &Header,
        table: &ZoneTable,
    ) -> Result<(), DeviceError> {
        let leftovers = self.stale.iter().filter(|(_, why)| **why == Stale::Leftover);
        for zone in leftovers.map(|(&zone, _)| zone).collect::<Vec<_>>() {
            let from = table.zone(zone)?.write_pointer;
            let is_blank = self.discard_from(backing, header, zone, from)?;
            self.stale.insert(zone, if is_blank { Stale::Unsynced } else { Stale::Undiscardable });
        }
        Ok(())
    }

    /// Whether the device must be saved before the zone is written, so that lost blocks read as zeros.
    pub fn must_save_first(&self, zone: ZoneNumber) -> bool {
        matches!(self.stale.get(&zone), Some(Stale::Leftover | Stale::Unsynced))
    }

    /// Writes all copies of the header. A file of an older version gets them when it is converted.
    pub fn write_headers(&self, backing: &Backing, header: &Header) -> Result<(), DeviceError> {
        if self.layout.version == VERSION {
            write_header_copy(backing, &self.layout, header)?;
            backing.write(0, &header.encode())?;
        }
        Ok(())
    }

    /// Rewrites data that was read back but may not be on the medium: after a failed flush it can remain in the page
    /// cache, and no later flush writes it (fsync(2)).
    fn rewrite_unverified(&mut self, backing: &Backing) -> Result<(), DeviceError> {
        for data in std::mem::take(&mut self.unverified) {
            in_pieces(data, |at, bytes| {
                let mut piece = vec![0; bytes];
                backing.read(at, &mut piece)?;
                backing.write(at, &piece)
            })?;
        }
        Ok(())
    }

    /// Whether the data covered by the last record is not known to be durable yet.
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether nothing was written since the file was opened.
    pub const fn is_unmodified(&self) -> bool {
        self.is_unmodified
    }

    /// Reads record `index` of the log. Returns `None` if it is not the next record in sequence.
    fn record(&self, backing: &Backing, index: u64) -> Result<Option<Listing>, DeviceError> {
        if index == self.layout.log_records() {
            return Ok(None);
        }
        let mut both = vec![0; self.layout.record_bytes as usize];
        backing.read(self.layout.log + index * self.layout.record_bytes, &mut both)?;
        Ok(Listing::decode_both(&both).find(|record| record.sequence == self.sequence + 1))
    }

    /// Writes all zone states over the older checkpoint and restarts the log.
    fn write_checkpoint(&mut self, backing: &Backing, table: &ZoneTable) -> Result<(), DeviceError> {
        let zones = table.geometry().sequential();
        let entries = zones
            .map(|zone| Ok(entry(&table.zone(zone)?, Unflushed::default())))
            .collect::<Result<_, DeviceError>>()?;
        let listing = Listing { sequence: self.sequence + 1, entries };
        let older = 1 - self.checkpoint;
        let bytes = two_copies(listing.encode(self.layout.checkpoint_bytes as usize));
        backing.write(self.layout.checkpoints[older], &bytes)?;
        backing.sync()?;
        self.is_unmodified = false;
        (self.sequence, self.records, self.checkpoint, self.is_open) = (listing.sequence, 0, older, false);
        Ok(())
    }
}

fn write_header_copy(backing: &Backing, layout: &FileLayout, header: &Header) -> Result<(), DeviceError> {
    layout.header_copy.map_or(Ok(()), |at| backing.write(at, &header.encode()))
}

fn damaged(backing: &Backing) -> DeviceError {
    backing.not_usable(
        "has a damaged table of zone states without an intact copy, so the write pointers are unknown; `longma zoned repair` \
         reconstructs the table from its remains"
            .into(),
    )
}

/// The intact copies of a checkpoint.
fn checkpoint(
    backing: &Backing,
    layout: &FileLayout,
    index: usize,
) -> Result<std::vec::IntoIter<Listing>, DeviceError> {
    let bytes = backing.read_part(layout.checkpoints[index], 2 * layout.checkpoint_bytes)?;
    Ok(Listing::decode_both(&bytes).collect::<Vec<_>>().into_iter())
}

/// The index of the newer checkpoint, or 0 if neither is intact.
fn newest_checkpoint(backing: &Backing, layout: &FileLayout) -> Result<usize, DeviceError> {
    let mut sequences = [0; 2];
    for (index, sequence) in sequences.iter_mut().enumerate() {
        *sequence = checkpoint(backing, layout, index)?.next().map_or(0, |listing| listing.sequence);
    }
    Ok(usize::from(sequences[1] > sequences[0]))
}

/// All intact records, including those from before the last checkpoint.
fn records(backing: &Backing, layout: &FileLayout) -> Result<Vec<Listing>, DeviceError> {
    let record_bytes = layout.record_bytes as usize;
    let mut bytes = vec![0; layout.log_records() as usize * record_bytes];
    backing.read(layout.log, &mut bytes)?;
    Ok(bytes.chunks_exact(record_bytes).filter_map(|both| Listing::decode_both(both).next()).collect())
}

/// Guesses the state of a zone from its last known state, if any, and from the end of its contents, block `end`.
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

/// Enforces the limit on active zones: the fullest of the surplus zones are marked full. Returns them.
fn finish_zones_over_limit(geometry: &Geometry, states: &mut [Entry]) -> Vec<ZoneNumber> {
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

/// The block after the last one that is not zero. A reset zone reads as zeros.
fn end_of_content(
    backing: &Backing,
    layout: &FileLayout,
    table: &ZoneTable,
    zone: ZoneNumber,
) -> Result<u64, DeviceError> {
    const AT_ONCE: u64 = 1 << 20;
    let geometry = table.geometry();
    let block_bytes = u64::from(geometry.block_bytes);
    let start = layout.zones + geometry.start(zone).0 * block_bytes;
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

/// The state of a zone after the file is reopened: no zone is open.
fn entry(zone: &Zone, unflushed: Unflushed) -> Entry {
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
        data_blocks: unflushed.blocks,
        data_crc: unflushed.crc,
    }
}

fn apply(backing: &Backing, table: &mut ZoneTable, entries: &[Entry]) -> Result<(), DeviceError> {
    for entry in entries {
        let restored = table.restore(entry.zone, entry.condition, entry.write_pointer, entry.resets);
        restored
            .map_err(|error| backing.not_usable(format!("has an invalid table of zone states: {error}")))?;
    }
    Ok(())
}

/// The byte range of the file that an entry's data covers. `None` if the zone does not exist.
fn data_of(layout: &FileLayout, table: &ZoneTable, entry: &Entry) -> Option<Range<u64>> {
    let before = table.zone(entry.zone).ok()?;
    // A reset is made durable before the zone is written again.
    let from = if before.resets == Some(entry.resets) { before.write_pointer } else { 0 };
    let blocks = entry.data_blocks.min(before.capacity_blocks - from);
    Some(layout.blocks_of(table.geometry(), entry.zone, &(from..from + blocks)))
}

/// Calls `each` with the offset and length of each piece, at most 1 MiB, of a range.
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

pub fn crc_of(backing: &Backing, part: Range<u64>) -> Result<u32, DeviceError> {
    let (mut crc, mut buffer) = (0, vec![0; 1 << 20]);
    in_pieces(part, |at, bytes| {
        backing.read(at, &mut buffer[..bytes])?;
        crc = crc32c::crc32c_append(crc, &buffer[..bytes]);
        Ok(())
    })?;
    Ok(crc)
}
