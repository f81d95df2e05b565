//! Models of devices: each a table of registers, what it does to memory, and how long that takes.
//! Not caches, links or memory: a device reaches them through a [`Bus`], which the node provides.
//! Source: named in each device's folder.

pub mod bus;
pub mod cache_lock;
pub mod cam;
mod device;
pub mod ethernet;
pub mod idma;
pub mod registers;

pub use bus::{Bus, BusFault, Placement, PlainBus, Region};
pub use device::{Answer, Count, Device};

/// The register maps of every device, for the book and the C headers.
pub static REGISTER_MAPS: &[&registers::RegisterMap] =
    &[&idma::MAP, &cache_lock::MAP, &cam::MAP, &ethernet::mac::MAP];
