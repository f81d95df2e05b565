//! Offline check and repair, online backup, and statistics.

/// Writes a snapshot to a file.
pub(crate) mod backup;
/// Verifies every block of a map.
pub(crate) mod check;
/// Restores a damaged map and lists the losses.
pub(crate) mod repair;
/// Operation counts and sizes.
pub(crate) mod statistics;
