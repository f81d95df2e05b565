//! An Ethernet frame from the destination address to the frame check sequence.
//!
//! Source: IEEE 802.3-2018, 3.1 to 3.2.9 and 4.4.2.

use serde::{Deserialize, Serialize};

/// Minimum frame length, including the check sequence.
pub const MIN_BYTES: usize = 64;
/// Maximum length of a frame without a VLAN tag, including the check sequence.
pub const MAX_UNTAGGED_BYTES: usize = 1518;
/// Length of the check sequence.
pub(crate) const FCS_BYTES: usize = 4;
/// Length of destination, source and type.
pub(crate) const HEADER_BYTES: usize = 14;

/// The bytes of a frame on the wire, valid or not, including the check sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    bytes: Vec<u8>,
}

/// An invalid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than 64 bytes.
    #[error("a frame of {0} bytes is too short")]
    Short(usize),
    /// The check sequence does not match.
    #[error("the frame's check sequence does not match")]
    Check,
}

impl Frame {
    /// Creates a valid frame of `payload`, which begins with the destination address: pads it to the minimum length and
    /// appends the check sequence.
    pub fn new(payload: &[u8]) -> Self {
        let length = payload.len().max(MIN_BYTES - FCS_BYTES);
        let mut bytes = Vec::with_capacity(length + FCS_BYTES);
        bytes.extend_from_slice(payload);
        bytes.resize(length, 0);
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        Self { bytes }
    }

    /// Creates a frame from the bytes received from a wire.
    pub fn from_wire(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// All bytes, including the check sequence.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Mutable access to all bytes, for fault injection.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Length on the wire, without preamble and gap.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The contents from the destination address on, without the check sequence.
    ///
    /// # Errors
    /// If the frame is too short or damaged.
    pub fn payload(&self) -> Result<&[u8], FrameError> {
        if self.bytes.len() < MIN_BYTES {
            return Err(FrameError::Short(self.bytes.len()));
        }
        let (payload, check) = self.bytes.split_at(self.bytes.len() - FCS_BYTES);
        if check != crc32fast::hash(payload).to_le_bytes() {
            return Err(FrameError::Check);
        }
        Ok(payload)
    }

    /// The destination address; zeros if the frame is too short.
    pub fn destination(&self) -> [u8; 6] {
        self.bytes.first_chunk().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_check_sequence_is_the_standard_crc() {
        // The CRC-32 of a message with its own check sequence is a constant.
        let frame = Frame::new(b"123456789");
        assert_eq!(frame.len(), MIN_BYTES);
        assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
        assert_eq!(!crc32fast::hash(frame.bytes()), 0xdebb_20e3);
    }

    proptest! {
        #[test]
        fn any_burst_of_up_to_32_damaged_bits_is_detected(payload in proptest::collection::vec(any::<u8>(), 0..200), at in any::<usize>(), flip in 1u32..) {
            let mut frame = Frame::new(&payload);
            let at = at % (frame.len() - 3);
            for (byte, flip) in frame.bytes_mut()[at..at + 4].iter_mut().zip(flip.to_le_bytes()) {
                *byte ^= flip;
            }
            prop_assert_eq!(frame.payload(), Err(FrameError::Check));
        }
    }
}
