//! The metadata of an emulated device's file. Before the zones: a header, two checkpoints of the zone states, and a log
//! of their changes. After the zones: the write-pointer table, the checksums of blocks, and another copy of the header.
//! Copies are in different pages, so that the loss of a page does no harm.
//!
//! Source: the book's chapter on zoned devices describes the format. All numbers are little-endian; each structure ends
//! with its CRC-32C.

use crate::{Condition, DeviceError, Geometry, ZoneNumber};
use std::ops::Range;

/// The magic number at the start of the file.
const MAGIC: [u8; 8] = *b"LngmZone";

/// The version of the format. Version 4 moved the second copies of records and of the header to pages of their own and
/// added the write-pointer table; version 5 added the checksums of blocks. Files of versions 3 and 4 are read, and the
/// first flush converts them.
pub const VERSION: u32 = 5;

/// The oldest version that is read.
const OLDEST_VERSION: u32 = 3;

/// The alignment and unit of all structures, bytes.
pub const PAGE_BYTES: usize = 4096;

/// The two copies of the header in the first page, and of a record in version 3, are in different halves of the page,
/// and so in different sectors.
const COPY_BYTES: usize = PAGE_BYTES / 2;

/// The size of the log, bytes.
const LOG_BYTES: u64 = 1024 * PAGE_BYTES as u64;

/// The maximum number of zones. It limits the memory that a corrupt header can make the program allocate. Real drives
/// have up to a few hundred thousand zones.
const MAX_ZONES: u32 = 1 << 22;

/// The alignment of the first zone, bytes.
const ZONES_ALIGNMENT: u64 = 1 << 20;

/// The size of a header of version 3 without its CRC, bytes.
const HEADER_3_BYTES: usize = 8 + 4 + 16 + 4 + 8 + 8 + 4 * 4;

/// The size of a header without its CRC, bytes.
const HEADER_BYTES: usize = HEADER_3_BYTES + 4;

/// The size of a zone state, bytes.
const ENTRY_BYTES: usize = 4 + 1 + 8 + 8 + 8 + 4;

/// The size of the sequence number and the count in front of the entries, bytes.
const LIST_HEAD_BYTES: usize = 8 + 4;

/// The size of a slot of the write-pointer table, bytes.
pub const SLOT_BYTES: usize = 64;

/// The size of a slot of version 4 without its CRC and the padding, bytes.
const SLOT_4_CONTENT_BYTES: usize = 4 + 8 + 8 + 8 + 4;

/// The size of a slot without its CRC and the padding, bytes.
const SLOT_CONTENT_BYTES: usize = SLOT_4_CONTENT_BYTES + 4;

/// The size of the checksum of a block, bytes.
pub const BLOCK_SUM_BYTES: u64 = 8;

/// The alignment of the checksums of a zone, bytes: the smallest unit that a drive writes atomically.
const SUMS_ALIGNMENT: u64 = 512;

/// The identity and the geometry of an emulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Chosen randomly when the device was created.
    pub identity: u128,
    /// The geometry of the device.
    pub geometry: Geometry,
    /// Whether the file system has allocated space for all zones, which resets keep.
    pub is_allocated: bool,
}

/// The state of a sequential zone in a checkpoint or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The zone.
    pub zone: ZoneNumber,
    /// The condition of the zone.
    pub condition: Condition,
    /// The write pointer, blocks from the start of the zone.
    pub write_pointer: u64,
    /// The number of resets.
    pub resets: u64,
    /// The number of blocks written since the previous entry for the zone.
    pub data_blocks: u64,
    /// The CRC-32C of these blocks. It is needed because the record may reach the medium before the data.
    pub data_crc: u32,
}

