//! The single writer, checkpoints, and bulk loads.

/// Checkpoints of one version of the tree.
pub(crate) mod checkpoint;
/// Bulk load of sorted records.
pub(crate) mod load;
/// Write buffers of checkpoints and loads.
pub(crate) mod output;
/// The writer: journals a batch, applies it, and advances checkpoint and garbage collection.
pub(crate) mod writer;
