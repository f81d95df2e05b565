//! The trees as published, for counting: 8-byte keys and values, every node read from and written to the device at once.
//! Not for keeping data: nothing here survives a power cut or even a close; `store` is the map for that.
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index".

mod body;
mod counts;
mod cow;
mod fanout;
mod head;
mod kept;
mod map;
mod published;
mod record;
mod space;
mod zb;

pub use counts::{Counts, NodeKind, PaperCounts};
pub use cow::CowTree;
pub use fanout::Fanout;
pub use kept::Kept;
pub use zb::{State, ZbTree};