/// The write pointer of a sequential zone, written with each append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The zone.
    pub zone: ZoneNumber,
    /// The number of resets.
    pub resets: u64,
    /// The write pointer, blocks from the start of the zone.
    pub write_pointer: u64,
    /// The write pointer at the last flush. The data before this position is durable.
    pub durable: u64,
    /// The CRC-32C of the data between `durable` and `write_pointer`.
    pub data_crc: u32,
    /// Whether a lost block after `durable` may read as data from before the last reset instead of zeros. Always set in
    /// version 4.
    pub is_stale: bool,
}

/// Checks that a file can emulate a device with this geometry.
///
/// # Errors
/// Those of [`Geometry::check`]; [`DeviceError::Geometry`] also for more than [`MAX_ZONES`] zones.
pub fn check(geometry: &Geometry) -> Result<(), DeviceError> {
    geometry.check()?;
    if geometry.zones() > MAX_ZONES {
        let what = format!("{} zones: a file can emulate at most {MAX_ZONES}", geometry.zones());
        return Err(DeviceError::Geometry { what });
    }
    Ok(())
}

/// A checkpoint, which covers all zones, or a log record, which covers the changed ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The sequence number. Checkpoints and records share one sequence.
    pub sequence: u64,
    /// The zone states.
    pub entries: Vec<Entry>,
}

/// The offsets of the structures, bytes from the start of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// The version of the format.
    pub version: u32,
    /// The two checkpoints, written alternately. The second copy of each directly follows the first.
    pub checkpoints: [u64; 2],
    /// The size of one copy of a checkpoint.
    pub checkpoint_bytes: u64,
    /// The log.
    pub log: u64,
    /// The size of a record with both copies.
    pub record_bytes: u64,
    /// The zones.
    pub zones: u64,
    /// The write-pointer table, from version 4 on.
    pub pointers: Option<u64>,
    /// The checksums of blocks, from version 5 on.
    pub sums: Option<u64>,
    /// The size of the checksums of a zone, bytes.
    pub zone_sums_bytes: u64,
    /// The copy of the header in the last page, from version 4 on.
    pub header_copy: Option<u64>,
    /// The end of the file.
    pub end: u64,
}

impl FileLayout {
    /// Computes the layout of a version for a valid geometry.
    pub fn of(geometry: &Geometry, version: u32) -> Self {
        let entries = u64::from(geometry.sequential_zones);
        let page = PAGE_BYTES as u64;
        let checkpoint_bytes =
            (LIST_HEAD_BYTES as u64 + entries * ENTRY_BYTES as u64 + 4).next_multiple_of(page);
        let log = page + 4 * checkpoint_bytes;
        let zones = (log + LOG_BYTES).next_multiple_of(ZONES_ALIGNMENT);
        let zones_end = zones + geometry.blocks() * u64::from(geometry.block_bytes);
        let before = Self {
            version,
            checkpoints: [page, page + 2 * checkpoint_bytes],
            checkpoint_bytes,
            log,
            record_bytes: page,
            zones,
            pointers: None,
            sums: None,
            zone_sums_bytes: (geometry.zone_capacity_blocks * BLOCK_SUM_BYTES)
                .next_multiple_of(SUMS_ALIGNMENT),
            header_copy: None,
            end: zones_end,
        };
        if version < 4 {
            return before;
        }
        let pointers = zones_end.next_multiple_of(page);
        let sums = pointers + (entries * SLOT_BYTES as u64).next_multiple_of(page);
        let header_copy = match version {
            4 => sums,
            _ => sums + (entries * before.zone_sums_bytes).next_multiple_of(page),
        };
        Self {
            record_bytes: 2 * page,
            pointers: Some(pointers),
            sums: (version > 4).then_some(sums),
            header_copy: Some(header_copy),
            end: header_copy + page,
            ..before
        }
    }

    /// The capacity of the log, records.
    pub const fn log_records(&self) -> u64 {
        LOG_BYTES / self.record_bytes
    }

    /// The number of zone states that fit into one record.
    pub const fn record_entries(&self) -> usize {
        (self.record_bytes as usize / 2 - LIST_HEAD_BYTES - 4) / ENTRY_BYTES
    }

