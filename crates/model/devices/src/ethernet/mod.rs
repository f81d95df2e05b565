//! Ethernet: frames on a wire, a MAC with descriptor rings, and a TCP sender at the other end of the wire.
//! Not a network: one wire, two ends.
//! Source: IEEE 802.3-2018, clauses 3 and 4; the MAC's and TCP's sources are in `mac` and `tcp`.

mod disturbance;
mod frame;
pub mod mac;
mod pause;
pub mod tcp;
mod wire;

pub use disturbance::{Disturbance, Disturber};
pub use frame::{Frame, FrameError, MAX_UNTAGGED_BYTES, MIN_BYTES};
pub use pause::{Paused, pause_frame, pause_quanta};
pub use wire::{Passage, Wire};
