//! The checksums of blocks, which distinguish blocks that a power cut has lost since the last flush from damaged
//! blocks.
//!
//! A power cut may lose any of the 512-byte sectors written since the last flush, in any order. In a zone that was
//! blank before, a lost sector reads as zeros. So a block with a wrong CRC was lost, in whole or in part, if one of its
//! sectors reads as zeros but was written with other contents. Otherwise all of its sectors have reached the medium,
//! and the block is damaged.

use super::layout::{BLOCK_SUM_BYTES, FileLayout};
use super::{Backing, DeviceError};
use crate::{Geometry, ZoneNumber};
use std::ops::Range;

/// The smallest unit that a drive writes atomically, bytes.
const SECTOR_BYTES: usize = 512;

/// The checksum of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BlockSum {
    crc: u32,
    zero_sectors: u32,
}

impl BlockSum {
    fn of(block: &[u8]) -> Self {
        let is_zero = |sector: &&[u8]| sector.iter().all(|&byte| byte == 0);
        let zero_sectors = block.chunks(SECTOR_BYTES).filter(is_zero).count() as u32;
        Self { crc: crc32c::crc32c(block), zero_sectors }
    }

    fn encode(self) -> [u8; BLOCK_SUM_BYTES as usize] {
        (u64::from(self.zero_sectors) << 32 | u64::from(self.crc)).to_le_bytes()
    }

    fn decode(bytes: [u8; BLOCK_SUM_BYTES as usize]) -> Self {
        let both = u64::from_le_bytes(bytes);
        Self { crc: both as u32, zero_sectors: (both >> 32) as u32 }
    }

    /// Whether the checksum was never written, or a power cut has lost it.
    fn is_missing(self) -> bool {
        self == Self::default()
    }

    /// Whether a power cut has lost sectors of a block.
    fn is_lost(self, block: &[u8]) -> bool {
        let now = Self::of(block);
        now.crc != self.crc && now.zero_sectors > self.zero_sectors
    }
}

/// Writes the checksums of the blocks in `data`, the first of which is block `from` of the zone. Does nothing if the
/// file's format version has none.
pub fn write(
    backing: &Backing,
    layout: &FileLayout,
    geometry: &Geometry,
    zone: ZoneNumber,
    from: u64,
    data: &[u8],
) -> Result<(), DeviceError> {
    let block_bytes = geometry.block_bytes as usize;
    let blocks = from..from + (data.len() / block_bytes) as u64;
    let Some(place) = layout.sums_of(geometry, zone, &blocks) else { return Ok(()) };
    let sums: Vec<u8> = data.chunks(block_bytes).flat_map(|block| BlockSum::of(block).encode()).collect();
    backing.write_unaligned(place.start, &sums)
}

/// The first of these blocks of a zone that a power cut has lost, or the end of the range if it has lost none.
pub fn first_lost(
    backing: &Backing,
    layout: &FileLayout,
    geometry: &Geometry,
    zone: ZoneNumber,
    blocks: Range<u64>,
) -> Result<u64, DeviceError> {
    const BLOCKS_AT_ONCE: u64 = 256;
    let block_bytes = geometry.block_bytes as usize;
    for from in blocks.clone().step_by(BLOCKS_AT_ONCE as usize) {
        let now = from..(from + BLOCKS_AT_ONCE).min(blocks.end);
        let Some(place) = layout.sums_of(geometry, zone, &now) else { return Ok(blocks.start) };
        let sums = backing.read_unaligned(place)?;
        let sums: Vec<_> = sums.as_chunks().0.iter().map(|&sum| BlockSum::decode(sum)).collect();
        let known = sums.iter().position(|sum| sum.is_missing()).unwrap_or(sums.len());
        let data = layout.blocks_of(geometry, zone, &(from..from + known as u64));
        let data = backing.read_part(data.start, data.end - data.start)?;
        let lost = sums.iter().zip(data.chunks(block_bytes)).position(|(sum, block)| sum.is_lost(block));
        let kept = lost.unwrap_or(known);
        if kept < sums.len() {
            return Ok(from + kept as u64);
        }
    }
    Ok(blocks.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Sectors of a block are lost, or bits of it flip.
        #[test]
        fn a_lost_sector_and_a_flipped_bit_are_told_apart(
            size in 0..8u32, zero in prop::collection::vec(any::<bool>(), 128), lost in prop::collection::vec(any::<bool>(), 128),
            flips in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        ) {
            let block_bytes = SECTOR_BYTES << size;
            let mut block = vec![0x5a; block_bytes];
            for (sector, _) in block.chunks_mut(SECTOR_BYTES).zip(&zero).filter(|(_, zero)| **zero) {
                sector.fill(0);
            }
            let sum = BlockSum::decode(BlockSum::of(&block).encode());
            prop_assert!(!sum.is_lost(&block));
            let mut flipped = block.clone();
            flips.iter().map(|index| index.index(8 * block_bytes)).for_each(|bit| flipped[bit / 8] ^= 1 << (bit % 8));
            prop_assert!(!sum.is_lost(&flipped));
            let mut torn = block.clone();
            for (sector, _) in torn.chunks_mut(SECTOR_BYTES).zip(&lost).filter(|(_, lost)| **lost) {
                sector.fill(0);
            }
            prop_assert_eq!(sum.is_lost(&torn), torn != block);
            prop_assert!(BlockSum::decode([0; 8]).is_missing() && !sum.is_missing());
        }
    }
}
