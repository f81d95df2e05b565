//! The write-pointer table: the write pointers of zones that were written since the last log record. It preserves
//! unflushed writes when the process is killed, and recovers write pointers whose log records are lost.
//!
//! Each append updates the slot of its zone without a sync. A slot holds the write pointer, the write pointer at the
//! last flush, and the CRC of the data between them. A power cut may lose either the slot or the data. So if the CRC of
//! the data after the last flush is wrong, recovery accepts the blocks before the first one that a power cut has lost
//! ([`super::block_sums`]); damaged blocks among them are detected when they are read.

use super::layout::{FileLayout, SLOT_BYTES, Slot};
use super::state_log::crc_of;
use super::{Backing, DeviceError, Unflushed, ZoneNumber, ZoneTable, block_sums};
use crate::Condition;
use std::collections::BTreeMap;
use std::ops::Range;

/// The size of an update in bytes: the smallest unit that a drive writes atomically.
const SECTOR_BYTES: usize = 512;

const SECTOR_SLOTS: usize = SECTOR_BYTES / SLOT_BYTES;

/// A zone whose slot has been examined.
pub struct Recovered {
    pub zone: ZoneNumber,
    /// The byte range of the file that the write pointer has moved past, which may not be on the medium yet.
    pub data: Option<Range<u64>>,
    /// Whether the zone may contain old data after its write pointer.
    pub is_stale: bool,
}

/// Rewrites the sector that contains the slot of `zone`. Does nothing if the file's format version has no table.
pub fn write(
    backing: &Backing,
    layout: &FileLayout,
    table: &ZoneTable,
    unflushed: &BTreeMap<ZoneNumber, Unflushed>,
    is_stale: impl Fn(ZoneNumber) -> bool,
    zone: ZoneNumber,
) -> Result<(), DeviceError> {
    let Some(start) = layout.pointers else { return Ok(()) };
    let geometry = table.geometry();
    let sector = (zone.0 - geometry.conventional_zones) as usize / SECTOR_SLOTS;
    let first = geometry.conventional_zones + (sector * SECTOR_SLOTS) as u32;
    let mut bytes = [0; SECTOR_BYTES];
    for (number, slot) in (first..geometry.zones()).zip(bytes.chunks_exact_mut(SLOT_BYTES)) {
        let zone = table.zone(ZoneNumber(number))?;
        let (blocks, data_crc) =
            unflushed.get(&zone.number).map_or((0, 0), |unflushed| (unflushed.blocks, unflushed.crc));
        let durable = zone.write_pointer.saturating_sub(blocks);
        let resets = zone.resets.unwrap_or_default();
        let (write_pointer, is_stale) = (zone.write_pointer, is_stale(zone.number));
        Slot { zone: zone.number, resets, write_pointer, durable, data_crc, is_stale }
            .encode(layout.version, slot);
    }
    backing.write(start + (sector * SECTOR_BYTES) as u64, &bytes)
}

/// Advances write pointers past data that the slots or the checksums of blocks verify. Returns the zones that this
/// changes.
pub fn recover(
    backing: &Backing,
    layout: &FileLayout,
    table: &mut ZoneTable,
) -> Result<Vec<Recovered>, DeviceError> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let Some(start) = layout.pointers else { return Ok(Vec::new()) };
    let geometry = *table.geometry();
    let end = start + layout.pointers_bytes();
    let mut recovered = Vec::new();
    for from in (start..end).step_by(CHUNK_BYTES as usize) {
        let part = from..(from + CHUNK_BYTES).min(end);
        if backing.is_hole(part.clone()) {
            continue;
        }
        let bytes = backing.read_part(part.start, part.end - part.start)?;
        let first = geometry.conventional_zones + ((from - start) / SLOT_BYTES as u64) as u32;
        let slots = bytes.chunks_exact(SLOT_BYTES).map(|slot| Slot::decode(layout.version, slot));
        for (number, slot) in (first..geometry.zones()).zip(slots) {
            recovered.extend(match slot.filter(|slot| slot.zone.0 == number) {
                Some(slot) => apply(backing, layout, table, &slot)?,
                None => without_slot(backing, layout, table, ZoneNumber(number))?,
            });
        }
    }
    Ok(recovered)
}

/// Applies a slot if it is newer than the state in the table.
fn apply(
    backing: &Backing,
    layout: &FileLayout,
    table: &mut ZoneTable,
    slot: &Slot,
) -> Result<Option<Recovered>, DeviceError> {
    let before = table.zone(slot.zone)?;
    let resets = before.resets.unwrap_or_default();
    let is_unwritable = matches!(before.condition, Condition::ReadOnly | Condition::Offline);
    let is_valid = slot.durable <= slot.write_pointer && slot.write_pointer <= before.capacity_blocks;
    if is_unwritable || !is_valid {
        return Ok(None);
    }
    let stale = |is_stale: bool| is_stale.then_some(Recovered { zone: slot.zone, data: None, is_stale });
    if slot.resets < resets {
        // A power cut has lost the slot that followed the reset, and maybe the discarding of the contents as well.
        return Ok(stale(true));
    }
    // A reset is made durable before the zone is written again, so a higher reset count in the slot is valid.
    let is_reset = slot.resets > resets;
    if !is_reset && slot.write_pointer <= before.write_pointer {
        return Ok(stale(slot.is_stale));
    }
    let geometry = *table.geometry();
    let blocks = slot.durable..slot.write_pointer;
    let data = layout.blocks_of(&geometry, slot.zone, &blocks);
    let write_pointer = if crc_of(backing, data)? == slot.data_crc {
        slot.write_pointer
    } else if slot.is_stale {
        slot.durable
    } else {
        block_sums::first_lost(backing, layout, &geometry, slot.zone, blocks)?
    };
    let is_stale = slot.is_stale || write_pointer < slot.write_pointer;
    if !is_reset && write_pointer <= before.write_pointer {
        return Ok(stale(is_stale));
    }
    move_to(table, slot.zone, write_pointer, slot.resets)?;
    let data = layout.blocks_of(&geometry, slot.zone, &(slot.durable..write_pointer));
    Ok(Some(Recovered { zone: slot.zone, data: Some(data), is_stale }))
}

/// Advances the write pointer of a zone whose slot is lost past the blocks whose checksums show that they were written.
fn without_slot(
    backing: &Backing,
    layout: &FileLayout,
    table: &mut ZoneTable,
    zone: ZoneNumber,
) -> Result<Option<Recovered>, DeviceError> {
    let (before, geometry) = (table.zone(zone)?, *table.geometry());
    if before.room_blocks() == 0 {
        return Ok(None);
    }
    let blocks = before.write_pointer..before.capacity_blocks;
    let write_pointer = block_sums::first_lost(backing, layout, &geometry, zone, blocks)?;
    if write_pointer == before.write_pointer {
        return Ok(None);
    }
    move_to(table, zone, write_pointer, before.resets.unwrap_or_default())?;
    let data = layout.blocks_of(&geometry, zone, &(before.write_pointer..write_pointer));
    Ok(Some(Recovered { zone, data: Some(data), is_stale: true }))
}

fn move_to(
    table: &mut ZoneTable,
    zone: ZoneNumber,
    write_pointer: u64,
    resets: u64,
) -> Result<(), DeviceError> {
    let condition = match write_pointer {
        0 => Condition::Empty,
        pointer if pointer == table.geometry().zone_capacity_blocks => Condition::Full,
        _ => Condition::Closed,
    };
    table.restore(zone, condition, write_pointer, resets)
}

const _: () = assert!(SECTOR_BYTES.is_multiple_of(SLOT_BYTES));
