//! Address patterns of a stream: sequential, in strided blocks, or in rows of blocks.
//!
//! Source: Su et al., 2012: sequential, strided and block access, the three patterns of media code.

use serde::{Deserialize, Serialize};

/// A stream of bytes in blocks, and blocks in rows. Addresses wrap at 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pattern {
    /// Address of the first byte.
    pub base: u64,
    /// Bytes per block; 0 for a single block.
    pub block: u32,
    /// Blocks per row; 0 for a single row.
    pub count: u32,
    /// Distance between the starts of two blocks, bytes.
    pub stride: i64,
    /// Distance between the starts of two rows, bytes.
    pub row_stride: i64,
}

/// A contiguous range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes known to be contiguous, at least 1.
    pub bytes: u64,
}

impl Pattern {
    /// The contiguous bytes from byte `offset` of the stream on.
    pub fn at(&self, offset: u64) -> Run {
        let block = u64::from(self.block);
        let sequential = block == 0 || self.count == 0 && self.stride == i64::from(self.block);
        if sequential {
            return Run { address: self.base.wrapping_add(offset), bytes: u64::MAX };
        }
        let (number, inside) = (offset / block, offset % block);
        let (row, column) = match u64::from(self.count) {
            0 => (0, number),
            count => (number / count, number % count),
        };
        let along =
            row.wrapping_mul(self.row_stride as u64).wrapping_add(column.wrapping_mul(self.stride as u64));
        Run { address: self.base.wrapping_add(along).wrapping_add(inside), bytes: block - inside }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_blocks_lie_at_their_strides() {
        let pattern = Pattern { base: 1000, block: 4, count: 3, stride: 10, row_stride: -100 };
        let addresses: Vec<_> = (0..7).map(|n| pattern.at(n * 4).address).collect();
        assert_eq!(addresses, [1000, 1010, 1020, 900, 910, 920, 800]);
        assert_eq!(pattern.at(6), Run { address: 1012, bytes: 2 });
    }

    #[test]
    fn without_blocks_or_gaps_a_stream_is_sequential() {
        let plain = Pattern { base: 8, block: 0, count: 5, stride: 3, row_stride: 9 };
        let touching = Pattern { base: 8, block: 16, count: 0, stride: 16, row_stride: 9 };
        for pattern in [plain, touching] {
            assert_eq!(pattern.at(1 << 40), Run { address: 8 + (1 << 40), bytes: u64::MAX });
        }
    }
}
