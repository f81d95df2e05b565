//! Checks which features of a host Longma can use, and writes the results to a bundle for bug reports.
//!
//! The checks change nothing on the host and print nothing.

pub mod bundle;
pub mod checks;
mod probes;
mod programs;
mod reason;
pub mod redact;
mod system;
