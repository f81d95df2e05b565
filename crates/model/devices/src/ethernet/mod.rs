//! Ethernet: frames on a wire between two ends, a MAC with descriptor rings, and a TCP sender at the other end of the
//! wire.
//!
//! Source: IEEE 802.3-2018, clauses 3 and 4; the sources of the MAC and of TCP are in `mac` and `tcp`.

mod faults;
mod frame;
pub mod mac;
mod pause;
pub mod tcp;
mod wire;

pub use faults::{FaultInjector, FaultRates};
pub use frame::{Frame, FrameError, MAX_UNTAGGED_BYTES, MIN_BYTES};
pub use pause::{PauseState, pause_frame, pause_quanta};
pub use wire::{Transmission, Wire};
