//! Device models: register tables, effects on memory, and timing. A device accesses caches, interconnect and memory
//! through a [`Bus`], which the machine model provides.

pub mod bus;
pub mod cache_lock;
pub mod cam;
mod device;
pub mod ethernet;
pub mod idma;
pub mod registers;

pub use bus::{Bus, BusFault, Placement, PlainBus, Region};
pub use device::{Answer, Count, Device};

/// The register maps of all devices, for the book and the C headers.
pub static REGISTER_MAPS: &[&registers::RegisterMap] =
    &[&idma::MAP, &cache_lock::MAP, &cam::MAP, &ethernet::mac::MAP];
