//! The on-device encoding of nodes: leaf and log pages, heads and interior nodes, and their common header with a
//! checksum.
//!
//! Source: a log has the layout of its leaf, as in the ZB+-tree paper.

mod header;
mod inner;
mod page;
mod page_memory;

pub use header::{HEADER_BYTES, Header, Kind, MAX_U48, checksum};
pub use inner::{InnerRecord, Pointer};
pub use page::{EXTENT_BYTES, Extent, Page, Value};
