//! A machine with one core: runs it, deterministically, for a number of cycles.

use longma_loongarch::{Location, State};

use crate::core::code::{CodePage, Step, check};
use crate::core::{Core, Record};
use crate::exception::Exception;
use crate::memory::{Memory, MemoryError, PAGE_BYTES};
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
        loop {
            match self.core.take_power_request() {
                Some(PowerRequest::Off) => return Stop::PowerOff,
                Some(PowerRequest::Reset) => return Stop::Reset,
                None => {}
            }
            if self.core.clock() >= end {
                return Stop::Limit;
            }
            self.core.update_timer();
            let pending = self.core.pending_interrupt();
            if self.core.is_idle() {
                match (pending, self.core.next_event()) {
                    // An interrupt ends the wait even if CRMD.IE is 0.
                    (Some(_), _) => self.core.set_idle(false),
                    (None, Some(event)) => {
                        let wait = event.min(end).saturating_sub(self.core.clock());
                        self.core.advance_clock(wait);
                        continue;
                    }
                    (None, None) => return Stop::Idle,
                }
            }
            if let Some(line) = pending.filter(|_| self.core.interrupts_enabled()) {
                self.core.enter(&mut self.state, Exception::Interrupt(line), Record::default());
                self.core.advance_clock(1);
                continue;
            }
            self.core.grant(end);
            self.execute();
        }
    }

    /// Executes instructions until the core must look at interrupts or its time is over.
    fn execute(&mut self) {
        while !self.core.is_due() {
            let pc = self.state.pc;
            match self.core.code_page(pc) {
                Ok(page) => self.execute_page(&page),
                Err(exception) => {
                    self.core.advance_clock(1);
                    let record = Record { address: pc, word: None };
                    self.core.enter(&mut self.state, exception, record);
                }
            }
        }
    }

    /// Executes instructions of one page, until control leaves it or the core must look at its state. A store to the page
    /// and a new mapping make it look.
    fn execute_page(&mut self, page: &CodePage) {
        let start = self.state.pc & !(PAGE_BYTES - 1);
        loop {
            let pc = self.state.pc;
            let step = page.step(pc, || self.core.word(page, pc));
            self.core.advance_clock(1);
            let outcome = if step.checks == 0 {
                (step.run)(&mut self.state, &step.instruction, &self.core)
            } else if let Some(exception) = self.refusal(step) {
                let word = Some(self.core.word(page, pc));
                let record = Record { address: self.state.r(step.instruction.j), word };
                return self.core.enter(&mut self.state, exception, record);
            } else {
                self.core.run_checked(step, &mut self.state)
            };
            if let Err(trap) = outcome {
                let word = self.core.word(page, pc);
                let (exception, record) =
                    self.core.exception_of_trap(&self.state, &step.instruction, word, trap);
                return self.core.enter(&mut self.state, exception, record);
            }
            self.state.pc = self.state.pc.wrapping_add(u64::from(step.advance));
            // A jump to an address whose lowest bits are not 0 leaves the page, too: it is an exception.
            let inside = (self.state.pc ^ start) & !(PAGE_BYTES - 4) == 0;
            if !inside || self.core.is_due() {
                return;
            }
        }
    }

    /// The exception of an instruction whose unit is disabled, or that must not write where it would read first.
    fn refusal(&self, step: &Step) -> Option<Exception> {
        let missing = step.checks & check::UNITS & !self.core.units();
        if missing & check::VECTOR256 != 0 {
            return Some(Exception::Vector256Disabled);
        } else if missing & check::VECTOR128 != 0 {
            return Some(Exception::Vector128Disabled);
        } else if missing & check::FLOAT != 0 {
            return Some(Exception::FloatDisabled);
        } else if missing & check::TRANSLATION != 0 {
            return Some(Exception::TranslationDisabled);
        }
        if step.checks & check::COUNTER != 0 && self.core.forbids_counter() {
            return Some(Exception::PrivilegedInstruction);
        }
        let (i, row) = (&step.instruction, step.instruction.op.row());
        // The semantics report rd = rj, which is illegal.
        if step.checks & check::MODIFIES != 0 && i.d != i.j {
            let bytes = row.writes.iter().find_map(|location| match location {
                Location::Memory(bytes) => Some(usize::from(*bytes)),
                _ => None,
            })?;
            return self.core.refused_store(self.state.r(i.j), bytes);
        }
        None
    }
}
