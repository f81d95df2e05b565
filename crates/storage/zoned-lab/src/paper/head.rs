//! A head node: for each child its key, state, address, and the address of its log.
//!
//! Source: the paper's leaf-head and interior-head.

use super::zb::State;
use longma_zoned::device::Block;

/// The pointer to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ptr {
    pub state: State,
    pub addr: Block,
    pub log: Option<Block>,
}

/// Keys and pointers in ascending order. The first key acts as minus infinity, regardless of its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub entries: Vec<(u64, Ptr)>,
}

impl Head {
    /// The index of the entry whose range contains `key`.
    pub fn child(&self, key: u64) -> usize {
        self.entries[1..].partition_point(|entry| entry.0 <= key)
    }
}
