//! Limits derived from the device and the write buffer: when the write buffer is flushed, the length of a batch, and
//! the reserve for deletions, flushes and merges.

use crate::log::longest_part;
use longma_zoned_device::Geometry;

/// The smallest limit of a batch, bytes.
const SHORT_BATCH_BYTES: u64 = 64 << 10;
/// The fewest sequential zones.
const MIN_ZONES: u64 = 16;

/// The sizes for a device and a write buffer.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub geometry: Geometry,
    pub write_buffer_bytes: u64,
}

impl Sizes {
    fn zone_bytes(&self) -> u64 {
        self.geometry.zone_capacity_blocks * u64::from(self.geometry.block_bytes)
    }

    /// Bytes of changes after which the write buffer is flushed: half of the buffer, less on a small device.
    pub fn flush_bytes(&self) -> u64 {
        let device = u64::from(self.geometry.sequential_zones) * self.zone_bytes();
        (device / 64).min(self.write_buffer_bytes / 2).max(1)
    }

    /// Bytes of the log after which the write buffer is flushed. Batches take whole pages, so small batches reach this
    /// limit first.
    pub fn log_bytes(&self) -> u64 {
        (self.flush_bytes() * 5 / 4).max(256 << 10)
    }

    /// The longest batch, bytes.
    pub fn longest_batch(&self) -> u64 {
        (self.write_buffer_bytes / 4)
            .max(SHORT_BATCH_BYTES)
            .min(longest_part(&self.geometry))
            .min(self.flush_bytes().max(SHORT_BATCH_BYTES))
    }

    /// The longest key and the longest value, bytes.
    pub fn longest_record(&self) -> (usize, usize) {
        let zone = self.zone_bytes();
        let key = 1024.min(zone / 16) as usize;
        (key, (zone / 4).min(self.longest_batch() - key as u64 - 16).min(16 << 20) as usize)
    }

    /// Zones that only deletions, flushes and merges may use: for the log and the tables of two write buffers, and for
    /// merges.
    pub fn reserve_zones(&self) -> u64 {
        let zone = self.zone_bytes();
        let log = (2 * self.log_bytes() + self.longest_batch()).div_ceil(zone) + 1;
        let tables = ((self.flush_bytes() + self.longest_batch()) * 9 / 4).div_ceil(zone);
        log + tables + 4
    }

    /// The minimum number of sequential zones of this size. Apart from the reserve, they can hold the records of one
    /// write buffer, its log and its merge.
    pub fn min_zones(&self) -> u64 {
        let needs = |sizes: Self| {
            let records = sizes.log_bytes() + sizes.flush_bytes() * 9 / 4;
            sizes.reserve_zones() + records.div_ceil(sizes.zone_bytes()) + 2
        };
        // The reserve grows with the number of zones, by less than one zone each, so this search ends.
        let mut zones = MIN_ZONES;
        loop {
            let sequential_zones = u32::try_from(zones).unwrap_or(u32::MAX);
            let needed = needs(Self { geometry: Geometry { sequential_zones, ..self.geometry }, ..*self });
            if needed <= zones {
                return zones;
            }
            zones = needed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_min_zones_are_found_for_any_zone_size(
            zone_capacity_blocks in 1..1u64 << 40, block in 9..17u32, write_buffer_bytes in 0..u64::MAX / 16,
        ) {
            let geometry = Geometry {
                block_bytes: 1 << block,
                zone_blocks: zone_capacity_blocks,
                zone_capacity_blocks,
                conventional_zones: 2,
                sequential_zones: 1,
                max_open_zones: 0,
                max_active_zones: 0,
            };
            let fewest = Sizes { geometry, write_buffer_bytes }.min_zones();
            prop_assert!((MIN_ZONES..10_000_000).contains(&fewest), "{fewest}");
        }
    }
}
