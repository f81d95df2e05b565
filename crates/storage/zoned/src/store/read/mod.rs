//! Readers: the published tree, snapshots, iteration, and the leaf cache.

/// Evicts leaves beyond the cache limit.
pub(crate) mod cache;
/// Ordered iteration over a snapshot.
pub(crate) mod iter;
/// The newest version of the tree.
pub(crate) mod published;
/// Snapshots and reads of single keys.
pub(crate) mod snapshot;
