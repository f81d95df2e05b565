//! The published trees, for counting operations. Keys and values have 8 bytes, and every node is read from and written
//! to the device immediately. The trees survive neither a power cut nor a close; `longma-zoned` has the durable map.
//!
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index".

mod body;
mod cached_nodes;
mod counts;
mod cow;
mod fanout;
mod head;
mod map;
mod published;
mod record;
mod space;
mod zb;

pub use cached_nodes::CachedNodes;
pub use counts::{Counts, NodeKind, PaperCounts};
pub use cow::CowTree;
pub use fanout::Fanout;
pub use zb::{State, ZbTree};
