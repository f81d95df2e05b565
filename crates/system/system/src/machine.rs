//! A machine with one core: runs it, deterministically, for a number of cycles.

use longma_loongarch::State;

use crate::core::{Core, Pause};
use crate::memory::{Memory, MemoryError};
use crate::platform::{Platform, PowerRequest};

/// Where the core starts after reset. Source: LoongArch Reference Manual, volume 1, section 6.3 (reset).
const RESET_ADDRESS: u64 = 0x1c00_0000;

/// What a machine consists of.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The date of the start, in seconds since 1970.
    pub start_s: u64,
}

impl Default for Configuration {
    /// 1 GiB, on 2024-01-01.
    fn default() -> Self {
        Self { memory_bytes: 1 << 30, start_s: 1_704_067_200 }
    }
}

/// Why the machine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The cycles are over.
    Limit,
    /// The core waits for an interrupt that only the outside can cause.
    Idle,
    /// Software switched off.
    PowerOff,
    /// Software asked for a reset. The machine keeps its state; a reset is a new machine.
    Reset,
}

/// A machine.
pub struct Machine {
    state: State,
    core: Core,
}

impl Machine {
    /// A machine after reset.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn new(configuration: &Configuration) -> Result<Self, MemoryError> {
        let memory = Memory::new(configuration.memory_bytes)?;
        let core = Core::new(memory, Platform::new(configuration.start_s));
        Ok(Self { state: State { pc: RESET_ADDRESS, ..State::default() }, core })
    }

    /// The registers of the core.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The registers of the core, to set them before it runs.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// Memory. Do not write to it after the machine has run: decoded instructions would not notice.
    pub fn memory(&self) -> &Memory {
        self.core.memory()
    }

    /// A CSR by its number, without the effects of reading it; `None` if it does not exist.
    pub fn csr(&self, number: u16) -> Option<u64> {
        self.core.csr(number)
    }

    /// Cycles since reset: one for each instruction and exception, and those that the core waited.
    pub fn cycles(&self) -> u64 {
        self.core.clock()
    }

    /// Takes the bytes that the serial port has sent. They are at most a small part of the cycles that have passed.
    pub fn take_console_output(&mut self) -> Vec<u8> {
        self.core.take_console_output()
    }

    /// Gives bytes to the serial port; returns how many its buffer took.
    pub fn type_on_console(&mut self, bytes: &[u8]) -> usize {
        self.core.type_on_console(bytes)
    }

    /// Runs for `cycles` cycles, or until the machine stops. The work is proportional to the cycles.
    pub fn run(&mut self, cycles: u64) -> Stop {
        let end = self.core.clock().saturating_add(cycles);
        match self.core.run(&mut self.state, end) {
            Pause::End => Stop::Limit,
            Pause::Idle => Stop::Idle,
            Pause::Power(PowerRequest::Off) => Stop::PowerOff,
            Pause::Power(PowerRequest::Reset) => Stop::Reset,
        }
    }
}
