//! The serial port, an NS16550 of the crate vm-superio, with its interrupt as a level.

use vm_superio::Trigger;
use vm_superio::serial::{NoEvents, Serial};

/// vm-superio reports interrupts as edges; this controller needs the level, which is in the port's state.
#[derive(Debug)]
struct Ignored;

impl Trigger for Ignored {
    type E = std::convert::Infallible;

    fn trigger(&self) -> Result<(), Self::E> {
        Ok(())
    }
}

/// IIR bit 0: no interrupt is pending.
const NOTHING_PENDING: u8 = 1;
/// The registers of the port.
const REGISTERS: u64 = 8;

/// The serial port and what it has sent.
pub struct Uart(Serial<Ignored, NoEvents, Vec<u8>>);

impl Uart {
    /// After reset.
    pub fn new() -> Self {
        Self(Serial::new(Ignored, Vec::new()))
    }

    /// Reads registers, one for each byte.
    pub fn read(&mut self, offset: u64, bytes: usize) -> u64 {
        (0..bytes.min(8) as u64).rev().fold(0, |value, byte| {
            let register = offset + byte;
            let read = if register < REGISTERS { self.0.read(register as u8) } else { 0 };
            value << 8 | u64::from(read)
        })
    }

    /// Writes registers, one for each byte.
    pub fn write(&mut self, offset: u64, bytes: usize, value: u64) {
        for byte in 0..bytes.min(8) as u64 {
            if offset + byte < REGISTERS {
                // Neither a vector nor the ignored interrupt refuses anything. A full input buffer, which a loop-back
                // can cause, drops the byte as the port does.
                let _ = self.0.write((offset + byte) as u8, (value >> (8 * byte)) as u8);
            }
        }
    }

    /// Whether the port asserts its interrupt.
    pub fn asserts(&self) -> bool {
        self.0.state().interrupt_identification & NOTHING_PENDING == 0
    }

    /// Receives bytes; returns how many fit in the input buffer.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.0.fifo_capacity());
        // The count fits, so the only error would be that of the ignored interrupt.
        self.0.enqueue_raw_bytes(&bytes[..count]).unwrap_or(0)
    }

    /// Takes the bytes that the port has sent.
    pub fn take_sent(&mut self) -> Vec<u8> {
        std::mem::take(self.0.writer_mut())
    }
}

impl Default for Uart {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Uart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uart").field("state", &self.0.state()).finish()
    }
}
