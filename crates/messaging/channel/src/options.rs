//! Options of a connection.

use crate::error::Error;
use crate::wire::{HEADER_BYTES, MAX_SLOT_BYTES, MAX_SLOTS, MIN_SLOT_BYTES, MIN_SLOTS};
use std::time::Duration;

/// Options of a connection. The two sides may have different options.
///
/// A connection registers `slot_bytes * (receive_slots + send_slots + 8)` bytes of memory, 1.5 MiB by default. The kernel
/// provides a page at its first use, so a connection with small messages occupies less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The size of a slot, bytes: 64 to 1 MiB, 32 KiB by default. A message that is longer than a slot minus its header
    /// of 16 bytes is sent in several parts.
    pub slot_bytes: u32,
    /// The number of frames that the peer may send before the program receives them: 2 to 1000, 32 by default.
    pub receive_slots: u32,
    /// The number of frames that can be in flight to the peer: 1 to 1000, 8 by default.
    pub send_slots: u32,
    /// The longest message that is received, bytes, 64 MiB by default. A longer one ends the connection.
    pub max_message: u32,
    /// The time limit of each blocking call. `None`, the default, waits indefinitely. Futures have no time limit.
    pub timeout: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self { slot_bytes: 32 << 10, receive_slots: 32, send_slots: 8, max_message: 64 << 20, timeout: None }
    }
}

impl Options {
    /// The default options with a time limit.
    pub fn with_timeout(timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let within = |name, value: u32, min: u32, max: u32| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(Error::InvalidOption { name, value: value.into(), min: min.into(), max: max.into() })
        };
        within("slot_bytes", self.slot_bytes, MIN_SLOT_BYTES, MAX_SLOT_BYTES)?;
        within("receive_slots", self.receive_slots, MIN_SLOTS, MAX_SLOTS)?;
        within("send_slots", self.send_slots, 1, MAX_SLOTS)
    }

    /// The bytes of a message in a full slot.
    pub(crate) fn part_bytes(&self) -> usize {
        self.slot_bytes as usize - HEADER_BYTES
    }
}
