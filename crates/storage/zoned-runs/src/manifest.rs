//! The manifest lists the tables of each run and the zones of the log. Each manifest is written completely and twice,
//! to locations in conventional zones that the previous manifest does not use.
//!
//! Source: the alternating superblocks of shadow paging (Lorie, TODS 1977).

use crate::codec::{Input, put_bytes, put_varint};
use crate::error::{Error, Result};
use crate::io::{Io, Traffic, page_bytes};
use crate::table::Table;
use crate::version::{Piece, Run};
use longma_zoned_device::{AlignedBuffer, Block, Geometry, ZonedDevice};
use std::sync::Arc;

const MAGIC: u64 = 0x534e_5552_616d_676c;
/// The version of all formats of this crate.
const FORMAT: u32 = 1;
/// Magic number, checksum and length.
const HEADER_BYTES: usize = 16;
/// The greatest valid number in a manifest, so that sums do not overflow.
const MAX_NUMBER: u64 = 1 << 48;

/// The state of a map on its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The identifier of the map.
    pub map: u64,
    /// The number of the manifest, from 1.
    pub generation: u64,
    pub next_table: u64,
    pub next_run: u64,
    /// The first batch that the tables do not hold.
    pub next_batch: u64,
    /// The zones of the log, in order.
    pub log_zones: Vec<u32>,
    /// The newest first.
    pub runs: Vec<Arc<Run>>,
}

impl PartialEq for Run {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.tier, self.is_open, self.merging_into, self.shadowing)
            == (other.id, other.tier, other.is_open, other.merging_into, other.shadowing)
            && self.pieces.len() == other.pieces.len()
            && self.pieces.iter().zip(&other.pieces).all(|(a, b)| a.table == b.table && a.low == b.low)
    }
}

impl Eq for Run {}

/// The locations of the manifests: two for manifests with even numbers and two for those with odd numbers; and the length of a location, blocks.
fn locations(geometry: &Geometry) -> ([[u64; 2]; 2], u64) {
    let zone = geometry.zone_blocks;
    let location = |number: u64| match geometry.conventional_zones {
        4.. => number * zone,
        2..4 => (number / 2) * zone + number % 2 * (zone / 2),
        _ => number * (zone / 4),
    };
    let blocks = match geometry.conventional_zones {
        4.. => zone,
        2..4 => zone / 2,
        _ => zone / 4,
    };
    // If there are two zones, the copies of a manifest are in different zones.
    ([[location(0), location(2)], [location(1), location(3)]], blocks)
}

/// The longest manifest, bytes.
pub fn longest(geometry: &Geometry) -> u64 {
    locations(geometry).1 * u64::from(geometry.block_bytes)
}

impl Manifest {
    fn encode(&self, geometry: &Geometry) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&self.map.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        shape(geometry).iter().for_each(|&number| put_varint(&mut out, number));
        for number in [self.next_table, self.next_run, self.next_batch, self.log_zones.len() as u64] {
            put_varint(&mut out, number);
        }
        self.log_zones.iter().for_each(|&zone| put_varint(&mut out, zone.into()));
        put_varint(&mut out, self.runs.len() as u64);
        for run in &self.runs {
            for number in [run.id, run.tier.into(), run.is_open.into(), run.merging_into, run.shadowing] {
                put_varint(&mut out, number);
            }
            put_varint(&mut out, run.pieces.len() as u64);
            run.pieces.iter().for_each(|piece| encode_piece(&mut out, piece));
        }
        let length = (out.len() - HEADER_BYTES) as u32;
        out[..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[12..16].copy_from_slice(&length.to_le_bytes());
        let checksum = crc32c::crc32c(&out[12..]);
        out[8..12].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Decodes a manifest, whose checksum is correct.
    pub fn decode(content: &[u8], geometry: &Geometry) -> std::result::Result<Self, &'static str> {
        let mut input = Input(content);
        if input.u32() != Some(FORMAT) {
            return Err("its map was written by another version: use that version");
        }
        let (map, generation) = (input.u64(), input.u64());
        for number in shape(geometry) {
            if input.varint() != Some(number) {
                return Err("its map was made for a device of another shape");
            }
        }
        Self::decode_rest(&mut input, map, generation).ok_or("its manifest is not valid")
    }

