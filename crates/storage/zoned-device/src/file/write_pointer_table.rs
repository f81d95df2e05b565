//! The write-pointer table: the write pointers of zones that were written since the last log record. It preserves
//! unflushed writes when the process is killed, and recovers write pointers whose log records are lost.
//!
//! Each append updates the slot of its zone without a sync. A slot holds the write pointer, the write pointer at the
//! last flush, and the CRC of the data between them. A power cut may lose either the slot or the data, so recovery
//! accepts data after the last flush only if its CRC matches.

use super::layout::{FileLayout, SLOT_BYTES, Slot};
use super::state_log::crc_of;
use super::{Backing, DeviceError, Unflushed, ZoneNumber, ZoneTable};
use crate::{Condition, Geometry};
use std::collections::BTreeMap;
use std::ops::Range;

/// The size of an update in bytes: the smallest unit that a drive writes atomically.
const SECTOR_BYTES: usize = 512;

const SECTOR_SLOTS: usize = SECTOR_BYTES / SLOT_BYTES;

/// Rewrites the sector that contains the slot of `zone`. Does nothing if the file's format version has no table.
pub fn write(
    backing: &Backing,
    layout: &FileLayout,
    table: &ZoneTable,
    unflushed: &BTreeMap<ZoneNumber, Unflushed>,
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
        Slot { zone: zone.number, resets, write_pointer: zone.write_pointer, durable, data_crc }.encode(slot);
    }
    backing.write(start + (sector * SECTOR_BYTES) as u64, &bytes)
}

/// Advances write pointers past data that the slots verify. Returns the zones whose pointer moved, each with the byte
/// range of the data in the file that may not be on the medium yet.
pub fn recover(
    backing: &Backing,
    layout: &FileLayout,
    table: &mut ZoneTable,
) -> Result<Vec<(ZoneNumber, Range<u64>)>, DeviceError> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let Some(start) = layout.pointers else { return Ok(Vec::new()) };
    let geometry = *table.geometry();
    let end = start + layout.pointers_bytes();
    let mut moved = Vec::new();
    for from in (start..end).step_by(CHUNK_BYTES as usize) {
        let part = from..(from + CHUNK_BYTES).min(end);
        if backing.is_hole(part.clone()) {
            continue;
        }
        let bytes = backing.read_part(part.start, part.end - part.start)?;
        let first = geometry.conventional_zones + ((from - start) / SLOT_BYTES as u64) as u32;
        let slots = bytes.chunks_exact(SLOT_BYTES).map(Slot::decode);
        for (number, slot) in (first..geometry.zones()).zip(slots) {
            let Some(slot) = slot.filter(|slot| slot.zone.0 == number) else { continue };
            if let Some(data) = apply(backing, layout, table, &slot)? {
                moved.push((slot.zone, data));
            }
        }
    }
    Ok(moved)
}

/// Applies a slot if it is newer than the state in the table. Returns the byte range of the data that no
/// log record covers.
fn apply(
    backing: &Backing,
    layout: &FileLayout,
    table: &mut ZoneTable,
    slot: &Slot,
) -> Result<Option<Range<u64>>, DeviceError> {
    let before = table.zone(slot.zone)?;
    let resets = before.resets.unwrap_or_default();
    let is_unwritable = matches!(before.condition, Condition::ReadOnly | Condition::Offline);
    let is_valid = slot.durable <= slot.write_pointer && slot.write_pointer <= before.capacity_blocks;
    if is_unwritable || !is_valid || slot.resets < resets {
        return Ok(None);
    }
    // A reset is made durable before the zone is written again, so a higher reset count in the slot is valid.
    let is_reset = slot.resets > resets;
    if !is_reset && slot.write_pointer <= before.write_pointer {
        return Ok(None);
    }
    let data = bytes_of(table.geometry(), layout, slot.zone, slot.durable..slot.write_pointer);
    let has_data = crc_of(backing, data.clone())? == slot.data_crc;
    let write_pointer = if has_data { slot.write_pointer } else { slot.durable };
    if !is_reset && write_pointer <= before.write_pointer {
        return Ok(None);
    }
    let condition = match write_pointer {
        0 => Condition::Empty,
        pointer if pointer == before.capacity_blocks => Condition::Full,
        _ => Condition::Closed,
    };
    table.restore(slot.zone, condition, write_pointer, slot.resets)?;
    Ok(Some(if has_data { data } else { data.start..data.start }))
}

fn bytes_of(geometry: &Geometry, layout: &FileLayout, zone: ZoneNumber, blocks: Range<u64>) -> Range<u64> {
    let block_bytes = u64::from(geometry.block_bytes);
    let start = layout.zones + geometry.start(zone).0 * block_bytes;
    start + blocks.start * block_bytes..start + blocks.end * block_bytes
}

const _: () = assert!(SECTOR_BYTES.is_multiple_of(SLOT_BYTES));
