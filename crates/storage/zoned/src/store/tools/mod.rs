//! Offline check and repair, and statistics.

/// Verifies every block of a map.
pub(crate) mod check;
/// Restores a damaged map and names what is lost.
pub(crate) mod repair;
/// Operation counts and sizes.
pub(crate) mod statistics;