    fn decode_rest(input: &mut Input<'_>, map: Option<u64>, generation: Option<u64>) -> Option<Self> {
        let mut number = || input.varint().filter(|&number| number <= MAX_NUMBER);
        let (next_table, next_run, next_batch) = (number()?, number()?, number()?);
        let mut log_zones = Vec::new();
        for _ in 0..input.length()? {
            log_zones.push(u32::try_from(input.varint()?).ok()?);
        }
        let mut runs = Vec::new();
        for _ in 0..input.length()? {
            let (id, tier, is_open) =
                (input.varint()?, u8::try_from(input.varint()?).ok()?, input.varint()? != 0);
            let (merging_into, shadowing) = (input.varint()?, input.varint()?.min(MAX_NUMBER));
            let mut pieces = Vec::new();
            for _ in 0..input.length()? {
                pieces.push(decode_piece(input)?);
            }
            let in_order = |pair: &[Piece]| pair[0].table.last < pair[1].table.first;
            if !pieces.windows(2).all(in_order) {
                return None;
            }
            runs.push(Arc::new(Run { id, tier, is_open, merging_into, shadowing, pieces }));
        }
        let manifest =
            Self { map: map?, generation: generation?, next_table, next_run, next_batch, log_zones, runs };
        input.0.is_empty().then_some(manifest)
    }

    /// Writes both copies. The caller flushes the device before and after.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if the manifest is too long.
    pub fn write<D: ZonedDevice>(&self, io: &Io<D>) -> Result<()> {
        let bytes = self.encode(&io.geometry);
        if bytes.len() as u64 > longest(&io.geometry) {
            let what = format!(
                "its manifest has {} bytes and its conventional zones have room for {}: load the map into a device with more conventional zones",
                bytes.len(),
                longest(&io.geometry)
            );
            return Err(Error::Unsuitable { device: io.device.name(), what });
        }
        let mut buffer = AlignedBuffer::new(bytes.len().next_multiple_of(io.page_bytes));
        buffer[..bytes.len()].copy_from_slice(&bytes);
        for location in locations(&io.geometry).0[(self.generation % 2) as usize] {
            io.write(Traffic::Manifest, location, &buffer)?;
        }
        Ok(())
    }

    /// Reads the newest manifest.
    ///
    /// # Errors
    /// [`Error::NotFormatted`], [`Error::Unsuitable`], [`Error::Device`].
    pub fn read<D: ZonedDevice>(device: &D) -> Result<Self> {
        let geometry = device.geometry();
        let (mut newest, mut wrong): (Option<Self>, Option<&str>) = (None, None);
        if geometry.conventional_zones > 0 && longest(&geometry) >= page_bytes(&geometry) as u64 {
            for location in locations(&geometry).0.concat() {
                let Some(content) = read_location(device, &geometry, location)? else { continue };
                match Self::decode(&content, &geometry) {
                    Ok(found)
                        if newest.as_ref().is_none_or(|newest| newest.generation < found.generation) =>
                    {
                        newest = Some(found);
                    }
                    Ok(_) => {}
                    Err(what) => wrong = Some(what),
                }
            }
        }
        match (newest, wrong) {
            (Some(manifest), _) => Ok(manifest),
            (None, Some(what)) => Err(Error::Unsuitable { device: device.name(), what: what.into() }),
            (None, None) => Err(Error::NotFormatted {
                device: device.name(),
                what: "format it for sorted runs, or open it as the layout that it has".into(),
            }),
        }
    }