    /// The parts of the file that are allocated even in a sparse file: all metadata except the checksums of blocks,
    /// which are allocated together with the blocks.
    pub fn metadata(&self) -> [Range<u64>; 3] {
        let after_zones = self.pointers.unwrap_or(self.end);
        [
            0..self.zones,
            after_zones..after_zones + self.pointers_bytes(),
            self.header_copy.unwrap_or(self.end)..self.end,
        ]
    }

    /// The size of the write-pointer table, bytes.
    pub fn pointers_bytes(&self) -> u64 {
        self.pointers.zip(self.sums.or(self.header_copy)).map_or(0, |(start, end)| end - start)
    }

    /// The checksums of blocks of a zone, as a byte range of the file. `None` if the version has none.
    pub fn sums_of(&self, geometry: &Geometry, zone: ZoneNumber, blocks: &Range<u64>) -> Option<Range<u64>> {
        let index = zone.0.checked_sub(geometry.conventional_zones)?;
        let start = self.sums? + u64::from(index) * self.zone_sums_bytes;
        Some(start + blocks.start * BLOCK_SUM_BYTES..start + blocks.end * BLOCK_SUM_BYTES)
    }

    /// Blocks of a zone, as a byte range of the file.
    pub fn blocks_of(&self, geometry: &Geometry, zone: ZoneNumber, blocks: &Range<u64>) -> Range<u64> {
        let block_bytes = u64::from(geometry.block_bytes);
        let start = self.zones + geometry.start(zone).0 * block_bytes;
        start + blocks.start * block_bytes..start + blocks.end * block_bytes
    }
}

/// Decodes little-endian integers from the front of a slice.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (now, later) = self.0.split_first_chunk::<N>()?;
        self.0 = later;
        Some(*now)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

impl Header {
    /// Encodes a header page, which contains two copies.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_version(VERSION)
    }

    /// Encodes a header page of a version that is still read.
    pub fn encode_version(&self, version: u32) -> Vec<u8> {
        let Geometry {
            block_bytes,
            zone_blocks,
            zone_capacity_blocks,
            conventional_zones,
            sequential_zones,
            max_open_zones,
            max_active_zones,
        } = self.geometry;
        let mut page = MAGIC.to_vec();
        page.extend(version.to_le_bytes());
        page.extend(self.identity.to_le_bytes());
        page.extend(block_bytes.to_le_bytes());
        page.extend(zone_blocks.to_le_bytes());
        page.extend(zone_capacity_blocks.to_le_bytes());
        for number in [conventional_zones, sequential_zones, max_open_zones, max_active_zones] {
            page.extend(number.to_le_bytes());
        }
        if version >= 4 {
            page.extend(u32::from(self.is_allocated).to_le_bytes());
        }
        two_copies(seal(page, COPY_BYTES))
    }

    /// Decodes a header page. Also returns the version of the file and whether both copies are intact. The error is a
    /// description to be appended to the path.
    pub fn decode(page: &[u8]) -> Result<(Self, u32, bool), String> {
        let (first, second) = page.split_at(page.len().min(COPY_BYTES));
        match (Self::decode_copy(first), Self::decode_copy(second)) {
            (Ok((header, version)), second) => Ok((header, version, second == Ok((header, version)))),
            (Err(_), Ok((header, version))) => Ok((header, version, false)),
            // Report the error of the copy that at least has the magic number.
            (Err(_), Err(what)) if second.starts_with(&MAGIC) && !first.starts_with(&MAGIC) => Err(what),
            (Err(what), Err(_)) => Err(what),
        }
    }

    fn decode_copy(page: &[u8]) -> Result<(Self, u32), String> {
        if !page.starts_with(&MAGIC) {
            return Err("is not an emulated zoned device: create one with `longma zoned format`".into());
        }
        let mut reader = Reader(&page[MAGIC.len()..]);
        let short = || "ends inside its header".to_owned();
        let version = reader.u32().ok_or_else(short)?;
        let used = if version < 4 { HEADER_3_BYTES } else { HEADER_BYTES };
        if page.len() < used + 4 {
            return Err(short());
        }
        if !is_sealed(page, used) {
            return Err(
                "has a damaged header in all copies: the device geometry is lost, so nothing can be read"
                    .into(),
            );
        }
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            let which = if version < VERSION { "an older" } else { "a newer" };
            return Err(format!(
                "has layout version {version}, written by {which} longma; this longma reads versions {OLDEST_VERSION} to {VERSION}: export the map with \
                 `longma zoned scan --hex` of that version, and import it with `longma zoned load --hex` of this one"
            ));
        }
        let mut read = || {
            Some(Self {
                identity: reader.take().map(u128::from_le_bytes)?,
                geometry: Geometry {
                    block_bytes: reader.u32()?,
                    zone_blocks: reader.u64()?,
                    zone_capacity_blocks: reader.u64()?,
                    conventional_zones: reader.u32()?,
                    sequential_zones: reader.u32()?,
                    max_open_zones: reader.u32()?,
                    max_active_zones: reader.u32()?,
                },
                is_allocated: version >= 4 && reader.u32()? & 1 == 1,
            })
        };
        let header = read().ok_or_else(short)?;
        check(&header.geometry).map_err(|error| format!("has an invalid header: {error}"))?;
        Ok((header, version))
    }
}

