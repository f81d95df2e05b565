//! An ordered map for zoned flash, and the zoned devices it runs on: emulated, modelled, faulty, and the kernel's.
//! Not a file system: a device belongs to one map.
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index"; NVMe Zoned Namespace Command Set 1.1.

pub mod device;
pub mod error;
pub mod map;
pub mod node;
pub mod paper;
pub mod soak;
pub mod states;
pub mod store;
pub mod ycsb;

pub use device::ZonedDevice;
pub use error::{Error, Result};
pub use map::{Direction, KeyRange, OrderedMap};
pub use states::NodeStates;
pub use store::{Batch, Durability, Iter, Options, Record, Snapshot, Store};