    /// Whether both copies of the previous manifest are on the device, as after every complete write. If not, the write
    /// of a newer manifest was interrupted, or a newer manifest is lost.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn is_last<D: ZonedDevice>(&self, device: &D) -> Result<bool> {
        let geometry = device.geometry();
        for location in locations(&geometry).0[((self.generation + 1) % 2) as usize] {
            let content = read_location(device, &geometry, location)?;
            let found = content.and_then(|content| Self::decode(&content, &geometry).ok());
            if found.is_none_or(|found| found.map != self.map || found.generation + 1 != self.generation) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Invalidates all manifests, and the superblocks of `longma-zoned`, which are at both ends of the first zone.
    pub fn erase<D: ZonedDevice>(device: &D) -> Result<()> {
        let geometry = device.geometry();
        let zeros = AlignedBuffer::new(geometry.block_bytes as usize);
        let ends = [0, 1, geometry.zone_blocks - 2, geometry.zone_blocks - 1];
        for block in locations(&geometry).0.concat().into_iter().chain(ends) {
            device.write(Block(block), &zeros)?;
        }
        Ok(device.flush()?)
    }
}

/// The fields of a geometry that must not change.
fn shape(geometry: &Geometry) -> [u64; 5] {
    [
        geometry.block_bytes.into(),
        geometry.zone_blocks,
        geometry.zone_capacity_blocks,
        geometry.conventional_zones.into(),
        geometry.sequential_zones.into(),
    ]
}

/// The content of a location, if it has a manifest with the correct checksum. An unreadable block is not an error,
/// because there is another copy.
fn read_location<D: ZonedDevice>(device: &D, geometry: &Geometry, location: u64) -> Result<Option<Vec<u8>>> {
    let page = page_bytes(geometry);
    let mut front = AlignedBuffer::new(page);
    match device.read(Block(location), &mut front) {
        Ok(()) => {}
        Err(longma_zoned_device::DeviceError::Media { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut input = Input(&front);
    let (magic, checksum, length) = (input.u64(), input.u32(), input.u32());
    let (Some(MAGIC), Some(checksum), Some(length)) = (magic, checksum, length) else { return Ok(None) };
    let bytes = HEADER_BYTES as u64 + u64::from(length);
    if bytes > longest(geometry) {
        return Ok(None);
    }
    let mut all = AlignedBuffer::new((bytes as usize).next_multiple_of(page));
    match device.read(Block(location), &mut all) {
        Ok(()) => {}
        Err(longma_zoned_device::DeviceError::Media { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let content = &all[..bytes as usize];
    Ok((crc32c::crc32c(&content[12..]) == checksum).then(|| content[HEADER_BYTES..].to_vec()))
}

fn encode_piece(out: &mut Vec<u8>, piece: &Piece) {
    let table = &piece.table;
    let numbers = [
        table.id,
        table.start,
        table.pages.into(),
        table.index_pages.into(),
        table.index_bytes.into(),
        table.checksum.into(),
        table.records,
        table.tombstones,
    ];
    numbers.iter().for_each(|&number| put_varint(out, number));
    [&table.first, &table.last, &piece.low].iter().for_each(|key| put_bytes(out, key));
}

fn decode_piece(input: &mut Input<'_>) -> Option<Piece> {
    let (id, start) = (input.varint()?, input.varint()?);
    let mut short = || u32::try_from(input.varint()?).ok();
    let (pages, index_pages, index_bytes, checksum) = (short()?, short()?, short()?, short()?);
    let (records, tombstones) = (input.varint()?, input.varint()?);
    let (first, last, low) = (input.bytes()?.into(), input.bytes()?.into(), input.bytes()?.into());
    let table = Arc::new(Table {
        id,
        start,
        pages,
        index_pages,
        index_bytes,
        checksum,
        records,
        tombstones,
        first,
        last,
    });
    let is_possible =
        start <= MAX_NUMBER && records <= MAX_NUMBER / 1024 && tombstones <= records && pages > 0;
    (is_possible && table.first <= table.last).then_some(Piece { table, low })
}
