//! What of a host Longma can use: each part is tried, and the result can be written into a bundle for bug reports.
//!
//! Nothing on the host is changed, and nothing is printed.

pub mod bundle;
pub mod checks;
mod probes;
mod programs;
mod reason;
pub mod redact;
mod system;
