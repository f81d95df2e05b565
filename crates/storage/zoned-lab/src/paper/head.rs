//! A head node: for each child its key, its state, where it is and where its log is.
//! Not leaves and interior nodes: see `body`.
//! Source: the paper's leaf-head and interior-head.

use super::zb::State;
use longma_zoned::device::Block;

/// What a head knows of one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ptr {
    pub state: State,
    pub addr: Block,
    pub log: Option<Block>,
}

/// Keys and pointers in ascending order; the first key is less than every key, whatever it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub entries: Vec<(u64, Ptr)>,
}

impl Head {
    /// Which entry leads to `key`.
    pub fn child(&self, key: u64) -> usize {
        self.entries[1..].partition_point(|entry| entry.0 <= key)
    }
}
