//! The serial port: the 16550 UART of the crate vm-superio, with a level-triggered interrupt.

use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, Serial};
use vm_superio::{SerialState, Trigger};

/// Ignores vm-superio's interrupts, which are edges. The PCH-PIC needs the level, which [`Uart::asserts`] derives from
/// the state of the port.
#[derive(Debug)]
struct Ignored;

impl Trigger for Ignored {
    type E = std::convert::Infallible;

    fn trigger(&self) -> Result<(), Self::E> {
        Ok(())
    }
}

/// IIR bit 0: set if no interrupt is pending.
const NOTHING_PENDING: u8 = 1;
/// The number of registers.
const REGISTERS: u64 = 8;

/// The state of the port in a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedUart {
    /// The divisor's halves, IER, IIR, LCR, LSR, MCR, MSR, SCR.
    registers: [u8; 9],
    received: Vec<u8>,
    sent: Vec<u8>,
}

/// The serial port, with the bytes that it has sent.
pub struct Uart(Serial<Ignored, NoEvents, Vec<u8>>);

impl Uart {
    /// Creates the port in its reset state.
    pub fn new() -> Self {
        Self(Serial::new(Ignored, Vec::new()))
    }

    /// The state in a checkpoint.
    pub fn saved(&self) -> SavedUart {
        let state = self.0.state();
        SavedUart {
            registers: [
                state.baud_divisor_low,
                state.baud_divisor_high,
                state.interrupt_enable,
                state.interrupt_identification,
                state.line_control,
                state.line_status,
                state.modem_control,
                state.modem_status,
                state.scratch,
            ],
            received: state.in_buffer,
            sent: self.0.writer().clone(),
        }
    }

    /// The port with a saved state; `None` if more bytes were received than fit in its buffer.
    pub fn restored(saved: SavedUart) -> Option<Self> {
        let [
            low,
            high,
            enable,
            identification,
            line_control,
            line_status,
            modem_control,
            modem_status,
            scratch,
        ] = saved.registers;
        let state = SerialState {
            baud_divisor_low: low,
            baud_divisor_high: high,
            interrupt_enable: enable,
            interrupt_identification: identification,
            line_control,
            line_status,
            modem_control,
            modem_status,
            scratch,
            in_buffer: saved.received,
        };
        Serial::from_state(&state, Ignored, NoEvents, saved.sent).ok().map(Self)
    }

    /// Reads consecutive registers, one byte each.
    pub fn read(&mut self, offset: u64, bytes: usize) -> u64 {
        (0..bytes.min(8) as u64).rev().fold(0, |value, byte| {
            let register = offset + byte;
            let read = if register < REGISTERS { self.0.read(register as u8) } else { 0 };
            value << 8 | u64::from(read)
        })
    }

    /// Writes consecutive registers, one byte each.
    pub fn write(&mut self, offset: u64, bytes: usize, value: u64) {
        for byte in 0..bytes.min(8) as u64 {
            if offset + byte < REGISTERS {
                // Writing to a `Vec` and raising the ignored interrupt cannot fail. If the input buffer is full, which is
                // possible in loopback mode, the byte is dropped, as by the hardware.
                let _ = self.0.write((offset + byte) as u8, (value >> (8 * byte)) as u8);
            }
        }
    }

    /// Whether the port asserts its interrupt.
    pub fn asserts(&self) -> bool {
        self.0.state().interrupt_identification & NOTHING_PENDING == 0
    }

    /// Puts bytes into the input buffer. Returns how many fit.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.0.fifo_capacity());
        // The bytes fit, so the only possible error is that of the interrupt, which is ignored.
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
