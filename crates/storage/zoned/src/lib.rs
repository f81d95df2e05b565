//! An ordered, crash-safe key-value map for zoned flash. [`device`] provides the zoned devices that can store it: in
//! memory, in a file, or a Linux zoned block device.
//!
//! Sources: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index"; NVMe Zoned Namespace Command Set 1.1.

pub mod error;
pub mod map;
mod node;
mod states;
pub mod store;
mod typed;

/// Node encoding, exposed for tests that corrupt nodes. Not part of the public interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::node::{HEADER_BYTES, Header, InnerRecord, Kind, Pointer, checksum};
}

pub use error::{Error, Result};
pub use longma_zoned_device::{self as device, ZonedDevice};
pub use map::{Direction, KeyBounds, KeyRange, OrderedMap};
pub use states::NodeStates;
pub use store::{
    Batch, CompareFailed, Durability, Iter, Options, Record, Snapshot, Store, Transaction, TransactionRows,
};
pub use typed::{Change, FixedKey, Key, Pairs, Typed, TypedRows, Value, View};

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