impl Slot {
    /// Encodes a slot for a file of a version into [`SLOT_BYTES`] bytes.
    pub fn encode(&self, version: u32, slot: &mut [u8]) {
        let mut out = Vec::with_capacity(SLOT_BYTES);
        out.extend(self.zone.0.to_le_bytes());
        for number in [self.resets, self.write_pointer, self.durable] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.data_crc.to_le_bytes());
        if version > 4 {
            out.extend(u32::from(self.is_stale).to_le_bytes());
        }
        slot.copy_from_slice(&seal(out, SLOT_BYTES));
    }

    /// Decodes a slot of a file of a version. Returns `None` if it was never written or is damaged.
    pub fn decode(version: u32, slot: &[u8]) -> Option<Self> {
        let used = if version > 4 { SLOT_CONTENT_BYTES } else { SLOT_4_CONTENT_BYTES };
        if slot.len() < SLOT_BYTES || !is_sealed(slot, used) {
            return None;
        }
        let mut reader = Reader(slot);
        Some(Self {
            zone: ZoneNumber(reader.u32()?),
            resets: reader.u64()?,
            write_pointer: reader.u64()?,
            durable: reader.u64()?,
            data_crc: reader.u32()?,
            is_stale: version < 5 || reader.u32()? != 0,
        })
    }
}

impl Listing {
    /// Encodes the listing and pads it with zeros to `bytes`, which must be large enough.
    pub fn encode(&self, bytes: usize) -> Vec<u8> {
        let mut out = self.sequence.to_le_bytes().to_vec();
        out.extend((self.entries.len() as u32).to_le_bytes());
        for entry in &self.entries {
            out.extend(entry.zone.0.to_le_bytes());
            out.push(code(entry.condition));
            out.extend(entry.write_pointer.to_le_bytes());
            out.extend(entry.resets.to_le_bytes());
            out.extend(entry.data_blocks.to_le_bytes());
            out.extend(entry.data_crc.to_le_bytes());
        }
        seal(out, bytes)
    }

    /// Encodes a record of `bytes` bytes, which contains two copies.
    pub fn encode_record(&self, bytes: u64) -> Vec<u8> {
        two_copies(self.encode(bytes as usize / 2))
    }

    /// Decodes both copies of a listing and returns the intact ones.
    pub fn decode_both(bytes: &[u8]) -> impl Iterator<Item = Self> {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        [first, second].into_iter().filter_map(Self::decode)
    }

