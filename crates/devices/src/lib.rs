//! Models of devices: each a table of registers, what it does to memory, and how long that takes.
//! Not caches, links or memory: a device reaches them through a [`Bus`], which the node provides.
//! Source: named in each device's folder.

pub mod bus;
mod device;
pub mod idma;
pub mod registers;

pub use bus::{Bus, BusFault, Placement, PlainBus, Region};
pub use device::{Answer, Device};
