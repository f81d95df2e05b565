//! The configuration space of a virtio device: header, MSI-X capability and the capabilities that locate the parts of
//! its window. Source: PCI Local Bus Specification 3.0, sections 6.1, 6.7, 6.8; Virtual I/O Device Version 1.2, section
//! 4.1.

use super::{WINDOW_BYTES, window};
use crate::platform::virtio::Kind;

const COMMAND: usize = 4;
const BAR: usize = 0x10;
const MSIX: usize = 0x40;
/// Bytes of a configuration space.
pub const BYTES: usize = 256;

/// The contents of the registers, and a mask of the bits that software may write.
#[derive(Debug)]
pub struct Config {
    content: [u8; BYTES],
    writable: [u8; BYTES],
}

impl Config {
    /// Creates the configuration space in its reset state, for a device with `vectors` MSI-X vectors.
    pub fn virtio(kind: Kind, vectors: u16) -> Self {
        let mut config = Self { content: [0; BYTES], writable: [0; BYTES] };
        let (id, class) = match kind {
            // Class: mass storage, other.
            Kind::Block => (2, 0x01_80_00),
            // Class: network, Ethernet.
            Kind::Network => (1, 0x02_00_00),
            // Class: none.
            Kind::Entropy => (4, 0xff_00_00),
            Kind::Share => (9, 0xff_00_00),
        };
        // Vendor 1af4 is Red Hat; its device IDs from 1040 are virtio devices.
        config.put(0, &(0x1040_1af4u32 | id << 16).to_le_bytes());
        // The device has a capability list.
        config.put(COMMAND, &(0x10u32 << 16).to_le_bytes());
        config.put(8, &(class << 8 | 1u32).to_le_bytes());
        config.put(0x2c, &(0x1100_1af4u32).to_le_bytes());
        config.put(0x34, &[MSIX as u8]);
        // Memory space, bus master and INTx disable; the device has no INTx interrupt.
        config.permit(COMMAND, &0x0406u16.to_le_bytes());
        config.permit(BAR, &(!(WINDOW_BYTES as u32 - 1)).to_le_bytes());
        config.permit(0x0c, &[0xff]);
        config.permit(0x3c, &[0xff]);
        config.put(MSIX, &[0x11, 0x50]);
        config.put(MSIX + 2, &(vectors.saturating_sub(1)).to_le_bytes());
        config.put(MSIX + 4, &window::MESSAGES.to_le_bytes());
        config.put(MSIX + 8, &window::PENDING.to_le_bytes());
        config.permit(MSIX + 2, &0xc000u16.to_le_bytes());
        // Position, next capability, type, offset and length.
        config.put_part(0x50, 0x60, 1, window::COMMON, 0x38);
        config.put_part(0x60, 0x78, 2, window::NOTIFY, window::PART);
        // The distance between the notification registers of two queues.
        config.put(0x70, &4u32.to_le_bytes());
        config.put_part(0x78, 0x88, 3, window::STATUS, 1);
        config.put_part(0x88, 0, 4, window::DEVICE, window::PART);
        config
    }

    /// All registers.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Replaces the bits that software may write by those of `content`.
    pub fn set_content(&mut self, content: &[u8; BYTES]) {
        for (register, value) in content.iter().enumerate() {
            self.write(register, 1, u64::from(*value));
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.content[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn permit(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
    }

    /// Writes a virtio capability that locates a part of the window.
    fn put_part(&mut self, at: usize, next: u8, part: u8, offset: u32, length: u32) {
        let bytes = if part == 2 { 20 } else { 16 };
        self.put(at, &[9, next, bytes, part]);
        self.put(at + 8, &offset.to_le_bytes());
        self.put(at + 12, &length.to_le_bytes());
    }

    /// Reads bytes; those beyond the end are 0.
    pub fn read(&self, register: usize, bytes: usize) -> u64 {
        (0..bytes.min(8)).rev().fold(0, |value, byte| {
            value << 8 | u64::from(self.content.get(register + byte).copied().unwrap_or(0))
        })
    }

    /// Writes the bits that are writable.
    pub fn write(&mut self, register: usize, bytes: usize, value: u64) {
        for byte in 0..bytes.min(8) {
            if let (Some(content), Some(writable)) =
                (self.content.get_mut(register + byte), self.writable.get(register + byte))
            {
                *content = *content & !writable | (value >> (8 * byte)) as u8 & writable;
            }
        }
    }

    /// The address of the window; `None` while memory space is disabled.
    pub fn window(&self) -> Option<u64> {
        (self.content[COMMAND] & 2 != 0).then(|| self.read(BAR, 4) & !0xf)
    }

    /// Whether the device may access memory and send messages: it is a bus master.
    pub fn is_master(&self) -> bool {
        self.content[COMMAND] & 4 != 0
    }

    /// Whether MSI-X is enabled and not masked for the whole device.
    pub fn sends_messages(&self) -> bool {
        self.content[MSIX + 3] & 0xc0 == 0x80
    }
}