    /// Decodes a listing. Returns `None` if it is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let sequence = reader.u64()?;
        let count = reader.u32()? as usize;
        let used = count.checked_mul(ENTRY_BYTES)?.checked_add(LIST_HEAD_BYTES)?;
        if used.checked_add(4)? > bytes.len() || !is_sealed(bytes, used) {
            return None;
        }
        let mut entry = || {
            Some(Entry {
                zone: ZoneNumber(reader.u32()?),
                condition: condition(reader.u8()?)?,
                write_pointer: reader.u64()?,
                resets: reader.u64()?,
                data_blocks: reader.u64()?,
                data_crc: reader.u32()?,
            })
        };
        let entries = (0..count).map(|_| entry()).collect::<Option<_>>()?;
        Some(Self { sequence, entries })
    }
}

/// Appends the CRC and pads with zeros to `bytes`.
fn seal(mut part: Vec<u8>, bytes: usize) -> Vec<u8> {
    let crc = crc32c::crc32c(&part);
    part.extend(crc.to_le_bytes());
    part.resize(bytes, 0);
    part
}

/// Appends a second copy.
pub fn two_copies(mut part: Vec<u8>) -> Vec<u8> {
    part.extend_from_within(..);
    part
}

fn is_sealed(part: &[u8], used: usize) -> bool {
    let (content, rest) = part.split_at(used);
    Reader(rest).u32() == Some(crc32c::crc32c(content))
}

/// The conditions that persist when the file is closed, with the codes of the kernel's `enum blk_zone_cond`.
const CODES: [(u8, Condition); 5] = [
    (0x1, Condition::Empty),
    (0x4, Condition::Closed),
    (0xd, Condition::ReadOnly),
    (0xe, Condition::Full),
    (0xf, Condition::Offline),
];

fn code(condition: Condition) -> u8 {
    // An open zone is treated as closed when its state is read back.
    CODES.iter().find(|known| known.1 == condition).map_or(0x4, |known| known.0)
}

