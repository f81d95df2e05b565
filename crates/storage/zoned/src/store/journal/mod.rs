//! The write-ahead journal: batches, the parts they are written in, and recovery.

/// Batches of changes, encoded as they are journaled.
pub(crate) mod batch;
/// Appends records to the journal in parts.
pub(crate) mod parts;
/// Reads the journal back and distinguishes torn writes from damage.
pub(crate) mod replay;
