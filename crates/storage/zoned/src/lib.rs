//! An ordered map for zoned flash, and the zoned devices it runs on: emulated, faulty, and the kernel's.
//! Not a file system: a device belongs to one map.
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index"; NVMe Zoned Namespace Command Set 1.1.

pub mod device;
pub mod error;
pub mod map;
mod node;
mod states;
pub mod store;

/// The bytes of nodes, for tests that damage them; no program needs it.
#[doc(hidden)]
pub mod testing {
    pub use crate::node::{HEADER_BYTES, Header, InnerRecord, Kind, Pointer, proof};
}

pub use device::ZonedDevice;
pub use error::{Error, Result};
pub use map::{Direction, KeyRange, OrderedMap};
pub use states::NodeStates;
pub use store::{Batch, Durability, Iter, Options, Record, Snapshot, Store};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
