//! A machine with up to 16 cores: runs them by turns, deterministically, for a number of cycles.

use std::rc::Rc;

use longma_loongarch::State;

use crate::core::{Bus, Core, Pause};
use crate::memory::{Memory, MemoryError};
use crate::platform::{Disk, MOST_DEVICES, Platform, PowerRequest, Transport};

/// Where a core starts after reset. Source: LoongArch Reference Manual, volume 1, section 6.3 (reset).
const RESET_ADDRESS: u64 = 0x1c00_0000;

/// The most cores of a machine.
pub const MOST_CORES: usize = 16;

/// Cycles of a turn if there are several cores. A core sees what the others do in its next turn.
const TURN: u64 = 2_000;

/// What a machine consists of.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Cores, 1 to [`MOST_CORES`].
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The date of the start, in seconds since 1970.
    pub start_s: u64,
}

impl Default for Configuration {
    /// One core and 1 GiB, on 2024-01-01.
    fn default() -> Self {
        Self { cores: 1, memory_bytes: 1 << 30, start_s: 1_704_067_200 }
    }
}

/// A machine cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The number of cores.
    #[error("{0} cores: a machine has from 1 to {MOST_CORES}")]
    Cores(usize),
    /// The memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// The PCI bus has no room for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a machine has up to {MOST_DEVICES} PCI devices")]
pub struct BusFull;

/// Why the machine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The cycles are over.
    Limit,
    /// All cores wait for an interrupt that only the outside can cause.
    Idle,
    /// Software switched off.
    PowerOff,
    /// Software asked for a reset. The machine keeps its state; a reset is a new machine.
    Reset,
}

/// A machine. Core 0 starts; software on it starts the others by an address in their mailbox 0 and an inter-processor
/// interrupt, as firmware permits it.
pub struct Machine {
    cores: Vec<(State, Core)>,
    bus: Rc<Bus>,
    /// The cycle at which the next turn begins.
    now: u64,
}

impl Machine {
    /// A machine after reset.
    ///
    /// # Errors
    /// The number of cores is not usable, or the memory cannot be allocated.
    pub fn new(configuration: &Configuration) -> Result<Self, ConfigurationError> {
        let count = configuration.cores;
        if !(1..=MOST_CORES).contains(&count) {
            return Err(ConfigurationError::Cores(count));
        }
        let memory = Memory::new(configuration.memory_bytes)?;
        let bus = Rc::new(Bus::new(memory, Platform::new(count, configuration.start_s)));
        let state = State { pc: RESET_ADDRESS, ..State::default() };
        let cores = (0..count).map(|number| (state.clone(), Core::new(number, Rc::clone(&bus)))).collect();
        Ok(Self { cores, bus, now: 0 })
    }

    /// Puts a disk on the PCI bus, before the machine runs. Disks get slots in the order of their attachment.
    ///
    /// # Errors
    /// The bus has no room.
    pub fn attach_disk(&mut self, disk: Disk) -> Result<(), BusFull> {
        self.attach(Transport::disk(disk))
    }

    /// Puts a source of random numbers on the PCI bus, before the machine runs. They depend on `seed` alone.
    ///
    /// # Errors
    /// The bus has no room.
    pub fn attach_entropy(&mut self, seed: u64) -> Result<(), BusFull> {
        self.attach(Transport::entropy(seed))
    }

    fn attach(&mut self, device: Transport) -> Result<(), BusFull> {
        if self.bus.platform.borrow_mut().attach(device) { Ok(()) } else { Err(BusFull) }
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// The registers of core 0.
    pub fn state(&self) -> &State {
        &self.cores[0].0
    }

    /// The registers of core 0, to set them before it runs.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.cores[0].0
    }

    /// Memory. Do not write to it after the machine has run: decoded instructions would not notice.
    pub fn memory(&self) -> &Memory {
        &self.bus.memory
    }

    /// A CSR of core 0 by its number, without the effects of reading it; `None` if it does not exist.
    pub fn csr(&self, number: u16) -> Option<u64> {
        self.cores[0].1.csr(number)
    }

    /// Cycles since reset: one for each instruction and exception of a core, and those that it waited.
    pub fn cycles(&self) -> u64 {
        self.now
    }

    /// The status that software has written to [`map::POWER`](crate::map::POWER) + 1; 0 if it has
    /// not.
    pub fn exit_status(&self) -> u8 {
        self.bus.platform.borrow().exit_status()
    }

    /// Takes the bytes that the serial port has sent. They are at most a small part of the cycles that have passed.
    pub fn take_console_output(&mut self) -> Vec<u8> {
        self.bus.platform.borrow_mut().take_console_output()
    }

    /// Gives bytes to the serial port; returns how many its buffer took.
    pub fn type_on_console(&mut self, bytes: &[u8]) -> usize {
        self.bus.platform.borrow_mut().type_on_console(bytes)
    }

    /// Runs for `cycles` cycles, or until the machine stops. The work is proportional to the cycles.
    ///
    /// Cores take turns on the thread of the caller, so that a run depends on nothing else.
    pub fn run(&mut self, cycles: u64) -> Stop {
        let end = self.now.saturating_add(cycles);
        let turn = if self.cores.len() == 1 { u64::MAX } else { TURN };
        loop {
            let turn_end = self.now.saturating_add(turn).min(end);
            let mut are_idle = true;
            for (state, core) in &mut self.cores {
                core.begin_turn(state, self.now);
                match core.run(state, turn_end) {
                    Pause::Power(request) => {
                        self.now = core.clock();
                        return match request {
                            PowerRequest::Off => Stop::PowerOff,
                            PowerRequest::Reset => Stop::Reset,
                        };
                    }
                    Pause::End => are_idle = false,
                    Pause::Idle => {}
                }
            }
            if are_idle && !self.has_message() {
                self.now = self.cores.iter().map(|(_, core)| core.clock()).fold(self.now, u64::max);
                return Stop::Idle;
            }
            self.now = self.next_turn(turn_end).min(end);
            if self.now >= end {
                self.now = self.cores.iter().map(|(_, core)| core.clock()).fold(self.now, u64::max);
                return Stop::Limit;
            }
        }
    }

    /// Whether a core that waits finds an interrupt or a message in its next turn.
    fn has_message(&mut self) -> bool {
        self.cores.iter_mut().any(|(state, core)| {
            core.begin_turn(state, self.now);
            !core.is_waiting()
        })
    }

    /// The beginning of the next turn: the end of this one, or the next event if all cores wait.
    fn next_turn(&mut self, turn_end: u64) -> u64 {
        let is_waiting = self.cores.len() > 1
            && self.cores.iter().all(|(_, core)| core.is_waiting())
            && !self.has_message();
        let events = self.cores.iter().filter_map(|(_, core)| core.next_event());
        events.min().filter(|_| is_waiting).map_or(turn_end, |event| event.max(turn_end))
    }
}
