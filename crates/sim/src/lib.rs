//! Simulated time and statistics.
