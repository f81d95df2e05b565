//! The ZB+-tree in memory: its nodes, and changes to them.

/// Splits and merges of heads and interior nodes.
pub(crate) mod balance;
/// The changes that rebuild a dirty leaf from its copy on the device.
pub(crate) mod changes;
/// Changes to leaves and their logs.
pub(crate) mod edit;
/// The keys of an inner node.
pub(crate) mod keys;
/// Leaves, in memory or on the device.
pub(crate) mod leaf;
/// Moves of records between neighbouring leaves.
pub(crate) mod neighbours;
/// Lock-free access to the contents of a node.
pub(crate) mod node_cell;
/// Heads and interior nodes, and the search for a leaf.
pub(crate) mod nodes;
