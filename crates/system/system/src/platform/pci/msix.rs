//! Interrupts as messages (MSI-X): the table of their addresses and contents, and the pending messages. Source: PCI
//! Local Bus Specification 3.0, section 6.8.2 (MSI-X).

use serde::{Deserialize, Serialize};

/// Bytes of a table entry: address, content and control. The lowest bit of control masks the message.
const ENTRY: usize = 16;

/// A message: a word to write to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The physical address.
    pub address: u64,
    /// The word.
    pub content: u32,
}

/// The MSI-X table and the pending bits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vectors {
    table: Vec<u8>,
    pending: u64,
}

impl Vectors {
    /// Creates a table of `count` messages, at most 64, all masked.
    pub fn new(count: u16) -> Self {
        let masked = [[0; ENTRY - 4].as_slice(), &[1, 0, 0, 0]].concat();
        Self { table: masked.repeat(usize::from(count.min(64))), pending: 0 }
    }

    /// The number of messages.
    pub fn count(&self) -> u16 {
        (self.table.len() / ENTRY) as u16
    }

    /// Whether the table is as large as that of `other`.
    pub fn fits(&self, other: &Self) -> bool {
        self.table.len() == other.table.len()
    }

    /// Reads the table.
    pub fn read(&self, offset: u32, bytes: usize) -> u64 {
        (0..bytes.min(8)).rev().fold(0, |value, byte| {
            value << 8 | u64::from(self.table.get(offset as usize + byte).copied().unwrap_or(0))
        })
    }

    /// Writes the table.
    pub fn write(&mut self, offset: u32, bytes: usize, value: u64) {
        for byte in 0..bytes.min(8) {
            if let Some(content) = self.table.get_mut(offset as usize + byte) {
                *content = (value >> (8 * byte)) as u8;
            }
        }
    }

    /// Reads the pending bits.
    pub fn read_pending(&self, offset: u32, bytes: usize) -> u64 {
        let shifted = self.pending.checked_shr(8 * offset.min(8)).unwrap_or(0);
        shifted & u64::MAX >> (64 - 8 * bytes.clamp(1, 8))
    }

    /// Makes a message pending. A number that is not in the table has no effect.
    pub fn raise(&mut self, number: u16) {
        if number < self.count() {
            self.pending |= 1 << number;
        }
    }

    /// Takes the pending messages that are not masked.
    pub fn take_pending(&mut self) -> Vec<Message> {
        let ready: Vec<u16> = (0..self.count())
            .filter(|number| self.pending >> number & 1 == 1 && self.word(*number, 12) & 1 == 0)
            .collect();
        ready.iter().for_each(|number| self.pending &= !(1 << number));
        ready.into_iter().map(|number| self.message(number)).collect()
    }

    fn message(&self, number: u16) -> Message {
        let address = u64::from(self.word(number, 4)) << 32 | u64::from(self.word(number, 0) & !3);
        Message { address, content: self.word(number, 8) }
    }

    fn word(&self, number: u16, offset: u32) -> u32 {
        self.read(u32::from(number) * ENTRY as u32 + offset, 4) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_message_waits_until_it_is_unmasked() {
        let mut vectors = Vectors::new(2);
        vectors.write(16, 8, 0x2ff0_0000);
        vectors.write(24, 4, 40);
        vectors.raise(1);
        vectors.raise(7);
        assert_eq!(vectors.take_pending(), []);
        assert_eq!(vectors.read_pending(0, 8), 2);
        vectors.write(28, 4, 0);
        assert_eq!(vectors.take_pending(), [Message { address: 0x2ff0_0000, content: 40 }]);
        assert_eq!((vectors.read_pending(0, 8), vectors.take_pending().len()), (0, 0));
    }
}
