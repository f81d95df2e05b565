//! Ethernet: frames on a wire, a MAC with descriptor rings, and what may stand at the other end of the wire.
//! Not a network: one wire, two ends.
//! Source: IEEE 802.3-2018, clauses 3 and 4; the MAC's sources are in `mac`.

mod frame;
pub mod mac;
mod wire;

pub use frame::{Frame, FrameError, MAX_UNTAGGED_BYTES, MIN_BYTES};
pub use wire::{Passage, Wire};
