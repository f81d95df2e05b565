//! The number of entries in the nodes of the published trees.
//!
//! Source: the paper's node layouts (n keys and n values; n+1 keys and n+1 pointers), sized to one block.

use longma_zoned::device::Geometry;
use longma_zoned::error::{Error, Result};

/// The size of a node header, bytes.
pub(super) const HEADER_BYTES: usize = 16;

/// The size of a head entry, bytes: key, address with state, address of the log.
pub(super) const HEAD_ENTRY_BYTES: usize = 24;

/// The maximum number of entries per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// For leaves, interior nodes and their logs.
    pub body: usize,
    /// For heads.
    pub head: usize,
}

impl Fanout {
    /// The maximum for blocks of `geometry`. An entry of a leaf or log takes 16 bytes and two bits (present in the log,
    /// and deleted).
    pub const fn of(geometry: &Geometry) -> Self {
        let bytes = geometry.block_bytes as usize - HEADER_BYTES;
        // Two bitmaps of whole bytes: 16 n + 2 ceil(n / 8) <= bytes.
        let mut body = bytes * 8 / (16 * 8 + 2);
        while body * 16 + 2 * body.div_ceil(8) > bytes {
            body -= 1;
        }
        Self { body, head: bytes / HEAD_ENTRY_BYTES }
    }

    /// Limits the fanout to `body` and `head` entries.
    pub fn at_most(self, body: usize, head: usize) -> Self {
        Self { body: self.body.min(body), head: self.head.min(head) }
    }

    /// Checks that nodes can be split: both halves must have at least two entries.
    pub(super) fn check(self, device: String) -> Result<Self> {
        if self.body < 4 || self.head < 4 {
            let what = format!("{} and {} entries per node: give at least 4", self.body, self.head);
            return Err(Error::Unsuitable { device, what });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_fill_a_block_and_no_more() {
        let mut geometry = Geometry {
            block_bytes: 4096,
            zone_blocks: 1,
            zone_capacity_blocks: 1,
            conventional_zones: 1,
            sequential_zones: 0,
            max_open_zones: 0,
            max_active_zones: 0,
        };
        assert_eq!(Fanout::of(&geometry), Fanout { body: 251, head: 170 });
        for shift in 9..=16 {
            geometry.block_bytes = 1 << shift;
            let Fanout { body, head } = Fanout::of(&geometry);
            let used = |n: usize| HEADER_BYTES + 16 * n + 2 * n.div_ceil(8);
            assert!(used(body) <= 1 << shift && used(body + 1) > 1 << shift);
            assert!(HEADER_BYTES + head * HEAD_ENTRY_BYTES <= 1 << shift);
        }
    }
}