fn condition(code: u8) -> Option<Condition> {
    CODES.iter().find(|known| known.0 == code).map(|known| known.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        let geometry = Geometry {
            block_bytes: 4096,
            zone_blocks: 512,
            zone_capacity_blocks: 500,
            conventional_zones: 1,
            sequential_zones: 300,
            max_open_zones: 4,
            max_active_zones: 6,
        };
        Header { identity: 77, geometry, is_allocated: false }
    }

    #[test]
    fn a_header_survives_the_loss_of_one_copy_but_not_of_both() {
        let page = header().encode();
        assert_eq!(Header::decode(&page), Ok((header(), VERSION, true)));
        for byte in 0..HEADER_BYTES + 4 {
            let mut damaged = page.clone();
            damaged[byte] ^= 4;
            assert_eq!(Header::decode(&damaged), Ok((header(), VERSION, false)), "byte {byte}");
            damaged[COPY_BYTES + 30] ^= 1;
            assert!(Header::decode(&damaged).is_err(), "byte {byte}");
            damaged[byte] ^= 4;
            assert_eq!(Header::decode(&damaged), Ok((header(), VERSION, false)), "byte {byte}");
        }
        assert!(Header::decode(&page[..40]).unwrap_err().contains("ends inside"));
        assert!(Header::decode(b"").unwrap_err().contains("longma zoned format"));
    }

    #[test]
    fn a_file_of_another_version_is_refused_with_advice() {
        for (version, which) in [(2, "an older"), (VERSION + 1, "a newer")] {
            let used = if version < 4 { HEADER_3_BYTES } else { HEADER_BYTES };
            let mut page = header().encode()[..used].to_vec();
            page[8..12].copy_from_slice(&u32::to_le_bytes(version));
            let what = Header::decode(&seal(page, PAGE_BYTES)).unwrap_err();
            assert!(what.contains(which) && what.contains("longma zoned load --hex"), "{what}");
            assert!(what.contains("longma zoned scan --hex"), "{what}");
        }
    }

    #[test]
    fn a_header_with_too_many_zones_is_refused_with_their_number() {
        for (conventional_zones, sequential_zones) in [(1, MAX_ZONES), (1 << 31, 64), (MAX_ZONES, 1)] {
            let (zone_blocks, zone_capacity_blocks) = (1, 1);
            let geometry = Geometry {
                block_bytes: 512,
                zone_blocks,
                zone_capacity_blocks,
                conventional_zones,
                sequential_zones,
                ..header().geometry
            };
            let what =
                Header::decode(&Header { identity: 1, geometry, is_allocated: false }.encode()).unwrap_err();
            assert!(what.contains(&format!("{} zones", geometry.zones())), "{what}");
            let fewer = Geometry { conventional_zones: 1, sequential_zones: MAX_ZONES - 1, ..geometry };
            let largest = Header { identity: 1, geometry: fewer, is_allocated: true };
            assert_eq!(Header::decode(&largest.encode()), Ok((largest, VERSION, true)));
        }
    }

    #[test]
    fn parts_do_not_overlap() {
        for version in OLDEST_VERSION..=VERSION {
            let layout = FileLayout::of(&header().geometry, version);
            assert_eq!(layout.checkpoints[1] - layout.checkpoints[0], 2 * layout.checkpoint_bytes);
            assert_eq!(layout.log - layout.checkpoints[1], 2 * layout.checkpoint_bytes);
            assert!(layout.zones >= layout.log + layout.log_records() * layout.record_bytes);
            let zones_end = layout.zones + 301 * 512 * 4096;
            let Some((pointers, header_copy)) = layout.pointers.zip(layout.header_copy) else {
                assert_eq!((version, layout.end), (3, zones_end));
                continue;
            };
            let pointers_end = pointers + layout.pointers_bytes();
            assert!(pointers >= zones_end && pointers_end >= pointers + 300 * SLOT_BYTES as u64);
            let last = layout.sums_of(&header().geometry, ZoneNumber(300), &(0..500));
            assert_eq!(last.is_some(), version > 4);
            assert!(header_copy >= last.map_or(pointers_end, |last| last.end));
            assert_eq!(layout.sums.unwrap_or(pointers_end), pointers_end);
            assert_eq!(layout.end, header_copy + PAGE_BYTES as u64);
        }
    }

    proptest! {
        #[test]
        fn listings_round_trip_and_any_bytes_are_parsed_without_a_panic(
            sequence in any::<u64>(), count in 0..123usize, noise in prop::collection::vec(any::<u8>(), 0..200),
            flipped in 0..2 * PAGE_BYTES * 8,
        ) {
            let entry = |i: usize| Entry {
                zone: ZoneNumber(i as u32), condition: CODES[i % 5].1, write_pointer: i as u64 * 3, resets: 9, data_blocks: 2, data_crc: 5,
            };
            let listing = Listing { sequence, entries: (0..count).map(entry).collect() };
            let layout = FileLayout::of(&header().geometry, VERSION);
            prop_assert_eq!(layout.record_entries(), 123);
            let mut bytes = listing.encode_record(layout.record_bytes);
            prop_assert_eq!(bytes.len(), 2 * PAGE_BYTES);
            prop_assert_eq!(Listing::decode_both(&bytes).collect::<Vec<_>>(), vec![listing.clone(), listing.clone()]);
            bytes[flipped / 8] ^= 1 << (flipped % 8);
            let used = LIST_HEAD_BYTES + count * ENTRY_BYTES + 4;
            let is_hit = flipped / 8 % PAGE_BYTES < used;
            prop_assert_eq!(Listing::decode_both(&bytes).collect::<Vec<_>>(), vec![listing; if is_hit { 1 } else { 2 }]);
            let _ = (Listing::decode(&noise), Header::decode(&noise), Slot::decode(4, &noise), Slot::decode(VERSION, &noise));
        }
    }
}
