//! The durable map's nodes as they are on the device: pages of leaves and logs, encoded heads and interior nodes, and the header with
//! the checksum that all of them begin with.
//! Not where they are: see `store::space`. Not the published trees' nodes: those are `longma-zoned-lab`'s.
//! Source: a log has its leaf's layout, as in the ZB+-tree paper.

mod header;
mod inner;
mod page;

pub use header::{HEADER_BYTES, Header, Kind, LARGEST, proof};
pub use inner::{InnerRecord, Pointer};
pub use page::{EXTENT_BYTES, Extent, Page, Value};
